"""What a caller gets when nothing is placed: each code with its status, and what its sentence must name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.ledger import cluster_config
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from tests.e2e.served import METRICS, As, Served
from tests.servers import MariaDBServer, RedisServer, fresh_database

SMALL = {"cpus": 1, "memory_mb": 64}
APART = {"resource": "virtual_machine", "operator": "has_not", "tags": {"role": "db"}}
HOLD = "UPDATE scheduler_node_capacity SET generation = generation"


def register(admin: As, name: str, sample: dict[str, Any] | None = None, **declared: Any) -> str:
    assert admin.post("/nodes", {"name": name, "backend": "simulated", **declared}).status_code == 201
    if sample is not None:
        answer = admin.put(f"/nodes/{name}/metrics", {"metrics": {**METRICS, **sample}})
        assert answer.status_code == 200, answer.text
    return name


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of a refusal, which must be this one."""
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document.get("code"), document.get("status")) == (status, code, status), document
    assert answer.headers["content-type"] == "application/problem+json"
    return document


@pytest.fixture
def tenant(served: Served, new_name: Callable[[str], str]) -> Iterator[As]:
    with served.namespace(new_name("tenant")) as caller:
        yield caller


@pytest.fixture
def node(admin: As, new_name: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """Make nodes of this test's own: they carry a label that nobody else's have, and take nothing afterwards."""
    made: list[str] = []

    def make(sample: dict[str, Any] | None = None, **declared: Any) -> str:
        made.append(register(admin, new_name("node"), sample or {}, **declared))
        return made[-1]

    yield make
    for name in made:
        admin.post(f"/nodes/{name}/cordon", {})


def test_an_empty_fleet_one_without_a_sample_and_one_that_takes_nothing_are_never_called_full(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    with (
        Served(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}", redis_server.url(), workers=1) as own,
        own.admin() as me,
    ):
        nobody = refused(me.post("/instances", SMALL), 503, "no_nodes")
        assert "no node is registered" in nobody["detail"]
        no_cards = refused(me.post("/instances", {**SMALL, "gpus": 1}), 503, "no_gpu_nodes")
        assert "registered gpu node" in no_cards["detail"]
        register(me, "silent")
        unmeasured = refused(me.post("/instances", SMALL), 503, "no_schedulable_nodes")
        assert (unmeasured["stage"], unmeasured["transient"]) == ("node_state", False)
        assert "0 of 1 nodes fit" in unmeasured["detail"]
        register(me, "plain", {})
        cardless = refused(me.post("/instances", {**SMALL, "gpus": 2, "gpu_kind": "a100"}), 503, "no_gpu_nodes")
        assert "none of 1 schedulable nodes serves GPUs" in cardless["detail"]
        assert "2 x a100" in cardless["detail"]
        assert me.post("/nodes/plain/cordon", {}).status_code == 200
        cordoned = refused(me.post("/instances", SMALL), 503, "no_schedulable_nodes")
        assert cordoned["counts"] == {"node_state": {"not_active": 1}, "scheduling_state": {"cordoned": 1}}


def test_a_strategy_of_the_cluster_that_is_not_installed_is_the_services_fault_and_stops_only_who_relies_on_it(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    database = Database(url)
    migrate(database)
    # What `fleet ctl set-config` wrote where the package was there.
    cluster_config.store(database, "PLACEMENT_STRATEGY", "by-rack")
    database.close()
    with Served(tmp_path, url, redis_server.url(), workers=1) as own, own.admin() as me:
        register(me, "plain", {})
        document = refused(me.post("/instances", SMALL), 503, "strategy_unavailable")
        explained = refused(me.post("/placements/explain", SMALL), 503, "strategy_unavailable")
        placed = me.post("/instances", {**SMALL, "strategy": "spread"})
        ready = me.get("/readyz").json()

    assert (document["strategy"], "load-aware" in document["installed"]) == ("by-rack", True)
    assert explained["detail"] == document["detail"] == ready["placement_strategy"]
    assert "'by-rack' of PLACEMENT_STRATEGY is not installed" in document["detail"]
    assert placed.status_code == 201


@pytest.mark.vectors
def test_fuse_v27_a_pin_has_one_candidate(tenant: As, node: Callable[..., str]) -> None:
    name, _ = node(), node()
    made = tenant.post("/instances", {**SMALL, "placement": {"node": name}, "strategy": "spread"})
    assert made.status_code == 201, made.text
    assert made.json()["node"] == name

    decision = tenant.get(f"/decisions/{made.json()['decision_id']}").json()
    assert decision["record"]["ranked"] == [name]


@pytest.mark.vectors
def test_fuse_v28_a_pinned_node_that_is_cordoned_is_named_with_its_gate_and_is_not_full(
    admin: As, tenant: As, node: Callable[..., str]
) -> None:
    name, _ = node(), node()
    assert admin.post(f"/nodes/{name}/cordon", {}).status_code == 200
    document = refused(tenant.post("/instances", {**SMALL, "placement": {"node": name}}), 503, "pin_ineligible")

    assert name in document["detail"]
    assert "cordoned" in document["detail"]
    assert document["stage"] == "scheduling_state"


@pytest.mark.vectors
def test_fuse_v29_a_selector_that_matches_nobody_is_named_with_how_many_were_considered(
    tenant: As, node: Callable[..., str], new_name: Callable[[str], str]
) -> None:
    disk = new_name("disk")
    node(labels={"disk": disk})
    wanted = {"disk": disk, "tier": "build"}
    document = refused(tenant.post("/instances", {**SMALL, "placement": {"labels": wanted}}), 503, "labels_unmatched")

    assert f"disk={disk},tier=build" in document["detail"]
    assert re.search(r"none of [1-9]\d* schedulable nodes", document["detail"])


def test_a_pin_to_an_unknown_node_is_not_found_before_any_row_exists(tenant: As) -> None:
    document = refused(tenant.post("/instances", {**SMALL, "placement": {"node": "nowhere"}}), 404, "node_not_found")

    assert "nowhere" in document["detail"]
    assert tenant.get("/instances").json()["items"] == []
    assert tenant.get("/operations").json()["items"] == []


def test_enforced_rules_that_no_node_with_room_satisfies_are_unsatisfied(
    tenant: As, node: Callable[..., str], new_name: Callable[[str], str]
) -> None:
    rack = new_name("rack")
    node(labels={"rack": rack})
    body = {
        **SMALL,
        "tags": {"role": "db"},
        "placement": {"labels": {"rack": rack}},
        "placement_rules": [APART],
    }
    assert tenant.post("/instances", body).status_code == 201
    document = refused(tenant.post("/instances", body), 503, "affinity_unsatisfied")

    assert document["stage"] == "placement_rules"
    assert document["counts"]["placement_rules"] == {"rules_not_satisfied": 1}
    assert "1 placement_rules" in document["detail"]
    within = {**body, "placement_rules": [{**APART, "within": "shelf"}]}
    assert (
        "1 of 1 nodes lack the label shelf"
        in refused(tenant.post("/instances", within), 503, "affinity_unsatisfied")["detail"]
    )


def test_a_required_tag_that_nobody_carries_is_unsatisfiable(tenant: As, node: Callable[..., str]) -> None:
    name = node()
    body = {**SMALL, "affinity": {"require_with_tag": ["role=web"]}}
    document = refused(tenant.post("/instances", body), 409, "affinity_unsatisfiable")
    assert (document["stage"], document["transient"]) == ("affinity_constraints", False)
    assert "affinity_constraints" in document["detail"]

    pinned = refused(tenant.post("/instances", {**body, "placement": {"node": name}}), 409, "affinity_unsatisfiable")
    assert name in pinned["detail"]


def test_a_node_that_matches_and_has_no_room_is_out_of_capacity_by_name_and_dimension(
    tenant: As, node: Callable[..., str], new_name: Callable[[str], str]
) -> None:
    rack = new_name("rack")
    name = node({"memory_max": 10_000, "memory_available": 9_000}, labels={"rack": rack})
    pinned = tenant.post("/instances", {"cpus": 1, "memory_mb": 8_000, "placement": {"node": name}})
    document = refused(pinned, 507, "out_of_capacity")
    assert (document["stage"], document["transient"]) == ("sufficient_idle_memory", True)
    assert pinned.headers["retry-after"] == "15"
    assert name in document["detail"]
    assert "MiB" in document["detail"]

    selected = tenant.post("/instances", {"cpus": 1, "memory_mb": 8_000, "placement": {"labels": {"rack": rack}}})
    assert refused(selected, 507, "out_of_capacity")["counts"]["sufficient_idle_memory"]


def test_candidates_that_are_all_locked_are_busy_for_a_second_also_where_rules_are_asked(
    mariadb: MariaDBServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    with (
        fresh_database(mariadb) as url,
        Served(tmp_path, url, redis_server.url(), workers=1) as own,
        own.admin() as me,
    ):
        register(me, "n", {})
        assert me.post("/instances", SMALL).status_code == 201
        database = Database(url)
        with database.engine.connect() as conn:
            conn.exec_driver_sql(HOLD)
            for body in (SMALL, {**SMALL, "tags": {"role": "db"}, "placement_rules": [APART]}):
                answer = me.post("/instances", body)
                assert refused(answer, 503, "placement_busy")["transient"] is True
                assert answer.headers["retry-after"] == "1"
            conn.rollback()
        database.close()
        assert me.post("/instances", SMALL).status_code == 201
