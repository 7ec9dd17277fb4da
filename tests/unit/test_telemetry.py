"""Events come out as data, in one format, without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from fleet.telemetry import configure_logging, get_logger, without_password


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_ids() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)

    get_logger("fleet.test").info("instance.placed", instance="i1", node="n1")

    (event,) = lines(stream)
    assert (event["event"], event["instance"], event["node"]) == ("instance.placed", "i1", "n1")
    assert (event["level"], event["logger"]) == ("info", "fleet.test")
    assert str(event["timestamp"]).endswith("Z")


def test_events_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    configure_logging("warning", "json", stream=stream)

    get_logger("fleet.test").info("sample.published")
    get_logger("fleet.test").warning("sample.refused")

    assert [event["event"] for event in lines(stream)] == ["sample.refused"]


def test_events_of_libraries_come_out_in_the_same_format() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)

    logging.getLogger("library").warning("pool %s exhausted", "a")

    (event,) = lines(stream)
    assert (event["event"], event["logger"], event["level"]) == ("pool a exhausted", "library", "warning")


def test_secrets_are_hidden_whoever_logs_them() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)

    get_logger("x").info("database.connected", url="mysql+pymysql://fleet:hush@db/fleet", token="hush", password="hush")

    assert "hush" not in stream.getvalue()
    assert lines(stream)[0]["url"] == "mysql+pymysql://fleet:(hidden)@db/fleet"


def test_a_url_without_a_password_is_left_alone() -> None:
    assert without_password("see redis://127.0.0.1:6379/0 now") == "see redis://127.0.0.1:6379/0 now"


def test_the_console_format_is_for_people() -> None:
    stream = io.StringIO()
    configure_logging("info", "console", stream=stream)

    get_logger("fleet.test").info("node.registered", node="n1")

    assert "node.registered" in stream.getvalue()
    assert "node=n1" in stream.getvalue()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="accepted: json, console"):
        configure_logging("info", "xml")
