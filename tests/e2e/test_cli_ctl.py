"""The commands of a control node: the cluster's configuration, the ledger itself, and this machine's own file."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.served import As, Ended, Served


def test_ctl_reads_and_sets_the_clusters_configuration(fleet: Callable[..., Ended], served: Served, admin: As) -> None:
    where = ("--config", str(served.config))

    shown = fleet("ctl", "get-config", "CLEANER_DELAY_SECONDS", "--json", *where).json
    put = fleet("ctl", "set-config", "CLEANER_DELAY_SECONDS", "3601", *where)
    taken = admin.get("/admin/config/CLEANER_DELAY_SECONDS").json()["value"]
    listed = fleet("ctl", "get-config", *where).out
    fleet("ctl", "unset-config", "CLEANER_DELAY_SECONDS", *where)

    assert shown["default"] == "3600"
    assert put.code == 0
    assert taken == "3601"
    assert "CPU_OVERCOMMIT_RATIO" in listed


def test_ctl_says_who_changed_a_key_last_and_gives_the_default_back(
    fleet: Callable[..., Ended], served: Served, admin: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--config", str(served.config), "--json")
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "ann")
    monkeypatch.setattr("platform.node", lambda: "control-1")

    fleet("ctl", "set-config", "DECISIONS_RETENTION_DAYS", "31", *where)
    shown = fleet("ctl", "get-config", "DECISIONS_RETENTION_DAYS", *where).json
    admin.put("/admin/config/DECISIONS_RETENTION_DAYS", {"value": 32})
    taken = admin.get("/admin/config/DECISIONS_RETENTION_DAYS").json()
    reset = fleet("ctl", "unset-config", "decisions_retention_days", *where)
    again = admin.get("/admin/config/DECISIONS_RETENTION_DAYS").json()

    assert (shown["value"], shown["is_set"], shown["updated_by"]) == ("31", True, "ctl:ann@control-1")
    assert (taken["value"], taken["updated_by"].partition("/")[0]) == ("32", "system")
    assert reset.code == 0, reset
    assert (again["value"], again["is_set"], again["updated_by"]) == ("30", False, "ctl:ann@control-1")
    assert again["updated_at"] > taken["updated_at"]


def test_what_ctl_does_is_a_line_of_the_system_log_and_what_changes_nothing_is_none(
    fleet: Callable[..., Ended], served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--config", str(served.config), "--json")
    monkeypatch.setattr("fleet.cli.commands.ctl.operator", lambda: "ctl:ann@control-1")
    monkeypatch.setattr("fleet.telemetry.SYSTEM_LOG", tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        log.setblocking(False)
        put = fleet("ctl", "set-config", "DECISIONS_RETENTION_DAYS", "33", *where)
        line = log.recv(9999).decode()
        again = fleet("ctl", "set-config", "DECISIONS_RETENTION_DAYS", "33", *where)
        refused = fleet("ctl", "set-config", "DECISIONS_RETENTION_DAYS", "x", *where)
        fleet("ctl", "get-config", *where)
        with pytest.raises(BlockingIOError):
            log.recv(9999)
        reset = fleet("ctl", "unset-config", "DECISIONS_RETENTION_DAYS", *where)
        last = json.loads(log.recv(9999).decode().partition("]: ")[2])

    assert (put.code, put.err, again.code, refused.code, reset.code) == (0, "", 0, 1, 0)
    assert line.startswith("<14>fleet[")
    told = json.loads(line.partition("]: ")[2])
    assert (told["event"], told["level"], told["by"]) == ("configuration changed", "info", "ctl:ann@control-1")
    assert (told["object_type"], told["object_id"], told["key"]) == ("cluster", "config", "DECISIONS_RETENTION_DAYS")
    assert (told["new"], last["old"]) == ("33", "33")
    assert (put.json["value"], reset.json["is_set"]) == ("33", False)


def test_a_system_log_that_is_gone_fails_no_act(
    fleet: Callable[..., Ended], served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.telemetry.SYSTEM_LOG", tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
    put = fleet("ctl", "set-config", "DECISIONS_RETENTION_DAYS", "34", "--config", str(served.config), "--json")
    fleet("ctl", "unset-config", "DECISIONS_RETENTION_DAYS", "--config", str(served.config))

    assert (put.code, put.err, put.json["value"]) == (0, "", "34")


def test_a_key_is_reset_over_http_and_a_wrong_one_is_told_where_it_belongs(admin: As) -> None:
    admin.put("/admin/config/EVENTS_RETENTION_DAYS", {"value": "91"})

    reset = admin.delete("/admin/config/EVENTS_RETENTION_DAYS")

    assert reset.status_code == 200
    assert (reset.json()["value"], reset.json()["is_set"]) == ("90", False)
    for method in ("put", "delete"):
        body = ({"value": "x"},) if method == "put" else ()
        for key, said in (("NODE_LABELS", "/etc/sf/config"), ("SPAWN_COMMAND", "never over the API")):
            refused = getattr(admin, method)(f"/admin/config/{key}", *body)
            assert refused.status_code == 400
            assert said in refused.json()["detail"]


REFUSED_CONFIG: tuple[tuple[str, str, str], ...] = (
    ("NODE_LABELS", "a=b", "/etc/sf/config"),
    ("SPAWN_COMMAND", "/bin/true", "control node"),
    ("CPU_OVERCOMIT_RATIO", "2", "did you mean CPU_OVERCOMMIT_RATIO"),
    ("CPU_OVERCOMMIT_RATIO", "0", "above 0"),
    ("CPU_OVERCOMMIT_RATIO", "-1", "above 0"),
    ("CPU_OVERCOMMIT_RATIO", "NaN", "accepted"),
    ("RECONCILE_INTERVAL_SECONDS", "1.5", "whole number"),
    ("ADMIT_UNSIZED_NODES", "perhaps", "true"),
    ("PLACEMENT_STRATEGY", "tetris", "no strategy is called"),
    ("AUTO_SPAWN", "true", "yet"),
)


@pytest.mark.parametrize(("key", "value", "said"), REFUSED_CONFIG)
def test_a_bad_setting_is_refused_and_says_what_would_be_accepted(
    fleet: Callable[..., Ended], served: Served, key: str, value: str, said: str
) -> None:
    ended = fleet("ctl", "set-config", key, value, "--config", str(served.config))

    assert ended.code == 1
    assert said in ended.err


def test_ctl_verifies_migrates_and_saves_a_snapshot_that_decides_alike(
    fleet: Callable[..., Ended], served: Served, tmp_path: Path
) -> None:
    served.node("saved", memory_max=2**20, memory_available=2**20, cpu_schedulable=200, cpu_threads=202)
    where = ("--config", str(served.config))
    saved, request = tmp_path / "snapshot.json", tmp_path / "request.json"
    request.write_text(json.dumps({"name": "x", "cpus": 1, "memory_mb": 64}))

    assert fleet("ctl", "migrate-db", *where).code == 0
    verified = fleet("ctl", "verify-ledger", "--json", *where)
    assert (verified.code, verified.json["differences"]) == (0, [])
    assert fleet("ctl", "snapshot", "--out", str(saved), *where).code == 0
    first = fleet("decide", "--snapshot", str(saved), "--request", str(request), "--seed", "7")
    again = fleet("decide", "--snapshot", str(saved), "--request", str(request), "--seed", "7")

    assert first.code == 0
    assert first.json == again.json
    assert first.json["outcome"] == "ranked"


def test_config_show_tells_every_key_and_no_secret(fleet: Callable[..., Ended], served: Served) -> None:
    shown = fleet("config", "show", "--file", str(served.config))
    checked = fleet("config", "check", "--file", str(served.config))

    assert (shown.code, checked.code) == (0, 0)
    assert "API_PORT" in shown.out
    assert f"{served.config}:" in shown.out
    assert "a-secret-that-only-tests-know" not in shown.out
    assert "the configuration is good" in checked.out


def test_a_negative_value_needs_no_trick(fleet: Callable[..., Ended], served: Served) -> None:
    where = ("--config", str(served.config))

    put = fleet("ctl", "set-config", "SCHEDULER_TARGET_LOAD", "-1", "--json", *where)
    fleet("ctl", "set-config", "SCHEDULER_TARGET_LOAD", "0.75", *where)

    assert put.code == 0, put
    assert put.json["value"] == "-1"


def test_a_configuration_that_is_not_there_is_said_to_be_missing(
    fleet: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    monkeypatch.setattr("fleet.config.settings.DEFAULT_PATH", tmp_path / "none")
    monkeypatch.setattr("fleet.cli.commands.settings.DEFAULT_PATH", tmp_path / "none")

    checked, shown, got = fleet("config", "check"), fleet("config", "show"), fleet("ctl", "get-config")

    assert f"no {tmp_path / 'none'}" in checked.out
    assert f"{tmp_path / 'none'} does not exist" in shown.out
    assert got.code == 2
    assert f"there is no {tmp_path / 'none'}" in got.err
