"""What all daemons have in common: their options, their start and their end, in words and never as a stack trace.

    --config FILE   another configuration file        --check   look at the configuration, start nothing
    --once          one round of work, then the end    SIGTERM   stop after what is in hand

Exit codes: 0 done, 1 refused or broken, 2 usage or configuration, 3 a service could not be reached.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.config import ConfigError, Settings, load_settings
from fleet.ledger import migrate
from fleet.ledger.database import Database
from fleet.model.errors import DatabaseUnavailable, FleetError, QueueUnavailable
from fleet.services.supervision import Notifier, stop_on_signals, wait_for
from fleet.telemetry import configure_logging, get_logger

DONE: Final = 0
BROKEN: Final = 1
MISCONFIGURED: Final = 2
UNREACHABLE: Final = 3

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Life:
    """What a daemon is given for its lifetime: its options, its environment, when to stop, and whom to tell.

    `holder` names this process in leases, for people; what fences is a lease's number.
    """

    options: argparse.Namespace
    environ: Mapping[str, str]
    holder: str
    stop: threading.Event
    notifier: Notifier

    @property
    def once(self) -> bool:
        """Whether one round is asked for."""
        return bool(self.options.once)

    def wait_for(self, what: str, probe: Callable[[], object]) -> bool:
        """Wait until a service answers; False when told to stop meanwhile. `--once` tries once and raises."""
        if self.once:
            probe()
            return True
        return wait_for(what, probe, stop=self.stop, notifier=self.notifier)

    def wait_for_database(self, database: Database) -> bool:
        """Wait until the ledger's database answers and has its tables."""
        return self.wait_for("the database", lambda: schema_ready(database))


def schema_ready(database: Database) -> None:
    """Raise DatabaseUnavailable while the database does not answer or has no tables yet."""
    revision = migrate.current(database)
    if revision is None:
        raise DatabaseUnavailable("the database has no tables yet; make them with `fleet ctl migrate-db`")
    if revision != migrate.head():
        # While a fleet is upgraded, an older daemon meets a newer database.
        _log.warning("database.other_revision", found=revision, known=migrate.head())


def _no_options(_parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def _no_check(_settings: Settings, _options: argparse.Namespace) -> None:
    """Find nothing wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """One daemon: its name, the keys it cannot do without, and what it does.

    `check` raises ConfigError for what only this daemon knows to be wrong; `serve` works until it is told to stop.
    """

    name: str
    summary: str
    needs: tuple[str, ...]
    serve: Callable[[Settings, Life], int]
    options: Callable[[argparse.ArgumentParser], None] = _no_options
    check: Callable[[Settings, argparse.Namespace], None] = _no_check

    def main(self, arguments: Sequence[str] | None, environ: Mapping[str, str]) -> int:
        """Run it; the answer is the process's exit code."""
        options = self._parser().parse_args(arguments)
        try:
            settings = load_settings(options.config, environ)
            settings.require(*self.needs)
            self.check(settings, options)
        except ConfigError as refused:
            _tell(f"{self.name}: the configuration cannot be used:", *str(refused).splitlines())
            return MISCONFIGURED
        if options.check:
            for warning in settings.warnings:
                _tell(f"warning: {warning}")
            sys.stdout.write(f"{self.name}: the configuration is good ({settings.path})\n")
            return DONE
        configure_logging(settings.log_level, settings.log_format)
        # What RQ says of its queues is in our own events.
        logging.getLogger("rq").setLevel(logging.WARNING)
        for warning in settings.warnings:
            _log.warning("config.ignored", key=warning.key, where=warning.where, reason=warning.reason)
        holder = f"{settings.node_name[:63]}:{os.getpid()}:{secrets.token_hex(4)}"
        life = Life(options, environ, holder, stop_on_signals(), Notifier(environ.get("NOTIFY_SOCKET", "")))
        return self._live(settings, life)

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=self.name, description=self.summary)
        parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration (default /etc/sf/config)")
        parser.add_argument("--check", action="store_true", help="look at the configuration and start nothing")
        parser.add_argument("--once", action="store_true", help="one round of work, then the end")
        self.options(parser)
        return parser

    def _live(self, settings: Settings, life: Life) -> int:
        _log.info("daemon.started", daemon=self.name, once=life.once)
        try:
            code = self.serve(settings, life)
        except ConfigError as refused:
            _tell(f"{self.name}: the configuration cannot be used:", *str(refused).splitlines())
            code = MISCONFIGURED
        except (DatabaseUnavailable, QueueUnavailable) as error:
            _tell(f"{self.name}: {error.in_words}")
            code = UNREACHABLE
        except FleetError as error:
            _log.error("daemon.failed", daemon=self.name, code=error.code, reason=error.detail)
            code = BROKEN
        except Exception:  # noqa: BLE001 - the last line of defence: the log gets the trace, the user a sentence
            _log.exception("daemon.broke", daemon=self.name)
            _tell(f"{self.name}: stopped by a fault of its own; its log has the details")
            code = BROKEN
        life.notifier.stopping()
        _log.info("daemon.stopped", daemon=self.name, exit_code=code)
        return code


def _tell(*lines: str) -> None:
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
