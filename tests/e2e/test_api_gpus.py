"""GPUs over HTTP: declared and sampled inventories, what a create gets, who holds what, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.served import METRICS, As, Ended, Served, assert_problem

SMALL = {"cpus": 1, "memory_mb": 64}
A100 = "NVIDIA A100-SXM4-40GB"
VECTOR = pytest.mark.vectors


@pytest.fixture
def node(admin: As, new_name: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """Make GPU nodes that take nothing after this test."""
    made: list[str] = []

    def make(sample: dict[str, Any] | None = None, **declared: Any) -> str:
        name = new_name("gpu")
        answer = admin.post("/nodes", {"name": name, "backend": "simulated", **declared})
        assert answer.status_code == 201, answer.text
        made.append(name)
        answer = admin.put(f"/nodes/{name}/metrics", {"metrics": METRICS, **(sample or {})})
        assert answer.status_code == 200, answer.text
        return name

    yield make
    for name in made:
        admin.post(f"/nodes/{name}/cordon", {})


@pytest.fixture
def uuid(new_name: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: new_name(f"GPU-{text}")


def shown(admin: As, name: str) -> dict[str, Any]:
    answer = admin.get(f"/nodes/{name}")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def create(admin: As, node: str, gpus: int = 1, **asked: Any) -> Any:
    return admin.post("/instances", {**SMALL, "gpus": gpus, "placement": {"node": node}, **asked})


def test_an_instance_gets_cards_by_uuid_and_both_sides_show_it(
    admin: As, node: Callable[..., str], uuid: Callable[[str], str]
) -> None:
    first, second = uuid("a"), uuid("b")
    name = node()
    cards = [
        {"uuid": first, "model": A100, "memory_mb": 40960, "pci_bus_id": "0000:3b:00.0", "iommu_group": 42},
        {"uuid": second, "model": A100},
    ]
    declared = admin.put(f"/nodes/{name}/gpus", {"gpus": cards})
    assert declared.status_code == 200, declared.text
    assert [(one["uuid"], one["state"]) for one in declared.json()["gpus"]] == [(first, "free"), (second, "free")]
    assert declared.json()["gpus"][0]["details"] == {"pci_bus_id": "0000:3b:00.0", "iommu_group": "42"}

    made = create(admin, name, gpu_kind="a100")
    assert made.status_code == 201, made.text
    instance = admin.get(f"/instances/{made.json()['uuid']}").json()
    assert (instance["gpus"], instance["gpu_kind"], instance["gpu_uuids"]) == (1, "a100", [first])
    listed = admin.get(f"/instances?node={name}").json()["items"]
    assert [one["gpu_uuids"] for one in listed] == [[first]]
    now = shown(admin, name)
    assert (now["gpu_count"], now["gpu_count_used"]) == (2, 1)
    assert [(one["state"], one["bound_to"]) for one in now["gpus"]] == [("bound", instance["uuid"]), ("free", None)]

    # A sample without GPUs leaves them; one that lacks a card makes it missing, and whoever holds it is told.
    assert admin.put(f"/nodes/{name}/metrics", {"metrics": METRICS}).status_code == 200
    assert [one["state"] for one in shown(admin, name)["gpus"]] == ["bound", "free"]
    sample = {"metrics": METRICS, "gpus": [{"uuid": second, "model": A100}]}
    assert admin.put(f"/nodes/{name}/metrics", sample).status_code == 200
    assert {one["uuid"]: one["state"] for one in shown(admin, name)["gpus"]} == {first: "missing", second: "free"}
    events = admin.get(f"/instances/{instance['uuid']}/events").json()["items"]
    assert "instance bound to a gpu that is gone" in {event["message"] for event in events}
    snapshot = admin.get("/admin/snapshot").json()
    (form,) = [one for one in snapshot["nodes"] if one["name"] == name]
    assert {one["uuid"]: one.get("missing", False) for one in form["gpus"]} == {first: True, second: False}
    assert admin.post("/admin/ledger/verify").json()["differences"] == []


def test_five_creates_at_once_for_one_card_and_one_slice_bind_each_once(
    admin: As, served: Served, node: Callable[..., str], uuid: Callable[[str], str]
) -> None:
    card, cut, part = uuid("one"), uuid("cut"), uuid("MIG")
    inventory = {
        "gpus": [{"uuid": card, "model": A100}, {"uuid": cut, "model": A100, "mig_capable": True, "mig_mode": True}],
        "mig_instances": [{"uuid": part, "profile": "1G.10GB", "parent_gpu_uuid": cut}],
    }
    name = node(inventory)
    for asked, unit in (({}, card), ({"gpu_profile": "1g.10gb"}, part)):

        def attempt(_: int, asked: dict[str, Any] = asked) -> Any:
            with served.admin() as caller:
                return create(caller, name, **asked)

        with ThreadPoolExecutor(5) as pool:
            answers = list(pool.map(attempt, range(5)))
        placed = [answer.json()["uuid"] for answer in answers if answer.status_code == 201]
        refused = [answer.json() for answer in answers if answer.status_code != 201]
        assert len(placed) == 1, [answer.text for answer in answers]
        assert {document["code"] for document in refused} <= {"out_of_capacity", "placement_busy"}
        assert admin.get(f"/instances/{placed[0]}").json()["gpu_uuids"] == [unit]
    assert admin.post("/admin/ledger/verify").json()["differences"] == []


def test_a_refusal_for_gpus_names_the_stage_and_the_figures(admin: As, node: Callable[..., str]) -> None:
    name = node(gpu_count=2, gpu_kind="a100")
    assert create(admin, name, 2).status_code == 201

    refused = create(admin, name).json()

    assert (refused["code"], refused["stage"]) == ("out_of_capacity", "gpu")
    assert name in refused["detail"]


def test_what_cannot_be_a_nodes_inventory_is_refused_by_field(
    admin: As, node: Callable[..., str], uuid: Callable[[str], str]
) -> None:
    one = uuid("twice")
    name = node()
    twins = {"gpus": [{"uuid": one}, {"uuid": one}]}
    for path, more in ((f"/nodes/{name}/gpus", {}), (f"/nodes/{name}/metrics", {"metrics": METRICS})):
        document = assert_problem(admin.put(path, {**more, **twins}), 400, "invalid_request", "gpus[1].uuid")
        assert "stands at gpus[0] already" in document["detail"]
        across = {"gpus": [{"uuid": one}], "mig_instances": [{"uuid": one, "profile": "1g.10gb"}]}
        assert_problem(admin.put(path, {**more, **across}), 400, "invalid_request", "mig_instances[0].uuid")
        for bad, field in (
            ({"gpus": [{"uuid": ""}]}, "gpus[0].uuid"),
            ({"gpus": [{"uuid": "has space"}]}, "gpus[0].uuid"),
            ({"gpus": [{"model": A100}]}, "gpus[0].uuid"),
            ({"gpus": [{"uuid": one, "colour": "red"}]}, "gpus[0].colour"),
            ({"gpus": [{"uuid": one, "mig_mode": 1}]}, "gpus[0].mig_mode"),
            ({"gpus": [{"uuid": one, "memory_mb": -1}]}, "gpus[0].memory_mb"),
            ({"mig_instances": [{"uuid": one, "profile": "half"}]}, "mig_instances[0].profile"),
            ({"mig_instances": [{"uuid": one, "profile": ""}]}, "mig_instances[0].uuid"),
            ({"gpus": 3}, "gpus"),
        ):
            assert_problem(admin.put(path, {**more, **bad}), 400, "invalid_request", field)
    assert shown(admin, name)["gpus"] == []
    assert_problem(admin.put("/nodes/no-such-node/gpus", {"gpus": []}), 404, "not_found")


def test_a_card_that_another_node_has_is_a_conflict_that_names_both(
    admin: As, node: Callable[..., str], uuid: Callable[[str], str]
) -> None:
    card = {"uuid": uuid("shared")}
    here, there = node({"gpus": [card]}), node()

    for answer in (
        admin.put(f"/nodes/{there}/gpus", {"gpus": [card]}),
        admin.put(f"/nodes/{there}/metrics", {"metrics": METRICS, "gpus": [card]}),
    ):
        document = assert_problem(answer, 409, "conflict")
        assert all(word in document["detail"] for word in (card["uuid"], here, there))
    assert shown(admin, there)["gpus"] == []


@VECTOR
@pytest.mark.parametrize(
    ("declared", "status"),
    [
        *(({"gpu_count": 2, "backend": backend}, status) for backend, status in (("", 400), ("firecracker", 400))),
        *(({"gpu_count": 2, "backend": backend}, 201) for backend in ("qemu", "libvirt", "simulated")),
        ({"mig_profiles": {"1g.10gb": 2}, "backend": "firecracker"}, 400),
        ({"mig_profiles": {"1G.10GB": 4}, "backend": "qemu"}, 201),
        ({"mig_profiles": {"half": 4}, "backend": "qemu"}, 400),
        ({"mig_profiles": {"1g.10gb": 0}, "backend": "qemu"}, 400),
        ({"mig_profiles": {"1g.10gb": 1, "1G.10gb": 2}, "backend": "qemu"}, 400),
        ({"gpu_count": -1, "backend": "qemu"}, 400),
        ({"arch": "sparc"}, 400),
        ({"arch": "aarch64"}, 201),
        ({}, 201),
        ({"labels": {"rack": "bad value"}}, 400),
    ],
)
def test_fuse_v32_what_a_registration_may_declare(
    admin: As, new_name: Callable[[str], str], declared: dict[str, Any], status: int
) -> None:
    name = new_name("v32")
    answer = admin.post("/nodes", {"name": name, **declared})

    assert answer.status_code == status, answer.text
    if status == 400:
        assert_problem(answer, 400, "invalid_request")
        assert admin.get(f"/nodes/{name}").status_code == 404
        return
    found = answer.json()
    assert found["gpu_count"] == declared.get("gpu_count", 0)
    assert found["mig_profiles"] == ({"1g.10gb": 4} if "mig_profiles" in declared else {})
    assert found["arch"] == ("arm64" if "arch" in declared else "")


def test_gpus_that_are_there_already_keep_a_node_from_a_backend_without_them(
    admin: As, node: Callable[..., str], uuid: Callable[[str], str]
) -> None:
    probed, declared = node({"gpus": [{"uuid": uuid("p")}]}), node(gpu_count=1)
    for name in (probed, declared):
        assert_problem(admin.put(f"/nodes/{name}", {"backend": "firecracker"}), 400, "invalid_request", "backend")
        assert shown(admin, name)["backend"] == "simulated"
    plain = node(backend="firecracker")
    sample = {"metrics": METRICS, "gpus": [{"uuid": uuid("f")}]}
    assert_problem(admin.put(f"/nodes/{plain}/metrics", sample), 400, "invalid_request", "gpus")
    assert_problem(admin.put(f"/nodes/{plain}", {"gpu_count": 1}), 400, "invalid_request", "backend")


def test_a_sleepy_instance_shows_as_the_wake_risk_of_its_node(admin: As, node: Callable[..., str]) -> None:
    name = node({"metrics": {**METRICS, "memory_available": 4096 + 1000}})
    assert admin.get("/admin/resources").json()["per_node"][name]["wake_risk_mb"] == 0
    for memory_mb in (600, 300):
        body = {**SMALL, "memory_mb": memory_mb, "sleep_after_idle_seconds": 60, "placement": {"node": name}}
        assert admin.post("/instances", body).status_code == 201
    figures = {"metrics": {**METRICS, "memory_available": 4096 + 500}}
    assert admin.put(f"/nodes/{name}/metrics", figures).status_code == 200

    found = admin.get("/admin/resources").json()["per_node"][name]
    assert (found["sleepy_memory_mb"], found["wake_risk_mb"]) == (900, 400)
    metrics = admin.get("/metrics").text
    assert f'node_sleepy_memory_mb{{node="{name}"}} 900.0' in metrics
    assert f'node_wake_risk_mb{{node="{name}"}} 400.0' in metrics
    unknown = {name_: value for name_, value in METRICS.items() if name_ != "memory_available"}
    assert admin.put(f"/nodes/{name}/metrics", {"metrics": unknown}).status_code == 200
    assert admin.get("/admin/resources").json()["per_node"][name]["wake_risk_mb"] is None
    assert f'node_wake_risk_mb{{node="{name}"}}' not in admin.get("/metrics").text


def test_the_command_line_declares_counts_and_shows_who_holds_each_unit(
    admin: As, fleet: Callable[..., Ended], node: Callable[..., str], new_name: Callable[[str], str]
) -> None:
    name, card = new_name("cli"), new_name("GPU")
    words = ("--backend", "qemu", "--gpus", "2", "--gpu-kind", "a100", "--mig-profile", "1G.10GB=7")
    made = fleet("--json", "node", "register", name, *words)
    assert made.code == 0, made.err
    assert (made.json["gpu_count"], made.json["gpu_kind"], made.json["mig_profiles"]) == (2, "a100", {"1g.10gb": 7})
    assert fleet("node", "update", name, "--mig-profile", "1g.10gb").code == 2
    assert fleet("node", "update", name, "--mig-profile", "1g.10gb=x").code == 2
    changed = fleet("--json", "node", "update", name, "--mig-profile", "2g.20gb=3", "--gpus", "0")
    assert (changed.json["gpu_count"], changed.json["mig_profiles"]) == (0, {"1g.10gb": 0, "2g.20gb": 3})

    held = node({"gpus": [{"uuid": card, "model": A100}]})
    create_words = ("--cpus", "1", "--memory", "64", "--node", held, "--gpus", "1", "--gpu-kind", "a100")
    instance = fleet("--json", "instance", "create", "g", *create_words)
    assert instance.code == 0, instance.err
    uuid = instance.json["uuid"]
    listing = fleet("node", "show", held).out
    assert all(word in listing for word in (card, A100, "bound", uuid))
    assert card in fleet("instance", "show", uuid).out
    assert "wake_risk_mb" in fleet("resources").out
