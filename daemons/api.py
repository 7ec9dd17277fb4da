"""sf-api: the HTTP API and its web page. `API_WORKERS` processes, each with the scheduler in its own memory."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from fleet.config import Settings
from fleet.ledger.database import Database
from fleet.model.errors import DatabaseUnavailable
from fleet.queue.connection import connect
from fleet.services.authentication import Authenticator, ensure_admin_key, is_private, token_secret
from fleet.services.daemon import BROKEN, DONE, Daemon, Life, schema_ready
from fleet.services.database_clock import DatabaseClock
from fleet.telemetry import get_logger

if TYPE_CHECKING:
    from fleet.api.waiting_room import WaitingRoom

ANSWER_SECONDS_MAX = 10
FLUSH_SECONDS = 2.0
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_log = get_logger(__name__)


def serve(settings: Settings, life: Life) -> int:
    """Serve until told to stop."""
    secret = _prepare(settings, life)
    if secret is None:
        return DONE
    folder = _share_figures(settings)
    # Only now, because counters are shared where that folder is; and before the fork, so that workers share the code.
    from fleet.api import app as _  # noqa: F401, PLC0415
    from fleet.api.prefork import Workforce  # noqa: PLC0415
    from fleet.api.sockets import listen  # noqa: PLC0415

    workers = 1 if life.once else settings.api_workers
    sockets = listen(settings.api_host, settings.api_port, workers)
    outcome = [DONE]

    def ready() -> None:
        life.notifier.ready()
        _log.info("api.ready", host=settings.api_host, port=settings.api_port, workers=workers)
        if life.once:
            outcome[0] = _ask_once(settings)
            life.stop.set()

    def work(listening: socket, beat: Callable[[], bool]) -> int:
        # A SIGTERM that came before the server took the signals over is kept in `stop`.
        _serve_one(settings, life, secret, listening, lambda: beat() and not life.stop.is_set())
        return DONE

    try:
        if workers == 1 and not life.once:
            _serve_alone(work, sockets[0], life, ready)
        else:
            Workforce(sockets, work).run(life.stop, ready=ready, alive=life.notifier.alive)
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return outcome[0]


def _prepare(settings: Settings, life: Life) -> str | None:
    """Wait for the database, make the admin's key on the first start, and get what signs tokens; None: told to stop."""
    database = Database(settings.database_url)
    try:
        if not _wait(settings, life, database):
            return None
        path = Path(settings.admin_key_file)
        if ensure_admin_key(database, path, settings.node_name):
            _log.info("api.admin_key_made", path=str(path))
        if not is_private(path):
            _log.warning("api.admin_key_readable", path=str(path), wanted="mode 0600")
        return token_secret(database, settings.auth_secret)
    finally:
        # A connection must not be carried over a fork.
        database.close()


def _wait(settings: Settings, life: Life, database: Database) -> bool:
    """Wait for the database; who asks meanwhile is told so. False: told to stop."""
    if life.once:
        return life.wait_for_database(database)
    with contextlib.ExitStack() as opened:
        told: list[bool] = []

        def probe() -> None:
            try:
                schema_ready(database)
            except DatabaseUnavailable:
                if not told:
                    told.append(True)
                    opened.callback(_open_waiting_room(settings).close)
                raise

        return life.wait_for("the database", probe)


def _open_waiting_room(settings: Settings) -> WaitingRoom:
    from fleet.api.sockets import listen  # noqa: PLC0415
    from fleet.api.waiting_room import WaitingRoom  # noqa: PLC0415

    return WaitingRoom(listen(settings.api_host, settings.api_port, 1)[0])


def _share_figures(settings: Settings) -> Path | None:
    """Prepare the environment that libraries read when they are imported."""
    # Columns are not matrices: threads of a linear algebra library would only be in the way of the fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if settings.api_workers == 1:
        return None
    folder = Path(tempfile.mkdtemp(prefix="fleet-api-"))
    os.environ[SHARED_FOLDER] = str(folder)
    return folder


def _serve_one(settings: Settings, life: Life, secret: str, listening: socket, beat: Callable[[], bool]) -> None:
    from fleet import bootstrap  # noqa: PLC0415
    from fleet.api.addresses import TrustedProxies  # noqa: PLC0415
    from fleet.api.app import create_app  # noqa: PLC0415
    from fleet.api.dependencies import Services  # noqa: PLC0415
    from fleet.api.metrics import decided  # noqa: PLC0415
    from fleet.api.server import serve as serve_http  # noqa: PLC0415
    from fleet.services.failed_logins import REDIS_SECONDS, FailedLogins, recorded_in  # noqa: PLC0415

    context = replace(bootstrap.build(settings, life.environ), decided=decided)
    failures = FailedLogins(
        connect(settings.redis_url, hasty_seconds=REDIS_SECONDS),
        elapsed=time.monotonic,
        wall_clock=time.time,
        on_burst=recorded_in(context.database),
    )
    authenticator = Authenticator(
        context.database,
        secret=secret,
        clock=DatabaseClock(context.database, time.monotonic),
        elapsed=time.monotonic,
        failures=failures,
    )
    context.snapshots.start()
    try:
        app = create_app(
            Services(
                context=context,
                authenticator=authenticator,
                failures=failures,
                secret=secret,
                trusted_proxies=TrustedProxies.of(settings.api_trusted_proxies),
                metrics_token=settings.metrics_token,
            )
        )
        serve_http(app, listening, beat)
    finally:
        context.snapshots.stop()
        context.flush_wake_ups(FLUSH_SECONDS)
        context.database.close()


def _serve_alone(
    work: Callable[[socket, Callable[[], bool]], int], listening: socket, life: Life, ready: Callable[[], None]
) -> None:
    """One worker needs no parent: it feeds the watchdog itself."""
    told: list[bool] = []

    def beat() -> bool:
        if not told:
            told.append(True)
            ready()
        life.notifier.alive()
        return not life.stop.is_set()

    work(listening, beat)


def _ask_once(settings: Settings) -> int:
    connection = http.client.HTTPConnection(settings.api_host, settings.api_port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        sys.stdout.write(answer.read().decode() + "\n")
    except OSError as error:
        sys.stderr.write(f"sf-api: no answer from itself: {error}\n")
        return BROKEN
    else:
        return DONE if answer.status == http.client.OK else BROKEN
    finally:
        connection.close()


DAEMON = Daemon(
    name="sf-api",
    summary="Serves the HTTP API and the web page.",
    needs=("DATABASE_URL", "REDIS_URL", "ADMIN_KEY_FILE"),
    serve=serve,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon."""
    return DAEMON.main(arguments, os.environ)


if __name__ == "__main__":
    raise SystemExit(main())
