"""An sf-api that is killed at any step of a create or a delete: the work is done once, or nothing of it stands."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from fleet import bootstrap
from fleet.config import load_settings
from fleet.ledger import cluster_config, instances, operations
from fleet.ledger.database import Sql
from fleet.model.lifecycle import InstanceState, OperationKind, OperationState
from fleet.model.request import InstanceRequest
from fleet.services.create import Created, create_instance
from fleet.services.idempotency import RetryKey
from fleet.services.place import Refusal
from tests.faults.rig import Rig
from tests.faults.soak import (
    LOST,
    Api,
    Soak,
    StartApi,
    assert_books_are_true,
    assert_only_honest_answers,
    wait_for,
    wait_until_all_is_done,
)
from tests.ledger import fleet_of
from tests.ledger.holding import LOOK_SECONDS, open_transaction

KILLS = 50
KEY = "the-first-try"

# Everything that a create may leave behind: rows by table, and what the counters say.
TRACES = Sql("""
    SELECT (SELECT COUNT(*) FROM instances) AS instances, (SELECT COUNT(*) FROM charges) AS charges,
        (SELECT COUNT(*) FROM operations) AS operations, (SELECT COUNT(*) FROM idempotency_keys) AS idempotency_keys,
        (SELECT COUNT(*) FROM decisions WHERE outcome = 'placed') AS placed,
        (SELECT SUM(used_cpus + used_memory_mb + used_instances + pending_memory_mb) FROM scheduler_node_capacity)
            AS used,
        (SELECT SUM(expected_demand) FROM scheduler_node_capacity) AS demand,
        (SELECT unclaimed_used_cpus + unclaimed_used_memory_mb FROM cluster_capacity) AS unclaimed,
        (SELECT COALESCE(SUM(used_cpus + used_memory_mb), 0) FROM namespace_claims) AS claimed
""")
OPEN_TRANSACTIONS = Sql("""
    SELECT COUNT(*) FROM information_schema.innodb_trx t
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()
""")
LIMIT = Sql("UPDATE scheduler_node_capacity SET limit_memory_mb = :memory_mb")
HOLD_CLUSTER = Sql("UPDATE cluster_capacity SET updated_at = updated_at WHERE id = 1")
HOLD_NODES = Sql("SELECT node_id FROM scheduler_node_capacity {for_update}")


def traces(rig: Rig) -> dict[str, object]:
    with rig.db.read() as conn:
        return dict(TRACES.run(conn).mappings().one())


def wait_until_no_transaction_is_open(rig: Rig) -> None:
    def none_is_open() -> bool:
        time.sleep(LOOK_SECONDS)
        with rig.db.read() as conn:
            return int(OPEN_TRANSACTIONS.run(conn).scalar_one()) == 0

    wait_for(rig, none_is_open, what="no transaction is left open on the server")


def assert_made_once(rig: Rig, uuid: str) -> None:
    assert [view.uuid for view in instances.listing(rig.db, None, 10)] == [uuid]
    assert_books_are_true(rig, {uuid}, set())


def test_a_create_whose_api_is_killed_before_the_wake_up_is_swept_up_and_made_once(
    rig: Rig, start_api: StartApi
) -> None:
    point = "api_after_commit_before_wake"
    dying = start_api(faults=f"{point}:kill")
    assert dying.client().create("i", key=KEY).status == LOST
    rig.wait_for_kill(dying.process, point)
    [instance] = instances.listing(rig.db, None, 10)
    assert (instance.state, len(rig.charges(instance.uuid))) == (InstanceState.CREATING, 1)
    assert rig.wake_ups.waiting(instance.node_id or 0) == 0

    client = start_api().client()
    early = client.create("i", key=KEY)
    rig.start("reconciler")
    rig.start_worker()
    rig.wait_for_state(instance.uuid, InstanceState.RUNNING)
    wait_until_all_is_done(rig)
    late = client.create("i", key=KEY)

    assert (early.status, early.body["uuid"], early.body["node"]) == (201, instance.uuid, instance.node)
    assert (late.status, late.body) == (201, early.body)
    assert rig.operation(early.body["operation_id"]).state is OperationState.DONE
    assert_made_once(rig, instance.uuid)


def test_a_delete_whose_api_is_killed_before_the_wake_up_is_swept_up_and_done(rig: Rig, start_api: StartApi) -> None:
    point = "api_after_delete_commit_before_wake"
    created = rig.create()
    rig.carry_out(created.operation_id)
    dying = start_api(faults=f"{point}:kill")
    assert dying.client().delete(created.uuid).status == LOST
    rig.wait_for_kill(dying.process, point)
    assert rig.instance(created.uuid).state is InstanceState.DELETING
    assert len(rig.charges(created.uuid)) == 1

    client = start_api().client()
    repeated = client.delete(created.uuid)
    rig.start("reconciler")
    rig.start_worker()
    rig.wait_for_state(created.uuid, InstanceState.DELETED)
    wait_until_all_is_done(rig)

    [accepted] = [o for o in operations.listing(rig.db, 10, instance=created.uuid) if o.kind is OperationKind.DELETE]
    assert (repeated.status, repeated.body["operation_id"]) == (202, accepted.uuid)
    assert client.delete(created.uuid).status == 404
    assert_books_are_true(rig, {created.uuid}, {created.uuid})


@pytest.mark.parametrize("point", ["api_before_decide", "place_after_decide", "api_after_node_guard_before_commit"])
def test_a_create_whose_api_is_killed_before_the_commit_leaves_nothing(
    rig: Rig, start_api: StartApi, point: str
) -> None:
    before = traces(rig)
    dying = start_api(faults=f"{point}:kill")
    assert dying.client().create("i", key=KEY).status == LOST
    rig.wait_for_kill(dying.process, point)
    assert traces(rig) == before
    wait_until_no_transaction_is_open(rig)

    client = start_api().client()
    answer = client.create("i", key=KEY)
    assert answer.status == 201, answer
    rig.carry_out(answer.body["operation_id"])
    assert_made_once(rig, answer.body["uuid"])


def test_a_delete_whose_api_is_killed_before_the_commit_has_not_begun(rig: Rig, start_api: StartApi) -> None:
    point = "api_before_delete_commit"
    created = rig.create()
    rig.carry_out(created.operation_id)
    before = traces(rig)
    dying = start_api(faults=f"{point}:kill")
    assert dying.client().delete(created.uuid).status == LOST
    rig.wait_for_kill(dying.process, point)
    assert (traces(rig), rig.instance(created.uuid).state) == (before, InstanceState.RUNNING)
    wait_until_no_transaction_is_open(rig)

    answer = start_api().client().delete(created.uuid)
    assert answer.status == 202, answer
    rig.carry_out(answer.body["operation_id"])
    assert_books_are_true(rig, {created.uuid}, {created.uuid})


def create_in_a_process_that_dies(rig: Rig, request: InstanceRequest, number: int) -> int:
    """Fork, create, and return how the child ended. It opens everything anew, as an API worker does."""
    faults = {
        "FLEET_FAULTS": "api_after_node_guard_before_commit:kill",
        "FLEET_FAULT_DIR": str(rig.markers),
    }
    pid = os.fork()
    if pid == 0:
        try:
            context = bootstrap.build(load_settings(rig.folder / "config", rig.environment), faults, pool_size=2)
            create_instance(context, "system", request, RetryKey(namespace="system", key=f"k{number}", digest="d"))
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.slow
def test_b10_refused_and_killed_half_way_fifty_times_each_the_namespace_can_still_use_its_full_limit(rig: Rig) -> None:
    cluster_config.store(rig.db, "CLAIM_ENFORCEMENT", "hard")
    rig.context.configuration.forget()
    fleet_of.claim(rig.db, limit=(3, 10_000, 1_000), namespace="system")
    small = InstanceRequest.model_validate({"name": "i", "cpus": 1, "memory_mb": 64, "disk_gb": 1})
    too_big = InstanceRequest.model_validate({"name": "i", "cpus": 4, "memory_mb": 64, "disk_gb": 1})
    before = traces(rig)

    for number in range(KILLS):
        # However long the rounds take, the nodes' figures are fresh.
        rig.publish()
        refused = create_instance(rig.context, "system", too_big)
        assert isinstance(refused, Refusal)
        assert refused.code == "claim_exceeded"
        marker = rig.markers / "api_after_node_guard_before_commit"
        assert create_in_a_process_that_dies(rig, small, number) == -signal.SIGKILL
        marker.unlink()
    wait_until_no_transaction_is_open(rig)

    assert traces(rig) == before
    made = [create_instance(rig.context, "system", small) for _ in range(4)]
    assert [isinstance(item, Created) for item in made] == [True, True, True, False]
    assert rig.differences() == []


def test_b13_no_request_leaves_a_transaction_open_and_each_sees_what_others_committed(
    rig: Rig, start_api: StartApi
) -> None:
    client = start_api().client()
    node = rig.described[0].name
    created = client.create("i", key=KEY)
    for answer, status in (
        (created, 201),
        (client.create("i", key=KEY), 201),
        (client.create("j", key=KEY), 422),
        (client.create("j", cpus=10_000), 507),
        (client.create("j", cpus=0), 400),
        (client.call("GET", "/instances"), 200),
        (client.call("GET", f"/nodes/{node}"), 200),
        (client.call("GET", f"/instances/{KEY}"), 400),
        (client.delete(created.body["uuid"]), 202),
        (client.delete(created.body["uuid"]), 202),
    ):
        assert answer.status == status, answer
        wait_until_no_transaction_is_open(rig)

    for memory_mb in (50_001, 50_002, 50_003):
        with open_transaction(rig.db) as conn:
            LIMIT.run(conn, memory_mb=memory_mb)
        assert str(memory_mb) in str(client.call("GET", f"/nodes/{node}").body)


def test_b17_a_lock_held_too_long_in_the_middle_of_a_create_leaves_no_half_of_it(rig: Rig, start_api: StartApi) -> None:
    client = start_api().client()
    before = traces(rig)
    with open_transaction(rig.db) as conn:
        HOLD_CLUSTER.run(conn)
        answer = client.create("i", key=KEY)
        assert (answer.status, answer.code, answer.retry_after) == (503, "database_unavailable", "1"), answer
        assert traces(rig) == before
        with open_transaction(rig.db) as other:
            assert len(HOLD_NODES.run(other).all()) == len(rig.described)

    made = client.create("i", key=KEY)
    assert made.status == 201, made
    rig.carry_out(made.body["operation_id"])
    assert_made_once(rig, made.body["uuid"])


def test_b17_all_nodes_locked_is_busy_and_neither_full_nor_a_failure(rig: Rig, start_api: StartApi) -> None:
    client = start_api().client()
    before = traces(rig)
    with open_transaction(rig.db) as conn:
        HOLD_NODES.run(conn)
        answer = client.create("i", key=KEY)
    assert (answer.status, answer.code, answer.retry_after) == (503, "placement_busy", "1"), answer
    assert traces(rig) == before
    assert client.create("i", key=KEY).status == 201


@pytest.mark.slow
def test_workers_of_the_api_killed_in_a_soak_are_replaced_and_nothing_is_lost(rig: Rig, start_api: StartApi) -> None:
    rig.start("resources", "--simulated", str(rig.described_file))
    rig.start("reconciler")
    rig.start_worker()
    api = start_api(workers=2)
    with Soak(api) as soak:
        soak.goes_on()
        kill_all_workers(rig, api)
        soak.goes_on()
        kill_all_workers(rig, api)
        soak.goes_on()

    assert soak.count(LOST) > 0
    assert_only_honest_answers(soak, lost=True)
    assert api.process.poll() is None
    wait_until_all_is_done(rig)
    assert_books_are_true(
        rig, set().union(*(told.created for told in soak.told)), set().union(*(told.deleted for told in soak.told))
    )


def kill_all_workers(rig: Rig, api: Api) -> None:
    before = api.worker_pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_for(rig, lambda: len(api.worker_pids() - before) == 2, what="both workers are replaced")


def test_workers_whose_parent_was_killed_end_by_themselves(rig: Rig, start_api: StartApi) -> None:
    api = start_api(workers=2)
    workers = [psutil.Process(pid) for pid in api.worker_pids()]
    api.process.kill()

    wait_for(rig, lambda: not any(worker.is_running() for worker in workers), what="both workers end")
    assert len(workers) == 2
    assert api.status("/healthz") == LOST
