"""One run of the exercise, told check by check: what passed, what failed, what could not be removed."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from fleet.cli.caller import Unexpected, Unreachable
from fleet.cli.exercise import drawdown, surface
from fleet.cli.exercise.interrupt import Interrupt, Stopped
from fleet.cli.exercise.scene import Claim, Scene, scene_of
from fleet.cli.exercise.tally import FAIL, Outcome, Tally, Wrong
from fleet.cli.exercise.throwaway import Cluster
from fleet.cli.outcome import DONE, REFUSED, UNREACHABLE, Refused
from fleet.cli.output import Form, Output, console, tell
from fleet.cli.session import Shell, find_key

SIGNALLED: Final = 128
SURFACE: Final[tuple[tuple[str, Callable[[Scene, Claim], None]], ...]] = (
    ("more than there is", surface.too_much),
    ("reads", surface.reads),
    ("who may", surface.owner),
    ("update", surface.changes),
    ("delete", surface.deletion),
)
STYLES: Final = {"pass": "green", "FAIL": "bold red", "skip": "dim"}


def exercise(shell: Shell, *, instances: bool, expiry: bool, timeout: float) -> int:
    """Walk the surface of claims in namespaces of this run's own; the exit code.

    Raises:
        Refused: the cluster is not one that this can be done on.
        Unreachable: it does not answer at all.
    """
    key = find_key(shell.namespace, shell.key_file, shell.environ)
    told = _Told(shell.output)
    tally = Tally(told.outcome, told.waiting)
    with Interrupt() as interrupt:
        cluster = Cluster(shell.url, shell.namespace, key, interrupt, secrets.token_hex(4), timeout)
        fault: Exception | None = None
        try:
            told.beginning(shell.url, cluster.token)
            _walk(_begun(cluster, tally, instances=instances), told, instances=instances, expiry=expiry)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001  # whatever it is: what is left behind is told
            fault = error
        finally:
            left = cluster.clean()
            cluster.close()
    if isinstance(fault, Refused | Unreachable | Unexpected) and not tally.outcomes and not left:
        raise fault
    told.end(tally, left, fault, stopped=bool(interrupt.number))
    if fault is not None and not isinstance(fault, Refused | Unreachable | Unexpected | Wrong):
        raise fault
    if interrupt.number:
        return SIGNALLED + interrupt.number
    if isinstance(fault, Unreachable):
        return UNREACHABLE
    return REFUSED if tally.count(FAIL) or left or fault else DONE


def _begun(cluster: Cluster, tally: Tally, *, instances: bool) -> Scene:
    try:
        return scene_of(cluster, tally, instances=instances)
    except (LookupError, TypeError, ValueError, AttributeError) as fault:
        told = f"{cluster.url} does not answer as fleet does: {type(fault).__name__}: {fault}"
        raise Refused({"code": "unexpected", "detail": told}) from None


def _walk(scene: Scene, told: _Told, *, instances: bool, expiry: bool) -> None:
    made: list[Claim] = []

    def part(name: str, run: Callable[[], object]) -> None:
        told.section(name)
        with scene.tally.section(name):
            run()

    part("requests", lambda: surface.bodies(scene))
    part("create", lambda: made.append(surface.creation(scene)))
    for claim in made:
        for name, run in SURFACE:
            part(name, partial(run, scene, claim))
    if instances:
        part("drawdown", lambda: drawdown.drawn_down(scene))
    else:
        scene.tally.skip("drawing a claim down", "--no-instances")
    part("what was used before, and the end", lambda: _to_its_end(scene, instances=instances, expiry=expiry))
    part("the namespace's end", lambda: drawdown.ended_namespace(scene))


def _to_its_end(scene: Scene, *, instances: bool, expiry: bool) -> None:
    if instances:
        made, instance = drawdown.taken_over(scene)
    else:
        made, instance = scene.make(scene.second, scene.body()), ""
    if expiry:
        drawdown.expiry(scene, scene.second, made, instance)
    else:
        scene.tally.skip("expiry", "--no-expiry")


class _Told:
    """What is printed while it goes on; programs get it on standard error, and one document at the end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._console = console(error=output.form is Form.JSON)

    def beginning(self, url: str, token: str) -> None:
        """Say where, and in which namespaces."""
        self._say(f"Claims on {url}, in the namespaces exercise-claims-{token}-*, which are removed at the end.", "")

    def section(self, name: str) -> None:
        """Begin a part."""
        self._say(f"\n{name}", "bold")

    def outcome(self, outcome: Outcome) -> None:
        """Tell one check."""
        if self._output.form is Form.SIMPLE:
            self._output.lines([f"{outcome.result},{outcome.section},{outcome.name}"])
            sys.stdout.flush()
            return
        self._say(f"  {outcome.result}  {outcome.name}", STYLES[outcome.result], hang=6)
        if outcome.detail:
            self._say(f"        {outcome.detail}", "")

    def waiting(self, text: str) -> None:
        """Tell what takes long."""
        self._say(f"  …     {text}", "dim")

    def end(self, tally: Tally, left: list[str], fault: Exception | None, *, stopped: bool) -> None:
        """Tell the counts, and what is left behind."""
        if self._output.form is Form.JSON:
            more = {"interrupted": stopped, "ended_by": None if fault is None else str(fault), "left_behind": left}
            self._output.json({**tally.as_dict(), **more})
            return
        if stopped:
            self._say("\nInterrupted.", "bold")
        if fault is not None:
            self._say(f"\nEnded early: {fault}", "bold red")
        if left:
            self._say("\nThis could not be removed; look at it, and delete it by hand:", "bold red")
        for one in left:
            self._say(f"  {one}", "")
        self._say("", "")
        self._say(tally.summary(), "bold")
        if self._output.form is Form.SIMPLE:
            self._output.lines([*(f"left,{one}" for one in left), tally.summary()])

    def _say(self, text: str, style: str, *, hang: int = 2) -> None:
        if self._output.form is Form.SIMPLE:
            return
        tell(self._console, text, style, hang=hang)
