"""Checks that pass or fail, each told as soon as it is known; one that fails does not end the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from fleet.cli.caller import Answer

PASS: Final = "pass"  # noqa: S105  # an outcome, and no secret
FAIL: Final = "FAIL"
SKIP: Final = "skip"
BODY_CHARACTERS: Final = 300


class Wrong(Exception):
    """Something is not as it is promised; the message says what was expected and what came."""


class Stuck(Exception):
    """A check failed that the rest of its section needs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check. `detail` is why it failed or was left out."""

    section: str
    name: str
    result: Literal["pass", "FAIL", "skip"]
    detail: str
    seconds: float


class Tally:
    """The checks of one run, in their order."""

    def __init__(self, tell: Callable[[Outcome], None], say: Callable[[str], None] = lambda _: None) -> None:
        """`tell` is given each outcome at once, and `say` what it is being waited for."""
        self.outcomes: list[Outcome] = []
        self.say = say
        self._tell = tell
        self._section = ""

    def count(self, result: str) -> int:
        """How many ended so."""
        return sum(outcome.result == result for outcome in self.outcomes)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """A run of checks that build on each other; it ends early where something fails that the others need."""
        self._section = name
        # What lies between two checks fails as one of them.
        with suppress(Stuck), self.check("the rest of this part", silent=True):
            yield

    @contextmanager
    def check(self, name: str, *, needed: bool = False, silent: bool = False) -> Iterator[None]:
        """One check: it fails by `Wrong`, or where an answer has not the form that it should. `silent`: only then told.

        Raises:
            Stuck: it failed, and is needed.
        """
        started = time.monotonic()
        detail = ""
        try:
            yield
        except Wrong as fault:
            detail = str(fault)
        except (LookupError, TypeError, ValueError, AttributeError) as fault:
            detail = f"an answer has not the documented form: {type(fault).__name__}: {fault}"
        if detail or not silent:
            self._note(name, FAIL if detail else PASS, detail, time.monotonic() - started)
        if detail and needed:
            raise Stuck

    def skip(self, name: str, why: str) -> None:
        """Leave a check out, and say why."""
        self._note(name, SKIP, why, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and every check."""
        return {
            "passed": self.count(PASS),
            "failed": self.count(FAIL),
            "skipped": self.count(SKIP),
            "checks": [asdict(outcome) for outcome in self.outcomes],
        }

    def summary(self) -> str:
        """Return the counts in words."""
        skipped = f", {self.count(SKIP)} left out" if self.count(SKIP) else ""
        return f"{self.count(PASS)} passed, {self.count(FAIL)} failed{skipped}"

    def _note(self, name: str, result: Literal["pass", "FAIL", "skip"], detail: str, seconds: float) -> None:
        outcome = Outcome(self._section, name, result, detail, round(seconds, 3))
        self.outcomes.append(outcome)
        self._tell(outcome)


# --- what is expected --------------------------------------------------------------------------------------------


def shown(answer: Answer) -> str:
    """Return an answer in words: a refusal's code and sentence, else the beginning of its body."""
    if isinstance(answer.body, Mapping) and "code" in answer.body:
        return answer.sentence()
    return f"{answer.status} {str(answer.body)[:BODY_CHARACTERS]}"


def same(what: str, found: object, expected: object) -> None:
    """Expect a value.

    Raises:
        Wrong: it is another.
    """
    if found != expected or type(found) is not type(expected):
        raise Wrong(f"{what}: expected {expected}, got {found}")


def true(condition: object, otherwise: str) -> None:
    """Expect that something holds.

    Raises:
        Wrong: it does not.
    """
    if not condition:
        raise Wrong(otherwise)


def answered(answer: Answer, status: int, what: str = "") -> Any:
    """Expect a success, and return its body.

    Raises:
        Wrong: the answer is another.
    """
    if answer.status != status:
        raise Wrong(f"{what}{': ' if what else ''}expected {status}, got {shown(answer)}")
    return answer.body


def refused(answer: Answer, status: int, code: str, what: str = "", *, field: str = "") -> dict[str, Any]:
    """Expect a refusal, one that names `field` where it is given, and return its document.

    Raises:
        Wrong: the answer is another.
    """
    before = f"{what}: " if what else ""
    document = answer.body
    if answer.status != status or not isinstance(document, Mapping) or document.get("code") != code:
        raise Wrong(f"{before}expected {status} {code}, got {shown(answer)}")
    same(f"{before}the document's own status", document.get("status"), status)
    true(document.get("detail"), f"{before}the refusal has no sentence")
    if field:
        named = [str(problem["field"]) for problem in document["errors"]]
        true(field in named, f"{before}expected the field {field} to be named, got {named}")
    return dict(document)
