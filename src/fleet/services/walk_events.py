"""The tries that followed a decision, as events: each refusal of the guard, the waiver, and how it ended.

What is read here is what `services/place.py` stores as a decision's walk: notes, oldest first, the last fifty of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.placement.audit import FAILED, FAILED_OTHERWISE, AuditEvent, failed_message
from fleet.services import waiver

REFUSED: Final = "schedule candidate refused by capacity guard"
DENIED: Final = "instance placement denied"
LOCKED: Final = "schedule candidate skipped, its ledger row was locked"
RULE_BROKEN: Final = "schedule candidate skipped, a placement rule was broken meanwhile"
LEFT_FOR_LAST: Final = "schedule candidates over the load target left for last"
ALL_REFUSED: Final = "schedule failed, every candidate refused by capacity guard"
NONE_IN_TIME: Final = "schedule failed, no candidate admitted in time"

GUARD: Final = "capacity_guard"

_BY_GUARD: Final[Mapping[str, str]] = {
    "out_of_capacity": ALL_REFUSED,
    "claim_exceeded": ALL_REFUSED,
    "placement_busy": NONE_IN_TIME,
}
ENDINGS: Final = frozenset({*FAILED.values(), FAILED_OTHERWISE, *_BY_GUARD.values()})

Note = Mapping[str, Any]


def walk_events(walk: Sequence[Note]) -> tuple[AuditEvent, ...]:
    """Return the events of a walk; each run of tries with the demand clause waived begins with the waiver's event."""
    events: list[AuditEvent] = []
    waived = False
    for place, note in enumerate(walk):
        if note.get("demand_waived") and not waived:
            events.append(AuditEvent(waiver.MESSAGE, waiver.payload(walk[:place]), "warning"))
        waived = bool(note.get("demand_waived"))
        events += _told(note)
    return tuple(events)


def _told(note: Note) -> tuple[AuditEvent, ...]:
    outcome = note.get("outcome")
    if outcome == "skipped":
        skipped = {"reason": note["reason"], "candidates_total": note["nodes"], "first": note["first"]}
        return (AuditEvent(LEFT_FOR_LAST, skipped),)
    if outcome == "busy":
        return (AuditEvent(LOCKED, {"node": note["node"], "enforce_demand": not note.get("demand_waived", False)}),)
    if outcome == "rulebroken":
        return (AuditEvent(RULE_BROKEN, {"node": note["node"], "rule": note.get("rule")}),)
    if outcome == "refused":
        said = {
            "node": note["node"],
            "failing_stage": note.get("failing_stage"),
            "dimensions": note.get("dimensions", []),
        }
        why = {"ineligible": note["ineligible"]} if note.get("ineligible") else {}
        denied = AuditEvent(DENIED, {**said, "enforce": True, **why})
        return denied, AuditEvent(REFUSED, {**said, "enforce_demand": not note.get("demand_waived", False), **why})
    return ()


def ending_message(code: str, stage: str | None) -> str:
    """Return the message of a refusal's last event; stage `capacity_guard`: the guard had the last word."""
    return _BY_GUARD.get(code, ALL_REFUSED) if stage == GUARD else failed_message(code)


def ending(code: str, sentence: str, stage: str | None, walk: Sequence[Note], *, transient: bool) -> AuditEvent:
    """Return the last event of a refusal, by the decision or, at stage `capacity_guard`, after it."""
    payload: dict[str, Any] = {"message": sentence, "code": code, "stage": stage, "transient": transient}
    if stage == GUARD:
        denials = waiver.denials(walk)
        payload = {"candidates": list(denials), "denials": denials, **payload}
    return AuditEvent(ending_message(code, stage), payload, "warning")
