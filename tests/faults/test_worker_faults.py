"""A worker that dies, freezes or is doubled between any two steps: the work is finished, one domain, one charge."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.ledger import events, nodes, operations, samples
from fleet.ledger.cluster import now_us
from fleet.ledger.nodes import NodeIn
from fleet.model.lifecycle import InstanceState, OperationState
from fleet.model.node import Scheduling
from fleet.services import work
from fleet.services.delete import delete_instance
from fleet.services.work import Outcome
from tests.faults.rig import SHORT_LEASE, WAIT_SECONDS_MAX, Rig, assert_made_once
from tests.servers import wait_until

FAILS_ONCE = {"script": [{"call": "create", "nth": 1, "fault": "unreachable"}]}
ANSWER_LOST_ONCE = {"script": [{"call": "create", "nth": 1, "fault": "timed_out", "effect": "done"}]}
NEVER_ANSWERS = {"failures": {"create": {"probability": 1, "fault": "timed_out", "effect": "none"}}}
ALWAYS_DONE_NEVER_SAID = {"failures": {"create": {"probability": 1, "fault": "timed_out", "effect": "done"}}}
SILENT = NEVER_ANSWERS | {
    "failures": {
        "create": {"probability": 1, "fault": "timed_out", "effect": "none"},
        "domains": {"probability": 1, "fault": "unreachable"},
    }
}
REFUSES = {"failures": {"create": {"probability": 1, "fault": "refused"}}}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts in this process follow each other soon; daemons pause as ever."""
    monkeypatch.setattr(work, "RETRY_SECONDS_FIRST", 0.02)
    monkeypatch.setattr(work, "WAIT_FOR_OTHER_SECONDS", 0.02)


@pytest.fixture
def rig_of(tmp_path: Path, mariadb_url: str, redis_url: str) -> Iterator[list[Rig]]:
    """Room for a rig that a test makes with faults of its own."""
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.close()


def with_faults(rig_of: list[Rig], tmp_path: Path, urls: tuple[str, str], faults: object, node_count: int = 2) -> Rig:
    assert isinstance(faults, dict)
    rig_of.append(Rig(tmp_path, *urls, node_count=node_count, faults=faults))
    return rig_of[0]


def assert_gone(rig: Rig, uuid: str) -> None:
    assert rig.instance(uuid).state is InstanceState.DELETED
    assert (rig.homes(uuid), rig.charges(uuid), rig.differences()) == ([], [], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "worker_after_take",
        "worker_after_lease",
        "worker_after_preflight",
        "worker_before_hypervisor_create",
        "worker_after_hypervisor_create",
        "worker_before_settle_commit",
        "worker_after_settle",
    ],
)
def test_b19_a_create_whose_worker_is_killed_is_finished_by_the_next(rig: Rig, point: str) -> None:
    created = rig.create()
    rig.wait_for_kill(rig.start_worker(*SHORT_LEASE, faults=f"{point}:kill"), point)
    rig.wait_for_leases()
    rig.sweep()
    rig.start_worker()

    rig.wait_for_state(created.uuid, InstanceState.RUNNING)
    wait_until(
        lambda: rig.operation(created.operation_id).state is OperationState.DONE,
        seconds=WAIT_SECONDS_MAX,
        what="the operation ends",
    )
    assert_made_once(rig, created.uuid)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "worker_after_take",
        "worker_after_lease",
        "worker_before_hypervisor_delete",
        "worker_after_hypervisor_delete",
        "worker_before_settle_delete_commit",
        "worker_after_settle_delete",
    ],
)
def test_b19_a_delete_whose_worker_is_killed_is_finished_by_the_next(rig: Rig, point: str) -> None:
    created = rig.create()
    assert rig.carry_out(created.operation_id) is Outcome.DONE
    delete_instance(rig.context, created.uuid, None)
    rig.wait_for_kill(rig.start_worker(*SHORT_LEASE, faults=f"{point}:kill"), point)
    rig.wait_for_leases()
    rig.sweep()
    rig.start_worker()

    rig.wait_for_state(created.uuid, InstanceState.DELETED)
    assert_gone(rig, created.uuid)


@pytest.mark.slow
def test_a_create_redirected_by_a_worker_that_is_killed_before_the_wake_up_is_finished(rig: Rig) -> None:
    created = rig.create()
    samples.set_scheduling(rig.db, created.node, Scheduling.CORDONED)
    rig.wait_for_kill(rig.start_worker(faults="worker_after_redirect:kill"), "worker_after_redirect")
    rig.sweep()
    rig.start_worker()

    rig.wait_for_state(created.uuid, InstanceState.RUNNING)
    assert rig.instance(created.uuid).node != created.node
    assert_made_once(rig, created.uuid)


@pytest.mark.slow
def test_a_worker_that_was_frozen_beyond_its_lease_can_write_nothing(rig: Rig) -> None:
    created = rig.create()
    point = "worker_after_hypervisor_create"
    frozen = rig.start_worker(*SHORT_LEASE, faults=f"{point}:pause")
    wait_until((rig.markers / point).exists, seconds=WAIT_SECONDS_MAX, what=f"the worker stands at {point}")
    os.kill(frozen.pid, signal.SIGSTOP)
    rig.wait_for_leases()
    assert rig.carry_out(created.operation_id, "the next worker") is Outcome.DONE
    (rig.markers / f"{point}.go").write_text("")
    os.kill(frozen.pid, signal.SIGCONT)

    wait_until(lambda: '"lease_lost"' in rig.logs(), seconds=WAIT_SECONDS_MAX, what="the frozen worker finds out")
    operation = rig.operation(created.operation_id)
    assert (operation.state, operation.lease_number) == (OperationState.DONE, 2)
    assert_made_once(rig, created.uuid)


@pytest.mark.slow
def test_the_lease_of_a_killed_worker_runs_out_by_itself_and_the_reconciler_finds_the_work(rig: Rig) -> None:
    created = rig.create()
    rig.wait_for_kill(rig.start_worker(faults="worker_after_lease:kill"), "worker_after_lease")
    runs_out = rig.operation(created.operation_id).lease_expires_at
    assert runs_out is not None
    # The work of the dead stands for 15 s at most, however long this machine then takes to find it.
    assert runs_out <= now_us(rig.db) + 15_000_000
    rig.start("reconciler")
    rig.start_worker()

    rig.wait_for_state(created.uuid, InstanceState.RUNNING)
    assert_made_once(rig, created.uuid)


@pytest.mark.slow
def test_b54_a_retry_that_waits_is_run_by_another_worker(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), FAILS_ONCE)
    created = rig.create()
    first = rig.start_worker()
    wait_until(
        lambda: (
            rig.operation(created.operation_id).attempts == 1
            and rig.operation(created.operation_id).state is OperationState.PENDING
        ),
        seconds=WAIT_SECONDS_MAX,
        what="the first attempt fails",
    )
    first.kill()
    rig.start_worker()
    rig.start("reconciler")

    rig.wait_for_state(created.uuid, InstanceState.RUNNING)
    assert rig.operation(created.operation_id).attempts == 2
    assert_made_once(rig, created.uuid)
    messages = [event.message for event in events.listing(rig.db, "instance", created.uuid)]
    assert "operation attempt failed" in messages


def test_a_create_whose_answer_was_lost_finds_its_own_domain(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), ANSWER_LOST_ONCE)
    created = rig.create()

    assert rig.carry_out(created.operation_id) is Outcome.RETRY
    assert len(rig.homes(created.uuid)) == 1
    rig.wait_for_pauses()
    assert rig.carry_out(created.operation_id) is Outcome.DONE
    assert_made_once(rig, created.uuid)


def attempts_to_the_end(rig: Rig, operation: str) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while rig.operation(operation).state is OperationState.PENDING:
        outcomes.append(rig.carry_out(operation))
        rig.wait_for_pauses()
    return outcomes


def test_a_create_given_up_gives_its_charge_back_when_the_node_proves_absence(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), NEVER_ANSWERS, node_count=1)
    created = rig.create()

    assert attempts_to_the_end(rig, created.operation_id) == [Outcome.RETRY] * 4 + [Outcome.FAILED]
    assert rig.instance(created.uuid).state is InstanceState.ERROR
    assert (rig.charges(created.uuid), rig.homes(created.uuid), rig.differences()) == ([], [], [])


def test_b11_a_create_given_up_keeps_its_charge_while_nothing_is_proved(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), SILENT, node_count=1)
    created = rig.create()

    assert attempts_to_the_end(rig, created.operation_id)[-1] is Outcome.FAILED
    assert rig.instance(created.uuid).state is InstanceState.ERROR
    assert len(rig.charges(created.uuid)) == 1
    failed = [e for e in events.listing(rig.db, "instance", created.uuid) if e.message == "instance create failed"]
    assert [event.payload["charge"] for event in failed] == ["kept until the node proves that no domain is there"]


def test_a_create_whose_every_answer_was_lost_is_settled_when_the_domain_is_there(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), ALWAYS_DONE_NEVER_SAID, node_count=1)
    created = rig.create()

    assert attempts_to_the_end(rig, created.operation_id)[-1] is Outcome.DONE
    assert_made_once(rig, created.uuid)


def test_a_node_that_refuses_for_good_hands_the_create_to_the_next_candidate(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), {})
    created = rig.create()
    rig.set_faults(created.node, REFUSES)

    assert rig.carry_out(created.operation_id) is Outcome.REDIRECTED
    assert rig.carry_out(created.operation_id) is Outcome.DONE
    assert rig.instance(created.uuid).node != created.node
    assert_made_once(rig, created.uuid)


def test_preflight_goes_on_where_no_other_node_has_room(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), {}, node_count=1)
    created = rig.create()
    samples.set_scheduling(rig.db, created.node, Scheduling.CORDONED)

    assert rig.carry_out(created.operation_id) is Outcome.DONE
    assert_made_once(rig, created.uuid)


def test_a_pinned_create_is_never_redirected(rig: Rig) -> None:
    created = rig.create()
    rig.pin(created.uuid, created.node)
    samples.set_scheduling(rig.db, created.node, Scheduling.CORDONED)

    assert rig.carry_out(created.operation_id) is Outcome.DONE
    assert rig.homes(created.uuid) == [created.node]


def test_a_delete_ends_the_create_that_no_worker_has_begun(rig: Rig) -> None:
    created = rig.create()
    deleting = delete_instance(rig.context, created.uuid, None)

    assert rig.carry_out(deleting.operation_id) is Outcome.DONE
    assert rig.operation(created.operation_id).state is OperationState.CANCELLED
    assert rig.carry_out(created.operation_id) is Outcome.NOT_TAKEN
    assert_gone(rig, created.uuid)


def test_a_delete_waits_for_the_create_that_a_worker_has_in_hand(rig: Rig) -> None:
    created = rig.create()
    leased = operations.lease(rig.db, created.operation_id, "a worker at work", 60)
    assert leased is not None
    deleting = delete_instance(rig.context, created.uuid, None)

    assert rig.carry_out(deleting.operation_id) is Outcome.WAITS
    assert rig.operation(deleting.operation_id).attempts == 0
    # Nobody extends it any more.
    assert operations.heartbeat(rig.db, leased, 0)
    rig.wait_for_leases()
    rig.wait_for_pauses()
    assert rig.carry_out(deleting.operation_id) is Outcome.DONE
    assert not operations.heartbeat(rig.db, leased, 60)
    assert_gone(rig, created.uuid)


def test_a_create_of_an_instance_that_is_being_deleted_makes_nothing(rig: Rig) -> None:
    created = rig.create()
    delete_instance(rig.context, created.uuid, None)

    assert rig.carry_out(created.operation_id) is Outcome.CANCELLED
    assert rig.homes(created.uuid) == []


def test_a_failed_create_is_tried_again_by_an_operator_while_its_charge_stands(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), SILENT, node_count=1)
    created = rig.create()
    attempts_to_the_end(rig, created.operation_id)
    rig.set_faults("n1", {})
    operations.retry(rig.db, created.operation_id)

    assert rig.carry_out(created.operation_id) is Outcome.DONE
    assert_made_once(rig, created.uuid)


def test_a_failed_create_without_a_charge_cannot_be_tried_again(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), NEVER_ANSWERS, node_count=1)
    created = rig.create()
    attempts_to_the_end(rig, created.operation_id)
    operations.retry(rig.db, created.operation_id)

    assert rig.carry_out(created.operation_id) is Outcome.FAILED
    assert "create a new instance" in (rig.operation(created.operation_id).error or "")
    assert rig.homes(created.uuid) == []


@pytest.mark.slow
def test_a_worker_told_to_stop_finishes_what_it_has_in_hand(
    rig_of: list[Rig], tmp_path: Path, mariadb_url: str, redis_url: str
) -> None:
    rig = with_faults(rig_of, tmp_path, (mariadb_url, redis_url), {"delays": {"create": 1.5}})
    created = rig.create()
    worker = rig.start_worker()
    wait_until(
        lambda: rig.operation(created.operation_id).state is OperationState.RUNNING,
        seconds=WAIT_SECONDS_MAX,
        what="it has begun",
    )
    worker.terminate()

    assert worker.wait(WAIT_SECONDS_MAX) == 0
    assert_made_once(rig, created.uuid)


def test_a_cancelled_create_ends_in_error_and_is_deleted_like_any_other(rig: Rig) -> None:
    created = rig.create()
    operations.cancel(rig.db, created.operation_id)

    assert rig.instance(created.uuid).state is InstanceState.ERROR
    assert rig.carry_out(created.operation_id) is Outcome.NOT_TAKEN
    assert rig.carry_out(delete_instance(rig.context, created.uuid, None).operation_id) is Outcome.DONE
    assert_gone(rig, created.uuid)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["named", "own"])
def test_a_worker_serves_its_nodes_and_no_others(rig: Rig, how: str) -> None:
    created = [rig.create(f"i{number}", memory_mb=64) for number in range(8)]
    here = [item for item in created if item.node == "n1"]
    if how == "named":
        rig.start("worker", "--nodes", "n1")
    else:
        rig.start("worker", more={"FLEET_NODE_NAME": "n1"})
    for item in here:
        rig.wait_for_state(item.uuid, InstanceState.RUNNING)

    assert {rig.instance(item.uuid).state for item in created if item.node != "n1"} <= {InstanceState.CREATING}
    assert [rig.homes(item.uuid) for item in created if item.node != "n1"] == [[]] * (len(created) - len(here))


@pytest.mark.slow
def test_a_worker_of_all_simulated_nodes_serves_one_that_is_registered_later(rig: Rig) -> None:
    worker = rig.start_worker()
    wait_until(lambda: "daemon.started" in rig.logs(), seconds=WAIT_SECONDS_MAX, what="the worker has started")
    nodes.register(rig.db, NodeIn(name="later", declared={"backend": "simulated"}))
    rig.publish("later")
    for name in ("n1", "n2"):
        samples.set_scheduling(rig.db, name, Scheduling.CORDONED)
    created = rig.create()

    assert created.node == "later"
    rig.wait_for_state(created.uuid, InstanceState.RUNNING)
    assert worker.poll() is None
