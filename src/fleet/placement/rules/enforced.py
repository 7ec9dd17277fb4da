"""What admission holds an instance to: selector, region, architecture, rules and `require_*` entries, judged again.

The pipeline judges a snapshot, which two placements at once both see; so what it found is judged once more by the same
code against what is committed, under the locks, on the nodes that matter only: what operators declare too, since a
process sees another label or region only a moment after the operator who set it was answered. Wishes (`prefer_*`, rules
that yielded) are not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fleet.model.affinity import Entries
from fleet.model.arch import effective_arch
from fleet.model.request import PlacementRequest
from fleet.model.rules import Node, instance_pairs, node_keys, within_keys
from fleet.placement.rules.ground import FrameGround
from fleet.placement.rules.judge import satisfied

RULES_STAGE = "placement_rules"
LABELS_FIELD = "placement.labels"


@dataclass(frozen=True, slots=True)
class Enforced:
    """Every rule and entry holds on the node that admits, or the node does not admit."""

    labels: tuple[tuple[str, str], ...] = ()
    rules: tuple[Node, ...] = ()
    require_with: Entries = ()
    require_without: Entries = ()
    region: str = ""
    arch: str = ""

    @classmethod
    def of(cls, request: PlacementRequest, overridden: Collection[str]) -> Enforced | None:
        """Return what a decision on `request` must keep; `overridden` names the stages that yielded. None: nothing."""
        spec = request.affinity_spec
        found = cls(
            tuple(request.placement.labels.items()),
            () if RULES_STAGE in overridden else request.placement_rules,
            () if spec is None else spec.require_with,
            () if spec is None else spec.require_without,
            request.region,
            request.arch,
        )
        return None if found == cls() else found

    @property
    def tag_keys(self) -> tuple[str, ...]:
        """The tag keys that are asked of instances, each once, sorted."""
        entries = (*self.require_with, *self.require_without)
        return tuple(sorted({key for key, _ in instance_pairs(self.rules)}.union(entry.key for entry in entries)))

    @property
    def group_keys(self) -> tuple[str, ...]:
        """The labels by which rules group nodes."""
        return within_keys(self.rules)

    @property
    def label_keys(self) -> tuple[str, ...]:
        """The labels that are read of the node itself."""
        return tuple(sorted({key for key, _ in self.labels}.union(node_keys(self.rules))))

    def broken(self, ground: FrameGround, at: int) -> str:
        """Return the first thing that does not hold on the node at an index; empty: everything holds."""
        traits = ground.traits(at)
        if self.region and traits.region != self.region:
            return f"region {self.region}"
        if self.arch and effective_arch(traits.arch) != effective_arch(self.arch):
            return f"arch {self.arch}"
        for key, value in self.labels:
            if not ground.labelled({key: value})[at]:
                return f"{LABELS_FIELD} {key}={value}"
        for entry in self.require_with:
            if not ground.mask(ground.places(ground.matching(entry)))[at]:
                return f"require_with_tag {entry}"
        for entry in self.require_without:
            if ground.mask(ground.places(ground.matching(entry)))[at]:
                return f"require_without_tag {entry}"
        for place, node in enumerate(self.rules):
            holds = satisfied((node,), ground)
            if holds is not None and not holds[at]:
                return f"{RULES_STAGE}[{place}]"
        return ""
