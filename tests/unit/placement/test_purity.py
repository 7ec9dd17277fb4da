"""A decision depends on its arguments alone: the core reads no clock, no chance, no environment and no file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fleet.model
import fleet.placement

CORE = [Path(package.__path__[0]) for package in (fleet.model, fleet.placement)]
WORLD = {
    *("asyncio", "contextvars", "getpass", "locale", "logging", "multiprocessing", "os", "platform", "random"),
    *("secrets", "select", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time"),
}
CALLS = {
    "argv",
    "environ",
    "getnode",
    "uuid1",
    "uuid4",
    "now",
    "today",
    "utcnow",
    "fromtimestamp",
    "default_rng",
    "getenv",
}
NAMES = {"open", "input", "print", "hash"}


def asked_of_the_world(text: str) -> Iterator[tuple[int, str]]:
    """The line and the name of whatever is not an argument. `hash` differs from process to process."""
    tree = ast.parse(text)
    methods = {inner for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
               for inner in ast.walk(node)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names if one.name.partition(".")[0] in WORLD)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in WORLD:
            yield node.lineno, str(node.module)
        elif isinstance(node, ast.Attribute) and (node.attr in CALLS or node.attr == "random"):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and node not in methods and isinstance(node.func, ast.Name):
            yield from ((node.lineno, name) for name in NAMES & {node.func.id})


def test_the_core_asks_nothing_of_the_world() -> None:
    modules = [path for folder in CORE for path in sorted(folder.rglob("*.py"))]

    found = [f"{path.name}:{line}: {name}" for path in modules for line, name in asked_of_the_world(path.read_text())]

    assert len(modules) > 40
    assert found == []


def test_a_clock_a_draw_or_a_file_would_be_seen() -> None:
    text = "import time\nfrom os import path\ndatetime.now()\nnp.random.rand()\nopen('x')\nhash('x')"

    assert [name for _, name in sorted(asked_of_the_world(text))] == ["time", "os", "now", "random", "open", "hash"]
