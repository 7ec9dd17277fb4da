"""A decision, and the base it replays from, is stored once, however late the COMMIT whose answer was lost ends."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from fleet.ledger import decisions
from fleet.ledger.database import Database
from tests.faults.cutting import Cut, Wire
from tests.ledger import fleet_of
from tests.ledger.holding import somebody_waits
from tests.servers import wait_until

Store = Callable[[Database, str], None]


def keep(db: Database, fresh_id: str) -> None:
    decisions.keep(db, fleet_of.refused_decision(fresh_id))


def insert_base(db: Database, fresh_id: str) -> None:
    decisions.insert_base(db, fresh_id, None, b"body")


@pytest.mark.parametrize("when", ["before", "at once", "late"])
@pytest.mark.parametrize(("store", "table"), [(keep, "decisions"), (insert_base, "decision_bases")])
def test_what_is_stored_by_a_commit_that_is_cut_off_is_stored_once(
    maria: Database,
    mariadb_ledger_url: str,
    store: Store,
    table: str,
    when: str,
) -> None:
    with Wire(mariadb_ledger_url) as wire:
        cut_off = Database(wire.url)
        if when == "late":
            # The server is still busy with the COMMIT when its outcome is asked for: who asks waits for it.
            wire.meanwhile = lambda: wait_until(lambda: somebody_waits(maria), seconds=30, what="the outcome is asked")
        made = [str(uuid.uuid4()) for _ in range(3)]
        for fresh_id in made:
            wire.arm(Cut.BEFORE if when == "before" else Cut.AFTER)
            store(cut_off, fresh_id)
            assert wire.cut.is_set()

            assert len(fleet_of.rows(maria, f"SELECT id FROM {table} WHERE id = '{fresh_id}'")) == 1
        cut_off.close()
