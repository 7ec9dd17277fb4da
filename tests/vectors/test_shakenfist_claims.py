"""The Shaken Fist vectors about claims, by their numbers, over the API and on both backends.

The product's decisions overrule two statuses: a claim that was made is a 201, and who may not make one gets a 403. No
stamp is edited: a claim ends when its seconds are over by the database's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from starlette.testclient import TestClient

from fleet import bootstrap
from fleet.api import dependencies
from fleet.api.addresses import TrustedProxies
from fleet.api.answers import iso
from fleet.api.app import create_app
from fleet.api.dependencies import Services
from fleet.config import load_settings
from fleet.ledger import cluster_config, namespaces
from fleet.ledger.cluster import now_us
from fleet.ledger.database import Database
from fleet.services.authentication import Caller
from tests.ledger import fleet_of, past

pytestmark = pytest.mark.vectors

PLAIN = {
    "CPU_OVERCOMMIT_RATIO": "1",
    "RAM_OVERCOMMIT_RATIO": "1",
    "DISK_OVERCOMMIT_RATIO": "1",
    "SCHEDULER_TARGET_LOAD": "0",
}
NAMES = ("tenant", "other", "claimed")
HOUR, MINUTE = 3600, 60
OVER = "placement admitted over namespace capacity claim"


class Api:
    """The product's application on a ledger, and an admin who calls it."""

    def __init__(self, database: Database, client: TestClient, who: list[Caller]) -> None:
        self.db, self.client, self.who = database, client, who

    def call(self, method: str, where: str, body: Any = None) -> httpx.Response:
        answer: httpx.Response = self.client.request(method, where, json=body)
        return answer

    def claim(
        self, cpus: int, memory_mb: int = 100_000, disk_gb: int = 1_000, *, of: str = "tenant", seconds: int = HOUR
    ) -> httpx.Response:
        limits = {"limit_cpus": cpus, "limit_memory_mb": memory_mb, "limit_disk_gb": disk_gb}
        return self.call("POST", path(of), {**limits, "expires_in_seconds": seconds})

    def claimed(self, *limits: int, **how: Any) -> dict[str, Any]:
        return made(self.claim(*limits, **how))

    def create(self, cpus: int, memory_mb: int = 1, disk_gb: int = 0, *, of: str = "tenant") -> httpx.Response:
        body = {"name": "i", "namespace": of, "cpus": cpus, "memory_mb": memory_mb, "disk_gb": disk_gb}
        return self.call("POST", "/instances", body)

    def show(self, claim: dict[str, Any]) -> dict[str, Any]:
        found = self.client.get(path(claim["namespace"], claim["uuid"]))
        assert found.status_code == 200, found.text
        return cast(dict[str, Any], found.json())

    def change(self, claim: dict[str, Any], **fields: int) -> httpx.Response:
        return self.call("PUT", path(claim["namespace"], claim["uuid"]), fields)

    def cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/admin/cluster-capacity").json()
        return {name: value for name, value in found.items() if name.startswith(("claimed", "unclaimed", "overage"))}


def path(of: str, claim: str = "") -> str:
    return f"/auth/namespaces/{of}/claims" + (f"/{claim}" if claim else "")


def made(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    return cast(dict[str, Any], answer.json())


def used(claim: dict[str, Any]) -> tuple[int, int, int]:
    return claim["used_cpus"], claim["used_memory_mb"], claim["used_disk_gb"]


def only_cpus(answer: httpx.Response, status: int, code: str) -> tuple[int, int, int]:
    """Limit, used and requested of the only dimension that stands in the way."""
    document = answer.json()
    assert (answer.status_code, document["code"]) == (status, code), document
    [figure] = [item for item in document["dimensions"] if item["exceeded"]]
    assert figure["dimension"] == "cpus"
    assert "memory_mb" not in document["detail"]
    assert f"cpus (limit {figure['limit']}, used {figure['used']}" in document["detail"]
    return figure["limit"], figure["used"], figure["requested"]


@pytest.fixture
def api(db: Database) -> Iterator[Api]:
    """Two namespaces and an admin; no ratio but 1, and no demand clause: a node offers what it says."""
    for key, value in PLAIN.items():
        cluster_config.store(db, key, value)
    for name in ("system", *NAMES):
        namespaces.ensure(db, name)
    context = bootstrap.with_parts(load_settings(None, {}), db, lambda _wake: None, {})
    nobody = cast(Any, None)
    app = create_app(
        Services(
            context=context,
            authenticator=nobody,
            failures=nobody,
            secret="of-no-use-here",
            trusted_proxies=TrustedProxies.of(()),
        )
    )
    who = [Caller(namespace="system", key="test")]
    app.dependency_overrides[dependencies.caller] = lambda: who[0]
    with TestClient(app) as client:
        yield Api(db, client, who)
    fleet_of.assert_exact(db)


def node(database: Database, cpus: int, memory_mb: int = 1_000_000, disk_gb: int = 100_000) -> int:
    return fleet_of.node(database, cpus=cpus, cpu_max_per_instance=cpus, memory_mb=memory_mb, disk_gb=disk_gb)


# --- the namespace's claim pays ----------------------------------------------------------------------------------


def test_v13_a_claim_pays_and_the_cluster_is_left_alone(api: Api) -> None:
    node(api.db, 64, 65_536, 1_000)
    claim = api.claimed(8, 8192, 80)
    made(api.create(4, 4096, 40))
    assert used(api.show(claim)) == (4, 4096, 40)
    before = fleet_of.cluster(api.db)

    made(api.create(4, 4096, 40))

    assert used(api.show(claim)) == (8, 8192, 80)
    assert fleet_of.cluster(api.db) == before


def test_v14_over_the_claim_is_placed_and_told(api: Api) -> None:
    node(api.db, 64, 65_536, 1_000)
    claim = api.claimed(8, 8192, 80)
    made(api.create(6, 512, 1))

    instance = made(api.create(4, 512, 1))["uuid"]

    assert api.show(claim)["used_cpus"] == 10
    assert api.cluster()["overage_cpus"] == 2
    for of in (f"/instances/{instance}", "/auth/namespaces/tenant"):
        items = api.client.get(f"{of}/events").json()["items"]
        [event] = [item for item in items if item["message"] == OVER]
        [figure] = event["payload"]["claim_dimensions"]
        told = [figure[name] for name in ("dimension", "limit", "used", "requested")]
        assert (told, event["level"]) == (["cpus", 8, 6, 4], "warning")


def test_v14_in_hard_mode_what_is_over_the_claim_is_denied_and_its_node_untouched(api: Api) -> None:
    cluster_config.store(api.db, "CLAIM_ENFORCEMENT", "hard")
    node_id = node(api.db, 64, 65_536, 1_000)
    claim = api.claimed(8, 8192, 80)
    made(api.create(6, 512, 1))
    before = fleet_of.used(api.db, node_id)

    refused = api.create(4, 512, 1)

    assert (refused.status_code, refused.json()["code"]) == (403, "claim_exceeded"), refused.text
    [figure] = [item for item in refused.json()["dimensions"] if item["exceeded"]]
    assert [figure[name] for name in ("dimension", "limit", "used", "requested", "shortfall")] == ["cpus", 8, 6, 4, 2]
    assert fleet_of.used(api.db, node_id) == before
    assert api.show(claim)["used_cpus"] == 6
    made(api.create(2, 512, 1))


def test_v15_a_claim_past_its_end_that_is_not_swept_pays_nothing(api: Api) -> None:
    node(api.db, 64, 65_536, 1_000)
    made(api.create(8, 512, of="other"))
    with past.ago(api.db, HOUR):
        claim = api.claimed(4, 4096, 40, seconds=HOUR - MINUTE)
    before = api.show(claim)
    assert str(iso(now_us(api.db))) > before["expires_at"]

    made(api.create(4, 512))

    assert api.cluster()["unclaimed_used_cpus"] == 12
    assert api.show(claim) == before
    assert (before["state"], before["coverage_state"], before["used_cpus"]) == ("created", "active", 0)


# --- granting and growing ----------------------------------------------------------------------------------------


@pytest.fixture
def hundred(api: Api) -> Api:
    node(api.db, 100)
    return api


def test_v23_a_claim_is_granted_up_to_what_is_neither_claimed_nor_used(hundred: Api) -> None:
    hundred.claimed(20, of="claimed")
    made(hundred.create(30, of="other"))

    assert only_cpus(hundred.claim(51), 507, "claim_capacity") == (80, 30, 51)
    assert hundred.cluster()["claimed_cpus"] == 20
    hundred.claimed(50)
    assert hundred.cluster()["claimed_cpus"] == 70


def test_v23_what_the_namespace_uses_already_becomes_its_claims(hundred: Api) -> None:
    made(hundred.create(40, of="other"))
    made(hundred.create(40))
    assert hundred.cluster()["unclaimed_used_cpus"] == 80

    assert only_cpus(hundred.claim(70), 507, "claim_capacity") == (100, 40, 70)
    claim = hundred.claimed(40)
    assert claim["used_cpus"] == 40
    cluster = hundred.cluster()
    assert (cluster["claimed_cpus"], cluster["unclaimed_used_cpus"]) == (40, 40)

    assert hundred.change(claim, limit_cpus=60).status_code == 200
    assert only_cpus(hundred.change(claim, limit_cpus=61), 507, "claim_capacity") == (40, 40, 1)
    assert hundred.cluster()["claimed_cpus"] == hundred.show(claim)["limit_cpus"] == 60


def test_v24_a_claim_shrinks_to_what_it_uses_and_no_further(hundred: Api) -> None:
    claim = hundred.claimed(16)
    made(hundred.create(8))

    assert hundred.change(claim, limit_cpus=8).status_code == 200
    assert hundred.cluster()["claimed_cpus"] == 8
    assert only_cpus(hundred.change(claim, limit_cpus=4), 409, "claim_below_usage")[:2] == (4, 8)
    assert hundred.cluster()["claimed_cpus"] == hundred.show(claim)["limit_cpus"] == 8


def test_v24_a_claim_past_its_end_is_not_changed(hundred: Api) -> None:
    with past.ago(hundred.db, HOUR):
        claim = hundred.claimed(16, seconds=HOUR - MINUTE)
        made(hundred.create(8))
        assert hundred.show(claim)["used_cpus"] == 8
    assert str(iso(now_us(hundred.db))) > claim["expires_at"]

    for fields in ({"limit_cpus": 20}, {"limit_cpus": 1}, {"expires_in_seconds": HOUR}):
        refused = hundred.change(claim, **fields)
        assert (refused.status_code, refused.json()["code"]) == (409, "claim_not_active"), refused.text
    assert (hundred.show(claim)["coverage_state"], hundred.show(claim)["limit_cpus"]) == ("expired", 16)
    cluster = hundred.cluster()
    assert (cluster["claimed_cpus"], cluster["unclaimed_used_cpus"]) == (0, 8)


def test_v23_v24_who_is_no_admin_is_forbidden_every_verb_whatever_is_there(hundred: Api) -> None:
    claim = hundred.claimed(16)
    hundred.who[0] = Caller(namespace="tenant", key="own")

    one = path("tenant", claim["uuid"])
    answers = [hundred.claim(1), hundred.change(claim, limit_cpus=1)]
    answers += [hundred.client.get(path("tenant")), hundred.client.get(one), hundred.client.delete(one)]
    answers += [hundred.client.get(path("nobody")), hundred.client.get(path("tenant", "x"))]

    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(403, "forbidden")}
    hundred.who[0] = Caller(namespace="system", key="test")
    assert hundred.show(claim) == claim
