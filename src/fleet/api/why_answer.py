"""The shape of an answer to why an instance is where it is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class WhyAnswer(BaseModel):
    """Why an instance is where it is. `verdict`: `nothing_asked`, `no_choice`, `expected_absent`, `scored`, `forced`
    (the request itself said where), or `not_kept`: the decision is past its retention.

    `facts` are what the sentences were made of; null: not kept any more. `later` is the youngest placing since.
    """

    instance: str
    node: str | None
    verdict: str
    sentences: list[str]
    decision: str | None
    decided_at: str | None
    placed_on: str | None
    previous_node: str | None
    demand_waived: bool
    facts: dict[str, Any] | None
    later: dict[str, Any] | None
