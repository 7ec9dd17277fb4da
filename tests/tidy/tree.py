"""The files a rule applies to: what git tracks or would track; without git, what lies in the tree."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What .gitignore leaves out, for a tree that came without git.
MADE_BY_TOOLS = {".git", ".venv", ".servers", "var", "build", "dist", "__pycache__"}
CACHE_SUFFIX = "_cache"
GIT_SECONDS_MAX = 30


@functools.cache
def files() -> tuple[Path, ...]:
    """Every file of the project, relative to its root."""
    found = _of_git() or tuple(_of_walk())
    return tuple(sorted(path for path in found if (ROOT / path).is_file()))


def python_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".py" or path == Path("dev")]


def text_of(path: Path) -> str:
    """A file's text; empty for what is not text, and for what was removed since it was listed."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return ""


def refuse(faults: Iterable[str]) -> None:
    """Fail with a line for each fault, and nothing else."""
    if lines := list(faults):
        pytest.fail("\n".join(lines), pytrace=False)


def _of_git() -> tuple[Path, ...]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return ()
    listed = subprocess.run(
        [git, "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=GIT_SECONDS_MAX,
        check=False,
    )
    return tuple(Path(name) for name in listed.stdout.split("\0") if name) if listed.returncode == 0 else ()


def _of_walk() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in MADE_BY_TOOLS and not name.endswith(CACHE_SUFFIX)]
        yield from (Path(folder, name).relative_to(ROOT) for name in names)
