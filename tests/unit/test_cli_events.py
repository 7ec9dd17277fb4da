"""Events as people read them: the youngest, oldest first, below their day."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from fleet.api.routers.admin import ObjectType
from fleet.api.routers.events import Level
from fleet.cli.commands import audit
from fleet.cli.outcome import Misused
from fleet.cli.output import Form, Output
from fleet.cli.session import Shell
from fleet.cli.told_events import LEVELS, check, tell, youngest_events


def an_event(at: str, message: str, **payload: Any) -> dict[str, Any]:
    return {"at": at, "level": "info", "message": message, "payload": payload}


@pytest.mark.parametrize("older", [False, True])
def test_of_many_events_the_youngest_are_shown_and_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], older: bool
) -> None:
    asked: list[dict[str, Any]] = []
    # A page may be short, or empty, and name the next one.
    pages = iter([([5], "5"), ([], "4"), ([4, 3], "3" if older else None), ([2], None)])

    def get(_shell: Shell, _path: str, **query: Any) -> dict[str, Any]:
        asked.append(query)
        ids, cursor = next(pages)
        return {"items": [{"id": one} for one in ids], "next_cursor": cursor}

    monkeypatch.setattr(Shell, "get", get)
    shell = Shell(Output(Form.HUMAN), "", "system", None, {})
    found = youngest_events(shell, "/instances/i/events", most=3, level="error")

    assert [event["id"] for event in found] == [3, 4, 5]
    assert [query["cursor"] for query in asked] == [None, "5", "4", *(["3"] if older else [])]
    assert all(query["newest_first"] and query["level"] == "error" for query in asked)
    assert ("older events are left out" in capsys.readouterr().out) is older


def test_each_day_is_written_once_above_its_events(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        an_event("2026-11-29T23:59:59.000001Z", "first", node="a"),
        an_event("2026-11-29T23:59:59.000002Z", "second"),
        an_event("2026-11-30T00:00:00.000000Z", "third"),
    ]

    tell(Output(Form.HUMAN), events)

    assert capsys.readouterr().out.splitlines() == [
        "2026-11-29 (UTC)",
        "23:59:59.000001 first: node a",
        "23:59:59.000002 second",
        "2026-11-30 (UTC)",
        "00:00:00.000000 third",
    ]


def test_the_command_line_knows_the_kinds_and_levels_that_the_service_knows() -> None:
    assert get_args(ObjectType) == audit.KINDS
    assert get_args(Level) == LEVELS


def test_a_span_that_no_event_can_lie_in_is_misuse_and_the_other_way_round_is_told() -> None:
    with pytest.raises(Misused, match="at most 30min old") as refused:
        check(None, 1800, 3600)

    assert refused.value.hint.endswith("--since 1h --until 30min")
    check("warning", 3600, 1800)
