"""The wheel, its dependencies and the machines that the rollout is tried on."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import roots


@pytest.fixture(scope="session")
def workplace() -> Iterator[Path]:
    """A folder for machines: too large to be kept as pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="fleet-rollout-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def packed_root() -> Path:
    return roots.packed_root()


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        timeout=roots.MAKE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def wheel(workplace: Path) -> Path:
    """The product, as a rollout gets it."""
    folder = workplace / "wheel"
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(roots.REPOSITORY))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def wheelhouse(workplace: Path, wheel: Path, packed_root: Path) -> Path:
    """All that the wheel needs, for the Python of the packed root."""
    probe = workplace / "probe"
    roots.unpack(packed_root, probe)
    try:
        version = os.readlink(probe / "usr/bin/python3").removeprefix("python")
    finally:
        shutil.rmtree(probe)
    folder = workplace / "wheelhouse"
    pip(
        *("download", "--quiet", "--dest", str(folder), "--only-binary=:all:", "--python-version", version),
        *("--constraint", str(constraints(workplace)), str(wheel)),
    )
    (folder / wheel.name).unlink()
    return folder


def constraints(workplace: Path) -> Path:
    """The pinned versions without their hashes, which pip would otherwise want for the wheel as well."""
    pinned = (roots.REPOSITORY / "requirements.txt").read_text().splitlines()
    path = workplace / "constraints.txt"
    path.write_text("\n".join(line.rstrip(" \\") for line in pinned if "==" in line) + "\n")
    return path
