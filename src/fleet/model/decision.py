"""The decision: what the pipeline answers, with every reason. It binds nothing; admission binds.

Promise: a decision is cheap when nobody asks why. It keeps who survived, in order, and a way to explain itself; names,
reasons and figures are computed when they are read, from a view that never changes, and always come out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Outcome(StrEnum):
    """Whether some node is left."""

    RANKED = "ranked"
    REFUSED = "refused"


@dataclass(frozen=True, eq=False)
class StageResult:
    """What one stage did: the nodes it kept and those it dropped, in the order of the snapshot.

    `reason_of` answers the reason and figures of one dropped node. `flagged` are kept nodes that deserve a remark.
    """

    name: str
    kept_indices: NDArray[np.intp]
    dropped_indices: NDArray[np.intp]
    names: Sequence[str] = field(repr=False)
    reason_of: Callable[[int], Mapping[str, Any]] = field(repr=False)
    overridden: bool = False
    flagged: Mapping[str, NDArray[np.intp]] = field(default_factory=dict)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Names of the nodes that went on."""
        return tuple(self.names[at] for at in self.kept_indices)

    @cached_property
    def dropped(self) -> Mapping[str, Mapping[str, Any]]:
        """Each dropped node's name with its reason and figures."""
        return {self.names[at]: self.reason_of(int(at)) for at in self.dropped_indices}

    def as_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return the public form, with at most `limit` nodes in each list."""
        out: dict[str, Any] = {
            "name": self.name,
            "kept": [self.names[at] for at in self.kept_indices[:limit]],
            "dropped": {self.names[at]: dict(self.reason_of(int(at))) for at in self.dropped_indices[:limit]},
        }
        if self.overridden:
            out["overridden"] = True
        if self.flagged:
            out["flagged"] = {flag: [self.names[at] for at in nodes[:limit]] for flag, nodes in self.flagged.items()}
        return out


class Evidence(Protocol):
    """What a decision explains itself with. The pipeline supplies it; the model does not know how it is made."""

    @property
    def names(self) -> Sequence[str]:
        """The name of every node, by index."""
        ...

    def stages(self) -> tuple[StageResult, ...]:
        """Return what every stage did."""
        ...

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many nodes each stage dropped for each reason, each node at its first failing stage."""
        ...

    def masks(self) -> Mapping[str, Mapping[str, NDArray[np.bool_]]]:
        """Return the same as masks over the nodes."""
        ...

    def ordered_by(self, at: int) -> Mapping[str, Any]:
        """Return the figures that a ranked node's place was computed from."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """Return sentences that whoever asks should know, whatever the answer."""
        ...

    def overridden(self) -> tuple[str, ...]:
        """Return the stages that had a wish and were not followed."""
        ...

    def summary(self, decision: Decision) -> str:
        """Return the decision in one sentence."""
        ...

    def remedy(self, decision: Decision) -> str:
        """Return what would help, in one sentence; empty when nothing needs help or nothing is known to."""
        ...


@dataclass(frozen=True, eq=False)
class Decision:
    """A ranked list of all nodes that fit, best first, or a refusal with its code and the stage that emptied the set.

    `ranked_indices` are the snapshot's indexes of all survivors; `ranked_weights` and `over_demand` are aligned with
    them. `over_demand` is true where the node is over its load target already: the first walk skips those.
    """

    outcome: Outcome
    strategy: str
    seed: int
    ranked_indices: NDArray[np.intp]
    ranked_weights: NDArray[np.float64]
    over_demand: NDArray[np.bool_]
    evidence: Evidence = field(repr=False)
    code: str | None = None
    stage: str | None = None
    transient: bool = False

    @property
    def refused(self) -> bool:
        """Whether no node is left."""
        return self.outcome is Outcome.REFUSED

    @property
    def node_count(self) -> int:
        """How many nodes were judged."""
        return len(self.evidence.names)

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """Names of the ranked nodes, best first."""
        names = self.evidence.names
        return tuple(names[at] for at in self.ranked_indices)

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """Each ranked node's weight."""
        return dict(zip(self.ranked, (round(float(weight), 6) for weight in self.ranked_weights), strict=True))

    @cached_property
    def stages(self) -> tuple[StageResult, ...]:
        """What every stage did, in pipeline order, up to the one that emptied the set."""
        return self.evidence.stages()

    @cached_property
    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """How many nodes each stage dropped for each reason; stages that dropped none are left out."""
        return self.evidence.counts()

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that whoever asks should know, whatever the answer."""
        return self.evidence.warnings()

    @cached_property
    def overridden(self) -> tuple[str, ...]:
        """The stages that had a wish and were not followed, such as rules that nobody with room satisfies."""
        return self.evidence.overridden()

    @cached_property
    def summary(self) -> str:
        """The decision in one sentence."""
        return self.evidence.summary(self)

    @cached_property
    def remedy(self) -> str:
        """What would help, in one sentence; may be empty."""
        return self.evidence.remedy(self)

    def ordered_by(self, at: int) -> Mapping[str, Any]:
        """Return the figures that the place of the ranked node with index `at` was computed from."""
        return self.evidence.ordered_by(at)

    def as_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return the public form, with at most `limit` nodes in each list."""
        names = self.evidence.names
        shown = [names[at] for at in self.ranked_indices[:limit]]
        out: dict[str, Any] = {
            "outcome": str(self.outcome),
            "code": self.code,
            "stage": self.stage,
            "transient": self.transient,
            "ranked": shown,
            "weights": dict(zip(shown, (round(float(weight), 6) for weight in self.ranked_weights), strict=False)),
            "strategy": self.strategy,
            "seed": self.seed,
            "stages": [stage.as_dict(limit) for stage in self.stages],
            "counts": {stage: dict(reasons) for stage, reasons in self.counts.items()},
            "summary": self.summary,
        }
        if self.remedy:
            out["remedy"] = self.remedy
        if self.warnings:
            out["warnings"] = list(self.warnings)
        return out
