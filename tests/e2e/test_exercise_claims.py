"""The exercise of claims passes on a good cluster, fails on a bad one, and leaves nothing behind, whatever ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.app import run
from fleet.cli.caller import Caller
from fleet.cli.control_plane import ControlPlane, Plan, free_port
from tests.e2e.altering import Altered, Call, Fault
from tests.e2e.broken_claims import QUICK, WITH_EXPIRY, WITH_INSTANCES, DeletesSoftly, NeverExpires
from tests.e2e.served import Ended, clean_environment
from tests.servers import fresh_database, wait_until

pytestmark = pytest.mark.slow

TOOL = Path(__file__).resolve().parents[2] / "tools" / "exercise-namespace-claims.py"
NODE = {"name": "exercised", "cpu_threads": 16, "memory_mb": 65_536, "disk_gb": 500}
RUN_SECONDS_MAX = 240
LONG, SHORT = "60", "10"
"""`--timeout`, in seconds: for what comes, and for what is waited for in vain."""
SETTINGS = {"RECONCILE_INTERVAL_SECONDS": 1, "SCHEDULER_CACHE_TIMEOUT": 0}


class Cluster:
    """A whole control plane with a worker and a reconciler that passes every second.

    What a deleted namespace claimed is kept for an hour, and that is not waited for, unless a test says otherwise.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.url = plane.url
        self.key_file = plane.state / "admin.key"
        self.caller: Caller = plane.session().caller()
        for key, value in SETTINGS.items():
            self.setting(key, value)
        self.before = self.held()

    def setting(self, key: str, value: object) -> None:
        self.caller.must("PUT", f"/admin/config/{key}", {"value": value})

    def held(self) -> dict[str, Any]:
        """Everything that a run could leave."""
        capacity = self.caller.get("/admin/cluster-capacity")
        names = [item["name"] for item in self.caller.pages("/auth/namespaces")]
        return {
            "namespaces": names,
            "claims": [claim for name in names for claim in self.caller.pages(f"/auth/namespaces/{name}/claims")],
            "instances": [item["uuid"] for item in self.caller.pages("/instances")],
            "capacity": {
                name: value for name, value in capacity.items() if name.startswith(("claimed", "overage", "unclaimed"))
            },
            "differences": self.caller.must("POST", "/admin/ledger/verify")["differences"],
        }

    @contextmanager
    def set(self, key: str, value: object, former: object) -> Iterator[None]:
        self.setting(key, value)
        try:
            yield
        finally:
            self.setting(key, former)

    def assert_as_before(self) -> None:
        wait_until(lambda: self.held() == self.before, seconds=60, what=f"{self.before}, and not {self.held()}")


def start(folder: Path, database_url: str = "") -> ControlPlane:
    return ControlPlane(
        Plan(
            state=folder / "var",
            port=free_port(),
            database_url=database_url,
            this_machine=False,
            simulated=[NODE],
        )
    )


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The embedded default, and a MariaDB."""
    folder = tmp_path_factory.mktemp("exercised")
    if request.param == "sqlite":
        yield request.getfixturevalue("embedded")
        return
    with fresh_database(request.getfixturevalue("mariadb")) as url, start(folder, url) as plane:
        cluster = Cluster(plane)
        yield cluster
        cluster.caller.close()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start(tmp_path_factory.mktemp("exercised")) as plane:
        cluster = Cluster(plane)
        yield cluster
        cluster.caller.close()


def environment(cluster: Cluster) -> dict[str, str]:
    return {**clean_environment(), "FLEET_URL": cluster.url, "FLEET_KEY_FILE": str(cluster.key_file), "NO_COLOR": "1"}


def typed(cluster: Cluster, *flags: str) -> subprocess.CompletedProcess[str]:
    """What a person types, from the source tree."""
    return subprocess.run(
        [sys.executable, str(TOOL), *flags],
        env=environment(cluster),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )


@pytest.fixture
def exercised(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run `fleet claim exercise --json` against an address."""

    def command(cluster: Cluster, url: str, *flags: str) -> Ended:
        capsys.readouterr()
        where = ("--url", url, "--key-file", str(cluster.key_file))
        code = run(["claim", "exercise", "--json", *where, *flags])
        read = capsys.readouterr()
        assert "Traceback" not in read.out + read.err
        return Ended(code, read.out, read.err)

    return command


# --- a good cluster ----------------------------------------------------------------------------------------------


def test_every_check_passes_on_a_good_cluster_and_nothing_is_left(either: Cluster) -> None:
    with either.set("CLEANER_DELAY_SECONDS", 0, 3600):
        done = typed(either, "--timeout", LONG)

    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.fullmatch(r"(\d+) passed, 0 failed", done.stdout.splitlines()[-1])
    assert counted, done.stdout
    assert int(counted[1]) > 70
    assert "skip" not in done.stdout
    either.assert_as_before()


def test_hard_claims_are_checked_as_ceilings(either: Cluster) -> None:
    with either.set("CLAIM_ENFORCEMENT", "hard", "advisory"):
        done = typed(either, "--no-expiry", "--timeout", LONG)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass  an instance over the claim (hard): 403 claim_exceeded, nothing is charged" in done.stdout
    either.assert_as_before()


def test_programs_get_one_document_and_what_is_left_out_is_said(
    embedded: Cluster, exercised: Callable[..., Ended]
) -> None:
    done = exercised(embedded, embedded.url, "--no-instances", "--no-expiry", "--timeout", LONG)

    found = done.json
    assert (done.code, found["failed"], found["interrupted"], found["left_behind"]) == (0, 0, False, [])
    assert found["passed"] == sum(check["result"] == "pass" for check in found["checks"]) > 40
    left_out = {check["name"]: check["detail"] for check in found["checks"] if check["result"] == "skip"}
    assert left_out.pop("what its claim kept returns by itself after CLEANER_DELAY_SECONDS").startswith(
        "that is 3600 s"
    )
    assert left_out == {"drawing a claim down": "--no-instances", "expiry": "--no-expiry"}
    assert "pass  create: 201" in done.err
    embedded.assert_as_before()


def test_the_tool_says_how_it_is_used() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--help"], capture_output=True, text=True, timeout=60, check=True)

    assert os.access(TOOL, os.X_OK)
    assert all(flag in done.stdout for flag in ("--no-instances", "--no-expiry", "--timeout"))


# --- interrupted -------------------------------------------------------------------------------------------------

MOMENTS = (
    "Claims on ",
    "pass  create: 201",
    "update of limit_cpus alone",
    "pass  an instance within its namespace's claim",
    "waiting for a pass of the reconciler",
    "a new claim in its place",
)


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_leaves_nothing_wherever_it_comes(embedded: Cluster, moment: str) -> None:
    code, told = interrupted(embedded, moment, signal.SIGINT)

    assert code == 130, told
    assert "Interrupted." in told
    assert re.search(r"\d+ passed, 0 failed", told), told
    embedded.assert_as_before()


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGINT,) * 3])
def test_other_signals_and_many_of_them_leave_nothing_either(
    embedded: Cluster, signals: tuple[signal.Signals, ...]
) -> None:
    code, told = interrupted(embedded, "pass  an instance within its namespace's claim", *signals)

    assert code == 128 + signals[0], told
    embedded.assert_as_before()


def interrupted(cluster: Cluster, moment: str, *signals: signal.Signals) -> tuple[int, str]:
    """Run the tool and signal it as soon as it says the words; its exit code and what it printed."""
    process = subprocess.Popen(
        [sys.executable, str(TOOL), "--timeout", LONG],
        env=environment(cluster),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    told = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            told += line
            if moment in line:
                break
        else:
            pytest.fail(f"it never said {moment!r}:\n{told}")
        for number in signals:
            process.send_signal(number)
        told += process.communicate(timeout=RUN_SECONDS_MAX)[0]
        return process.returncode, told
    finally:
        process.kill()
        process.wait()


# --- a bad cluster -----------------------------------------------------------------------------------------------

BROKEN = [
    *((fault, check, ("--no-instances", "--no-expiry")) for fault, check in QUICK),
    *((fault, check, ("--no-expiry",)) for fault, check in WITH_INSTANCES),
    *((fault, check, ("--no-instances",)) for fault, check in WITH_EXPIRY),
]


@pytest.mark.parametrize(("fault", "check", "flags"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_service_that_breaks_a_promise_is_found_out(
    embedded: Cluster,
    exercised: Callable[..., Ended],
    fault: Callable[[], Fault],
    check: str,
    flags: tuple[str, ...],
) -> None:
    # What is never to come is waited for until the bound; all the rest only has to come.
    bound = SHORT if fault is NeverExpires else LONG
    with Altered(embedded.url, fault()) as altered:
        done = exercised(embedded, altered.own_url, *flags, "--timeout", bound)

    failed = [one for one in done.json["checks"] if one["result"] == "FAIL"]
    assert (done.code, done.json["failed"]) == (1, len(failed)), done.err
    assert [one["detail"] for one in failed if check in one["name"] and one["detail"]], failed
    if fault is DeletesSoftly:
        # What is not deleted goes with its namespace.
        with embedded.set("CLEANER_DELAY_SECONDS", 0, 3600):
            embedded.assert_as_before()
    embedded.assert_as_before()


def test_an_unaltered_service_passes_through_the_proxy(embedded: Cluster, exercised: Callable[..., Ended]) -> None:
    with Altered(embedded.url, Fault()) as altered:
        done = exercised(embedded, altered.own_url, "--no-instances", "--no-expiry", "--timeout", LONG)

    assert (done.code, done.json["failed"]) == (0, 0), done.err


# --- what ends early ---------------------------------------------------------------------------------------------


class DeletesNoInstance(Fault):
    def before(self, call: Call) -> None:
        if call.method == "DELETE" and call.place.startswith("/instances/"):
            problem = {"code": "internal_error", "status": 500, "title": "Internal error", "detail": "no"}
            call.status, call.answer = 500, problem


def test_what_could_not_be_removed_is_named(embedded: Cluster, exercised: Callable[..., Ended]) -> None:
    with Altered(embedded.url, DeletesNoInstance()) as altered:
        done = exercised(embedded, altered.own_url, "--no-expiry", "--timeout", "2")

    (instance,) = [item for item in embedded.caller.pages("/instances") if item["namespace"].endswith("-a")]
    left = done.json["left_behind"]
    assert done.code == 1
    assert any(instance["uuid"] in told and instance["namespace"] in told and "500" in told for told in left), left
    assert f"namespace {instance['namespace']}" in left
    remove_by_hand(embedded)
    embedded.assert_as_before()


def remove_by_hand(cluster: Cluster) -> None:
    for item in cluster.caller.pages("/instances"):
        cluster.caller.call("DELETE", f"/instances/{item['uuid']}")
    wait_until(lambda: not cluster.caller.pages("/instances"), seconds=60, what="no instance is left")
    for item in cluster.caller.pages("/auth/namespaces"):
        if item["name"].startswith("exercise-claims-"):
            cluster.caller.call("DELETE", f"/auth/namespaces/{item['name']}")


class Dies(Fault):
    """A service that ends in the middle."""

    def __init__(self) -> None:
        self.calls = 0

    def before(self, call: Call) -> None:
        self.calls += 1
        if self.calls > 60:
            raise ConnectionAbortedError


def test_a_service_that_goes_away_is_told_with_what_may_be_left(
    embedded: Cluster, exercised: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socketserver.BaseServer.handle_error", lambda *_: None)
    with Altered(embedded.url, Dies()) as altered:
        done = exercised(embedded, altered.own_url, "--no-instances", "--no-expiry", "--timeout", "2")

    left = done.json["left_behind"]
    assert (done.code, len(left)) == (3, 2), done.err
    assert all(re.match(r"namespace exercise-claims-[0-9a-f]{8}-[ab], with what may be in it: ", told) for told in left)
    remove_by_hand(embedded)
    embedded.assert_as_before()


class HasNoRoom(Fault):
    def after(self, call: Call) -> None:
        if call.place == "/admin/cluster-capacity":
            call.answer["claimed_memory_mb"] = call.answer["total_memory_mb"] - 100


class IsAnotherProgram(Fault):
    def before(self, call: Call) -> None:
        call.status, call.answer = 200, {}


@pytest.mark.parametrize(
    ("fault", "told"),
    [(HasNoRoom, "100 memory_mb left, and the checks need"), (IsAnotherProgram, "does not answer as fleet does")],
)
def test_where_it_cannot_be_done_nothing_is_made_and_the_reason_is_told(
    embedded: Cluster, exercised: Callable[..., Ended], fault: Callable[[], Fault], told: str
) -> None:
    with Altered(embedded.url, fault()) as altered:
        done = exercised(embedded, altered.own_url)

    assert (done.code, told in json.loads(done.out)["detail"]) == (1, True), done
    assert embedded.held() == embedded.before


def test_who_is_not_the_admin_is_told_so(embedded: Cluster, exercised: Callable[..., Ended], tmp_path: Path) -> None:
    embedded.caller.must("POST", "/auth/namespaces", {"name": "somebody"})
    key = embedded.caller.must("POST", "/auth/namespaces/somebody/keys", {"name": "own"})["key"]
    (tmp_path / "key").write_text(key)

    done = exercised(embedded, embedded.url, "--as", "somebody", "--key-file", str(tmp_path / "key"))
    embedded.caller.must("DELETE", "/auth/namespaces/somebody")

    assert (done.code, done.json["code"]) == (1, "forbidden")


def test_where_nothing_answers_it_is_exit_3(embedded: Cluster, exercised: Callable[..., Ended]) -> None:
    assert exercised(embedded, "http://127.0.0.1:9").code == 3
