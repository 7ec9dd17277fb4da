"""Small and flat, and no drawers."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.tree import ROOT, files, python_files, refuse, text_of

LINE_CHARACTERS_MAX = 120
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 500
# A module named so collects what found no home.
DRAWERS = {"common", "data", "helper", "helpers", "info", "manager", "managers", "misc", "util", "utils"}
# Written by people, line by line; Python's own lines are ruff's business.
LINED_SUFFIXES = {
    ".toml",
    ".yml",
    ".yaml",
    ".cfg",
    ".ini",
    ".sh",
    ".service",
    ".target",
    ".timer",
    ".css",
    ".js",
}


def test_lines_fit_on_a_screen() -> None:
    refuse(
        f"{path}:{number}: {len(line)} characters"
        for path in files()
        if path.suffix in LINED_SUFFIXES
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if len(line) > LINE_CHARACTERS_MAX
    )


def test_functions_fit_on_a_screen() -> None:
    refuse(
        f"{path}:{function.lineno}: {function.name} has {lines} lines, at most {FUNCTION_LINES_MAX} may be"
        for path in python_files()
        for function in functions_of(path)
        # From the docstring on: the signature of a command is its manual page.
        if (lines := (function.end_lineno or 0) - function.body[0].lineno + 1) > FUNCTION_LINES_MAX
    )


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(text_of(path), filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_modules_are_one_room() -> None:
    refuse(
        f"{path}: {lines} lines, at most {MODULE_LINES_MAX} may be"
        for path in python_files()
        if (lines := len(text_of(path).splitlines())) > MODULE_LINES_MAX
    )


def test_modules_are_named_for_what_they_hold() -> None:
    refuse(
        f"{path}: {', '.join(drawers)} is a drawer; name it for what it holds"
        for path in python_files()
        if (drawers := {part.lower() for part in path.with_suffix("").parts} & DRAWERS)
    )


def test_the_map_of_the_services_names_every_module() -> None:
    services = ROOT / "src" / "fleet" / "services"
    words = Counter(re.findall(r"\w+", ast.get_docstring(ast.parse(text_of(services / "__init__.py"))) or ""))
    modules = [path.stem for path in services.glob("*.py") if path.stem != "__init__"]

    refuse(f"services/__init__.py does not name {name}" for name in modules if not words[name])
