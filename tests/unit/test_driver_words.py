"""What a server's driver says of a failure: the log keeps it as it is, people get it in words."""

from __future__ import annotations

import re

import pymysql
import pytest
import redis
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fleet.cli import app
from fleet.cli.outcome import REFUSED, UNREACHABLE
from fleet.ledger.database import unavailable
from fleet.ledger.driver_words import in_words
from fleet.model.errors import Unavailable
from fleet.queue.connection import unavailable as queue_unavailable


def of_driver(error: Exception) -> DBAPIError:
    return DBAPIError("SELECT 1", None, error)


def no_way_to(host: str, why: Exception) -> DBAPIError:
    return of_driver(pymysql.err.OperationalError(2003, f"Can't connect to MySQL server on {host!r} ({why})"))


REFUSED_CONNECTION = no_way_to("10.0.0.7", ConnectionRefusedError(111, "Connection refused"))
SAID = [
    (REFUSED_CONNECTION, "10.0.0.7 cannot be reached: connection refused"),
    (no_way_to("db", OSError(-2, "Name or service not known")), "db cannot be reached: name or service not known"),
    (no_way_to("db", TimeoutError("timed out")), "db cannot be reached: timed out"),
    (
        of_driver(pymysql.err.OperationalError(1045, "Access denied for user 'sf'@'db' (using password: YES)")),
        "Access denied for user 'sf'@'db' (using password: YES)",
    ),
    (
        of_driver(
            pymysql.err.OperationalError(2006, f"MySQL server has gone away ({BrokenPipeError(32, 'Broken pipe')!r})")
        ),
        "MySQL server has gone away (Broken pipe)",
    ),
    (of_driver(pymysql.err.InterfaceError(0, "")), "the connection was closed"),
    (PoolTimeout("QueuePool limit of size 8 reached"), "all connections of this process are in use"),
    (None, "no answer"),
]


@pytest.mark.parametrize(("error", "words"), SAID)
def test_a_failure_of_the_driver_is_told_without_number_and_type(error: Exception | None, words: str) -> None:
    assert in_words(error) == words


def test_the_log_keeps_what_the_driver_said() -> None:
    away = unavailable(REFUSED_CONNECTION)

    assert "(2003, " in away.detail
    assert "[Errno 111]" in away.detail
    assert away.in_words == (
        "the ledger's database did not answer (10.0.0.7 cannot be reached: connection refused); "
        "nothing was decided, try again"
    )
    assert "10.0.0.7" not in away.told


def test_the_queues_server_is_told_in_words_too() -> None:
    away = queue_unavailable(redis.ConnectionError("Error 111 connecting to 10.0.0.8:6379. Connection refused."))

    assert "Error 111" in away.detail
    assert "(10.0.0.8:6379 cannot be reached: connection refused)" in away.in_words
    assert "10.0.0.8" not in away.told


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (unavailable(REFUSED_CONNECTION), UNREACHABLE),
        (of_driver(pymysql.err.ProgrammingError(1146, "Table 'fleet.nodes' doesn't exist")), REFUSED),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_whoever_stands_at_a_terminal_reads_words(
    error: Unavailable | DBAPIError, code: int, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app._told(error, as_json=as_json) == code

    told = "".join(capsys.readouterr())
    assert not re.search(r"Errno|\(\d{4}, ", told)
