"""Each audit event is a line of the log with its exact message: after its commit, once, and never for a rollback."""

from __future__ import annotations

import io
import json
from typing import Any, NoReturn

import pytest
from sqlalchemy import Connection

from fleet.ledger import events
from fleet.ledger.database import Batch, Database
from fleet.telemetry import configure_logging
from tests.ledger import fleet_of
from tests.ledger.fleet_of import ask
from tests.ledger.holding import open_transaction
from tests.ledger.injecting import Injector, error, lost

OVER_CLAIM = "placement admitted over namespace capacity claim"


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line["logger"] == "fleet.ledger.events"]


def happened(conn: Connection) -> str:
    events.record(
        conn, "node", "n", "something happened", {"figure": 1, "why": {"a": [2]}}, "warning", by="system/admin"
    )
    return "it happened"


def commit_step(maria: Database, injector: Injector) -> int:
    """Which step of the unit is its COMMIT, on a connection that is open already."""
    maria.unit(happened)
    return injector.commit_step(lambda: maria.unit(happened))


def test_a_line_has_the_message_the_level_and_the_payload(db: Database, log: io.StringIO) -> None:
    db.unit(happened)

    (line,) = lines(log)
    assert (line.pop("event"), line.pop("level")) == ("something happened", "warning")
    assert line.pop("timestamp")
    assert line == {
        "logger": "fleet.ledger.events",
        "object_type": "node",
        "object_id": "n",
        "figure": 1,
        "why": {"a": [2]},
        "by": "system/admin",
    }


def test_fields_called_like_a_lines_own_stand_beside_them(db: Database, log: io.StringIO) -> None:
    payload = {"event": 1, "level": 2, "message": "m", "exc_info": 3, "token": "secret", "object_id": "other"}
    db.unit(lambda conn: events.record(conn, "node", "n", "odd", payload))

    (line,) = lines(log)
    assert (line["event"], line["level"], line["object_id"], line["message"]) == ("odd", "info", "n", "m")
    assert (line["payload_event"], line["payload_level"], line["payload_exc_info"]) == (1, 2, 3)
    assert (line["payload_object_id"], line["token"]) == ("other", "(hidden)")


def test_events_of_a_batch_are_lines_too_and_in_order(db: Database, log: io.StringIO) -> None:
    def work(conn: Connection) -> None:
        batch = Batch(conn)
        events.record(batch, "instance", "i", "first", {})
        batch.send()
        events.record(conn, "instance", "i", "second", {})

    db.unit(work)

    assert [line["event"] for line in lines(log)] == ["first", "second"]


def test_what_rolled_back_is_no_line(db: Database, log: io.StringIO) -> None:
    def work(conn: Connection) -> NoReturn:
        happened(conn)
        raise LookupError

    with pytest.raises(LookupError):
        db.unit(work)
    db.unit(lambda conn: events.record(conn, "node", "n", "something else", {}))

    assert [line["event"] for line in lines(log)] == ["something else"]


def test_there_is_no_line_before_the_commit(db: Database, log: io.StringIO) -> None:
    def work(conn: Connection) -> int:
        happened(conn)
        return len(lines(log))

    assert db.unit(work) == 0
    assert len(lines(log)) == 1


@pytest.mark.parametrize("fault", [error(1213), error(1205), lost(after=False)])
@pytest.mark.parametrize("at_commit", [False, True])
def test_a_unit_that_is_tried_again_is_told_once(
    maria: Database,
    log: io.StringIO,
    injector: Injector,
    fault: Any,
    at_commit: bool,
) -> None:
    step = commit_step(maria, injector)
    log.truncate(0)
    log.seek(0)
    with injector.at(step if at_commit else step - 1, fault):
        maria.unit(happened)

    assert injector.struck
    assert len(lines(log)) == 1


def test_a_commit_whose_answer_was_lost_is_told_when_it_is_found_to_have_happened(
    maria: Database,
    log: io.StringIO,
    injector: Injector,
) -> None:
    step = commit_step(maria, injector)
    log.truncate(0)
    log.seek(0)
    with injector.at(step, lost(after=True)):
        assert maria.unit(happened, on_lost=lambda: "it stands") == "it stands"

    assert injector.struck
    assert len(lines(log)) == 1


def test_a_statement_whose_answer_was_lost_is_not_told_when_somebody_else_did_it(
    maria: Database,
    log: io.StringIO,
    injector: Injector,
) -> None:
    step = commit_step(maria, injector)
    log.truncate(0)
    log.seek(0)
    with injector.at(step - 1, lost(after=True)):
        assert maria.unit(happened, on_lost=lambda: "another's") == "another's"

    assert lines(log) == []


def test_a_log_that_cannot_be_written_undoes_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_any: object, **_more: object) -> NoReturn:
        raise OSError("the disk is full")

    monkeypatch.setattr(events, "tell", broken)
    db.unit(happened)

    assert len(events.listing(db, "node", "n")) == 1


def test_events_below_the_level_are_left_out_of_the_log_and_kept_as_rows(db: Database, log: io.StringIO) -> None:
    configure_logging("error", "json", stream=log)
    db.unit(happened)
    db.unit(lambda conn: events.record(conn, "node", "n", "worse", {}, "error"))

    assert [line["event"] for line in lines(log)] == ["worse"]
    assert len(events.listing(db, "node", "n")) == 2


def test_a_process_without_a_log_prints_nothing(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.unit(happened)

    assert capsys.readouterr() == ("", "")


def test_a_row_written_outside_a_unit_is_no_line_of_the_next_one(db: Database, log: io.StringIO) -> None:
    db.unit(happened)
    with open_transaction(db) as conn:
        happened(conn)
    db.unit(lambda conn: events.record(conn, "node", "n", "the next", {}))

    assert [line["event"] for line in lines(log)] == ["something happened", "the next"]


def test_overdrawn_claims_are_found_in_the_log_by_their_message(db: Database, log: io.StringIO) -> None:
    node_id = fleet_of.node(db, cpus=16)
    fleet_of.claim(db, limit=(2, 1024, 10))
    wanted = ask(node_id, cpus=4)
    fleet_of.admitted(db, wanted)

    found = [line for line in lines(log) if line["event"] == OVER_CLAIM]
    assert {(line["object_type"], line["object_id"]) for line in found} == {
        ("instance", wanted.instance_uuid),
        ("namespace", fleet_of.NAMESPACE),
    }
    assert all(line["level"] == "warning" and line["claim_dimensions"] for line in found)
