"""A duplicate of a request that is still running: it waits a second at most, and is told to come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from fleet.ledger import idempotency
from fleet.ledger.database import Database
from fleet.ledger.idempotency import Keyed
from fleet.model.errors import RequestInProgress
from tests.ledger import past
from tests.ledger.holding import open_transaction

KEYED = Keyed(namespace="ns", key="k", digest="d", status=201)


def test_a_duplicate_waits_at_most_a_second_for_the_first_one_and_is_not_tried_again(maria: Database) -> None:
    attempts: list[int] = []

    def second(conn: Connection) -> None:
        attempts.append(len(attempts))
        # Were it the session's wait, it would be the answer's time-out that ends it.
        conn.exec_driver_sql("SET innodb_lock_wait_timeout = 600")
        idempotency.keep(conn, KEYED, {"n": 2})

    with open_transaction(maria) as first:
        idempotency.keep(first, KEYED, {"n": 1})
        with pytest.raises(RequestInProgress):
            maria.unit(second)
    maria.close()

    assert attempts == [0]
    found = idempotency.find(maria, "ns", "k")
    assert found is not None
    assert found.answer == {"n": 1}


def test_a_key_whose_day_is_over_is_taken_anew_and_a_younger_one_is_not(db: Database) -> None:
    with past.ago(db, idempotency.KEPT_SECONDS - 60):
        db.unit(lambda conn: idempotency.keep(conn, KEYED, {"n": 1}))
    with pytest.raises(IntegrityError):
        db.unit(lambda conn: idempotency.keep(conn, KEYED, {"n": 2}))
    old = replace(KEYED, key="old")
    with past.ago(db, idempotency.KEPT_SECONDS + 1):
        db.unit(lambda conn: idempotency.keep(conn, old, {"n": 1}))

    db.unit(lambda conn: idempotency.keep(conn, old, {"n": 3}))

    found = idempotency.find(db, "ns", "old")
    assert found is not None
    assert found.answer == {"n": 3}
