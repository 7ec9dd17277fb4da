"""Numbered vectors: which of each document has a test, and how many passed. `pytest -m vectors` ends with it.

A test marked `vectors` proves the numbers that its name begins with: `test_fuse_v3_…`, `test_atlas_v22_v23_…`. Without
the document, its file's name says which: `test_v7_…` in `test_shakenfist_ledger.py`. A vector that the product's
decisions overrule is proven by a test of the decision, whose name goes on with `decided`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

MARK: Final = "vectors"
DOCUMENTS: Final = {"shakenfist": ("Shaken Fist", 25), "atlas": ("Atlas", 28), "fuse": ("Fuse", 33)}
OVERRULED: Final = {
    *(("shakenfist", number) for number in (4, 5)),
    *(("atlas", number) for number in (7, 21, 23, 24)),
    ("fuse", 2),
}
NOT_YET: Final[dict[tuple[str, int], str]] = {}
"""Vectors of what the product does not do so far, and why."""

_NAME = re.compile(rf"test_(?:({'|'.join(DOCUMENTS)})_)?((?:v\d+_)+)")
_FILE = re.compile(rf"test_({'|'.join(DOCUMENTS)})_")

Number = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Proof:
    """One test and the numbers it proves; `decided`: it proves the decision in their place."""

    name: str
    numbers: frozenset[Number]
    decided: bool


def proof_of(path: Path, function: str) -> Proof | None:
    """What a marked test proves; None: nothing that has a number."""
    named, filed = _NAME.match(function), _FILE.match(path.name)
    document = named and (named[1] or (filed and filed[1]))
    if not named or not document:
        return None
    numbers = frozenset((document, int(digits)) for digits in re.findall(r"\d+", named[2]))
    return Proof(f"{path.name}: {function}", numbers, function[named.end() :].startswith("decided"))


def marked(path: Path) -> Iterator[Proof]:
    """The proofs of a file, read and not run."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    whole_file = any("pytestmark" in ast.unparse(node) and _is_mark(node) for node in tree.body)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (whole_file or any(_is_mark(one) for one in node.decorator_list)):
            proof = proof_of(path, node.name)
            if proof is not None:
                yield proof


def _is_mark(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == MARK for one in ast.walk(node))


def proofs(folder: Path) -> list[Proof]:
    """Every proof under a folder."""
    return [proof for path in sorted(folder.rglob("test_*.py")) for proof in marked(path)]


def every_number() -> set[Number]:
    return {(document, number) for document, (_, count) in DOCUMENTS.items() for number in range(1, count + 1)}


def called(number: Number) -> str:
    return f"{DOCUMENTS[number[0]][0]} V{number[1]}"


class VectorCount:
    """Follows the marked tests of a run that asked for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of: dict[str, frozenset[Number]] = {}
        self._outcomes: defaultdict[Number, set[str]] = defaultdict(set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if item.get_closest_marker(MARK) is not None and isinstance(item, pytest.Function):
                proof = proof_of(item.path, item.originalname)
                if proof is not None:
                    self._of[item.nodeid] = proof.numbers

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for number in self._of.get(report.nodeid, ()):
                self._outcomes[number].add(report.outcome)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        passed = {number for number, outcomes in self._outcomes.items() if outcomes == {"passed"}}
        parts = [
            f"{title} {sum(document == key for document, _ in passed)} of {count}"
            for key, (title, count) in DOCUMENTS.items()
        ]
        terminalreporter.section("numbered vectors")
        terminalreporter.write_line(f"vectors: {', '.join(parts)}")
        tested = {number for proof in proofs(self._folder) for number in proof.numbers}
        for number in sorted(every_number() - tested):
            terminalreporter.write_line(f"without a test: {called(number)} ({NOT_YET.get(number, 'missing')})")
        for number in sorted(self._outcomes.keys() - passed):
            terminalreporter.write_line(f"not passed: {called(number)} ({', '.join(sorted(self._outcomes[number]))})")
