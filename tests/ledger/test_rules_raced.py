"""Rules where they bind: placements of one group at the same moment, on a real MariaDB, many times.

What the product must never do the naive twin does: it believes the snapshot that all of them decided on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.ledger.database import Database
from tests.ledger import fleet_of, placing, ruling
from tests.ledger.ruling import Racers, apart, codes, places

pytestmark = pytest.mark.slow

ROUNDS = 15
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def racers(maria: Database, mariadb_ledger_url: str) -> Iterator[Racers]:
    """Eight processes on four nodes, two in each rack."""
    ctx = placing.context(maria)
    for at, name in enumerate(NAMES):
        placing.node(maria, ctx, name, {"rack": f"r{at // 2}"})
    with ruling.racing(mariadb_ledger_url, 8) as running:
        yield running


@pytest.mark.vectors
def test_b25_eight_at_once_that_want_no_other_near_go_one_a_node_and_the_rest_are_refused_by_the_rule(
    maria: Database, racers: Racers
) -> None:
    for round_ in range(ROUNDS):
        body = apart(f"db-{round_}")
        outcomes = racers.run(ruling.creating(body))
        assert places(outcomes) == list(NAMES)
        assert codes(outcomes) == ["affinity_unsatisfied"] * 4
    fleet_of.assert_exact(maria)


@pytest.mark.vectors
def test_b25_within_a_rack_two_racks_take_two(maria: Database, racers: Racers) -> None:
    for round_ in range(ROUNDS):
        body = apart(f"db-{round_}", within="rack")
        outcomes = racers.run(ruling.creating(body))
        assert [{"a": 0, "b": 0, "c": 1, "d": 1}[name] for name in places(outcomes)] == [0, 1]
        assert codes(outcomes) == ["affinity_unsatisfied"] * 6
    fleet_of.assert_exact(maria)


def test_eight_at_once_that_require_no_such_tag_near_go_one_a_node(maria: Database, racers: Racers) -> None:
    for round_ in range(ROUNDS):
        role = f"role=web-{round_}"
        body = {"tags": {"role": f"web-{round_}"}, "affinity": {"require_without_tag": [role]}}
        outcomes = racers.run(ruling.creating(body))
        assert places(outcomes) == list(NAMES)
        assert codes(outcomes) == ["affinity_unsatisfiable"] * 4


@pytest.mark.parametrize("within", [None, "rack"])
def test_a_walk_that_believes_its_snapshot_puts_two_where_one_may_be(
    racers: Racers, monkeypatch: pytest.MonkeyPatch, within: str | None
) -> None:
    ruling.naively(monkeypatch)
    for round_ in range(3):
        body = apart(f"db-{round_}", within=within)
        outcomes = racers.run(ruling.creating(body))
        assert len(places(outcomes)) > (4 if within is None else 2)
