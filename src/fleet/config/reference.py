"""The reference page of the configuration, from the table of its keys.

`python -m fleet.config.reference > docs/reference/configuration.md` writes it; a test refuses a stale page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from fleet.config.keys import KEYS, Key, Scope
from fleet.config.settings import DEFAULT_PATH, ENVIRONMENT_PREFIX, PATH_VARIABLE
from fleet.model.cluster_config import PREFIX

COMMAND: Final = "python -m fleet.config.reference > docs/reference/configuration.md"
INTRODUCTION: Final = f"""# Configuration

Generated from the table of the keys: `{COMMAND}`.

A machine's own keys stand in `{DEFAULT_PATH}` (`--config` and `{PATH_VARIABLE}` name another file): shell-style
`KEY=value`, `#` begins a comment, quotes are allowed. `{ENVIRONMENT_PREFIX}<KEY>` in the environment beats the file,
and the file the default; the prefix `{PREFIX}` is accepted and means the same. An unknown key is a warning with the
nearest known name, a bad value keeps the process from starting. `fleet config show` prints every key of the machine
with its value and where it came from.

Cluster-wide keys stand in the database: `fleet ctl set-config`, `unset-config` and `get-config`
([who changed what](../operator/audit.md)). They hold everywhere within `SCHEDULER_CACHE_TIMEOUT` seconds; set in a file
they have no effect, and a warning says so.
"""
HEADINGS: Final[Mapping[Scope, str]] = MappingProxyType(
    {
        Scope.NODE: f"A node, in its `{DEFAULT_PATH}`",
        Scope.PROCESS: f"Every process, in the `{DEFAULT_PATH}` of its machine",
        Scope.API: f"`sf-api`, in the `{DEFAULT_PATH}` of its machine",
        Scope.CONTROL_FILE: f"The control node, in its `{DEFAULT_PATH}` and never over the API",
        Scope.CLUSTER: "The cluster, in the database",
    }
)


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_tables()]).rstrip() + "\n"


def _tables() -> Iterator[str]:
    for scope, heading in HEADINGS.items():
        yield f"## {heading}\n"
        yield "| key | default | accepted | meaning |"
        yield "|---|---|---|---|"
        yield from (_row(key) for key in KEYS.values() if key.scope is scope)
        yield ""


def _row(key: Key) -> str:
    cells = (f"`{key.name}`", _default(key), key.parser.accepted, key.meaning + ("; never shown" if key.secret else ""))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(key: Key) -> str:
    if key.default is None:
        return "not set"
    return f"`{key.default}`" if key.default else "empty"


if __name__ == "__main__":
    sys.stdout.write(page())
