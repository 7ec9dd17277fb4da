"""The simulated hypervisor: faults on request, and a memory that survives kills and many processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from fleet.hypervisor import (
    Domain,
    DomainSpec,
    DomainState,
    Fault,
    FaultPlan,
    HypervisorError,
    SimulatedHypervisor,
    simulated_hypervisor,
)
from fleet.hypervisor.domain_file import DomainFile
from fleet.model.config_value import ConfigError
from fleet.model.domain import sum_domains

START_SECONDS_MAX = 120
"""A process is started afresh, never forked: other tests leave threads behind, which a fork would not have."""


def a_spec(number: int = 1) -> DomainSpec:
    return DomainSpec(uuid=f"i{number}", name=f"vm{number}", cpus=1, memory_mb=256, disk_gb=5)


def with_faults(tmp_path: Path, faults: dict[str, Any]) -> SimulatedHypervisor:
    return simulated_hypervisor(tmp_path, "n1", faults=faults)


def test_a_scripted_failure_without_effect_leaves_nothing_behind(tmp_path: Path) -> None:
    driver = with_faults(tmp_path, {"script": [{"call": "create", "nth": 2, "fault": "unreachable"}]})
    driver.create(a_spec(1))

    with pytest.raises(HypervisorError) as caught:
        driver.create(a_spec(2))

    assert (caught.value.fault, caught.value.transient) == (Fault.UNREACHABLE, True)
    assert [domain.uuid for domain in driver.domains()] == ["i1"]
    driver.create(a_spec(2))
    assert [domain.uuid for domain in driver.domains()] == ["i1", "i2"]


def test_a_lost_answer_leaves_the_work_done(tmp_path: Path) -> None:
    driver = with_faults(tmp_path, {"script": [{"call": "create", "nth": 1, "fault": "timed_out", "effect": "done"}]})

    with pytest.raises(HypervisorError, match="its answer was lost"):
        driver.create(a_spec())

    assert [domain.uuid for domain in driver.domains()] == ["i1"]


def test_a_script_counts_over_restarts(tmp_path: Path) -> None:
    faults = {"script": [{"call": "delete", "nth": 2, "fault": "refused"}]}
    with_faults(tmp_path, faults).delete("i1")

    with pytest.raises(HypervisorError) as caught:
        with_faults(tmp_path, faults).delete("i1")

    assert (caught.value.fault, caught.value.transient) == (Fault.REFUSED, False)


def test_a_call_that_was_refused_is_counted(tmp_path: Path) -> None:
    driver = with_faults(tmp_path, {"script": [{"call": "start", "nth": 2, "fault": "timed_out"}]})

    for fault in (Fault.NO_SUCH_DOMAIN, Fault.TIMED_OUT, Fault.NO_SUCH_DOMAIN):
        with pytest.raises(HypervisorError) as caught:
            driver.start("i1")
        assert caught.value.fault is fault


def test_the_script_may_call_a_failure_permanent(tmp_path: Path) -> None:
    driver = with_faults(tmp_path, {"script": [{"call": "stop", "nth": 1, "transient": False}]})

    with pytest.raises(HypervisorError) as caught:
        driver.stop("i1")

    assert (caught.value.fault, caught.value.transient) == (Fault.UNREACHABLE, False)


def test_b12_a_hypervisor_that_cannot_be_asked_never_has_no_domains(tmp_path: Path) -> None:
    driver = with_faults(tmp_path, {"script": [{"call": "domains", "nth": 1}]})
    driver.create(a_spec())

    with pytest.raises(HypervisorError):
        driver.domains()
    assert len(driver.domains()) == 1


def test_failures_by_chance_come_about_as_often_as_asked_also_from_new_processes(tmp_path: Path) -> None:
    faults = {"failures": {"create": {"probability": 0.3}}}
    failed = 0
    for number in range(200):
        try:
            with_faults(tmp_path, faults).create(a_spec(number))
        except HypervisorError:
            failed += 1

    assert 30 <= failed <= 90
    assert len(with_faults(tmp_path, {}).domains()) == 200 - failed


def test_delays_are_waited_before_the_effect(tmp_path: Path) -> None:
    slept: list[tuple[float, int]] = []
    file = tmp_path / "n1.json"
    driver = SimulatedHypervisor(
        file,
        plan=FaultPlan.parse({"delays": {"create": 0.5}}),
        sleep=lambda seconds: slept.append((seconds, len(DomainFile(file).read().domains))),
    )

    driver.create(a_spec())

    assert slept == [(0.5, 0)]
    assert len(driver.domains()) == 1


def test_a_plan_reports_all_its_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        FaultPlan.parse(
            {
                "delays": {"create": -1, "reboot": 1},
                "failures": {"start": {"probability": 1.5, "fault": "boom"}},
                "script": [{"call": "create", "nth": 0, "effect": "half"}, 7],
                "mood": "bad",
            }
        )

    assert {problem.key for problem in caught.value.problems} == {
        "faults.mood",
        "delays.reboot",
        "delays.create",
        "failures.start.probability",
        "failures.start.fault",
        "script[0].nth",
        "script[0].effect",
        "script[1]",
        "script[1].call",
        "script[1].nth",
    }


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "domains": [{}], "calls": {}}'])
def test_a_damaged_file_is_an_error_and_never_an_empty_hypervisor(tmp_path: Path, content: str) -> None:
    driver = simulated_hypervisor(tmp_path, "n1")
    (tmp_path / "n1.json").write_text(content)

    for act in (driver.domains, lambda: driver.create(a_spec()), driver.domain_set):
        with pytest.raises(HypervisorError) as caught:
            act()
        assert (caught.value.fault, caught.value.transient) == (Fault.STATE_UNREADABLE, False)
    assert (tmp_path / "n1.json").read_text() == content


def test_a_folder_that_went_away_is_unreachable(tmp_path: Path) -> None:
    driver = SimulatedHypervisor(tmp_path / "gone" / "n1.json")

    for act in (driver.domains, lambda: driver.create(a_spec())):
        with pytest.raises(HypervisorError) as caught:
            act()
        assert caught.value.fault is Fault.UNREACHABLE


def test_nodes_have_memories_of_their_own_whatever_their_names(tmp_path: Path) -> None:
    names = ["n1", "n1.json", "a/b", "..", "ä"]
    for number, name in enumerate(names):
        simulated_hypervisor(tmp_path, name).create(a_spec(number))

    assert [[d.uuid for d in simulated_hypervisor(tmp_path, name).domains()] for name in names] == [
        [f"i{number}"] for number in range(len(names))
    ]
    assert all(file.parent == tmp_path for file in tmp_path.rglob("*.json"))


def test_domains_may_appear_behind_the_products_back(tmp_path: Path) -> None:
    driver = simulated_hypervisor(tmp_path, "n1")
    driver.put(
        Domain(
            uuid="f1",
            name="foreign",
            state=DomainState.RUNNING,
            vcpus=4,
            memory_mb=8192,
            disk_gb=100,
            owned=False,
        )
    )

    sums = sum_domains(driver.domains())
    assert (sums.foreign_vcpus, sums.foreign_memory_mb, sums.vcpus) == (4, 8192, 0)


def test_disks_occupy_room_only_where_the_node_is_simulated(tmp_path: Path) -> None:
    simulated_hypervisor(tmp_path, "simulated").create(a_spec())
    simulated_hypervisor(tmp_path, "real", occupies_disk=False).create(a_spec())

    occupied = [simulated_hypervisor(tmp_path, name).domains()[0].disk_occupied_mb for name in ("simulated", "real")]
    assert occupied == [5 * 1024, 0]


def _create_many(folder: Path, first: int, barrier: Barrier) -> None:
    driver = simulated_hypervisor(folder, "n1")
    barrier.wait(START_SECONDS_MAX)
    for number in range(first, first + 25):
        driver.create(a_spec(number))
        driver.create(a_spec(1000))


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    processes = [context.Process(target=_create_many, args=(tmp_path, 25 * n, barrier)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(2 * START_SECONDS_MAX)

    assert [process.exitcode for process in processes] == [0] * 4
    assert {d.uuid for d in simulated_hypervisor(tmp_path, "n1").domains()} == {f"i{n}" for n in [*range(100), 1000]}


def _die_while_changing(folder: Path) -> None:
    with DomainFile(folder / "n1.json").changing() as remembered:
        remembered.domains.clear()
        (folder / "n1.json.next").write_text('{"format": 1, "dom')
        (folder / "reached").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_killed_while_writing_leaves_the_old_state_and_no_lock(tmp_path: Path) -> None:
    driver = simulated_hypervisor(tmp_path, "n1")
    driver.create(a_spec(1))
    process = multiprocessing.get_context("spawn").Process(target=_die_while_changing, args=(tmp_path,))
    process.start()
    process.join(START_SECONDS_MAX)

    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "reached").exists()
    assert [domain.uuid for domain in driver.domains()] == ["i1"]
    driver.create(a_spec(2))
    assert [domain.uuid for domain in driver.domains()] == ["i1", "i2"]


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    simulated_hypervisor(tmp_path, "n1").create(a_spec())

    assert json.loads((tmp_path / "n1.json").read_text())["domains"][0]["name"] == "vm1"
