"""What holds for every remedy of every refusal: carried out by the book, it helps, and nothing larger would."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.model.request import PlacementRequest
from fleet.placement.ask import Ask
from fleet.placement.counterfactuals import DECISIONS_MAX, KIND_MAX, REMEDIES_MAX, Remedy, remedies
from fleet.placement.pipeline import decide, decide_on
from fleet.placement.record import decode, encode_base
from fleet.placement.snapshot import Snapshot
from fleet.placement.what_if import emptied_for
from tests.property.applying import apply, body_of, read
from tests.property.fleets import LAWS, SEEDS, documents, orders, requests, shuffled

MANY = settings(LAWS, max_examples=200)
AMOUNTS = {"cpus", "memory_mb", "disk_gb", "gpus"}


def is_waiting(remedy: Remedy) -> bool:
    return remedy.change[0].get("action") == "wait"


@MANY
@given(document=documents(), request=requests(), seed=SEEDS)
def test_every_remedy_that_is_shown_helps_when_it_is_carried_out(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    snapshot = Snapshot.from_json(document)

    for remedy in remedies(request, snapshot, seed):
        body, changed = body_of(request), document
        if is_waiting(remedy):
            frame, at = snapshot.frame, snapshot.index_of(remedy.change[0]["node"])
            decision = decide_on(request, emptied_for(frame, at, Ask.of(request, frame)), seed)
        else:
            for change in remedy.change:
                body, changed = apply(change, body, changed)
            decision = decide(*read(body, changed), seed)
        assert decision.ranked, remedy.text
        assert remedy.node is None or (decision.ranked[0], len(decision.ranked)) == (remedy.node, remedy.nodes)


@MANY
@given(document=documents(), request=requests(), seed=SEEDS)
def test_an_amount_is_the_largest_that_would_be_ranked(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    for remedy in remedies(request, Snapshot.from_json(document), seed):
        lowered = [change for change in remedy.change if change.get("field") in AMOUNTS and change["to"]]
        body, changed = body_of(request), document
        for change in remedy.change if not is_waiting(remedy) else ():
            body, changed = apply(change, body, changed)
        for change in lowered:
            assert change["to"] < change["from"]
            more = {**body, change["field"]: change["to"] + 1}
            assert decide(*read(more, changed), seed).refused, remedy.text


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_a_ranking_has_no_remedies_and_a_refusal_has_few(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    snapshot = Snapshot.from_json(document)
    found = remedies(request, snapshot, seed)

    assert not (decide(request, snapshot, seed).ranked and found)
    assert len(found) <= REMEDIES_MAX + 2
    assert len({remedy.text for remedy in found}) == len(found)
    assert KIND_MAX < DECISIONS_MAX


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS, data=st.data())
def test_remedies_are_the_same_from_a_stored_decision_and_in_any_order_of_the_nodes(
    document: dict[str, Any], request: PlacementRequest, seed: int, data: st.DataObject
) -> None:
    snapshot = Snapshot.from_json(document)
    order = data.draw(orders(len(document["nodes"])))

    found = remedies(request, snapshot, seed)

    assert found == remedies(request, decode(encode_base(snapshot)), seed, decide(request, snapshot, seed))
    assert found == remedies(request, Snapshot.from_json(shuffled(document, order)), seed)


@MANY
@given(document=documents(), request=requests(), seed=SEEDS)
def test_the_nearest_node_fits_with_what_it_lacks_and_the_cordoned_one_without_its_cordon(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    snapshot = Snapshot.from_json(document)
    frame = snapshot.frame
    remedy = decide(request, snapshot, seed).remedy

    if nearest := re.match(r"nearest is (\S+):", remedy):
        freed = emptied_for(frame, snapshot.index_of(nearest[1]), Ask.of(request, frame))
        assert nearest[1] in decide_on(request, freed, seed).ranked
    if cordoned := re.match(r"uncordon (?:one of \d+ nodes, such as )?(\S+)", remedy):
        change = {"action": "uncordon", "node": cordoned[1]}
        assert decide(*read(*apply(change, body_of(request), document)), seed).ranked


@MANY
@given(document=documents(), request=requests(), seed=SEEDS)
def test_what_the_nearest_node_lacks_is_what_is_waited_for(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    snapshot = Snapshot.from_json(document)
    decision = decide(request, snapshot, seed)
    waits = [remedy for remedy in remedies(request, snapshot, seed, decision) if is_waiting(remedy)]
    for wait in waits:
        if decision.remedy.startswith(f"nearest is {wait.change[0]['node']}:"):
            said = decision.remedy.partition("it lacks ")[2].split(" and ")
            assert [part for part in said if f"{part} more" not in wait.text] == []
