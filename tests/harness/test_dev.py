"""The door: what it says, and when it thinks there is something to install."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("demo", "run", "test", "check", "bench", "install")


@pytest.fixture(scope="module")
def dev() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("dev_under_test", str(ROOT / "dev"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "dev"), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("arguments", [[], ["help"], ["-h"], ["--help"]])
def test_it_lists_its_commands_without_installing_anything(arguments: list[str]) -> None:
    shown = started(*arguments)

    assert shown.returncode == 0
    assert [name for name in COMMANDS if f"\n  {name} " not in shown.stdout] == []


def test_an_unknown_command_is_a_usage_error() -> None:
    refused = started("demmo")

    assert refused.returncode == 2
    assert "'demmo'" in refused.stderr


def test_make_forwards_every_command() -> None:
    assert f"COMMANDS := {' '.join(COMMANDS)}" in (ROOT / "Makefile").read_text()


def test_nothing_is_installed_twice(dev: ModuleType) -> None:
    wanted = dev.wanted_stamp()

    assert dev.is_ready(dict(wanted), wanted, dev.RUN)
    assert dev.is_ready(dict(wanted), wanted, dev.ALL)


def test_what_the_tests_need_also_serves_the_demo_but_not_the_other_way_round(dev: ModuleType) -> None:
    wanted = dev.wanted_stamp()
    only_all = {key: value for key, value in wanted.items() if key != dev.RUN}
    only_run = {key: value for key, value in wanted.items() if key != dev.ALL}

    assert dev.is_ready(only_all, wanted, dev.RUN)
    assert dev.is_ready(only_run, wanted, dev.RUN)
    assert not dev.is_ready(only_run, wanted, dev.ALL)


@pytest.mark.parametrize("key", ["place", "project"])
def test_a_moved_or_changed_tree_is_installed_again(dev: ModuleType, key: str) -> None:
    wanted = dev.wanted_stamp()

    assert not dev.is_ready({**wanted, key: "other"}, wanted, dev.RUN)


def test_an_interrupted_install_is_not_taken_for_a_whole_one(dev: ModuleType) -> None:
    wanted = dev.wanted_stamp()

    assert not dev.is_ready({"place": wanted["place"]}, wanted, dev.RUN)
