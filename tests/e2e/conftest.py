"""One running API a backend for all tests of the outside; each test makes its own namespaces and nodes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.cli.app import run
from tests.e2e.served import As, Ended, Fleet, Names, Served, served_on


@pytest.fixture(scope="package", params=["sqlite", "mariadb"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`sf-api`, its own processes, once on each database."""
    with served_on(request, tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[As]:
    """The admin."""
    with served.admin() as caller:
        yield caller


@pytest.fixture
def new_name() -> Names:
    """Names that no other test uses."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def owner(served: Served, new_name: Names) -> Iterator[As]:
    """The owner of a namespace of this test's own."""
    with served.namespace(new_name("ns")) as caller:
        yield caller


@pytest.fixture
def fleet(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fleet:
    """Run `fleet …` as the admin; the token is kept in this test's own folder."""
    monkeypatch.setenv("FLEET_URL", served.url)
    monkeypatch.setenv("FLEET_KEY_FILE", str(served.key_file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    # Acts of tests are no acts on this machine.
    monkeypatch.setattr("fleet.telemetry.SYSTEM_LOG", tmp_path / "no-log")

    def command(*words: str) -> Ended:
        capsys.readouterr()
        code = run(list(words))
        read = capsys.readouterr()
        assert "Traceback" not in read.out + read.err
        return Ended(code, read.out, read.err)

    return command
