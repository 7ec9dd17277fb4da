"""`sf-api` as processes: workers that die are replaced, a stop is clean, and what it depends on may be away."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from fleet.api.sockets import listen
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from tests.e2e.served import As, Served, assert_problem, clean_environment
from tests.servers import MariaDBServer, free_port, fresh_database, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def own(tmp_path: Path, redis_url: str) -> Iterator[Served]:
    """An API of this test's own, on SQLite."""
    with Served(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}", redis_url) as running:
        yield running


def workers_of(served: Served) -> list[psutil.Process]:
    assert served.process is not None
    return psutil.Process(served.process.pid).children()


def events(served: Served) -> list[str]:
    lines = [json.loads(line) for line in served.log.read_text().splitlines() if line.startswith("{")]
    return [line["event"] for line in lines]


def run(served: Served, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        served.command(*options), capture_output=True, text=True, timeout=180, env=clean_environment(), check=False
    )


def test_it_stops_cleanly_on_sigterm_and_leaves_nothing(own: Served) -> None:
    with own.admin() as caller:
        assert caller.get("/nodes").status_code == 200
        workers = workers_of(own)
        assert len(workers) == 2

        code = own.stop()

    assert code == 0
    assert not any(worker.is_running() for worker in workers)
    assert "daemon.stopped" in events(own)
    assert "api.worker_killed" not in events(own)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{own.url}/healthz")


def test_a_killed_worker_is_replaced_and_tokens_and_figures_go_on(own: Served) -> None:
    with own.admin() as caller:
        victims = workers_of(own)
        victims[0].kill()
        victims[1].kill()

        wait_until(own.answers, seconds=60, what="new workers serve")

        wait_until(lambda: len(workers_of(own)) == 2, seconds=60, what="both workers are back")
        assert {worker.pid for worker in workers_of(own)}.isdisjoint({victim.pid for victim in victims})
        caller.client.close()
    with own.client() as client:
        assert As.with_token(client, caller.token).get("/nodes").status_code == 200
        assert "fleet_http_request_seconds_count" in client.get("/metrics").text
    assert "api.worker_ended" in events(own)


def test_workers_do_not_outlive_their_parent(own: Served) -> None:
    assert own.process is not None
    workers = workers_of(own)

    own.process.kill()
    own.process.wait()
    own.process = None

    wait_until(lambda: not any(worker.is_running() for worker in workers), seconds=60, what="the orphaned workers end")


def test_two_servers_never_share_a_port(own: Served) -> None:
    second = run(own)

    assert second.returncode == 1
    assert f"port {own.port}" in second.stderr
    assert "Traceback" not in second.stderr
    assert own.answers()


def test_once_starts_answers_and_stops(tmp_path: Path, redis_url: str) -> None:
    served = Served(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}", redis_url)
    migrate(Database(served.database_url))

    done = run(served, "--once")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "ok"


def test_a_database_without_tables_is_told_and_nothing_is_served(tmp_path: Path, redis_url: str) -> None:
    served = Served(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}", redis_url)

    done = run(served, "--once")

    assert done.returncode == 3
    assert "fleet ctl migrate-db" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_names_what_is_wrong_and_starts_nothing(tmp_path: Path, redis_url: str) -> None:
    served = Served(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}", redis_url)
    good = run(served, "--check")
    served.config.write_text(served.config.read_text().replace(f"API_PORT={served.port}", "API_PORT=many"))
    bad = run(served, "--check")

    assert good.returncode == 0
    assert bad.returncode == 2
    assert f"{served.config}:4" in bad.stderr
    assert "API_PORT" in bad.stderr
    assert not served.key_file.exists()


def test_small_answers_are_not_held_back() -> None:
    """With Nagle's algorithm on, an answer in two pieces waits 40 ms for the client's acknowledgement."""
    port = free_port()
    listening = listen("127.0.0.1", port, 2)
    try:
        with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=5)):
            ready = select.select(listening, [], [], 5)[0]
            with contextlib.closing(ready[0].accept()[0]) as accepted:
                # asyncio turns it off only on sockets whose protocol is named.
                assert accepted.proto == socket.IPPROTO_TCP
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    finally:
        for one in listening:
            one.close()


def connections(worker: psutil.Process) -> int:
    return sum(found.status == "ESTABLISHED" for found in worker.net_connections("tcp"))


def test_both_workers_get_connections(own: Served) -> None:
    with own.admin() as caller:
        held = [socket.create_connection(("127.0.0.1", own.port), timeout=5) for _ in range(40)]
        try:
            assert caller.get("/nodes").status_code == 200
            # The kernel has given each connection to one of them already; whose turn it is to run is another matter.
            wait_until(
                lambda: min(connections(worker) for worker in workers_of(own)) >= 5,
                seconds=60,
                what="both workers have five connections",
            )
        finally:
            for one in held:
                one.close()


def test_first_starts_at_once_agree_on_one_admin_key(tmp_path: Path, redis_url: str) -> None:
    """Several machines' first starts, here on one key file: whoever comes first makes it, and all of them take it."""
    both = [
        Served(tmp_path / name, f"sqlite:///{tmp_path / 'ledger.db'}", redis_url) for name in _made(tmp_path, "a", "b")
    ]
    for served in both:
        served.key_file = tmp_path / "admin.key"
        text = served.config.read_text()
        served.config.write_text(text.replace(f"{served.folder}/admin.key", f"{tmp_path}/admin.key"))
    migrate(Database(both[0].database_url))
    processes = [
        subprocess.Popen(
            served.command("--once"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment()
        )
        for served in both
    ]
    assert [process.wait(timeout=180) for process in processes] == [0, 0]

    with both[0] as served, served.admin() as caller:
        assert caller.get("/nodes").status_code == 200
    assert (tmp_path / "admin.key").stat().st_mode & 0o777 == 0o600


def _made(folder: Path, *names: str) -> tuple[str, ...]:
    for name in names:
        (folder / name).mkdir()
    return names


def test_a_restart_keeps_key_tokens_and_data(own: Served) -> None:
    with own.admin() as caller:
        caller.post("/auth/namespaces", {"name": "kept"})
        key = own.admin_key
        own.stop()
        own.start()

    with own.client() as client:
        assert As.with_token(client, caller.token).get("/auth/namespaces/kept").status_code == 200
    assert own.admin_key == key


def test_another_key_file_takes_the_former_keys_place(own: Served) -> None:
    with own.admin() as caller:
        former = own.admin_key
        own.stop()
        own.key_file.write_text("another-key-of-the-operators-own-choice\n")
        own.start()

        assert_problem(caller.get("/nodes"), 401, "unauthenticated")
    with own.admin() as renewed:
        assert renewed.get("/nodes").status_code == 200
    with own.client() as client:
        refused = client.post("/auth", json={"namespace": "system", "key": former})
        assert_problem(refused, 401, "unauthenticated")


def test_a_database_that_is_away_is_a_503_that_says_so_and_comes_back(
    tmp_path: Path, own_mariadb: MariaDBServer, redis_url: str
) -> None:
    with fresh_database(own_mariadb) as url, Served(tmp_path, url, redis_url) as served, served.admin() as caller:
        served.node("n1")
        own_mariadb.kill()

        answers = [
            caller.get("/nodes"),
            caller.post("/instances", {"cpus": 1, "memory_mb": 1}),
            caller.client.get("/readyz"),
            caller.client.post("/auth", json={"namespace": "system", "key": served.admin_key}),
        ]

        for answer in answers:
            document = assert_problem(answer, 503, "database_unavailable")
            assert answer.headers["retry-after"] == "1"
            assert "Traceback" not in json.dumps(document)
        assert caller.client.get("/healthz").status_code == 200
        metrics = caller.client.get("/metrics")
        assert metrics.status_code == 200
        assert "fleet_ledger_up 0.0" in metrics.text
        own_mariadb.restart()
        wait_until(lambda: caller.get("/nodes").status_code == 200, seconds=60, what="the API answers again")
        assert caller.get("/nodes").json()["items"][0]["name"] == "n1"


def test_a_defect_is_a_problem_document_with_an_incident_and_one_log_line(own: Served) -> None:
    # A cluster row that is not there is a promise that the migrations keep; without it the view is broken.
    database = Database(own.database_url)
    with database.engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM cluster_capacity")
        conn.exec_driver_sql("ALTER TABLE nodes RENAME TO elsewhere")
    database.close()
    with own.admin() as caller:
        promise = caller.get("/admin/cluster-capacity")
        defect = caller.get("/nodes")

    assert_problem(promise, 500, "broken_promise")
    document = assert_problem(defect, 500, "internal_error")
    assert "elsewhere" not in json.dumps(document)
    assert "nodes" not in document["detail"]
    lines = [line for line in own.log.read_text().splitlines() if document["incident"] in line]
    assert len(lines) == 1
    assert json.loads(lines[0])["event"] == "api.failed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_worker_alone_serves_and_stops(tmp_path: Path, redis_url: str, number: signal.Signals) -> None:
    with Served(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}", redis_url, workers=1) as served:
        assert served.process is not None
        assert workers_of(served) == []
        process = served.process
        os.kill(process.pid, number)

        assert process.wait(timeout=60) == 0
        served.process = None
