"""This machine's configuration, for the commands that run on a node or a control node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleet.cli.outcome import Misused
from fleet.config import DEFAULT_PATH, ConfigError, Settings, load_settings

if TYPE_CHECKING:
    from fleet.ledger.database import Database

PROGRAM: Final = "fleet"
"""Whose lines in the system log are meant."""


@contextmanager
def database_of(path: Path | None) -> Iterator[Database]:
    """The ledger's database of the configuration, closed at the end of the block.

    What is done to it in the block is logged to this machine's system log, never to the terminal.

    Raises:
        Misused: the configuration names none.
    """
    from fleet import telemetry
    from fleet.ledger.database import Database

    settings = settings_of(path, "DATABASE_URL")
    with telemetry.system_log(settings.log_level, PROGRAM, telemetry.SYSTEM_LOG):
        database = Database(settings.database_url, pool_size=2)
        try:
            yield database
        finally:
            database.close()


def settings_of(path: Path | None, *needs: str) -> Settings:
    """The configuration; `needs` are keys the command cannot do without.

    Raises:
        Misused: with every problem of the file and the environment.
    """
    try:
        settings = load_settings(path, os.environ)
        settings.require(*needs)
    except ConfigError as refused:
        raise Misused(f"the configuration cannot be used:\n{refused}", _hint(path)) from None
    return settings


def _hint(path: Path | None) -> str:
    named = path or (Path(os.environ["FLEET_CONFIG"]) if os.environ.get("FLEET_CONFIG") else None)
    if named is not None and not named.exists():
        return f"there is no {named}"
    if named is None and not DEFAULT_PATH.exists():
        return (
            f"there is no {DEFAULT_PATH}; name a file with --config, or FLEET_CONFIG "
            "(`. var/env.sh` after `./dev run`, `. DIR/env.sh` after `./dev run --state DIR`)"
        )
    return "`fleet config show` prints every key"
