"""The ground that rules are judged on: nodes with labels, and where the instances of the asker's namespace are.

Two callers judge the same rules by the same code: the pipeline on a whole snapshot, and admission, under the locks, on
the few nodes of one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.model.affinity import TagMatch
from fleet.placement.columns import Mask
from fleet.placement.frame import Frame, Traits
from fleet.placement.instances import InstanceRecord
from fleet.placement.neighbours import Group, places_of


class Ground(Protocol):
    """What a rule may ask."""

    def labelled(self, tags: Mapping[str, str]) -> Mask:
        """Return which nodes carry every pair as labels."""
        ...

    def sharing(self, key: str, nodes: NDArray[np.intp]) -> Mask:
        """Return which nodes share their value of a label with one of `nodes`; a node without the label: with none."""
        ...

    def having(self, key: str) -> Mask:
        """Return which nodes have a label, whatever its value."""
        ...

    def carriers(self, tags: Mapping[str, str]) -> Sequence[InstanceRecord]:
        """Return the neighbours that carry every pair: never the asker, nor one that is terminating."""
        ...

    def places(self, instances: Iterable[InstanceRecord]) -> NDArray[np.intp]:
        """Return the nodes on which these instances count, one entry for each; unknown nodes are left out."""
        ...

    def mask(self, nodes: NDArray[np.intp]) -> Mask:
        """Return nodes as a mask."""
        ...


class FrameGround:
    """A snapshot, as one namespace's instance (`exclude`, if it is placed already) sees it."""

    def __init__(self, frame: Frame, namespace: str, exclude: str | None) -> None:
        """Keep the view."""
        self._frame = frame
        self._namespace = namespace
        self._exclude = exclude

    def traits(self, at: int) -> Traits:
        """Return what is declared of the node at an index."""
        return self._frame.roster.traits[at]

    def labelled(self, tags: Mapping[str, str]) -> Mask:
        """Return which nodes carry every pair as labels."""
        return self._frame.roster.carrying(tags)

    def sharing(self, key: str, nodes: NDArray[np.intp]) -> Mask:
        """Return which nodes share their value of a label with one of `nodes`."""
        return self._frame.roster.labelled(key).groups_of(nodes)

    def having(self, key: str) -> Mask:
        """Return which nodes have a label, whatever its value."""
        return self._frame.roster.labelled(key).has_value()

    def carriers(self, tags: Mapping[str, str]) -> Sequence[InstanceRecord]:
        """Return the neighbours that carry every pair."""
        return self._frame.instances.carrying(self._namespace, tags, self._exclude)

    def matching(self, match: TagMatch) -> Sequence[InstanceRecord]:
        """Return the neighbours that carry a tag: the pair, or the key whatever its value."""
        if match.value is None:
            return self._frame.instances.tagged(self._namespace, match.key, self._exclude)
        return self.carriers({match.key: match.value})

    def places(self, instances: Iterable[InstanceRecord]) -> NDArray[np.intp]:
        """Return the nodes on which these instances count."""
        index = self._frame.roster.index
        return instances.places(index) if isinstance(instances, Group) else places_of(instances, index)

    def mask(self, nodes: NDArray[np.intp]) -> Mask:
        """Return nodes as a mask."""
        found = np.zeros(len(self._frame), dtype=np.bool_)
        found[nodes] = True
        return found
