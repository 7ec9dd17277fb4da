"""`./dev demo` and `./dev run`: the embedded control plane, for a story that ends or for as long as it is wanted."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from shlex import quote
from typing import Annotated, Final, NoReturn

import typer
from rich.text import Text

from fleet.cli.caller import Unexpected, Unreachable
from fleet.cli.control_plane import ControlPlane, Plan, default_state, free_port
from fleet.cli.demo import SIMULATED, run_demo
from fleet.cli.output import console, tell
from fleet.cli.processes import StartFailed
from fleet.cli.typed_values import Commands

PORT: Final = 13000
PORT_MAX: Final = 65535
WATCH_SECONDS: Final = 0.5
INTERRUPTED: Final = 130
COMMANDS_TO_TRY: Final = (
    "fleet node list",
    "fleet instance create hello --cpus 2 --memory 4096 --disk 20 --wait",
    "fleet explain --cpus 60 --memory 4096",
    "fleet ctl audit",
)

app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The control plane on this machine.",
)


class Stopped(Exception):
    """SIGTERM or Ctrl-C came."""


@app.command()
def demo(
    state: Annotated[Path | None, typer.Option(help="Folder for its files; emptied first")] = None,
    port: Annotated[int, typer.Option(min=0, max=PORT_MAX, help="Port on 127.0.0.1; 0: a free one")] = 0,
    database_url: Annotated[str, typer.Option(help="A real, empty database in place of SQLite")] = "",
    redis_url: Annotated[str, typer.Option(help="A real Redis in place of a private one")] = "",
) -> None:
    """Start everything, place a burst, explain, verify, stop."""
    started, out = time.monotonic(), console()
    folder = state or default_state() / "demo"
    _catch_signals()
    good = False
    try:
        plan = _plan(folder, free_port(port), database_url, redis_url, reset=True)
        nodes = ": this machine as a node, and eleven simulated ones"
        out.print(Text.assemble(("Starting a control plane", "bold"), nodes))
        with ControlPlane(plan, _tell) as plane:
            good = run_demo(plane.session(), out)
    except Stopped:
        _fail("stopped", INTERRUPTED)
    except (StartFailed, Unexpected, Unreachable) as fault:
        _fail(str(fault), 1)
    verdict = ("all well", "green") if good else ("something is wrong, see above", "red")
    logs = _short(folder.resolve() / "log")
    out.print(Text.assemble(verdict, f", {time.monotonic() - started:.0f} s in all; logs are in {logs}"))
    raise typer.Exit(0 if good else 1)


@app.command()
def run(
    state: Annotated[Path | None, typer.Option(help="Folder for its files, kept between starts; default ./var")] = None,
    port: Annotated[int, typer.Option(min=0, max=PORT_MAX, help="Port on 127.0.0.1; 0: a free one")] = PORT,
    database_url: Annotated[str, typer.Option(help="A real database in place of SQLite")] = "",
    redis_url: Annotated[str, typer.Option(help="A real Redis in place of a private one")] = "",
    reset_first: Annotated[bool, typer.Option("--reset", help="Forget what an earlier start kept")] = False,
) -> None:
    """Start everything and stay up until Ctrl-C or SIGTERM."""
    folder = state or default_state()
    _catch_signals()
    try:
        plan = _plan(folder, free_port(port), database_url, redis_url, reset=reset_first)
        with ControlPlane(plan, _tell) as plane:
            _welcome(plane)
            while True:
                time.sleep(WATCH_SECONDS)
                plane.processes.check()
    except Stopped:
        console().print("stopped")
    except (StartFailed, Unexpected, Unreachable) as fault:
        _fail(str(fault), 1)


def _plan(folder: Path, port: int, database_url: str, redis_url: str, *, reset: bool) -> Plan:
    return Plan(
        state=folder,
        port=port,
        database_url=database_url,
        redis_url=redis_url,
        simulated=SIMULATED,
        reset=reset,
    )


def _welcome(plane: ControlPlane) -> None:
    out = console()
    variables = plane.state / "env.sh"
    variables.write_text(_variables(plane.url, plane.state))
    out.print(Text.assemble("\nThe web page:  ", (f"{plane.url}/", "bold")))
    tell(out, f"               (namespace system; the admin's key is in {_short(plane.state / 'admin.key')})")
    out.print("To try, in another terminal:")
    # Commands are not broken: they are copied.
    for words in (f". {quote(_short(variables))}", *COMMANDS_TO_TRY):
        out.print(f"  {words}")
    out.print("Ctrl-C stops everything; what was placed is kept.\n")


def _variables(url: str, state: Path) -> str:
    """Return what a shell reads so that `fleet` is found, and finds this control plane; no secret is in it."""
    programs = quote(str(Path(sys.executable).parent))
    named = {"FLEET_URL": url, "FLEET_KEY_FILE": str(state / "admin.key"), "FLEET_CONFIG": str(state / "config")}
    lines = [f'export PATH={programs}:"$PATH"', *(f"export {name}={quote(value)}" for name, value in named.items())]
    return "".join(f"{line}\n" for line in lines)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _tell(text: str) -> None:
    tell(console(), f"  {text}")


def _catch_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)


def _stop(_number: int, _frame: object) -> None:
    # Once is enough: a second one must not interrupt the stopping.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Stopping takes seconds, and silence looks like a hang. Not through the console: it may be printing right now.
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), b"stopping\n")
    raise Stopped


def _fail(text: str, code: int) -> NoReturn:
    tell(console(), f"./dev: {text}", "red")
    raise typer.Exit(code)


if __name__ == "__main__":
    app(prog_name="./dev")
