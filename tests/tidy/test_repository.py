"""The tree is whole, and of no particular machine."""

import os
import re
import stat
import tempfile
import tomllib
from pathlib import Path

from tests.tidy.tree import ROOT, files, refuse, text_of

ADR = re.compile(r"docs/adr/(\d{4})-[a-z0-9-]+\.md")
SOMEBODYS_HOME = re.compile(r"/(?:home|Users)/[a-z][a-z0-9_-]*/")
# Folders that are the same everywhere say nothing about a machine.
USUAL_FOLDERS = {Path(name) for name in ("/", "/home", "/opt", "/root", "/srv", "/tmp", "/usr/src", "/var/tmp")}
# In pieces, or this file would break its own rule.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("registry", "npmjs", "org"),
        ("galaxy", "ansible", "com"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
    )
)


def test_no_file_names_a_place_of_one_machine() -> None:
    places = [str(place) for place in own_places()]
    refuse(
        f"{path}: {place}"
        for path in files()
        for text in [text_of(path)]
        for place in [*(place for place in places if place in text), *SOMEBODYS_HOME.findall(text)]
    )


def own_places() -> list[Path]:
    """Where this tree lies, and the folder it lies in, unless that is one that every machine has."""
    usual = {*USUAL_FOLDERS, Path(tempfile.gettempdir()).resolve()}
    return [place for place in (ROOT, ROOT.parent) if place not in usual and len(place.parts) > 1 and _telling(place)]


def _telling(place: Path) -> bool:
    """A short name like /app or /src is also the end of many a relative path."""
    return len(place.parts) > 2 or place == ROOT.parent


def test_no_file_names_a_package_registry() -> None:
    refuse(f"{path}: {host}" for path in files() for host in REGISTRY_HOSTS if host in text_of(path))


def test_every_decision_record_has_a_number_of_its_own() -> None:
    records = [path for path in files() if path.parts[:2] == ("docs", "adr") and path.name != "README.md"]
    matches = {path: ADR.fullmatch(path.as_posix()) for path in records}
    numbers = [match[1] for match in matches.values() if match]

    refuse(f"{path}: not named NNNN-what-was-decided.md" for path, match in matches.items() if match is None)
    refuse(
        f"docs/adr: {number} is used twice" for number in {number for number in numbers if numbers.count(number) > 1}
    )
    refuse(f"{path}: does not begin with its title" for path in records if not text_of(path).startswith("# "))


def test_the_readme_shows_how_to_begin() -> None:
    assert "./dev demo" in text_of(Path("README.md"))
    assert "./dev test" in text_of(Path("README.md"))


def test_what_is_started_by_name_can_be_executed() -> None:
    for name in ("dev", ".ci/run"):
        mode = (ROOT / name).stat().st_mode

        assert mode & stat.S_IXUSR, name
        assert os.access(ROOT / name, os.X_OK), name
        assert text_of(Path(name)).startswith("#!/usr/bin/env "), name


def test_every_daemon_has_its_command() -> None:
    scripts = tomllib.loads(text_of(Path("pyproject.toml")))["project"]["scripts"]
    daemons = [path.stem for path in files() if path.parent == Path("daemons") and path.stem != "__init__"]

    assert {name: target for name, target in scripts.items() if target.startswith("daemons.")} == {
        f"sf-{name}": f"daemons.{name}:main" for name in daemons
    }
