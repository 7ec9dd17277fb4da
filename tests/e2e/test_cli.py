"""The command line against a running service: what it prints, how it ends, and that it never shows a stack trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from fleet.ledger import operations
from fleet.ledger.database import Database
from fleet.queue.connection import connect
from fleet.queue.jobs import WakeUp, WakeUps
from tests.e2e.served import Ended, Names, Served, clean_environment
from tests.servers import free_port, wait_until


@pytest.fixture(scope="module", autouse=True)
def room(served: Served) -> None:
    served.node("cli", memory_max=2**20, memory_available=2**20, cpu_schedulable=200, cpu_threads=202)


def created(fleet: Callable[..., Ended], *more: str, name: str = "web") -> dict[str, Any]:
    made = fleet("instance", "create", name, "--cpus", "1", "--memory", "64", "--disk", "1", "--json", *more)
    assert made.code == 0, made
    answer: dict[str, Any] = made.json
    return answer


def test_create_list_show_events_and_delete(fleet: Callable[..., Ended], new_name: Names) -> None:
    name = new_name("vm")
    made = created(fleet, "--tag", "role=db", "--tag", "plain", name=name)

    shown = fleet("instance", "show", made["uuid"], "--json").json
    listed = fleet("instance", "list", "--name", name)
    events = fleet("instance", "events", made["uuid"], "--json").json["items"]
    deleted = fleet("instance", "delete", made["uuid"], "--json").json

    assert (shown["name"], shown["node"], shown["tags"]) == (name, made["node"], {"role": "db", "plain": ""})
    assert listed.out.splitlines()[0].split()[:3] == ["uuid", "name", "namespace"]
    assert made["uuid"] in listed.out
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert [event["message"] for event in (events[0], events[-1])] == ["started scheduling", "instance placed"]
    assert deleted["state"] == "deleting"
    assert deleted["operation_id"]


def test_simple_lists_are_comma_separated_with_the_uuid_first(fleet: Callable[..., Ended], new_name: Names) -> None:
    name = new_name("vm")
    made = created(fleet, name=name)

    lines = fleet("--simple", "instance", "list", "--name", name).out.splitlines()
    shown = fleet("instance", "show", made["uuid"], "--simple").out.splitlines()

    assert lines[0].startswith("uuid,name,")
    assert [line.split(",")[0] for line in lines[1:]] == [made["uuid"]]
    assert f"uuid,{made['uuid']}" in shown


def test_sizes_may_have_units(fleet: Callable[..., Ended]) -> None:
    made = fleet("instance", "create", "sized", "--cpus", "1", "--memory", "1 GB", "--disk", "1500MiB", "--json").json

    shown = fleet("instance", "show", made["uuid"], "--json").json

    assert (shown["memory_mb"], shown["disk_gb"]) == (1024, 2)


def test_dry_run_and_explain_say_where_and_change_nothing(fleet: Callable[..., Ended], new_name: Names) -> None:
    name = new_name("vm")
    asked = ("--cpus", "1", "--memory", "64")

    dry = fleet("instance", "create", name, *asked, "--dry-run")
    explained = fleet("explain", name, *asked)
    refused = fleet("explain", "--cpus", "900000", "--memory", "64")

    assert dry.code == explained.code == refused.code == 0
    assert "is first of" in dry.out
    assert "is first of" in explained.out
    assert "nodes fit" in refused.out
    assert "Not on:" in refused.out
    assert fleet("instance", "list", "--name", name, "--json").json["items"] == []


def test_a_refusal_is_one_sentence_exit_1_and_its_document_with_json(fleet: Callable[..., Ended]) -> None:
    asked = ("instance", "create", "huge", "--cpus", "900000", "--memory", "64")

    told = fleet(*asked)
    document = fleet(*asked, "--json")

    assert told.code == document.code == 1
    assert told.out == ""
    assert "nodes fit" in told.err
    assert "out_of_capacity" in told.err
    assert "fleet decision show " in told.err
    assert document.json["code"] == "out_of_capacity"
    assert "nodes fit" in fleet("decision", "show", document.json["decision_id"]).out


def test_decisions_and_operations_are_listed_and_shown(fleet: Callable[..., Ended]) -> None:
    made = created(fleet)

    lines = fleet("decision", "list", "--instance", made["uuid"], "--json").json["items"]
    sentences = fleet("decision", "show", made["decision_id"]).out
    operation = fleet("operation", "show", made["operation_id"], "--json").json
    listed = fleet("operation", "list", "--instance", made["uuid"], "--json").json["items"]
    early = fleet("operation", "retry", made["operation_id"])
    cancelled = fleet("operation", "cancel", made["operation_id"], "--json")

    assert [line["id"] for line in lines] == [made["decision_id"]]
    assert "strategy load-aware" in sentences
    assert (operation["kind"], operation["state"]) == ("create", "pending")
    assert [item["uuid"] for item in listed] == [made["operation_id"]]
    assert (early.code, cancelled.code) == (1, 0)
    assert cancelled.json["state"] == "cancelled"


def test_nodes_are_registered_changed_cordoned_and_removed(fleet: Callable[..., Ended], new_name: Names) -> None:
    name = new_name("node")
    registered = fleet("node", "register", name, "--label", "rack=a", "--backend", "simulated", "--json").json
    updated = fleet("node", "update", name, "--max-instances", "3", "--json").json
    labelled = fleet("node", "update", name, "--label", "disk=ssd", "--label", "rack=b", "--json").json
    unlabelled = fleet("node", "update", name, "--unset-label", "rack", "--json").json
    both = fleet("node", "update", name, "--unset-label", "disk", "--label", "disk=nvme")
    absent = fleet("node", "update", name, "--unset-label", "nope", "--unset-label", "disk", "--label", "zone=z")
    unzoned = fleet("node", "update", name, "--unset-label", "zone", "--label", "disk=ssd")
    told = fleet("node", "update", name, "--region", "north").out
    cordoned = fleet("node", "cordon", name, "--json").json
    uncordoned = fleet("node", "uncordon", name, "--json").json
    listed = fleet("node", "list").out
    events = fleet("node", "events", name).out
    removed = fleet("node", "remove", name)

    assert (registered["state"], registered["labels"]) == ("created", {"rack": "a"})
    assert (updated["max_instances"], updated["labels"]) == (3, {"rack": "a"})
    assert absent.code == 0
    assert absent.out.endswith("it had no label nope to take away; its labels were: disk\n")
    assert "it had no label" not in unzoned.out
    assert labelled["labels"] == {"disk": "ssd", "rack": "b"}
    assert (unlabelled["labels"], unlabelled["max_instances"]) == ({"disk": "ssd"}, 3)
    assert (both.code, "both name disk" in both.err) == (2, True)
    assert "north" in told
    assert "capacity" not in told
    assert (cordoned["scheduling"], uncordoned["scheduling"]) == ("cordoned", "enabled")
    assert name in listed
    assert "node registered" in events
    assert removed.code == 0
    assert fleet("node", "show", name).code == 1


def test_register_without_a_name_registers_this_machine_by_its_configuration(
    fleet: Callable[..., Ended], new_name: Names, tmp_path: Path
) -> None:
    name = new_name("self")
    config = tmp_path / "config"
    config.write_text(f"NODE_NAME={name}\nNODE_LABELS=rack=b\nNODE_BACKEND=simulated\nNODE_MAX_INSTANCES=7\n")

    made = fleet("node", "register", "--config", str(config), "--json").json

    assert (made["name"], made["labels"], made["backend"], made["max_instances"]) == (
        name,
        {"rack": "b"},
        "simulated",
        7,
    )


def test_register_without_a_name_wants_a_configuration(fleet: Callable[..., Ended], tmp_path: Path) -> None:
    ended = fleet("node", "register", "--config", str(tmp_path / "none"))

    assert ended.code == 2, ended
    assert "which node?" in ended.err


def test_namespaces_and_keys(fleet: Callable[..., Ended], new_name: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    name = new_name("ns")
    assert fleet("namespace", "create", name).code == 0
    key = fleet("key", "create", name, "k1", "--json").json["key"]
    assert "k1" in fleet("key", "list", name).out
    assert name in fleet("namespace", "list").out

    monkeypatch.setenv("FLEET_KEY", key)
    own = fleet("instance", "list", "--as", name)
    forbidden = fleet("node", "list", "--as", name)
    monkeypatch.delenv("FLEET_KEY")

    assert own.code == 0
    assert (forbidden.code, "forbidden" in forbidden.err) == (1, True)
    assert fleet("key", "delete", name, "k1").code == 0
    assert fleet("namespace", "delete", name).code == 0


def test_the_token_is_kept_privately_and_bought_anew_when_refused(fleet: Callable[..., Ended], tmp_path: Path) -> None:
    fleet("node", "list")
    (kept,) = (tmp_path / "cache" / "fleet" / "tokens").iterdir()
    first = kept.read_text()
    fleet("node", "list")
    again = kept.read_text()
    kept.write_text("worn-out")
    answered = fleet("node", "list")

    assert kept.stat().st_mode & 0o777 == 0o600
    assert first == again
    assert answered.code == 0
    assert kept.read_text() not in {"worn-out", ""}


def test_a_create_from_a_file(fleet: Callable[..., Ended], tmp_path: Path, new_name: Names) -> None:
    name = new_name("vm")
    file = tmp_path / "vm.yaml"
    file.write_text(f"name: {name}\ntags: {{role: web}}\nresources: {{cpus: 2.0, memory: 2 GB, disk: 1.5 GB}}\n")

    made = fleet("instance", "create", "--file", str(file), "--json")
    beaten = fleet("instance", "create", "--file", str(file), "--cpus", "1", "--json")

    assert made.code == 0, made
    shown = fleet("instance", "show", made.json["uuid"], "--json").json
    assert (shown["name"], shown["cpus"], shown["memory_mb"], shown["disk_gb"]) == (name, 2, 2048, 2)
    assert fleet("instance", "show", beaten.json["uuid"], "--json").json["cpus"] == 1


FAULTY: tuple[tuple[str, Sequence[str]], ...] = (
    ("resources: {cpus: 1, memory: 4096}", ["resources.memory", "unit"]),
    ("resources: {memory: 1.5 MB, disk: lots, ram: 1}", ["resources.memory", "resources.disk", "resources.ram"]),
    ("resources: {disk: 1 GB, storage: 2 GB}", ["resources.storage"]),
    ("placment: {node: a}\nplacement: {host: a}", ["placment", "placement.host"]),
    ("name: a\nname: b", ["stands twice"]),
    ("- a", ["must be a map"]),
    ("a: [", ["YAML"]),
    ("--- {}\n--- {}", ["one YAML document"]),
    ("!!python/object/apply:os.system [ls]", ["YAML"]),
    ("name: !!timestamp soon", ["cannot be read"]),
    (f"cpus: {'1' * 5000}", ["cannot be read"]),
)


@pytest.mark.parametrize(("text", "named"), FAULTY)
def test_all_faults_of_a_file_are_told_together(
    fleet: Callable[..., Ended], tmp_path: Path, text: str, named: Sequence[str]
) -> None:
    file = tmp_path / "faulty.yaml"
    file.write_text(text)

    ended = fleet("instance", "create", "--file", str(file))

    assert ended.code == 2
    assert all(word in ended.err for word in named), ended.err


USAGE: tuple[tuple[str, ...], ...] = (
    ("bogus",),
    ("instance", "bogus"),
    ("instance", "create", "x"),
    ("instance", "create", "x", "--cpus", "many", "--memory", "1"),
    ("instance", "create", "x", "--cpus", "1", "--memory", "lots"),
    ("instance", "create", "x", "--cpus", "1", "--memory", "1", "--tag", "=b"),
    ("instance", "create", "x", "--cpus", "1", "--memory", "1", "--affinity", "no-such-file"),
    ("instance", "create", "--file", "no-such-file"),
    ("instance", "show", "../../nodes"),
    ("decision", "show", "web"),
    ("operation", "retry", "web"),
    ("--url", "nonsense", "node", "list"),
    ("node", "update", "x", "--max-instances", "few"),
    ("capacity", "--shape", "big"),
    ("--key-file", "no-such-file", "node", "list"),
    ("config", "check", "--file", "bad-config"),
    ("namespace", "delete", ""),
    ("claim", "delete", "system", ""),
    ("key", "delete", "system", ""),
    ("node", "remove", ""),
    ("node", "show", "half-\udcff"),
    ("key", "create", "half-\udcff", "k"),
    ("namespace", "events", "system", "--message", "half-\udcff"),
    ("node", "events", "x", "--since", "99999w"),
)


@pytest.mark.parametrize("words", USAGE, ids=lambda words: ascii(" ".join(words)))
def test_wrong_usage_is_exit_2_in_words(fleet: Callable[..., Ended], tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "bad-config").write_text("API_PORT=many\n")

    ended = fleet(*words)

    assert ended.code == 2, ended
    assert ended.err


LATER: tuple[tuple[str, ...], ...] = (
    ("node", "drain", "cli"),
    ("node", "evacuate", "cli"),
    ("node", "use", "cli"),
)


@pytest.mark.parametrize("words", LATER, ids=" ".join)
def test_what_is_not_there_yet_is_refused_with_its_code(fleet: Callable[..., Ended], words: tuple[str, ...]) -> None:
    ended = fleet(*words)

    assert ended.code == 1
    assert "not supported yet" in ended.err


NO_NODE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--gpus", "1"), "no_gpu_nodes"),
    (("--affinity", '{"require_with_tag": ["a"]}'), "affinity_unsatisfiable"),
    (("--rules", '[{"resource": "metal_server", "operator": "has", "tags": {"a": "b"}}]'), "affinity_unsatisfied"),
    (("--node", "cli", "--label", "a=b"), "pin_ineligible"),
    (("--label", "a=b"), "labels_unmatched"),
    (("--node", "nowhere"), "node_not_found"),
)


@pytest.mark.parametrize(("flags", "code"), NO_NODE)
def test_a_wish_that_no_node_meets_is_refused_by_its_own_code(
    fleet: Callable[..., Ended], flags: tuple[str, ...], code: str
) -> None:
    ended = fleet("instance", "create", "x", "--cpus", "1", "--memory", "1", *flags)

    assert ended.code == 1
    assert code in ended.err


def test_a_stored_decision_decides_alike_from_its_saved_inputs(fleet: Callable[..., Ended], tmp_path: Path) -> None:
    made = created(fleet, "--tag", "role=replayed", name="replayed")
    stored = fleet("decision", "show", made["decision_id"], "--json").json

    saved = fleet("decision", "show", made["decision_id"], "--save", str(tmp_path), "--json").json
    files = ("--snapshot", saved["snapshot"], "--request", saved["request"])
    decided = fleet("decide", *files, "--seed", str(saved["seed"])).json

    assert decided["outcome"] == "ranked"
    assert decided["ranked"] == stored["record"]["ranked"]
    assert {stage: dict(reasons) for stage, reasons in decided["counts"].items()} == stored["record"]["counts"]
    assert decided["summary"] == stored["summary"]


def test_a_service_that_is_away_is_exit_3(fleet: Callable[..., Ended]) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    told = fleet("node", "list", "--url", url)
    document = fleet("node", "list", "--url", url, "--json")

    assert told.code == document.code == 3
    assert url in told.err
    assert document.json["code"] == "unreachable"


def test_without_a_key_the_command_says_where_one_may_come_from(
    fleet: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEET_KEY_FILE")

    ended = fleet("--as", "somebody", "instance", "list")

    assert ended.code == 2
    assert "FLEET_KEY" in ended.err
    assert "--key-file" in ended.err


def test_the_admins_key_beside_the_state_is_found(
    fleet: Callable[..., Ended], served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEET_KEY_FILE")
    Path("var").mkdir()
    Path("var/admin.key").write_text(served.admin_key)

    assert fleet("node", "list").code == 0


def test_a_wrong_key_is_exit_1_in_words(fleet: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_KEY", "wrong")

    ended = fleet("node", "list")

    assert ended.code == 1
    assert "unauthenticated" in ended.err
    assert "for the namespace system with the key from FLEET_KEY" in ended.err


def test_a_flag_that_does_nothing_without_another_is_misuse(fleet: Callable[..., Ended]) -> None:
    alone = fleet("instance", "delete", str(uuid4()), "--wait-seconds", "5s")
    endless = fleet("instance", "delete", str(uuid4()), "--wait", "--wait-seconds", "30d")

    assert (alone.code, "--wait-seconds goes with --wait" in alone.err) == (2, True)
    assert (endless.code, "--wait-seconds 30d: at least 1s, at most 1d" in endless.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("instance", "list", "--limit", "0"), "--limit: 0 is below 1, the least"),
        (("instance", "create", "--cpus", "four"), "--cpus: 'four' is not a whole number"),
    ],
)
def test_a_value_that_cannot_be_meant_is_repeated(
    fleet: Callable[..., Ended], words: tuple[str, ...], told: str
) -> None:
    ended = fleet(*words)

    assert (ended.code, told in ended.err) == (2, True), ended


def test_resources_show_every_hypervisor(fleet: Callable[..., Ended]) -> None:
    figures = fleet("resources", "--json").json
    table = fleet("resources").out

    assert "cli" in figures["per_node"]
    assert "cli" in table
    assert "in all" in table


# --- as a process ------------------------------------------------------------------------------------------------


@pytest.fixture
def process_environment(served: Served, tmp_path: Path) -> dict[str, str]:
    own = {"FLEET_URL": served.url, "FLEET_KEY_FILE": str(served.key_file), "XDG_CACHE_HOME": str(tmp_path)}
    return {**clean_environment(), **own}


def wake(served: Served, operation: str) -> None:
    """What the reconciler does where a wake-up is late or lost, for none runs here: who looks once finds it."""
    database, client = Database(served.database_url), connect(served.redis_url, blocking=True)
    found = operations.get(database, operation)
    assert found is not None
    assert found.node_id is not None
    WakeUps(client).put_missing([WakeUp(operation, found.node_id)])
    client.close()
    database.close()


def test_wait_follows_an_instance_until_it_runs(
    served: Served, process_environment: dict[str, str], tmp_path: Path, new_name: Names
) -> None:
    name, home = new_name("waited"), new_name("waits")
    # Nodes that others left behind may be of a kind that this worker does not serve.
    served.node(home, labels={"waits": home})
    words = ["instance", "create", name, "--cpus", "1", "--memory", "64", "--label", f"waits={home}"]
    words += ["--wait", "--wait-seconds", "120", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "fleet.cli.app", *words], stdout=subprocess.PIPE, env=process_environment, text=True
    ) as waiting:
        with served.admin() as admin:
            wait_until(
                lambda: bool(admin.get(f"/instances?name={name}").json()["items"]), seconds=60, what="it is placed"
            )
            (instance,) = admin.get(f"/instances?name={name}").json()["items"]
            (operation,) = admin.get(f"/operations?instance={instance['uuid']}").json()["items"]
        assert waiting.poll() is None
        wake(served, operation["uuid"])
        worker = [sys.executable, "-m", "daemons.worker", "--config", str(served.config), "--all-simulated", "--once"]
        environment = {**process_environment, "FLEET_INSTANCES_PATH": str(tmp_path), "FLEET_BLOBS_PATH": str(tmp_path)}
        subprocess.run(worker, env=environment, timeout=120, check=True, capture_output=True)
        out, _ = waiting.communicate(timeout=60)

    assert waiting.returncode == 0
    assert json.loads(out)["state"] == "running"


def test_wait_has_a_bound(fleet: Callable[..., Ended]) -> None:
    words = ("--cpus", "1", "--memory", "64", "--wait", "--wait-seconds", "1")

    ended = fleet("instance", "create", "never", *words)

    assert ended.code == 1
    assert "still creating after 1 s" in ended.err


def test_a_reader_that_goes_away_is_no_fault(process_environment: dict[str, str]) -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "fleet.cli.app", "ctl", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=process_environment,
    ) as command:
        os.close(read)
        os.close(write)
        _, err = command.communicate(timeout=60)

    assert b"Traceback" not in err


def test_completion_is_offered(process_environment: dict[str, str]) -> None:
    asked = {**process_environment, "_FLEET_COMPLETE": "complete_bash", "COMP_WORDS": "fleet inst", "COMP_CWORD": "1"}
    command = [str(Path(sys.executable).with_name("fleet"))]

    done = subprocess.run(command, env=asked, capture_output=True, text=True, timeout=60, check=False)

    assert "instance" in done.stdout.split()
