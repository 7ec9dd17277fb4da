"""One judge: what admission judges again under its locks is what the pipeline judged, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from fleet.model.request import PlacementRequest
from fleet.placement.ask import Ask
from fleet.placement.rules.enforced import Enforced
from fleet.placement.rules.ground import FrameGround
from fleet.placement.snapshot import Snapshot
from fleet.placement.stages import affinity_constraints, arch, labels, placement_rules, region
from tests.property.fleets import LAWS, documents, requests


@LAWS
@given(document=documents(), request=requests())
def test_a_node_breaks_a_rule_under_the_lock_exactly_when_the_pipeline_drops_it_for_one(
    document: dict[str, Any], request: PlacementRequest
) -> None:
    frame = Snapshot.from_json(document).frame
    ask = Ask.of(request, frame)
    dropped = np.zeros(len(frame), dtype=np.bool_)
    for stage in (region, arch, labels, affinity_constraints, placement_rules):
        for _, mask in stage.drops(ask, frame) or ():
            dropped |= mask
    enforced = Enforced.of(request, ())
    ground = FrameGround(frame, ask.namespace, request.instance)
    broken = [enforced is not None and enforced.broken(ground, at) != "" for at in range(len(frame))]

    assert broken == dropped.tolist()


@LAWS
@given(request=requests())
def test_rules_that_yielded_are_not_judged_again_and_requirements_always_are(request: PlacementRequest) -> None:
    enforced = Enforced.of(request, ("placement_rules",))
    spec = request.affinity_spec

    declared = request.placement.labels or request.region or request.arch
    assert (enforced is not None) == (bool(declared) or (spec is not None and spec.constrains))
    assert enforced is None or enforced.rules == ()
