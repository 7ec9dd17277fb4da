"""Events come out as data, in one format, without secrets."""

from __future__ import annotations

import io
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from fleet import telemetry
from fleet.telemetry import configure_logging, get_logger, system_log, without_password


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


@pytest.fixture
def syslog(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "log"))
        listening.settimeout(60)
        yield listening


def test_the_system_log_gets_the_same_line_with_its_severity_and_its_program(
    tmp_path: Path, syslog: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    with system_log("info", "fleet", tmp_path / "log"):
        get_logger("fleet.test").debug("left.out")
        get_logger("fleet.test").warning("key.changed", key="a", password="p")
        logging.getLogger("library").error("pool %s exhausted", "a")

    first, second = syslog.recv(9999).decode(), syslog.recv(9999).decode()
    assert first.startswith("<12>fleet[")
    line = json.loads(first.partition("]: ")[2])
    assert (line["event"], line["key"], line["password"], line["level"]) == ("key.changed", "a", "(hidden)", "warning")
    assert second.startswith("<11>fleet[")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["absent", "a file", "nobody listens", "too long"])
def test_a_system_log_that_takes_nothing_fails_nothing_and_says_nothing(
    tmp_path: Path, syslog: socket.socket, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    address = tmp_path / ("log" if how in {"nobody listens", "too long"} else "other")
    if how == "a file":
        address.touch()
    if how == "nobody listens":
        syslog.close()
    with system_log("info", "fleet", address):
        get_logger("fleet.test").error("key.changed", text="x" * (10_000_000 if how == "too long" else 1))

    assert capsys.readouterr() == ("", "")


def test_a_system_log_that_is_full_is_not_waited_for_for_ever(
    tmp_path: Path, syslog: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "SYSTEM_LOG_SECONDS_MAX", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                filler.sendto(b"x", str(tmp_path / "log"))
    began = time.monotonic()
    with system_log("info", "fleet", tmp_path / "log"):
        get_logger("fleet.test").error("key.changed")

    assert time.monotonic() - began < 60


def test_the_log_of_a_process_is_as_before_once_the_system_log_is_left(tmp_path: Path, syslog: socket.socket) -> None:
    stream = io.StringIO()
    with system_log("info", "fleet", tmp_path / "log"):
        pass
    assert not structlog.is_configured()
    configure_logging("info", "json", stream=stream)
    with system_log("info", "fleet", tmp_path / "log"):
        get_logger("fleet.test").info("inside")
    get_logger("fleet.test").info("outside")

    assert [event["event"] for event in lines(stream)] == ["outside"]
