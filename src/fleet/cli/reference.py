"""The reference page of the command line, from the commands themselves.

`python -m fleet.cli.reference > docs/reference/cli.md` writes it; a test refuses a stale page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import typer

from fleet.cli.app import app

COMMAND: Final = "python -m fleet.cli.reference > docs/reference/cli.md"
INTRODUCTION: Final = f"""# Command line

Generated from the commands themselves: `{COMMAND}`.

`fleet` speaks to the service over HTTP; `fleet ctl` works on a control node, straight on the database. `--json` and
`--simple` (comma-separated) are for programs, tables are for people. Exit codes: 0 done, 1 refused with a reason,
2 usage or configuration, 3 the service could not be reached. The key comes from `--key-file`, `FLEET_KEY` or
`FLEET_KEY_FILE`; as the admin also from `var/admin.key` here or the installed service's own file.
"""


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    parts = [INTRODUCTION, "## fleet\n", *_options(root), *_commands(root, "fleet")]
    return "\n".join(parts).rstrip() + "\n"


def _commands(group: Any, prefix: str) -> Iterator[str]:
    for name, command in group.commands.items():
        words = f"{prefix} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, words)
            continue
        yield f"## {words}\n"
        yield " ".join((command.help or "").split()) + "\n"
        yield from _options(command)


def _options(command: Any) -> Iterator[str]:
    shown = [parameter for parameter in command.params if parameter.name not in {"help", *_COMPLETION}]
    if not shown:
        return
    yield "| | |"
    yield "|---|---|"
    for parameter in shown:
        if parameter.param_type_name == "argument":
            label = f"`{parameter.name.upper()}`"
        else:
            label = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
        needed = " (required)" if parameter.required else ""
        yield f"| {label} | {(parameter.help or '').replace('|', chr(92) + '|')}{needed} |"
    yield ""


_COMPLETION: Final = ("install_completion", "show_completion")


if __name__ == "__main__":
    sys.stdout.write(page())
