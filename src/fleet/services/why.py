"""Why an instance is where it is: was affinity ignored, or was there no choice? The document's questions, answered.

The decision that counts is the one that made the instance's last placing while it was created, forced or not: what a
later move or resize decided is named, not mixed in. Where it cannot be made again, its record speaks; where that is
gone, what is still known is said, and what is not. Read-only, and an answer always.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.ledger import decisions as stored_decisions
from fleet.ledger import events
from fleet.ledger.decisions import DecisionRow
from fleet.ledger.events import EventView, Filter
from fleet.ledger.instances import InstanceView
from fleet.model.errors import FleetError
from fleet.model.moment import iso
from fleet.model.request import PlacementRequest, parse_stored_request
from fleet.placement.affinity_answer import AffinityFacts, Verdict, affinity_facts, recorded_facts
from fleet.placement.affinity_words import affinity_sentences, asked_sentences, recorded_sentences
from fleet.placement.audit import is_forced
from fleet.placement.record import decode_decision
from fleet.services import placed_event, timeline, waiver
from fleet.services.context import Context

TRIES_TOLD: Final = 5
PLACINGS_READ: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer. `decision` None, or `facts` None: they are not kept any more. Times are microseconds UTC.

    `previous_node` is where it was placed before that and left while it was created. `later` is the youngest placing
    since: a move or another size.
    """

    instance: str
    node: str | None
    verdict: Verdict
    sentences: Sequence[str]
    decision: str | None = None
    decided_at_us: int | None = None
    placed_on: str | None = None
    previous_node: str | None = None
    demand_waived: bool = False
    facts: AffinityFacts | None = None
    later: EventView | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the form for programs."""
        return {
            "instance": self.instance,
            "node": self.node,
            "verdict": str(self.verdict),
            "sentences": list(self.sentences),
            "decision": self.decision,
            "decided_at": None if self.decided_at_us is None else iso(self.decided_at_us),
            "placed_on": self.placed_on,
            "previous_node": self.previous_node,
            "demand_waived": self.demand_waived,
            "facts": None if self.facts is None else self.facts.as_dict(),
            "later": None if self.later is None else _later_form(self.later),
        }


def why(ctx: Context, view: InstanceView, expected: str | None = None) -> Why:
    """Return why an instance was placed where it was; `expected` is the node that somebody expected it on.

    Raises:
        DatabaseUnavailable: nothing can be said now.
    """
    placings = _of_message(ctx, view.uuid, placed_event.MESSAGE)
    again = [
        found
        for message in (placed_event.MOVE_BEGUN, placed_event.RESIZED)
        for found in _of_message(ctx, view.uuid, message)[:1]
    ]
    later = max(again, key=lambda found: found.event_id, default=None)
    row = None if view.decision_id is None else stored_decisions.get(ctx.database, view.decision_id)
    if row is None:
        return _not_kept(ctx, view, placings, later, expected)
    placed = next((found for found in placings if found.payload.get("decision") == row.id), None)
    previous = None if placed is None else placed.payload.get("previous_node")
    facts, words = _told(ctx, row, previous, expected)
    judged = "1 node was" if facts.judged == 1 else f"{facts.judged} nodes were"
    head = f"{row.node or 'A node'} was chosen by decision {row.id} at {iso(row.created_at)}; {judged} judged."
    return Why(
        instance=view.uuid,
        node=view.node,
        verdict=facts.verdict,
        sentences=[head, *_left(placed), *words, *_tried(row, facts), *_since(view, later)],
        decision=row.id,
        decided_at_us=row.created_at,
        placed_on=row.node,
        previous_node=previous,
        demand_waived=waiver.is_waived(row.walk),
        facts=facts,
        later=later,
    )


def _told(
    ctx: Context, row: DecisionRow, previous: str | None, expected: str | None
) -> tuple[AffinityFacts, list[str]]:
    """Return what the decision says and its sentences: made again, or, where that cannot be, as its record has it."""
    told = timeline.of_decision(ctx, row, [previous] if previous else [])
    if told.decision is not None:
        facts = affinity_facts(told.decision, row.node or "", expected)
        return facts, affinity_sentences(facts)
    asked = _request(row.request)
    facts = recorded_facts(
        decode_decision(row.record),
        preferred=asked is not None and asked.affinity_spec is not None and asked.affinity_spec.scores,
        forced=asked is not None and is_forced(asked),
    )
    unkept = next(str(found.payload["not_kept"]) for found in told.events if "not_kept" in found.payload)
    return facts, recorded_sentences(facts, unkept, expected)


def _of_message(ctx: Context, instance_uuid: str, message: str) -> Sequence[EventView]:
    """Return the youngest events of a message; a create is placed a few times at most."""
    wanted = Filter(object_type="instance", object_id=instance_uuid, message=message)
    return events.search(ctx.database, wanted, limit=PLACINGS_READ).events


def _request(body: Mapping[str, Any]) -> PlacementRequest | None:
    try:
        return parse_stored_request(body)
    except FleetError:
        # A later version may not read everything that an earlier one could ask for.
        return None


def _not_kept(
    ctx: Context, view: InstanceView, placings: Sequence[EventView], later: EventView | None, expected: str | None
) -> Why:
    """Answer without a decision: from what the instance was made with, and the event of its placing if that is kept."""
    days = ctx.configuration().decisions_retention_days
    kept = f"decisions are kept for {days} days (DECISIONS_RETENTION_DAYS)"
    sentences = [f"The decision that placed it is not kept any more: {kept}."]
    placed_on = placings[0].payload.get("node") if placings else None
    if placings:
        sentences.append(f"It was placed on {placed_on} at {iso(placings[0].at_us)}.")
    made = _request({**view.request, "namespace": view.namespace})
    if made is not None:
        sentences += asked_sentences(made.affinity_spec)
    if expected is not None:
        sentences.append(f"What was said of {expected} is not known any more.")
    sentences.append("`fleet explain` with the flags of its create says where it would go now, and why.")
    return Why(
        instance=view.uuid,
        node=view.node,
        verdict=Verdict.NOT_KEPT,
        sentences=[*sentences, *_since(view, later)],
        decision=view.decision_id,
        placed_on=placed_on,
        later=later,
    )


def _left(placed: EventView | None) -> Iterator[str]:
    if placed is None or not placed.payload.get("previous_node"):
        return
    told = placed.payload
    reason = f": {told['reason']}" if told.get("reason") else ""
    yield (
        f"It had been placed on {told['previous_node']} before, which turned out unfit{reason}; that node was not "
        "tried again."
    )


def _tried(row: DecisionRow, facts: AffinityFacts) -> Iterator[str]:
    """Say what the guard said of nodes that the decision would have taken, and whether demand was waived."""
    refused = waiver.denials(row.walk)
    for node, denial in list(refused.items())[:TRIES_TOLD]:
        figures = "; ".join(
            f"{one['dimension']} limit {one['limit']}, used {one['used']}, asked {one['requested']}"
            for one in denial["dimensions"]
        )
        told = f": {figures}" if figures else ""
        yield f"{node} was tried, and the guard refused it at stage {denial['failing_stage']}{told}."
    if len(refused) > TRIES_TOLD:
        yield f"The guard refused {len(refused) - TRIES_TOLD} more."
    locked = list(dict.fromkeys(note["node"] for note in row.walk if note.get("outcome") == "busy"))
    if locked:
        yield f"Skipped, because another placement held their ledger rows: {', '.join(locked[:TRIES_TOLD])}."
    if waiver.is_waived(row.walk):
        yield (
            "No candidate was under its load target, so the demand clause was waived: it was placed on real capacity "
            f"alone{'; who was preferred did not change' if facts.highest is not None else ''}."
        )


def _since(view: InstanceView, later: EventView | None) -> Iterator[str]:
    if later is not None:
        told = later.payload
        yield (
            f"It was placed again since, the last time at {iso(later.at_us)}: {_AGAIN[later.message]}, on "
            f"{told.get('node')}; `fleet decision show {told.get('decision')} --events` tells that."
        )
    elif view.state == "deleted":
        yield "It is deleted."


_AGAIN: Final[Mapping[str, str]] = {
    placed_event.MOVE_BEGUN: "a move",
    placed_event.RESIZED: "another size where it was",
}


def _later_form(found: EventView) -> dict[str, Any]:
    return {"message": found.message, "at": iso(found.at_us), "payload": dict(found.payload)}
