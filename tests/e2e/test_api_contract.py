"""The OpenAPI document is true: a story's answers have the shapes it says, and generated calls find no 5xx.

A 507 is a refusal with a reason and a 503 one that passes; what must never come is a 500.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CheckContext
from schemathesis.core.transport import Response

from tests.e2e.served import METRICS, As, Names, Served, served_on

EXAMPLES = 25
TOKENS: dict[str, str] = {}


@pytest.fixture(scope="module")
def document(served: Served, admin: As) -> dict[str, Any]:
    found: dict[str, Any] = admin.get("/openapi.json").json()
    return found


def told_by(document: dict[str, Any], method: str, path: str, status: int) -> dict[str, Any]:
    """The schema of one answer, with the document's shapes at hand."""
    content = document["paths"][path][method.lower()]["responses"][str(status)]["content"]
    (schema,) = (kind["schema"] for kind in content.values())
    return {**schema, "components": document["components"]}


def test_a_whole_story_is_answered_in_the_documented_shapes(
    served: Served, admin: As, document: dict[str, Any], new_name: Names
) -> None:
    node, ns = new_name("node"), new_name("ns")

    def step(method: str, template: str, body: Any = None, *, status: int = 200, query: str = "", **path: str) -> Any:
        answer = admin.call(method, template.format(**path) + query, body)
        assert answer.status_code == status, answer.text
        if status == 204:
            assert answer.content == b""
            return None
        jsonschema.validate(answer.json(), told_by(document, method, template, status))
        return answer.json()

    step("POST", "/nodes", {"name": node, "labels": {"rack": "a"}}, status=201)
    step("POST", "/nodes", {"name": node, "region": "eu"})
    step("GET", "/nodes/{name}", name=node)
    step("PUT", "/nodes/{name}/metrics", {"metrics": METRICS, "age_seconds": 1.5}, name=node)
    step("PUT", "/nodes/{name}", {"max_instances": 5}, name=node)
    step("GET", "/nodes")
    step("POST", "/auth/namespaces", {"name": ns}, status=201)
    step("POST", "/auth/namespaces/{namespace}/keys", {"name": "k"}, status=201, namespace=ns)
    step("GET", "/auth/namespaces/{namespace}/keys", namespace=ns)
    step("GET", "/auth/namespaces")
    step("GET", "/auth/namespaces/{namespace}", namespace=ns)
    step("GET", "/auth/namespaces/{namespace}/events", namespace=ns)
    shape = {"name": "web", "namespace": ns, "cpus": 1, "memory_mb": 64, "disk_gb": 1, "tags": ["a", "b"]}
    made = step("POST", "/instances", shape, status=201)
    found = step("GET", "/instances/{uuid}", uuid=made["uuid"])
    assert found["tags"] == {"a": "", "b": ""}
    step("GET", "/instances", query=f"?namespace={ns}&limit=1")
    step("GET", "/instances/{uuid}/events", query="?newest_first=false", uuid=made["uuid"])
    step("GET", "/decisions/{uuid}", uuid=made["decision_id"])
    step("GET", "/decisions/{uuid}/inputs", uuid=made["decision_id"])
    step("GET", "/decisions")
    step("GET", "/operations/{uuid}", uuid=made["operation_id"])
    step("GET", "/operations")
    step("POST", "/placements/explain", shape)
    step("POST", "/placements/explain", {**shape, "cpus": 999_999})
    step("GET", "/placements/capacity", query=f"?cpus=1&memory_mb=64&namespace={ns}")
    step("POST", "/instances", {**shape, "cpus": 999_999}, status=507)
    step("GET", "/admin/resources")
    step("GET", "/admin/cluster-capacity")
    step("GET", "/admin/snapshot")
    step("POST", "/admin/ledger/verify")
    step("GET", "/admin/config")
    step("GET", "/admin/events", query="?acts=true&object_type=node&since_seconds=3600")
    step("GET", "/admin/config/{key}", key="SCHEDULER_TARGET_LOAD")
    step("PUT", "/admin/config/{key}", {"value": 0.75}, key="SCHEDULER_TARGET_LOAD")
    step("DELETE", "/admin/config/{key}", key="SCHEDULER_TARGET_LOAD")
    step("POST", "/nodes/{name}/cordon", name=node)
    step("POST", "/nodes/{name}/uncordon", name=node)
    step("GET", "/nodes/{name}/events", name=node)
    step("DELETE", "/instances/{uuid}", status=202, uuid=made["uuid"])
    step("DELETE", "/auth/namespaces/{namespace}", status=409, namespace=ns)
    step("DELETE", "/auth/namespaces/{namespace}/keys/{name}", status=204, namespace=ns, name="k")
    step("GET", "/healthz")
    step("GET", "/readyz")


def test_pages_walk_the_whole_list_once(served: Served, admin: As, new_name: Names) -> None:
    served.node("paged", memory_max=2**20, memory_available=2**20)
    name = new_name("ns")
    with served.namespace(name) as owner:
        made = [
            owner.post("/instances", {"name": f"i{number}", "cpus": 1, "memory_mb": 1}).json()["uuid"]
            for number in range(7)
        ]
        for path, own in (("/instances", "uuid"), ("/decisions", "instance_uuid"), ("/operations", "instance_uuid")):
            seen: list[str] = []
            cursor = ""
            for _ in range(10):
                page = owner.get(f"{path}?limit=3{cursor}").json()
                assert len(page["items"]) <= 3
                seen += [item[own] for item in page["items"]]
                if page["next_cursor"] is None:
                    break
                cursor = f"&cursor={page['next_cursor']}"
            assert seen == made[::-1], path


def test_events_are_read_oldest_or_newest_first_page_by_page(admin: As, served: Served, new_name: Names) -> None:
    node = new_name("node")
    served.node(node)
    for _ in range(3):
        admin.post(f"/nodes/{node}/cordon")
        admin.post(f"/nodes/{node}/uncordon")

    def walk(order: str) -> list[int]:
        ids: list[int] = []
        cursor = ""
        for _ in range(20):
            page = admin.get(f"/nodes/{node}/events?limit=2&newest_first={order}{cursor}").json()
            ids += [event["id"] for event in page["items"]]
            if page["next_cursor"] is None:
                return ids
            cursor = f"&cursor={page['next_cursor']}"
        raise AssertionError("the pages do not end")

    oldest, newest = walk("false"), walk("true")

    assert oldest == sorted(oldest)
    assert newest == oldest[::-1]
    assert len(oldest) >= 8


def test_every_operation_documents_its_problems(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path in {"/healthz", "/metrics"}:
                continue
            responses = operation["responses"]
            assert {"400", "401", "500", "503"} <= set(responses), (method, path)
            assert all(
                "application/problem+json" in answer["content"]
                for status, answer in responses.items()
                if int(status) >= 400
            ), (method, path)


def test_the_web_page_runs_nothing_but_its_own_files(admin: As) -> None:
    page = admin.client.get("/")

    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "'unsafe" not in page.headers["content-security-policy"]
    assert "<script>" not in page.text
    assert " style=" not in page.text
    script = admin.client.get("/app.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert not any(unsafe in script.text for unsafe in ("innerHTML", "outerHTML", "insertAdjacent", "document.write"))
    for path in ("/style.css", "/icon.svg"):
        assert admin.client.get(path).status_code == 200


# --- generated calls ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def poked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API of its own: generated calls also change the configuration and delete what they find."""
    with served_on(request, tmp_path_factory.mktemp("poked")) as running:
        yield running


@pytest.fixture(scope="module")
def described(poked: Served) -> Any:
    poked.node("n1")
    poked.namespace("ns").client.close()
    with poked.admin() as caller:
        TOKENS[poked.url] = caller.token
        found = schemathesis.openapi.from_dict(caller.get("/openapi.json").json())
    found.config.update(base_url=poked.url)
    return found


def no_defect(_ctx: CheckContext, response: Response, case: Any) -> None:
    """A 500 is a defect; 503 and 507 are answers, as long as they are problem documents."""
    assert response.status_code != 500, response.text
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/problem+json"], response.text


@pytest.mark.slow
# Some thousand calls, and each that revokes waits a second before it answers.
@pytest.mark.timeout(600)
def test_no_generated_call_finds_a_defect(described: Any, poked: Served) -> None:
    headers = {"Authorization": f"Bearer {TOKENS[poked.url]}"}
    calls: dict[str, int] = {}
    for found in described.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def poke(case: Any) -> None:
            calls[case.operation.label] = calls.get(case.operation.label, 0) + 1
            case.call_and_validate(headers=headers, checks=[no_defect])

        poke()
    assert len(calls) == sum(len(item) for item in described.raw_schema["paths"].values())
    assert not poked.log.read_text().count("api.failed")
