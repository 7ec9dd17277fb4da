"""A burst that asks for more than there is: exactly what fits is placed, and everybody else is told why."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from fleet.api.problems import RETRY_AFTER_SECONDS
from fleet.ledger.database import Database
from fleet.model.errors import DatabaseUnavailable
from fleet.placement.walk import DEADLINE_SECONDS
from fleet.services.context import Context
from fleet.services.create import Created
from tests.ledger import fleet_of, placing, ruling
from tests.ledger.fleet_of import PLENTY

CREATES, PROCESSES, NODES = 200, 8, 4
ROOM_MB, ASKED_MB = 16_384, 1_024
BURST_SECONDS_MAX = 240


def answer_to(process: Context) -> str:
    """One create, in one word, as the API tells it. A process that has no connection left proves nothing either."""
    try:
        outcome = placing.create(process, {"memory_mb": ASKED_MB})
    except DatabaseUnavailable as error:
        return error.detail if "is not known" in error.detail else error.code
    return "placed" if isinstance(outcome, Created) else outcome.code


@pytest.mark.slow
@pytest.mark.vectors
def test_atlas_v25_two_hundred_at_once_fill_four_nodes_exactly(maria: Database, mariadb_ledger_url: str) -> None:
    ctx = placing.context(maria, scheduler_target_load="0")
    plain: dict[str, Any] = {
        "memory_mb": ROOM_MB,
        "memory_available": ROOM_MB,
        "memory_max": ROOM_MB,
        "disk_gb": PLENTY,
    }
    ids = {placing.node(maria, ctx, f"n{at}", **plain): f"n{at}" for at in range(NODES)}
    answers: list[str] = []
    end = time.monotonic() + BURST_SECONDS_MAX

    with ruling.racing(mariadb_ledger_url, PROCESSES, walk_seconds=DEADLINE_SECONDS) as racers:

        def create(at: int) -> None:
            """Once, and again after `Retry-After` as long as the answer proves nothing."""
            answer = answer_to(racers.contexts[at % PROCESSES])
            while answer in RETRY_AFTER_SECONDS and time.monotonic() < end:
                time.sleep(RETRY_AFTER_SECONDS[answer])
                answer = answer_to(racers.contexts[at % PROCESSES])
            answers.append(answer)

        threads = [threading.Thread(target=create, args=(at,)) for at in range(CREATES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    assert Counter(answers) == {"placed": 64, "out_of_capacity": CREATES - 64}
    assert {fleet_of.used(maria, node_id)[1] for node_id in ids} == {ROOM_MB}
    fleet_of.assert_exact(maria)
