"""A package brings a strategy: the documented example, built and installed into a folder of its own, used by name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents import a_document, a_node, a_request
from tests.e2e.served import clean_environment

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "strategy-by-rack"
SECONDS_MAX = 120


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the example as pip installs it, without a network."""
    folder = tmp_path_factory.mktemp("strategy")
    source, target = folder / "source", folder / "installed"
    shutil.copytree(EXAMPLE, source)
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-compile")
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return target


def broken(folder: Path, name: str, entry_point: str) -> Path:
    """A folder with the metadata of a package whose strategy is not there."""
    metadata = folder / f"{name}-3.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.1\n")
    (metadata / "entry_points.txt").write_text(f"[fleet.strategies]\n{entry_point}\n")
    return folder


def racks() -> list[dict[str, Any]]:
    used = {"n1": ("a", 9000), "n2": ("a", 1000), "n3": ("b", 4000), "n4": ("b", 5000), "n5": (None, 0)}
    return [
        a_node(name=name, used_memory_mb=memory, labels={} if rack is None else {"rack": rack})
        for name, (rack, memory) in used.items()
    ]


def decide(tmp_path: Path, path: Path | None, *words: str, config: Any = None, **request: Any) -> tuple[int, str, str]:
    """`fleet decide`, with a further folder for Python to find packages in."""
    (tmp_path / "snapshot.json").write_text(json.dumps(a_document(*racks(), config=config)))
    (tmp_path / "request.json").write_text(json.dumps(a_request(**request)))
    files = ("--snapshot", str(tmp_path / "snapshot.json"), "--request", str(tmp_path / "request.json"))
    ended = subprocess.run(
        [sys.executable, "-m", "fleet.cli.app", "decide", *files, *words],
        capture_output=True,
        text=True,
        env={**clean_environment(), "PYTHONPATH": "" if path is None else str(path)},
        timeout=SECONDS_MAX,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("named_by", ["flag", "request", "cluster"])
def test_an_installed_strategy_is_used_by_name(installed: Path, tmp_path: Path, named_by: str) -> None:
    words = ("--strategy", "by-rack") if named_by == "flag" else ()
    config = {"PLACEMENT_STRATEGY": "by-rack"} if named_by == "cluster" else {}
    request = {"strategy": "by-rack"} if named_by == "request" else {}

    code, out, err = decide(tmp_path, installed, *words, config=config, **request)

    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["ranked"] == ["n3", "n4", "n2", "n1", "n5"]
    assert answer["summary"] == "n3 is first of 5 of 5 nodes: by-rack, rack b with 9000 MiB committed"


def test_the_flag_beats_the_request_and_the_cluster(installed: Path, tmp_path: Path) -> None:
    named = {"config": {"PLACEMENT_STRATEGY": "spread"}, "strategy": "binpack"}

    answer = json.loads(decide(tmp_path, installed, "--strategy", "by-rack", **named)[1])

    assert answer["strategy"] == "by-rack"


def test_without_the_package_the_name_is_unknown(tmp_path: Path) -> None:
    code, out, _ = decide(tmp_path, None, strategy="by-rack")

    assert code == 1
    assert "no strategy is called 'by-rack'; there is: balanced" in json.loads(out)["errors"][0]["message"]


@pytest.mark.parametrize(
    ("entry_point", "problem"),
    [
        ("by-rack = strategy_by_rack", "the name is taken by a-copy 3.1"),
        ("spread = strategy_by_rack", "the name is taken by the product"),
        ("lost = a_module_that_is_nowhere", "No module named 'a_module_that_is_nowhere'"),
    ],
)
def test_a_broken_or_doubled_strategy_stops_the_start_by_name(
    installed: Path, tmp_path: Path, entry_point: str, problem: str
) -> None:
    both = shutil.copytree(installed, tmp_path / "both")

    code, out, err = decide(tmp_path, broken(both, "a-copy", entry_point), strategy="load-aware")

    assert code != 0
    assert problem in out + err
    assert "strategy" in out + err
    assert "uninstall what brings it" in out + err
    assert "Traceback" not in out + err
