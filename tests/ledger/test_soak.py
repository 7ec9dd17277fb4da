"""Everything at once on a real MariaDB: no counter ever drifts, nothing acknowledged is lost, no limit is passed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fleet.ledger.database import Database
from fleet.ledger.verify import verify
from tests.ledger import fleet_of, naive, racing, soaking
from tests.ledger.racing import Answers, Attempt, Crew, Processes, Threads
from tests.ledger.soaking import Acknowledged, House

pytestmark = pytest.mark.slow

SAMPLE: dict[str, Any] = {"cpus": 40, "memory_mb": 8192}
SECONDS_MAX = 120.0


def soak(db: Database, url: str, crew: Crew, attempt: Attempt, seconds: float) -> tuple[Answers, House, list[str]]:
    """Run all actors together, on and on until the house was in the way; the list is what was found wrong."""
    names = ["a", "b", "c"]
    node_ids = [fleet_of.node(db, name, **SAMPLE) for name in names]
    fleet_of.claim(db, limit=(12, 512, 0), namespace=soaking.CLAIMED)
    answers: Answers = [Acknowledged(100 + at) for at in range(crew.size)]
    end = time.monotonic() + SECONDS_MAX
    with soaking.keeping(url, names, SAMPLE) as house:
        while True:
            answers = crew.run(soaking.tenant, [(attempt, so_far, node_ids, seconds) for so_far in answers])
            wrong = [*house.over, *house.errors, *(answer for answer in answers if isinstance(answer, str))]
            if wrong or (house.busy and done(answers) > crew.size) or time.monotonic() > end:
                break
    checked = verify(db)
    found = [*house.over, *house.corrections, *house.errors, *map(str, checked.differences)]
    found += [answer for answer in answers if isinstance(answer, str)]
    return answers, house, found + soaking.corrected(db) + lost(db, answers)


def done(answers: Answers) -> int:
    return sum(answer.done for answer in answers)


def lost(db: Database, answers: Answers) -> list[str]:
    """Acknowledged things that the ledger does not hold, and the other way round."""
    told: dict[str, int] = {}
    for answer in answers:
        if isinstance(answer, Acknowledged):
            told |= answer.held
    held = fleet_of.charged_to(db)
    return [] if told == held else [f"told {len(told)}, held {len(held)}: {set(told.items()) ^ set(held.items())}"]


@pytest.mark.parametrize(("kind", "size", "seconds"), [(Threads, 50, 8.0), (Processes, 4, 4.0)])
def test_b16_a_soak_with_the_reconciler_in_a_tight_loop_ends_exact(
    maria: Database, mariadb_ledger_url: str, kind: type[Threads | Processes], size: int, seconds: float
) -> None:
    with kind(mariadb_ledger_url, size) as crew:
        answers, house, found = soak(maria, mariadb_ledger_url, crew, racing.guarded, seconds)

    assert found == []
    assert house.busy, house
    assert done(answers) > size


def test_the_soak_catches_a_naive_admission(maria: Database, mariadb_ledger_url: str) -> None:
    with Threads(mariadb_ledger_url, 4) as crew:
        _, _, found = soak(maria, mariadb_ledger_url, crew, naive.admit, 1.0)
    assert found != []
