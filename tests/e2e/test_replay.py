"""`fleet replay` against a real service on both backends; the openb trace itself where its files are."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from fleet.cli.control_plane import ControlPlane, Plan, free_port
from fleet.ledger.database import Database
from tests.servers import MariaDBServer, fresh_database

REPLAY = [sys.executable, "-m", "fleet.cli.replay"]
SECONDS_MAX = 240
TRACE_SECONDS_MAX = 1500
OPENB = ("openb_node_list_all_node.csv", "openb_pod_list_default.csv")

pytestmark = pytest.mark.slow


@pytest.fixture(params=["SQLite", "MariaDB"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "SQLite":
        yield ""
        return
    with MariaDBServer() as server, fresh_database(server) as url:
        yield url


def a_trace(folder: Path, *, nodes: int, tasks: int) -> tuple[Path, Path]:
    """A small cluster in the format, with tasks that come and go."""
    machines, work = folder / "nodes.csv", folder / "tasks.csv"
    rows = [f"m{number},{8000 * (1 + number % 3)},{32768 * (1 + number % 3)},0," for number in range(nodes)]
    machines.write_text("\n".join(["sn,cpu_milli,memory_mib,gpu,model", *rows]) + "\n")
    draw = random.Random(7)
    lines = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time"]
    for number in range(tasks):
        begin = draw.randrange(20_000)
        end = begin + draw.randrange(1, 9000)
        lines.append(f"t{number},{draw.choice((500, 2000, 4000))},{draw.choice((0, 2048, 8192))},0,0,{begin},{end}")
    work.write_text("\n".join(lines) + "\n")
    return machines, work


def a_gpu_trace(folder: Path, *, tasks: int) -> tuple[Path, Path]:
    """Eight cards of two kinds on three of four nodes; tasks want any, one kind, or one of two; some want a share."""
    machines, work = folder / "nodes.csv", folder / "tasks.csv"
    rows = ["t0,16000,65536,2,T4", "t1,16000,65536,4,T4", "p0,16000,65536,2,P100", "c0,16000,65536,0,"]
    machines.write_text("\n".join(["sn,cpu_milli,memory_mib,gpu,model", *rows]) + "\n")
    draw = random.Random(11)
    lines = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time"]
    for number in range(tasks):
        begin = draw.randrange(20_000)
        asked = draw.choice(("1,1000,", "1,1000,P100|T4", "2,1000,", "1,1000,T4", "1,460,P100", "0,0,"))
        lines.append(f"g{number},1000,1024,{asked},{begin},{begin + draw.randrange(1, 4000)}")
    work.write_text("\n".join(lines) + "\n")
    return machines, work


def cards_and_charges(database_url: str) -> tuple[list[str], Counter[str], dict[str, int]]:
    """By the rows alone: every card, how many cards each instance holds, and how many its charge says."""
    database = Database(database_url)
    try:
        with database.read() as conn:
            cards = conn.execute(text("SELECT uuid, bound_to FROM node_gpus")).all()
            charges = conn.execute(text("SELECT instance_uuid, gpus FROM charges WHERE gpus > 0")).all()
    finally:
        database.close()
    held = Counter(str(card.bound_to) for card in cards if card.bound_to is not None)
    return [card.uuid for card in cards], held, {str(row.instance_uuid): int(row.gpus) for row in charges}


def replay(*words: str, out: Path, database_url: str, seconds: int = SECONDS_MAX) -> tuple[int, dict[str, Any]]:
    chosen = ["--database-url", database_url] if database_url else []
    done = subprocess.run(
        [*REPLAY, *words, *chosen, "--json", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def decisions_replay(database_url: str, at_least: int) -> None:
    """Decide the stored decisions again: where the run used a database of ours, they are still there."""
    if not database_url:
        return
    done = subprocess.run(
        [sys.executable, "-m", "fleet.cli.app", "ctl", "replay-decisions", "--last", "1000", "--json"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={**os.environ, "FLEET_DATABASE_URL": database_url},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["differing"], found["not_kept"]) == ([], 0)
    assert found["same"] >= at_least


def test_arrivals_and_departures_leave_an_empty_true_ledger(tmp_path: Path, database_url: str) -> None:
    nodes, tasks = a_trace(tmp_path, nodes=12, tasks=150)

    code, report = replay(str(nodes), str(tasks), out=tmp_path / "out", database_url=database_url)

    assert code == 0, report
    assert report["placed"] + report["refused"] == 150
    assert report["departed"] == report["placed"] > 0
    assert (report["oversold"], report["lost"], report["stuck"], report["differences"]) == (0, 0, 0, [])
    assert (tmp_path / "out" / "utilisation.csv").exists()
    decisions_replay(database_url, 150)


def test_filling_refuses_in_the_end_and_oversells_nothing(tmp_path: Path, database_url: str) -> None:
    nodes, tasks = a_trace(tmp_path, nodes=6, tasks=60)
    words = ("--fill", "150", "--cpu-ratio", "1.0", "--seed", "3")

    code, report = replay(str(nodes), str(tasks), *words, out=tmp_path / "out", database_url=database_url)

    assert code == 0, report
    assert report["refused"] > 0
    assert report["departed"] == 0
    assert (report["oversold"], report["lost"], report["stuck"], report["differences"]) == (0, 0, 0, [])
    assert sum(line["count"] for line in report["refused_by_stage"]) == report["refused"]
    assert report["utilisation_percent_peak"]["cpus"] <= 100


def test_cards_come_and_go_with_their_tasks(tmp_path: Path, database_url: str) -> None:
    nodes, tasks = a_gpu_trace(tmp_path, tasks=80)

    code, report = replay(str(nodes), str(tasks), out=tmp_path / "out", database_url=database_url)

    assert code == 0, report
    assert report["placed"] + report["refused"] == 80
    assert report["departed"] == report["placed"]
    assert (report["gpus"]["sent"], report["gpus"]["there"]) == (True, 8)
    assert report["gpus"]["sharing"] > 0
    assert 0 < report["utilisation_percent_peak"]["gpus"] <= 100
    with (tmp_path / "out" / "utilisation.csv").open() as handle:
        points = [(int(row["used_gpus"]), row["total_gpus"]) for row in csv.DictReader(handle)]
    assert points[-1] == (0, "8")
    assert max(used for used, _ in points) > 0


def test_filling_by_gpus_binds_each_card_once(tmp_path: Path, database_url: str) -> None:
    nodes, tasks = a_gpu_trace(tmp_path, tasks=80)
    state = tmp_path / "state"

    words = ("--fill", "500", "--seed", "3", "--state", str(state))
    code, report = replay(str(nodes), str(tasks), *words, out=tmp_path / "out", database_url=database_url)

    assert code == 0, report
    assert report["inputs"]["fill_of"] == "gpus"
    assert 40 <= report["gpus"]["asked"] < 42
    assert ("out_of_capacity", "gpu") in {(line["code"], line["stage"]) for line in report["refused_by_stage"]}
    assert report["gpus"]["went_on_to_next_kind"] > 0
    assert report["utilisation_percent_peak"]["gpus"] >= 87
    cards, held, charged = cards_and_charges(database_url or f"sqlite:///{state / 'fleet.db'}")
    assert len(set(cards)) == 8
    assert sum(charged.values()) <= 8
    assert held == charged


def test_a_service_that_binds_a_card_twice_is_found_out(tmp_path: Path) -> None:
    nodes, tasks = a_gpu_trace(tmp_path, tasks=20)
    plan = Plan(
        state=tmp_path / "var",
        port=free_port(),
        this_machine=False,
        api_command=(sys.executable, str(Path(__file__).with_name("binding_twice.py"))),
    )
    with ControlPlane(plan) as plane:
        where = ("--url", plane.url, "--key-file", str(plane.state / "admin.key"), "--fill", "100")
        code, report = replay(str(nodes), str(tasks), *where, out=tmp_path / "out", database_url="")

    assert code == 1
    assert any("is bound twice: to instance" in sentence for sentence in report["oversold_nodes"]), report


def test_without_gpus_the_same_trace_is_placed_by_the_rest(tmp_path: Path) -> None:
    nodes, tasks = a_gpu_trace(tmp_path, tasks=20)

    words = ("--no-gpus", "--fill", "100", "--cpu-ratio", "1.0")
    code, report = replay(str(nodes), str(tasks), *words, out=tmp_path / "out", database_url="")

    assert code == 0, report
    assert (report["inputs"]["fill_of"], report["gpus"]["sent"]) == ("cpus", False)
    assert report["refused"] == 0
    assert "gpus" not in report["utilisation_percent_peak"]


def test_a_speed_up_keeps_the_times_of_the_trace(tmp_path: Path) -> None:
    nodes, tasks = a_trace(tmp_path, nodes=4, tasks=20)

    code, report = replay(str(nodes), str(tasks), "--speed", "5000", out=tmp_path / "out", database_url="")

    assert code == 0, report
    assert report["elapsed_s"] >= 20_000 / 5000 * 0.7


def test_a_file_of_another_kind_ends_before_anything_is_started(tmp_path: Path) -> None:
    nodes, _tasks = a_trace(tmp_path, nodes=1, tasks=1)

    done = subprocess.run(
        [*REPLAY, str(nodes), str(nodes)], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )

    assert done.returncode == 2
    assert "line 1: columns name" in done.stdout + done.stderr


@pytest.mark.timeout(TRACE_SECONDS_MAX + 60)
def test_the_whole_openb_trace(tmp_path: Path, database_url: str) -> None:
    folder = Path(os.environ.get("FLEET_TRACES", "traces"))
    if not all((folder / name).exists() for name in OPENB):
        pytest.skip(
            f"the openb trace is not in {folder}; FLEET_TRACES names the folder that holds {' and '.join(OPENB)}"
        )
    words = [str(folder / name) for name in OPENB]

    code, report = replay(*words, out=tmp_path / "out", database_url=database_url, seconds=TRACE_SECONDS_MAX)

    assert code == 0, report
    assert report["inputs"]["nodes"] == 1523
    assert report["placed"] + report["refused"] == 8152
    assert (report["oversold"], report["lost"], report["stuck"], report["differences"]) == (0, 0, 0, [])
    decisions_replay(database_url, 1000)
