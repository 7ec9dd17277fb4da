"""Logs are events: a past-tense name with ids, one line each, never a sentence put together from values.

Nothing happens on import: a daemon calls `configure_logging` once, when it starts; a command whose output is somebody's
terminal logs to the machine's `system_log`. Events of libraries that use the standard library's logging come out in the
same format. Secrets are hidden here too, whoever logs them.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

HIDDEN: Final = "(hidden)"
_SECRET_NAMES: Final = frozenset(
    {"admin_key", "auth_secret", "authorization", "bearer", "key_secret", "password", "secret", "token"}
)
SYSTEM_LOG: Final = Path("/dev/log")
SYSTEM_LOG_SECONDS_MAX: Final = 1.0
"""A system log that takes a line no sooner does without it: nobody waits for it any longer."""
FACILITY_USER: Final = 1 << 3
_SEVERITIES: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_URL_PASSWORD = re.compile(r"(?P<before>://[^/\s:@]*:)[^/\s@]+@")


def configure_logging(level: str, fmt: str, *, stream: TextIO | None = None) -> None:
    """Send all events from `level` on to `stream` (standard error), as `json` lines or for the `console`."""
    if fmt not in {"json", "console"}:
        raise ValueError(f"log format {fmt!r} is unknown; accepted: json, console")
    target = sys.stderr if stream is None else stream
    _configure(level, logging.StreamHandler(target), _renderers(fmt, target))


@contextmanager
def system_log(level: str, program: str, address: Path) -> Iterator[None]:
    """Send all events from `level` on to the system log at `address` while the block runs, as the same JSON lines.

    Where there is none, or where it does not take them, they are left out: nothing is said, and nothing fails.
    """
    root = logging.getLogger()
    handlers, threshold, configuration = root.handlers[:], root.level, structlog.get_config()
    was_configured = structlog.is_configured()
    handler = _SystemLog(program, address) if address.is_socket() else logging.NullHandler()
    _configure(level, handler, _renderers("json"))
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(threshold)
        structlog.reset_defaults()
        if was_configured:
            structlog.configure(**configuration)
        handler.close()


class _SystemLog(logging.Handler):
    """Lines for the system log, a datagram each; one that is not taken is lost, without a word.

    There is nowhere to say it but the terminal of somebody whose act succeeded. (The standard library's handler says it
    there, and waits for a full log for ever.)
    """

    def __init__(self, program: str, address: Path) -> None:
        super().__init__()
        self._ident = f"{program}[{os.getpid()}]"
        self._address = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SYSTEM_LOG_SECONDS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        # What is told has happened, whether it is told or not.
        with suppress(Exception):
            line = f"<{FACILITY_USER + _SEVERITIES.get(record.levelno, 5)}>{self._ident}: {self.format(record)}"
            self._socket.sendto(line.encode(), self._address)

    def close(self) -> None:
        self._socket.close()
        super().close()


def _configure(level: str, handler: logging.Handler, renderers: list[structlog.typing.Processor]) -> None:
    """Send all events from `level` on to a handler, rendered so."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        hide_secrets,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """The logger of one module; it follows whatever `configure_logging` set last."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(name)
    return logger


def hide_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Replace values whose name says secret, and passwords inside URLs."""
    for name, value in event.items():
        if name in _SECRET_NAMES:
            event[name] = HIDDEN
        elif isinstance(value, str) and "://" in value:
            event[name] = without_password(value)
    return event


def without_password(text: str) -> str:
    """The text with the password of any URL in it hidden."""
    return _URL_PASSWORD.sub(rf"\g<before>{HIDDEN}@", text)


def _renderers(fmt: str, target: TextIO | None = None) -> list[structlog.typing.Processor]:
    if fmt == "console" and target is not None:
        return [structlog.dev.ConsoleRenderer(colors=target.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
