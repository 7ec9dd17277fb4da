"""A namespace's claims over HTTP, for tests that make some and give them back."""

from __future__ import annotations

from typing import Any

from tests.e2e.served import As


def path(name: str, claim: str = "") -> str:
    """Where a namespace's claims are, or one of them."""
    return f"/auth/namespaces/{name}/claims" + (f"/{claim}" if claim else "")


def claims_of(admin: As, name: str) -> list[dict[str, Any]]:
    """All of them: no namespace of a test has more than a page."""
    answer = admin.get(path(name))
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def give_back(admin: As, name: str) -> None:
    """Delete all of them: they bind what other tests may use."""
    for claim in claims_of(admin, name):
        assert admin.delete(path(name, claim["uuid"])).status_code == 200
