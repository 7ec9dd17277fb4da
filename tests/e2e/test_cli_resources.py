"""`fleet resources`: what an operator sees of the room there is, on a narrow line and on a wide one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.ledger import passes
from fleet.ledger.database import Database
from tests.e2e.served import As, Ended, Names, Served
from tests.ledger.fleet_of import execute


@pytest.fixture
def node(served: Served, admin: As, new_name: Names) -> str:
    """A node of the test's own, cordoned: nobody else places on it."""
    name = new_name("hv")
    served.node(name)
    admin.post(f"/nodes/{name}/cordon")
    return name


def line_of(ended: Ended, name: str) -> str:
    (found,) = [line for line in ended.out.splitlines() if line.startswith(name)]
    return found


def test_a_narrow_line_shows_what_is_left_of_what(
    fleet: Callable[..., Ended], node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.cli.output.terminal_width", lambda _stream: 80)

    ended = fleet("resources")

    assert ended.code == 0, ended
    assert max(map(len, ended.out.splitlines())) <= 80
    assert line_of(ended, node).split() == [node, "cordoned", "42/42", "54.5/188.0", "980/980", "0.5", "0"]
    assert "In all: of the hypervisors that take instances now." in ended.out
    for said in ("cpus", "memory_mb", "claims_unused", "counted. Left: for namespaces without a claim"):
        assert said in ended.out


def test_a_wide_line_shows_the_ledgers_figures_beside_the_measured_ones(fleet: Callable[..., Ended], node: str) -> None:
    ended = fleet("resources")

    assert line_of(ended, node).split()[:8] == [node, "cordoned", "42", "0", "0", "42", "42", "0.5"]


def test_programs_get_every_figure(fleet: Callable[..., Ended], node: str) -> None:
    simple = fleet("resources", "--simple").out.splitlines()
    found = fleet("resources", "--json").json

    columns = simple[0].split(",")
    (line,) = [row.split(",") for row in simple if row.startswith(f"{node},")]
    row = dict(zip(columns, line, strict=True))
    assert (row["cpu_limit"], row["takes_none_because"], row["queue_waiting"]) == ("42", "cordoned", "0")
    assert found["per_node"][node]["cpu_committed_row_present"] is True
    assert found["capacity_degraded"] is False
    assert {"total", "nodes", "cluster", "drift", "last_pass"} <= set(found)


# It breaks a service of its own, so once is enough.
@pytest.mark.parametrize("served", ["sqlite"], indirect=True)
def test_what_is_wrong_with_the_ledger_is_said(
    fleet: Callable[..., Ended], tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Served(tmp_path, url, redis_url, workers=1) as own:
        monkeypatch.setenv("FLEET_URL", own.url)
        monkeypatch.setenv("FLEET_KEY_FILE", str(own.key_file))
        own.node("hv-1")
        db = Database(url)
        never = fleet("resources").out
        execute(db, "UPDATE scheduler_node_capacity SET used_cpus = 7")
        kept = {"row": "node 1", "figure": "used_cpus", "old": 3, "new": 0}
        db.unit(lambda conn: passes.record_ended(conn, {"duration_ms": 12, "corrections": 1, "corrected": [kept]}))
        db.unit(lambda conn: passes.record_failed(conn, {"code": "x", "error": "the database went away"}))
        drifted = fleet("resources").out
        execute(db, "UPDATE events SET at = at - 1200000000 WHERE message = :m", m=passes.ENDED)
        execute(db, "ALTER TABLE scheduler_node_capacity RENAME TO away")
        degraded = fleet("resources").out
        db.close()

    assert "No reconcile pass has ended well yet" in never
    assert "Every counter agrees with the charges now." in never
    assert "Drift, 1 now: node hv-1 used_cpus is 7, should be 0" in drifted
    assert "took 12 ms, corrected 1: node hv-1 used_cpus 3 to 0." in drifted
    assert "none has ended well since: the database went away" in drifted
    assert "No pass has ended well for more than 15 min: is sf-reconciler running?" in degraded
    assert "The ledger's counters cannot be read now" in degraded
    line = next(row for row in degraded.splitlines() if row.startswith("hv-1"))
    assert line.split()[:7] == ["hv-1", "yes", "-", "-", "0", "-", "42"]
