"""The pipeline ranks exactly the nodes that a plain reading of the documents finds."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet.model.request import parse_placement_request
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from tests.property.fleets import AFFINITIES, LAWS, SEEDS, bodies, known_documents
from tests.property.naive import Naive

# Company is what makes nodes differ most, so every other request asks for some.
ASKED = st.one_of(bodies(), st.tuples(bodies(), AFFINITIES).map(lambda pair: {**pair[0], "affinity": pair[1]}))
MANY = settings(LAWS, max_examples=1500)


@MANY
@given(document=known_documents(), body=ASKED, seed=SEEDS)
def test_a_decision_ranks_whom_the_documents_would(document: dict[str, Any], body: dict[str, Any], seed: int) -> None:
    names = {node["name"] for node in document["nodes"]}
    pin = body.get("placement", {}).get("node")
    assume(names >= ({pin} if pin else set()) | set(body.get("destinations", [])))

    decision = decide(parse_placement_request(body), Snapshot.from_json(document), seed)

    assert set(decision.ranked) == Naive(document, body).fitting()


def test_the_law_sees_refusals_and_rankings_of_every_reason() -> None:
    seen: set[tuple[str, bool]] = set()

    @settings(LAWS, database=None, max_examples=300)
    @given(document=known_documents(), body=bodies())
    def collect(document: dict[str, Any], body: dict[str, Any]) -> None:
        seen.add((body["reason"], bool(Naive(document, body).fitting())))

    collect()
    assert seen == {(reason, fits) for reason in ("create", "resize", "migrate", "evacuate") for fits in (True, False)}
