"""What holds for every stage, whatever the fleet: tried on generated fleets, stage by stage."""

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fleet.model.request import PlacementRequest
from fleet.placement.ask import Ask
from fleet.placement.frame import Frame
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.placement.stage import NamedStage, Scorer, all_stages
from tests.property.fleets import LAWS, SEEDS, documents, orders, requests, shuffled


def verdicts(item: NamedStage, ask: Ask, frame: Frame) -> dict[str, str | None]:
    """Each node's reason, None where it is kept; of a scorer, each node's score."""
    if isinstance(item.stage, Scorer):
        scores = item.stage.score(ask, frame)
        return {} if scores is None else dict(zip(frame.roster.names, map(str, scores.tolist()), strict=True))
    drops = item.stage.drops(ask, frame)
    return {
        name: next((reason.code for reason, mask in drops or () if mask[at]), None)
        for at, name in enumerate(frame.roster.names)
    }


@LAWS
@given(document=documents(), request=requests(), data=st.data())
def test_a_stage_is_a_pure_function_of_the_nodes(
    document: dict[str, Any], request: PlacementRequest, data: st.DataObject
) -> None:
    frame = Snapshot.from_json(document).frame
    ledger, sample = frame.ledger.copy(), frame.sample.matrix.copy()
    other = Snapshot.from_json(shuffled(document, data.draw(orders(len(frame))))).frame
    ask, other_ask = Ask.of(request, frame), Ask.of(request, other)

    for item in all_stages():
        first, again, elsewhere = (
            verdicts(item, ask, frame),
            verdicts(item, ask, frame),
            verdicts(item, other_ask, other),
        )

        assert first == again == elsewhere, item.name
        assert np.array_equal(ledger, frame.ledger), item.name
        assert np.array_equal(sample, frame.sample.matrix), item.name


@LAWS
@given(document=documents(), request=requests())
def test_a_stage_drops_for_declared_reasons_with_figures_that_are_json(
    document: dict[str, Any], request: PlacementRequest
) -> None:
    frame = Snapshot.from_json(document).frame
    ask = Ask.of(request, frame)

    for item in all_stages():
        figures = [item.stage.figures(ask, frame, at) for at in range(len(frame))]
        assert figures == json.loads(json.dumps(figures, allow_nan=False)), item.name
        if isinstance(item.stage, Scorer):
            scores = item.stage.score(ask, frame)
            assert scores is None or (scores.dtype == np.int64 and scores.shape == (len(frame),)), item.name
            continue
        drops, flags = item.stage.drops(ask, frame) or (), item.stage.flags(ask, frame)
        assert {reason for reason, _ in drops} <= set(item.stage.reasons), item.name
        assert all(mask.dtype == np.bool_ and mask.shape == (len(frame),) for _, mask in drops), item.name
        assert all(mask.dtype == np.bool_ and mask.shape == (len(frame),) for mask in flags.values()), item.name


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_a_node_is_kept_exactly_where_no_stage_can_say_why_not(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    decision = decide(request, Snapshot.from_json(document), seed, explain=True)
    names = {node["name"] for node in document["nodes"]}
    told = {name: [stage.name for stage in decision.stages if name in stage.dropped] for name in names}

    assert set(decision.ranked) == {name for name, stages in told.items() if decision.stages and not stages}


@LAWS
@given(document=documents(), request=requests())
def test_a_figure_that_is_shown_is_there_for_every_dropped_node(
    document: dict[str, Any], request: PlacementRequest
) -> None:
    """A reason without its figures helps nobody: every stage says what it compared."""
    decision = decide(request, Snapshot.from_json(document), 0, explain=True)

    assert [
        (stage.name, name) for stage in decision.stages for name, told in stage.dropped.items() if len(told) < 2
    ] == []
