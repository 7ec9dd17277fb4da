"""Wake-ups: JSON, one argument, doubled harmlessly, foreign ones dropped."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import fakeredis
import pytest
import redis
from rq import Queue
from rq.job import Job

from fleet.model.errors import QueueUnavailable
from fleet.queue.connection import connect
from fleet.queue.jobs import Inbox, WakeUp, WakeUps, carry_out, queue_name


@pytest.fixture
def client() -> Iterator[fakeredis.FakeStrictRedis]:
    made = fakeredis.FakeStrictRedis()
    yield made
    made.close()


def an_operation() -> str:
    return str(uuid.uuid4())


def inbox_of(client: redis.Redis, *node_ids: int) -> Inbox:
    inbox = Inbox(client)
    inbox.serve(node_ids)
    return inbox


def test_a_wake_up_arrives_at_its_nodes_queue_and_nowhere_else(client: fakeredis.FakeStrictRedis) -> None:
    operation = an_operation()
    WakeUps(client).put(WakeUp(operation, 7))

    assert inbox_of(client, 8, 9).take(1) is None
    assert inbox_of(client, 7, 8).take(1) == operation
    assert inbox_of(client, 7, 8).take(1) is None


def test_a_worker_of_one_node_leaves_nothing_behind_in_redis(client: fakeredis.FakeStrictRedis) -> None:
    operation = an_operation()
    WakeUps(client).put(WakeUp(operation, 7))

    assert inbox_of(client, 7).take(1) == operation
    assert [key for key in client.scan_iter() if b"intermediate" in key or b":job:" in key] == []


def test_the_payload_is_json_with_the_uuid_alone(client: fakeredis.FakeStrictRedis) -> None:
    operation = an_operation()
    WakeUps(client).put(WakeUp(operation, 7))
    job = Job.fetch(WakeUp(operation, 7).job_id, connection=client, serializer="json")

    assert (job.args, job.kwargs) == ([operation], {})
    assert client.hget(job.key, "data") is not None


def test_the_same_wake_up_is_put_once_while_it_waits(client: fakeredis.FakeStrictRedis) -> None:
    wake_ups = WakeUps(client)
    waiting = [WakeUp(an_operation(), 7) for _ in range(3)]
    wake_ups.put(waiting[0])

    assert wake_ups.put_missing(waiting) == 2
    assert wake_ups.put_missing(waiting) == 0
    assert wake_ups.waiting(7) == 3


def test_an_operation_that_was_leased_since_is_another_wake_up(client: fakeredis.FakeStrictRedis) -> None:
    wake_ups, operation = WakeUps(client), an_operation()
    wake_ups.put(WakeUp(operation, 7, 0))

    assert wake_ups.put_missing([WakeUp(operation, 7, 1)]) == 1


def test_a_wake_up_that_was_taken_can_be_put_again(client: fakeredis.FakeStrictRedis) -> None:
    wake_ups, wake_up = WakeUps(client), WakeUp(an_operation(), 7)
    wake_ups.put(wake_up)
    inbox_of(client, 7).take(1)

    assert wake_ups.put_missing([wake_up]) == 1


def test_a_wake_up_that_was_popped_by_a_process_that_died_is_put_again(client: fakeredis.FakeStrictRedis) -> None:
    wake_ups, lost, waiting = WakeUps(client), WakeUp(an_operation(), 7), WakeUp(an_operation(), 7)
    wake_ups.put(lost, waiting)
    Queue.lpop([Queue(queue_name(7), connection=client).key], None, connection=client)

    assert wake_ups.put_missing([lost, waiting]) == 1
    assert wake_ups.waiting(7) == 2


def test_a_wake_up_whose_job_grew_too_old_is_put_again(client: fakeredis.FakeStrictRedis) -> None:
    wake_ups, wake_up = WakeUps(client), WakeUp(an_operation(), 7)
    wake_ups.put(wake_up)
    client.delete(Job.key_for(wake_up.job_id))

    assert wake_ups.put_missing([wake_up]) == 1
    assert inbox_of(client, 7).take(1) == wake_up.operation_uuid
    assert inbox_of(client, 7).take(1) is None


def test_no_queue_is_starved_by_the_others(client: fakeredis.FakeStrictRedis) -> None:
    wake_ups = WakeUps(client)
    mine = {node_id: [an_operation() for _ in range(4)] for node_id in (1, 2)}
    for node_id, operations in mine.items():
        for operation in operations:
            wake_ups.put(WakeUp(operation, node_id))
    inbox = inbox_of(client, 1, 2)
    first_four = [inbox.take(1) for _ in range(4)]

    assert len([operation for operation in first_four if operation in mine[2]]) == 2


@pytest.mark.parametrize("arguments", [(), ("not-a-uuid",), (7,), ("a" * 36, "b" * 36)])
def test_a_foreign_job_is_dropped(client: fakeredis.FakeStrictRedis, arguments: tuple[object, ...]) -> None:
    queue = Queue(queue_name(7), connection=client, serializer="json")
    queue.enqueue_job(queue.create_job("os.system", args=arguments))

    assert inbox_of(client, 7, 8).take(1) is None
    assert queue.count == 0


def test_a_pickled_job_is_dropped_unread(client: fakeredis.FakeStrictRedis) -> None:
    queue = Queue(queue_name(7), connection=client)
    queue.enqueue_job(queue.create_job("os.getcwd"))

    assert inbox_of(client, 7, 8).take(1) is None


def test_without_a_queue_the_answer_comes_at_once(client: fakeredis.FakeStrictRedis) -> None:
    inbox = inbox_of(client)

    assert (inbox.idle, inbox.take(1)) == (True, None)


def test_a_server_that_is_away_is_an_error_in_words() -> None:
    absent = connect("redis://127.0.0.1:1/0")

    with pytest.raises(QueueUnavailable):
        WakeUps(absent).put(WakeUp(an_operation(), 7))
    with pytest.raises(QueueUnavailable):
        WakeUps(absent).put_missing([WakeUp(an_operation(), 7)])
    with pytest.raises(QueueUnavailable):
        inbox_of(absent, 7, 8).take(1)


def test_a_plain_rq_worker_is_told_that_it_is_the_wrong_one() -> None:
    with pytest.raises(RuntimeError, match="sf-worker"):
        carry_out(an_operation())
