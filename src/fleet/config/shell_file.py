"""The shell-style file: `KEY=value` lines, `#` comments, quotes. Also a systemd `EnvironmentFile`.

Only what the shell, systemd and this reader understand alike is accepted: what one of them would read differently is
refused with the line and what to write instead. Nothing is expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.model.config_value import ConfigError, ConfigProblem

FILE_BYTES_MAX: Final = 1_048_576

_LINE = re.compile(r"(?P<key>[A-Za-z_][A-Za-z0-9_]{0,127})=(?P<value>.*)")
_COMMENT: Final = r"(?:\s+\#.*|\s*)"
_SINGLE = re.compile(r"'([^']*)'" + _COMMENT)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"' + _COMMENT)
_BARE = re.compile(r"([^\s'\"\\]*)" + _COMMENT)
_ESCAPED = re.compile(r'\\(["\\$`])')


@dataclass(frozen=True, slots=True)
class Entry:
    """One assignment as it stands in the file."""

    key: str
    text: str
    where: str


def read_shell_file(path: Path) -> tuple[list[Entry], list[ConfigProblem]] | None:
    """The file's assignments and what is wrong with its form; None when there is no such file."""
    try:
        with path.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise ConfigError([_whole(path, f"cannot be read: {fault.strerror}")]) from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError([_whole(path, f"is larger than {FILE_BYTES_MAX} bytes; that is no configuration")])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise ConfigError([_whole(path, f"is not UTF-8 text: bad byte at offset {fault.start}")]) from None
    return parse_shell_text(text, str(path))


def parse_shell_text(text: str, name: str) -> tuple[list[Entry], list[ConfigProblem]]:
    """The assignments of `text` in their order, and the lines that are none."""
    entries: list[Entry] = []
    problems: list[ConfigProblem] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        where = f"{name}:{number}"
        read = _assignment(line, where)
        if isinstance(read, Entry):
            entries.append(read)
        else:
            problems.append(read)
    return entries, problems


def _assignment(line: str, where: str) -> Entry | ConfigProblem:
    found = _LINE.fullmatch(line)
    if found is None:
        # The line itself is not repeated: whatever stands there may be half of a password.
        return ConfigProblem(key="line", reason=_why_no_assignment(line), where=where)
    key, value = found["key"], found["value"]
    if not value.isprintable() and "\t" not in value:
        return ConfigProblem(key=key, reason="the value holds control characters", where=where)
    for pattern in (_SINGLE, _DOUBLE, _BARE):
        match = pattern.fullmatch(value)
        if match and pattern is _DOUBLE:
            return Entry(key, _ESCAPED.sub(r"\1", match[1]), where)
        if match:
            return Entry(key, match[1], where)
    hint = "accepted: KEY=value, KEY='value' or KEY=\"value\"; a value with spaces, quotes or backslashes needs quotes"
    return ConfigProblem(key=key, reason=f"the value is not quoted as it should be; {hint}", where=where)


def _why_no_assignment(line: str) -> str:
    if line.startswith("export "):
        return "leave out the word export; accepted: KEY=value"
    if re.match(r"[A-Za-z_][A-Za-z0-9_]*\s+=|[A-Za-z_][A-Za-z0-9_]*=\s", line):
        return "no spaces around the equals sign; accepted: KEY=value"
    return "not an assignment; accepted: KEY=value, an empty line or a line that begins with #"


def _whole(path: Path, reason: str) -> ConfigProblem:
    return ConfigProblem(key="file", reason=reason, where=str(path))
