"""Logs are events: a past-tense name with ids, one line each, never a sentence put together from values.

Nothing happens on import: a process calls `configure_logging` once, when it starts. Events of libraries that use the
standard library's logging come out in the same format. Secrets are hidden here too, whoever logs them.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog

HIDDEN: Final = "(hidden)"
_SECRET_NAMES: Final = frozenset(
    {"admin_key", "auth_secret", "authorization", "bearer", "key_secret", "password", "secret", "token"}
)
_URL_PASSWORD = re.compile(r"(?P<before>://[^/\s:@]*:)[^/\s@]+@")


def configure_logging(level: str, fmt: str, *, stream: TextIO | None = None) -> None:
    """Send all events from `level` on to `stream` (standard error), as `json` lines or for the `console`."""
    if fmt not in {"json", "console"}:
        raise ValueError(f"log format {fmt!r} is unknown; accepted: json, console")
    threshold = logging.getLevelNamesMapping()[level.upper()]
    target = sys.stderr if stream is None else stream
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
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(fmt, target)],
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


def _renderers(fmt: str, target: TextIO) -> list[structlog.typing.Processor]:
    if fmt == "console":
        return [structlog.dev.ConsoleRenderer(colors=target.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
