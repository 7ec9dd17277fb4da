"""What Prometheus reads: every metric that is described, with a series, of all workers together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet.api.metrics_reference import metric_names
from fleet.ledger import passes
from fleet.ledger.database import Database
from tests.e2e.served import As, Served, served_on

SMALL = {"cpus": 1, "memory_mb": 64, "disk_gb": 1}
ENOUGH = {"limit_cpus": 2, "limit_memory_mb": 1024, "limit_disk_gb": 10, "expires_in_seconds": 3600}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A fleet of its own, with something of everything."""
    with served_on(request, tmp_path_factory.mktemp("metrics")) as running:
        yield lived_in(running)


def lived_in(served: Served) -> Served:
    served.node("n1")
    with served.admin() as admin, served.namespace("tenant") as tenant:
        for body, status in ((SMALL, 201), ({**SMALL, "cpus": 5000}, 507)):
            assert tenant.post("/instances", body).status_code == status
        answer = admin.post("/auth/namespaces/tenant/claims", ENOUGH)
        assert answer.status_code == 201, answer.text
    database = Database(served.database_url)
    database.unit(lambda conn: passes.record_ended(conn, {"duration_ms": 20, "corrections": 0}))
    database.close()
    return served


def scrape(caller: As) -> Series:
    answer = caller.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_every_metric_that_is_described_is_in_a_scrape(admin: As) -> None:
    assert metric_names() - {name for name, _ in scrape(admin)} == set()


def test_refusals_are_counted_by_code_and_decisions_by_outcome_over_all_workers(admin: As) -> None:
    before = scrape(admin)
    for _ in range(4):
        assert admin.post("/instances", {**SMALL, "cpus": 5000}).status_code == 507
        assert admin.get("/no-such-path").status_code == 404
    found = scrape(admin)

    def more(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return found[key] - before.get(key, 0)

    assert more("fleet_http_problems_total", code="out_of_capacity") == 4
    assert more("fleet_http_problems_total", code="not_found") == 4
    assert more("fleet_decision_seconds_count", outcome="refused") >= 4
    assert more("fleet_http_request_seconds_count", method="POST", path="/instances", status="507") == 4


def test_a_claim_is_told_by_its_namespace(admin: As) -> None:
    found = scrape(admin)
    of_cpus = frozenset({("namespace", "tenant"), ("dimension", "cpus")})

    assert found["scheduler_capacity_claim_limit", of_cpus] == 2
    assert found["scheduler_capacity_claim_used", of_cpus] == 1
    assert 0 < found["scheduler_capacity_claim_expires_seconds", frozenset({("namespace", "tenant")})] <= 3600
