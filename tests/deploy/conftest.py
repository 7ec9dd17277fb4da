"""The wheel, its dependencies and the machines that the rollout is tried on."""

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
def wheelhouse(workplace: Path, packed_root: Path) -> Path:
    """All that the wheel needs, as pinned, for the Python of the packed root.

    The pins are taken without their conditions: pip judges those by the Python that it
    runs on, not by --python-version.
    """
    pinned = (roots.REPOSITORY / "requirements.txt").read_text().splitlines()
    pins = [line.split(";")[0].rstrip(" \\") for line in pinned if "==" in line]
    (workplace / "pins.txt").write_text("\n".join(pins) + "\n")
    folder = workplace / "wheelhouse"
    pip(
        *("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)),
        *("--python-version", roots.python_version(packed_root), "--requirement", str(workplace / "pins.txt")),
    )
    return folder
