"""affinity: only the nodes with the highest affinity score go on.

Why: `prefer_*` tags say which company an instance likes. A node scores one for each neighbour and each preferred tag
that the neighbour carries, and loses one for each tag that it should not carry; so many friends count more than one.
Ignored are the instance itself, other namespaces' instances, those without tags and those being terminated. Load
shedding may narrow the winning group and never leaves it. Nothing is scored when nothing was preferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fleet.model.affinity import TagMatch
from fleet.placement.ask import Ask
from fleet.placement.columns import Ints
from fleet.placement.frame import Frame
from fleet.placement.instances import InstanceRecord
from fleet.placement.rules.ground import FrameGround
from fleet.placement.stage import Example, Figures, Reason, Scorer

CONSIDERED_SHOWN_MAX: Final = 20
"""Of one node's neighbours so many are told; `instance_count` says how many there are."""

VALUE_SHOWN_MAX: Final = 63

LOWER_SCORE = Reason("lower_affinity", "other nodes have better company for the instance")


def score(ask: Ask, frame: Frame) -> Ints | None:
    """Return the score of every node; None when nothing is preferred."""
    return ask.once("affinity", lambda: _score(ask, frame))


def _score(ask: Ask, frame: Frame) -> Ints | None:
    asked = ask.request.affinity_spec
    if asked is None or not (asked.prefer_with or asked.prefer_without):
        return None
    scores = np.zeros(len(frame), dtype=np.int64)
    seen = FrameGround(frame, ask.namespace, ask.request.instance)
    for sign, matches in ((1, asked.prefer_with), (-1, asked.prefer_without)):
        for match in matches:
            scores += sign * np.bincount(seen.places(seen.matching(match)), minlength=len(frame))
    return scores


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return one node's score and which neighbour contributed what."""
    scores = score(ask, frame)
    considered = _neighbours(ask, frame).get(at, [])
    return {
        "score": 0 if scores is None else int(scores[at]),
        "instance_count": len(considered),
        "considered": [_contribution(ask, one) for one in considered[:CONSIDERED_SHOWN_MAX]],
    }


def shortened(value: str) -> str:
    """Return the value of a tag as it is told: a long one is cut."""
    return value if len(value) <= VALUE_SHOWN_MAX else f"{value[: VALUE_SHOWN_MAX - 1]}…"


def _neighbours(ask: Ask, frame: Frame) -> dict[int, list[InstanceRecord]]:
    """Return by node the neighbours that carry any of the tags that are preferred or shunned."""
    return ask.once("affinity neighbours", lambda: _find_neighbours(ask, frame))


def _find_neighbours(ask: Ask, frame: Frame) -> dict[int, list[InstanceRecord]]:
    asked = ask.request.affinity_spec
    found: dict[int, list[InstanceRecord]] = {}
    if asked is None:
        return found
    seen = FrameGround(frame, ask.namespace, ask.request.instance)
    matching = {one.uuid: one for match in (*asked.prefer_with, *asked.prefer_without) for one in seen.matching(match)}
    index = frame.roster.index
    for _, one in sorted(matching.items()):
        for node in one.nodes():
            if node in index:
                found.setdefault(index[node], []).append(one)
    return found


def _contribution(ask: Ask, one: InstanceRecord) -> dict[str, Any]:
    asked = ask.request.affinity_spec
    assert asked is not None, "neighbours were found by the specification"
    liked, shunned = _matched(asked.prefer_with, one), _matched(asked.prefer_without, one)
    return {
        "instance_uuid": one.uuid,
        "tags": {key: shortened(value) for key, value in one.tags.items()},
        "matched": [*liked, *shunned],
        "contribution": len(liked) - len(shunned),
    }


def _matched(matches: Sequence[TagMatch], one: InstanceRecord) -> list[str]:
    return [str(match) for match in matches if match.matches(one.tags)]


STAGE = Scorer(
    order=18,
    reasons=(LOWER_SCORE,),
    score=score,
    figures=figures,
    examples=(
        Example("nothing preferred, nothing scored"),
        Example("the only node is the best there is", request={"affinity": {"prefer_with_tag": ["web"]}}),
        Example(
            "a node with worse company than another",
            LOWER_SCORE,
            request={"affinity": {"prefer_without_tag": ["web"]}},
            instances=({"uuid": "i1", "node": "n1", "tags": {"web": ""}, "cpus": 1, "memory_mb": 1024, "disk_gb": 10},),
            others=({"name": "n2"},),
        ),
    ),
)
