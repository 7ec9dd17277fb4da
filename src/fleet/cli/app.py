"""`fleet`: the command line. Every verb of the service, and what runs on a control node or on files alone.

Exit codes: 0 done, 1 refused with a reason, 2 usage or configuration, 3 the service could not be reached.
`--json`, `--simple`, `--url`, `--key-file` and `--as` are understood anywhere on the line.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

import fleet
from fleet.cli import usage
from fleet.cli.caller import Unexpected, Unreachable
from fleet.cli.commands import (
    claim,
    config,
    ctl,
    decision,
    instance,
    namespace,
    node,
    operation,
    placement,
    pure,
    resources,
)
from fleet.cli.commands.asking import remedy_lines
from fleet.cli.layout import broken
from fleet.cli.outcome import DONE, REFUSED, UNREACHABLE, USAGE, Misused, Refused, reason
from fleet.cli.output import Form, Output, console, terminal_width
from fleet.cli.session import SYSTEM, URL_DEFAULT, Shell
from fleet.cli.typed_values import WIDTH, Commands
from fleet.model.errors import DatabaseUnavailable, FleetError, InvalidRequest

INTERRUPTED: Final = 130
SHOWN_CHARACTERS: Final = 80
UNWRITTEN: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_EVERYWHERE: Final = frozenset({"--json", "--simple"})
_EVERYWHERE_WITH_VALUE: Final = frozenset({"--url", "--key-file", "--admin-key-file", "--as"})
# These have options of their own under the same names.
_ON_THEIR_OWN: Final = frozenset({"replay", "decide", "simulate"})

app = typer.Typer(
    name="fleet",
    cls=Commands,
    context_settings=dict(WIDTH),
    help="Place instances on nodes, see why they went there, and run the fleet.",
    epilog="--json, --simple, --url, --key-file and --as may stand anywhere on the line.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(instance.app, name="instance")
app.add_typer(node.app, name="node")
app.add_typer(namespace.app, name="namespace")
app.add_typer(namespace.keys, name="key")
app.add_typer(claim.app, name="claim")
app.add_typer(operation.app, name="operation")
app.add_typer(decision.app, name="decision")
app.add_typer(config.app, name="config")
app.add_typer(ctl.app, name="ctl")
placement.add_to(app)
resources.add_to(app)
pure.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"fleet {fleet.__version__}\n")
        raise typer.Exit


@app.callback()
def everywhere(
    ctx: typer.Context,
    *,
    url: Annotated[str, typer.Option(help="Where the service is", envvar="FLEET_URL")] = URL_DEFAULT,
    namespace_as: Annotated[
        str, typer.Option("--as", metavar="NAMESPACE", help="Who calls", envvar="FLEET_NAMESPACE")
    ] = SYSTEM,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", "--admin-key-file", help="The caller's key; else FLEET_KEY or FLEET_KEY_FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Results as JSON")] = False,
    simple: Annotated[bool, typer.Option("--simple", help="Results as comma-separated lines")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What holds for every command."""
    form = Form.JSON if as_json else Form.SIMPLE if simple else Form.HUMAN
    ctx.obj = Shell(Output(form), url.rstrip("/"), namespace_as, key_file, os.environ)
    ctx.call_on_close(ctx.obj.close)


def main() -> None:
    """Run `fleet`, and end with its exit code."""
    sys.exit(run(sys.argv[1:]))


def ctl_main() -> None:
    """Run `sf-ctl`, which is `fleet ctl`."""
    sys.exit(run(["ctl", *sys.argv[1:]]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Whatever goes wrong is told in words."""
    # A stream that was closed (`>&-`) is none; what is said into it is lost, as was wished. Open to the end:
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    line = _reordered(list(arguments))
    as_json = "--json" in line
    try:
        ended = typer.main.get_command(app)(args=line, prog_name="fleet", standalone_mode=False)
        # Here, and not when the interpreter ends: a full disk is told in words too.
        sys.stdout.flush()
    except usage.WrongUsage as wrong:
        if usage.is_help(wrong):
            console(error=True).print(str(wrong))
            return USAGE
        return _told(usage.in_words(wrong, line), as_json=as_json)
    except SystemExit as end:
        # The framework's own end, such as of a completion.
        return end.code if isinstance(end.code, int) else DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has seen enough (`fleet … | head`).
        _print_nothing_more()
        return DONE
    except Exception as error:  # noqa: BLE001  # the last line of defence: a person gets a sentence
        return _told(error, as_json=as_json)
    return ended if isinstance(ended, int) else DONE


def _print_nothing_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception, *, as_json: bool) -> int:
    if isinstance(error, OSError) and error.errno in UNWRITTEN:
        _print_nothing_more()
        _tell(f"the output could not be written: {reason(error)}", "", None)
        return REFUSED
    if isinstance(error, UnicodeEncodeError):
        # Half characters come from a command line that is not UTF-8; what is sent or looked up is.
        error = Misused(f"{ascii(error.object)[:SHOWN_CHARACTERS]} is not text in UTF-8")
    if isinstance(error, Refused):
        hint = "\n       ".join([*remedy_lines(error.document), *error.hints, _advice(error.document)])
        _tell(str(error), hint, error.document if as_json else None)
        return REFUSED
    if isinstance(error, Misused):
        _tell(str(error), error.hint, {"code": "usage", "detail": str(error)} if as_json else None)
        return USAGE
    if isinstance(error, Unreachable | DatabaseUnavailable):
        hint = "is the service running, and is --url (FLEET_URL) right?" if isinstance(error, Unreachable) else ""
        said = error.in_words if isinstance(error, DatabaseUnavailable) else str(error)
        _tell(said, hint, {"code": "unreachable", "detail": said} if as_json else None)
        return UNREACHABLE
    if isinstance(error, InvalidRequest):
        _tell(error.detail, "", {"code": error.code, "detail": error.detail, **error.extra} if as_json else None)
        return REFUSED
    if isinstance(error, FleetError | Unexpected):
        code, said = getattr(error, "code", "unexpected"), getattr(error, "in_words", str(error))
        _tell(said, "", {"code": code, "detail": said} if as_json else None)
        return REFUSED
    if type(error).__module__.startswith("sqlalchemy."):
        from fleet.ledger.driver_words import in_words

        refused = in_words(error)
        hint = "does DATABASE_URL name the right one, and has it its tables (`fleet ctl migrate-db`)?"
        _tell(f"the database refused: {refused}", hint, {"code": "database", "detail": refused} if as_json else None)
        return REFUSED
    _tell(f"a fault of this program: {type(error).__name__}: {error}", "please report it with what was typed", None)
    return REFUSED


def _tell(message: str, hint: str, document: Mapping[str, Any] | None) -> None:
    if document is not None:
        Output(Form.JSON).json(document)
        return
    err, width = console(error=True), terminal_width(sys.stderr)
    head = "fleet: "
    first, *others = message.split("\n")
    lines = broken(head + first, width, hang=len(head))
    for other in others:
        lines += broken(" " * len(head) + other, width)
    told = Text("\n".join(lines))
    told.stylize("bold red", 0, len(head.rstrip()))
    err.print(told)
    for line in broken(" " * len(head) + hint, width) if hint else ():
        err.print(line, style="dim")


def _advice(document: Mapping[str, Any]) -> str:
    """What the document's figures add to its sentence."""
    parts = [str(document["code"])] if document.get("code") else []
    if document.get("decision_id"):
        parts.append(f"fleet decision show {document['decision_id']}")
    if document.get("code") == "unauthenticated":
        parts.append("check --as (FLEET_NAMESPACE) and the key")
    return "; ".join(parts)


def _reordered(line: list[str]) -> list[str]:
    """The line with what may stand anywhere moved to the front, where click wants it."""
    if any(word in _ON_THEIR_OWN for word in line[:1]):
        return line
    front: list[str] = []
    rest: list[str] = []
    words = iter(line)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in _EVERYWHERE or (word.partition("=")[0] in _EVERYWHERE_WITH_VALUE and "=" in word):
            front.append(word)
        elif word in _EVERYWHERE_WITH_VALUE:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            rest.append(word)
    return front + rest


if __name__ == "__main__":
    main()
