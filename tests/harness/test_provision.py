"""What a machine lacks is said by name: a skip with its reason for a developer, a failure in CI."""

import os
from pathlib import Path

import pytest

from tests.provision import MARIADB, REDIS, Missing, Need, Program, cannot_run, find, required

NOWHERE = Need(
    name="Nowhere",
    commands=("no-such-program-here",),
    packages=("no-such-package",),
    override="FLEET_TEST_NOWHERE",
    serves="nothing",
)


def test_what_is_not_there_is_named_with_a_remedy() -> None:
    found = find(NOWHERE)

    assert isinstance(found, Missing)
    assert "no-such-program-here" in str(found)
    assert "apt-get install no-such-package" in str(found)


@pytest.mark.parametrize(("variable", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_program_skips_for_a_developer_and_fails_in_ci(
    variable: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", variable)

    with pytest.raises(outcome, match="no-such-program-here"):
        required(NOWHERE)
    with pytest.raises(outcome, match="no chroot here"):
        cannot_run("no chroot here")


def test_a_named_program_wins_over_an_installed_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "usr/sbin/mariadbd"
    server.parent.mkdir(parents=True)
    server.touch()
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    monkeypatch.setenv(MARIADB.override, str(server))

    found = find(MARIADB)

    assert found == Program(path=server, source=MARIADB.override, library_path=str(libraries))
    assert found.folder == tmp_path / "usr"
    assert found.environment()["LD_LIBRARY_PATH"].split(":")[0] == str(libraries)


def test_a_named_program_that_is_not_there_is_a_fault_not_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REDIS.override, "/nowhere/redis-server")

    found = find(REDIS)

    assert isinstance(found, Missing)
    assert "/nowhere/redis-server" in str(found)


def test_without_an_installed_redis_the_one_in_the_wheel_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.provision.SYSTEM_FOLDERS", ())
    monkeypatch.setattr("tests.provision.UNPACKED", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(REDIS.override, raising=False)

    found = find(REDIS)

    assert isinstance(found, Program)
    assert found.source == "wheel"
    assert os.access(found.path, os.X_OK)
