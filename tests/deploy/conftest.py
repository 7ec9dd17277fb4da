"""The wheel, its dependencies and the machines that the rollout is tried on."""

import contextlib
import hashlib
import os
import platform
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
def wheelhouse(packed_root: Path) -> Path:
    """All that the wheel needs, as pinned, for the Python of the packed root; from the cache or newly downloaded.

    The pins are taken without their conditions: pip judges those by the Python that it
    runs on, not by --python-version.
    """
    pinned = (roots.REPOSITORY / "requirements.txt").read_text().splitlines()
    pins = [line.split(";")[0].rstrip(" \\") for line in pinned if "==" in line]
    python = roots.python_version(packed_root)
    digest = hashlib.sha256("\n".join((python, platform.machine(), *pins)).encode()).hexdigest()[:16]
    folder = roots.cache("wheels") / f"{python}-{digest}"
    if not folder.exists():
        making = folder.with_name(f"{digest}.{os.getpid()}.making")
        try:
            pip(
                *("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(making)),
                *("--python-version", python, *pins),
            )
            # Another run may have been quicker; both downloaded the same.
            with contextlib.suppress(OSError):
                making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder
