"""Neighbours: which instances of a namespace are where, found by their tags.

Promise: an instance counts on the node of each of its charges (a moving one on both), a terminating one on none. Only
instances of the asker's namespace are ever seen; the asker itself never is. An index never changes; what was asked of
it once is remembered, for one decision asks the same many times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from fleet.placement.instances import InstanceRecord

Places = NDArray[np.intp]
_Asked = tuple[str, object, str | None]


class Group(Sequence[InstanceRecord]):
    """Instances with something in common, and the nodes where they count."""

    def __init__(self, members: Sequence[InstanceRecord]) -> None:
        """Keep the members, which must not change; where they are is looked up once for each set of nodes."""
        self._members = members
        self._placed: tuple[Mapping[str, int], Places] | None = None

    @overload
    def __getitem__(self, at: int) -> InstanceRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[InstanceRecord]: ...

    def __getitem__(self, at: int | slice) -> InstanceRecord | Sequence[InstanceRecord]:
        """Return a member, or some."""
        return self._members[at]

    def __iter__(self) -> Iterator[InstanceRecord]:
        """Yield the members."""
        return iter(self._members)

    def __len__(self) -> int:
        """Return how many members there are."""
        return len(self._members)

    def places(self, index: Mapping[str, int]) -> Places:
        """Return the indexes of the nodes on which members count, ascending, one entry for each member there.

        `index` maps names to indexes; nodes that it does not hold are left out.
        """
        placed = self._placed
        if placed is None or placed[0] is not index:
            placed = self._placed = (index, places_of(self._members, index))
        return placed[1]


NOBODY: Final = Group(())


def places_of(instances: Iterable[InstanceRecord], index: Mapping[str, int]) -> Places:
    """Return the indexes of the nodes on which instances count, ascending, one entry for each instance there."""
    found = [index[node] for one in instances for node in one.nodes() if node in index]
    return np.sort(np.array(found, dtype=np.intp))


class InstanceIndex(Mapping[str, InstanceRecord]):
    """Instances by uuid, and by namespace and tag."""

    def __init__(self, instances: Iterable[InstanceRecord] = ()) -> None:
        """Keep the instances; the index by tags is made when it is first asked for."""
        self._by_uuid = {instance.uuid: instance for instance in instances}
        self._by_key: Mapping[tuple[str, str], Group] | None = None
        self._answers: dict[_Asked, Group] = {}

    def __getitem__(self, uuid: str) -> InstanceRecord:
        """Return the instance with a uuid."""
        return self._by_uuid[uuid]

    def __iter__(self) -> Iterator[str]:
        """Yield the uuids."""
        return iter(self._by_uuid)

    def __len__(self) -> int:
        """Return how many instances there are."""
        return len(self._by_uuid)

    def tagged(self, namespace: str, key: str, exclude: str | None = None) -> Group:
        """Return the instances of a namespace that carry a tag key, whatever its value; never `exclude`."""
        if exclude not in self._by_uuid:
            return self._keyed(namespace, key)
        asked = (namespace, key, exclude)
        found = self._answers.get(asked)
        if found is None:
            members = [one for one in self._keyed(namespace, key) if one.uuid != exclude]
            found = self._answers[asked] = Group(members)
        return found

    def carrying(self, namespace: str, pairs: Mapping[str, str], exclude: str | None = None) -> Group:
        """Return the instances of a namespace that carry every pair; never `exclude`."""
        asked = (namespace, frozenset(pairs.items()), exclude)
        found = self._answers.get(asked)
        if found is None:
            fewest = min((self._keyed(namespace, key) for key in pairs), key=len, default=NOBODY)
            members = [one for one in fewest if one.uuid != exclude and _carries(one, pairs)]
            if not members:
                # Nothing is remembered of what nobody carries: there is no end to what may be asked.
                return NOBODY
            found = self._answers[asked] = Group(members)
        return found

    def _keyed(self, namespace: str, key: str) -> Group:
        if self._by_key is None:
            self._by_key = _grouped(self._by_uuid.values())
        return self._by_key.get((namespace, key), NOBODY)


def _carries(one: InstanceRecord, pairs: Mapping[str, str]) -> bool:
    return all(one.tags.get(key) == value for key, value in pairs.items())


def _grouped(instances: Iterable[InstanceRecord]) -> Mapping[tuple[str, str], Group]:
    found: dict[tuple[str, str], list[InstanceRecord]] = {}
    for instance in instances:
        if not instance.terminating:
            for key in instance.tags:
                found.setdefault((instance.namespace, key), []).append(instance)
    return {key: Group(members) for key, members in found.items()}
