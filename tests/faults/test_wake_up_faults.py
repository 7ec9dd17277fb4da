"""Wake-ups that are popped and lost, doubled, or called abandoned: the work is done once, from its row alone."""

from __future__ import annotations

import threading

import pytest
from rq import Queue
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry, clean_registries

from fleet.ledger import operations
from fleet.model.lifecycle import InstanceState
from fleet.queue.jobs import WAKE_SECONDS, WakeUp, queue_name
from fleet.queue.worker import Worker
from fleet.services.work import Outcome, carry_out
from tests.faults.rig import WAIT_SECONDS_MAX, Rig, assert_made_once
from tests.servers import wait_until

POPPED_AND_LOST = 200
KILLED_AFTER_THE_POP = 3


@pytest.mark.slow
def test_b20_a_worker_that_is_killed_right_after_the_pop_loses_nothing(rig: Rig) -> None:
    created = [rig.create(f"i{number}", memory_mb=16) for number in range(6)]
    point = "worker_after_take"
    for _ in range(KILLED_AFTER_THE_POP):
        (rig.markers / point).unlink(missing_ok=True)
        rig.wait_for_kill(rig.start_worker(faults=f"{point}:kill"), point)
        # Nothing was leased, so nothing has to run out; the wake-ups it had taken note of are put again at once.
        assert {rig.operation(item.operation_id).attempts for item in created} == {0}
        assert rig.sweep().woken > 0
    rig.start_worker()

    for item in created:
        rig.wait_for_state(item.uuid, InstanceState.RUNNING)
    for item in created:
        assert_made_once(rig, item.uuid)


def popped_by_the_dead(rig: Rig) -> str | None:
    """Pop a job and do nothing more: it is still there, and no queue names it."""
    keys = [Queue(queue_name(node_id), connection=rig.client).key for node_id in rig.node_ids]
    found = Queue.lpop(keys, None, connection=rig.client)
    if found is None:
        return None
    job_id = found[1].decode()
    ttl = rig.client.ttl(Job.key_for(job_id))
    assert 0 < ttl <= WAKE_SECONDS
    return str(job_id)


def test_b20_wake_ups_that_were_popped_and_lost_are_put_again(rig: Rig) -> None:
    created = [rig.create(f"i{number}", memory_mb=16) for number in range(POPPED_AND_LOST // 10)]
    for crash in range(10):
        # Killed after the worker took note of the job, or between the pop and that.
        popped = [rig.inbox().take(1) if crash % 2 else popped_by_the_dead(rig) for _ in created]
        assert None not in popped
        assert rig.sweep().woken == len(created)
    with rig.workshop() as shop:
        worker = Worker(
            rig.inbox(), lambda uuid: carry_out(shop, uuid), node_ids=lambda: rig.node_ids, stop=threading.Event()
        )
        assert worker.burst() == len(created)

    for instance in created:
        assert_made_once(rig, instance.uuid)


def test_b21_rqs_registries_release_nothing_of_ours(rig: Rig) -> None:
    finished, running = rig.create("finished"), rig.create("running")
    assert rig.carry_out(finished.operation_id) is Outcome.DONE
    leased = operations.lease(rig.db, running.operation_id, "a worker at work", 60)
    assert leased is not None
    before = [rig.operation(item.operation_id) for item in (finished, running)]
    for item in (finished, running):
        queue = Queue(queue_name(rig.instance(item.uuid).node_id or 0), connection=rig.client, serializer="json")
        job = Job.create(
            "fleet.queue.jobs.carry_out",
            args=(item.operation_id,),
            id=f"{item.operation_id}-9",
            connection=rig.client,
            serializer="json",
            status=JobStatus.STARTED,
            origin=queue.name,
        )
        job.save()
        rig.client.zadd(StartedJobRegistry(queue=queue, serializer="json").key, {f"{job.id}:execution": 1})
        clean_registries(queue, [])

    assert [rig.operation(item.operation_id) for item in (finished, running)] == before
    assert_made_once(rig, finished.uuid)
    assert len(rig.charges(running.uuid)) == 1
    assert rig.homes(running.uuid) == []


def test_b22_the_same_job_delivered_to_two_workers_at_once_is_done_once(rig: Rig) -> None:
    for number in range(10):
        created = rig.create(f"i{number}")
        barrier = threading.Barrier(2)
        outcomes: list[Outcome] = []

        def deliver(uuid: str, barrier: threading.Barrier, outcomes: list[Outcome], owner: str) -> None:
            barrier.wait()
            outcomes.append(rig.carry_out(uuid, owner))

        threads = [
            threading.Thread(target=deliver, args=(created.operation_id, barrier, outcomes, owner)) for owner in "ab"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(outcomes) == [Outcome.DONE, Outcome.NOT_TAKEN]
        assert_made_once(rig, created.uuid)
        assert rig.carry_out(created.operation_id) is Outcome.NOT_TAKEN


@pytest.mark.slow
def test_b22_two_jobs_for_one_operation_on_two_worker_processes(rig: Rig) -> None:
    created = rig.create()
    node_id = rig.instance(created.uuid).node_id or 0
    for number in range(1, 6):
        rig.wake_ups.put(WakeUp(created.operation_id, node_id, number))
    rig.start_worker()
    rig.start_worker()

    rig.wait_for_state(created.uuid, InstanceState.RUNNING)
    wait_until(lambda: rig.wake_ups.waiting(node_id) == 0, seconds=WAIT_SECONDS_MAX, what="all wake-ups are taken")
    assert_made_once(rig, created.uuid)
    assert rig.operation(created.operation_id).attempts == 1
