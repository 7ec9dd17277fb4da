"""A burst that asks for more than there is: exactly what fits is placed, and everybody else is told why."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from fleet.api.problems import RETRY_AFTER_SECONDS
from fleet.ledger.database import Database
from fleet.services.create import Created
from tests.ledger import fleet_of, placing, ruling
from tests.ledger.fleet_of import PLENTY

CREATES, PROCESSES, NODES = 200, 8, 4
ROOM_MB, ASKED_MB = 16_384, 1_024
WAITS_MAX = 30


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

    with ruling.racing(mariadb_ledger_url, PROCESSES) as racers:

        def create(at: int) -> None:
            """Once, and again after `Retry-After` as long as the answer proves nothing."""
            process = racers.contexts[at % PROCESSES]
            for _ in range(WAITS_MAX):
                outcome = placing.create(process, {"memory_mb": ASKED_MB})
                if isinstance(outcome, Created):
                    answers.append("placed")
                    return
                if outcome.code != "placement_busy":
                    answers.append(outcome.code)
                    return
                threading.Event().wait(RETRY_AFTER_SECONDS[outcome.code])
            answers.append("busy for ever")

        threads = [threading.Thread(target=create, args=(at,)) for at in range(CREATES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)

    assert Counter(answers) == {"placed": 64, "out_of_capacity": CREATES - 64}
    assert {fleet_of.used(maria, node_id)[1] for node_id in ids} == {ROOM_MB}
    fleet_of.assert_exact(maria)
