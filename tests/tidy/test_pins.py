"""An install is the same everywhere: exact versions, known hashes, no index of anybody's."""

import re
import tomllib
from itertools import chain
from pathlib import Path

from tests.tidy.tree import text_of

PIN = re.compile(r"^([a-z0-9][a-z0-9-]*)==([^ ;\\]+)", re.MULTILINE)
REQUIREMENTS = (Path("requirements.txt"), Path("requirements-dev.txt"))


def pins_of(path: Path) -> dict[str, str]:
    return dict(PIN.findall(text_of(path)))


def test_both_files_pin_the_same_versions() -> None:
    few, all_of_them = (pins_of(path) for path in REQUIREMENTS)

    assert few != {}
    assert {name: version for name, version in few.items() if all_of_them.get(name) != version} == {}


def test_every_pin_has_a_hash_and_nothing_else_is_in_the_files() -> None:
    for path in REQUIREMENTS:
        for entry in re.split(r"\n(?=\S)", text_of(path).strip()):
            first, *others = entry.split(" \\\n")

            assert PIN.match(first), f"{path}: {first}"
            assert others != [], f"{path}: {first} has no hash"
            assert all(re.fullmatch(r" {4}--hash=sha256:[0-9a-f]{64}", line) for line in others), f"{path}: {first}"


def test_everything_the_project_declares_is_pinned() -> None:
    project = tomllib.loads(text_of(Path("pyproject.toml")))["project"]
    declared = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0].lower().replace("_", "-") for line in declared}

    assert names - pins_of(Path("requirements-dev.txt")).keys() == set()
