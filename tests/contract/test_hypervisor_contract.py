"""One suite for every hypervisor driver: what a worker may rely on, whatever makes the instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fleet.hypervisor import DomainSpec, DomainState, Fault, Hypervisor, HypervisorError, simulated_hypervisor

SPEC = DomainSpec(uuid="8d1c7b1e-0000-4000-8000-000000000001", name="web", cpus=2, memory_mb=512, disk_gb=10)
OTHER = replace(SPEC, uuid="8d1c7b1e-0000-4000-8000-000000000002", name="db")

Reopen = Callable[[], Hypervisor]


@pytest.fixture(params=["simulated"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """Each call connects anew to the same node, as a restarted process would."""
    assert request.param == "simulated"
    return lambda: simulated_hypervisor(tmp_path / "state", "n1", max_vcpus=8)


@pytest.fixture
def driver(reopen: Reopen) -> Hypervisor:
    return reopen()


def states(driver: Hypervisor) -> dict[str, DomainState]:
    return {domain.uuid: domain.state for domain in driver.domains()}


def test_a_new_hypervisor_has_no_domains(driver: Hypervisor) -> None:
    assert list(driver.domains()) == []
    assert driver.domain_set() == frozenset()


def test_a_created_domain_runs_with_what_was_asked_for(driver: Hypervisor) -> None:
    driver.create(SPEC)

    (domain,) = driver.domains()
    assert (domain.uuid, domain.name, domain.state) == (SPEC.uuid, "web", DomainState.RUNNING)
    assert (domain.vcpus, domain.memory_mb, domain.disk_gb, domain.owned) == (2, 512, 10, True)


def test_creating_twice_makes_one_domain(driver: Hypervisor) -> None:
    driver.create(SPEC)
    driver.create(SPEC)

    assert len(driver.domains()) == 1


def test_a_repeated_create_does_not_start_what_was_stopped(driver: Hypervisor) -> None:
    driver.create(SPEC)
    driver.stop(SPEC.uuid)

    driver.create(SPEC)

    assert states(driver) == {SPEC.uuid: DomainState.SHUT_OFF}


@pytest.mark.parametrize("difference", [{"cpus": 3}, {"memory_mb": 513}, {"disk_gb": 11}, {"name": "other"}])
def test_another_domain_under_the_same_uuid_is_refused_and_left_alone(
    driver: Hypervisor, difference: dict[str, object]
) -> None:
    driver.create(SPEC)

    with pytest.raises(HypervisorError) as caught:
        driver.create(replace(SPEC, **difference))  # type: ignore[arg-type]  # the table's columns differ in type

    assert (caught.value.fault, caught.value.transient) == (Fault.DOMAIN_DIFFERS, False)
    assert [(domain.vcpus, domain.memory_mb, domain.disk_gb) for domain in driver.domains()] == [(2, 512, 10)]


def test_stop_and_start_move_the_state_and_may_be_repeated(driver: Hypervisor) -> None:
    driver.create(SPEC)

    for verb, state in (
        (driver.stop, DomainState.SHUT_OFF),
        (driver.stop, DomainState.SHUT_OFF),
        (driver.start, DomainState.RUNNING),
        (driver.start, DomainState.RUNNING),
    ):
        verb(SPEC.uuid)
        assert states(driver) == {SPEC.uuid: state}


def test_starting_or_stopping_what_does_not_exist_is_an_error_that_repeating_cannot_cure(driver: Hypervisor) -> None:
    for verb in (driver.start, driver.stop):
        with pytest.raises(HypervisorError) as caught:
            verb(SPEC.uuid)
        assert (caught.value.fault, caught.value.transient) == (Fault.NO_SUCH_DOMAIN, False)


def test_deleting_removes_one_domain_and_may_be_repeated(driver: Hypervisor) -> None:
    driver.create(SPEC)
    driver.create(OTHER)

    driver.delete(SPEC.uuid)
    driver.delete(SPEC.uuid)

    assert set(states(driver)) == {OTHER.uuid}


def test_the_domain_set_changes_with_every_create_stop_start_and_delete(driver: Hypervisor) -> None:
    seen = [driver.domain_set()]
    driver.create(SPEC)
    seen.append(driver.domain_set())
    for verb in (driver.stop, driver.start, driver.delete):
        verb(SPEC.uuid)
        seen.append(driver.domain_set())

    assert all(before != after for before, after in pairwise(seen))
    assert driver.domain_set() == driver.domain_set()


def test_more_vcpus_than_stated_are_refused(driver: Hypervisor) -> None:
    assert driver.max_vcpus() == 8

    driver.create(replace(SPEC, cpus=8))
    with pytest.raises(HypervisorError) as caught:
        driver.create(replace(OTHER, cpus=9))

    assert (caught.value.fault, caught.value.transient) == (Fault.REFUSED, False)
    assert len(driver.domains()) == 1


def test_domains_survive_the_process_that_made_them(driver: Hypervisor, reopen: Reopen) -> None:
    driver.create(SPEC)

    again = reopen()

    assert again.domains() == driver.domains()
    again.delete(SPEC.uuid)
    assert list(driver.domains()) == []
