"""Wake-ups: RQ jobs whose only argument is an operation's uuid, on one queue a node.

A job holds no work and no state. It may be lost, doubled or late: the lease on the operation's row decides who works,
and the sweeper puts a lost wake-up back. A job's id is made of the uuid and the number of leases so far, so putting the
same wake-up twice is one job. RQ's registries stay empty: they release nothing of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import redis
from rq import Queue
from rq.exceptions import DequeueTimeout
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from fleet.queue.connection import unavailable

FUNCTION: Final = "fleet.queue.jobs.carry_out"
# A wake-up that nobody took for so long is worth nothing: the sweeper puts a new one.
WAKE_SECONDS: Final = 60
UUID_CHARACTERS: Final = 36


@dataclass(frozen=True, slots=True)
class WakeUp:
    """What is put on a queue: which operation, for which node's worker, and how often it was leased so far."""

    operation_uuid: str
    node_id: int
    number: int = 0

    @property
    def job_id(self) -> str:
        """The job's id: the same wake-up is the same job."""
        return f"{self.operation_uuid}-{self.number}"


def carry_out(operation_uuid: str) -> None:
    """Refuse: only a worker of the product knows what to do with an operation."""
    raise RuntimeError(f"operation {operation_uuid} is carried out by sf-worker, not by a plain rq worker")


def queue_name(node_id: int) -> str:
    """The queue of a node's worker."""
    return f"node:{node_id}"


class WakeUps:
    """The producer's side."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def put(self, *wake_ups: WakeUp) -> None:
        """Put wake-ups, all in one round trip.

        Raises:
            QueueUnavailable: the server did not take them; the sweeper will put them again.
        """
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for wake_up in wake_ups:
                    self._add(wake_up, pipeline)
                pipeline.execute()
        except redis.RedisError as error:
            raise unavailable(error) from error

    def put_missing(self, wake_ups: Sequence[WakeUp]) -> int:
        """Put those of `wake_ups` that are not waiting already; return how many were put.

        One waits while its queue names it and its job is there: a worker that died at once after it took one leaves a
        job that no queue names, and a job that is too old leaves a name without one.

        Raises:
            QueueUnavailable: the server did not take them.
        """
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for wake_up in wake_ups:
                    pipeline.exists(Job.key_for(wake_up.job_id))
                    pipeline.lpos(self._queue(wake_up.node_id).key, wake_up.job_id)
                found = pipeline.execute() if wake_ups else []
                waits = [there and place is not None for there, place in zip(found[::2], found[1::2], strict=True)]
                missing = [wake_up for wake_up, waiting in zip(wake_ups, waits, strict=True) if not waiting]
                for wake_up in missing:
                    self._add(wake_up, pipeline)
                pipeline.execute()
        except redis.RedisError as error:
            raise unavailable(error) from error
        return len(missing)

    def waiting(self, node_id: int) -> int:
        """How many wake-ups a node's queue holds."""
        try:
            return int(self._queue(node_id).count)
        except redis.RedisError as error:
            raise unavailable(error) from error

    def _queue(self, node_id: int) -> Queue:
        return Queue(queue_name(node_id), connection=self._client, serializer=JSONSerializer)

    def _add(self, wake_up: WakeUp, pipeline: redis.client.Pipeline) -> None:
        queue = self._queue(wake_up.node_id)
        job = queue.create_job(
            FUNCTION,
            args=(wake_up.operation_uuid,),
            job_id=wake_up.job_id,
            ttl=WAKE_SECONDS,
            result_ttl=0,
            failure_ttl=0,
            status=JobStatus.QUEUED,
        )
        queue.enqueue_job(job, pipeline=pipeline)


class Inbox:
    """The consumer's side: takes one wake-up at a time off the queues of the nodes it serves."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._queues: dict[int, Queue] = {}
        self._first = 0

    def serve(self, node_ids: Iterable[int]) -> None:
        """Listen to the queues of these nodes from now on."""
        wanted = sorted(set(node_ids))
        self._queues = {
            node_id: self._queues.get(node_id)
            or Queue(queue_name(node_id), connection=self._client, serializer=JSONSerializer)
            for node_id in wanted
        }

    @property
    def idle(self) -> bool:
        """Whether there is no queue to listen to."""
        return not self._queues

    def take(self, seconds: int) -> str | None:
        """Wait at most `seconds` for a wake-up; return its operation's uuid, or None.

        A job that is not of ours (no uuid, not JSON) is dropped: None. Without a queue the answer comes at once.

        Raises:
            QueueUnavailable: the server did not answer.
        """
        queues = self._in_turn()
        if not queues:
            return None
        try:
            found = Queue.dequeue_any(queues, timeout=seconds, connection=self._client, serializer=JSONSerializer)
            if found is None:
                return None
            job, queue = found
            # What the job says is all in hand; from here on only the operation's row counts.
            self._client.delete(job.key)
            if len(queues) == 1:
                self._client.lrem(queue.intermediate_queue_key, 1, job.id)
        except DequeueTimeout:
            self._drop_leftovers(queues)
            return None
        except redis.RedisError as error:
            raise unavailable(error) from error
        return _operation_of(job)

    def _in_turn(self) -> list[Queue]:
        """Begin with another queue each time: the server looks at them in the given order and would starve the last."""
        queues = list(self._queues.values())
        self._first = (self._first + 1) % max(1, len(queues))
        return queues[self._first :] + queues[: self._first]

    def _drop_leftovers(self, queues: list[Queue]) -> None:
        """Of one queue alone, RQ keeps what was popped in a list that nobody else would ever empty."""
        if len(queues) != 1:
            return
        try:
            self._client.delete(queues[0].intermediate_queue_key)
        except redis.RedisError as error:
            raise unavailable(error) from error


def _operation_of(job: Job) -> str | None:
    try:
        arguments = job.args
    except Exception:  # noqa: BLE001 - whatever a foreign payload makes the deserializer raise
        return None
    if len(arguments) != 1 or not isinstance(arguments[0], str) or len(arguments[0]) != UUID_CHARACTERS:
        return None
    return arguments[0]
