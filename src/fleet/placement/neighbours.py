"""Neighbours: which instances of a namespace are where, found by their tags.

Promise: an instance counts on the node of each of its charges (a moving one on both), a terminating one on none. Only
instances of the asker's namespace are ever seen; the asker itself never is. An index never changes: one with another
instance is another index, which shares everything that did not change, so that a create costs no reading of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import chain
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from fleet.placement.instances import InstanceRecord

RECENT_MAX: Final = 1024
"""Changed instances are kept beside the others until there are this many, and then sorted in among them."""

GROUPS_MAX: Final = 4096
"""Groups that carry several pairs together, remembered because the next decision asks the same."""

Places = NDArray[np.intp]
_Key = tuple[str, str]


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


class _Changed(Group):
    """A group less some of its members, and with others."""

    def __init__(self, group: Group, gone: Sequence[InstanceRecord], more: Sequence[InstanceRecord]) -> None:
        super().__init__(())
        self._group, self._gone, self._more = group, gone, more

    @cached_property
    def _all(self) -> Sequence[InstanceRecord]:
        gone = {one.uuid for one in self._gone}
        return [*(one for one in self._group if one.uuid not in gone), *self._more]

    @overload
    def __getitem__(self, at: int) -> InstanceRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[InstanceRecord]: ...

    def __getitem__(self, at: int | slice) -> InstanceRecord | Sequence[InstanceRecord]:
        return self._all[at]

    def __iter__(self) -> Iterator[InstanceRecord]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._group) - len(self._gone) + len(self._more)

    def places(self, index: Mapping[str, int]) -> Places:
        """Return the group's places less those of who is gone: thousands of members are not looked up again."""
        places, gone = self._group.places(index), places_of(self._gone, index)
        if len(gone):
            # The n-th of equal entries that go takes the n-th of those that are there.
            nth = np.arange(len(gone)) - np.searchsorted(gone, gone)
            places = np.delete(places, np.searchsorted(places, gone) + nth)
        more = places_of(self._more, index)
        return np.sort(np.concatenate((places, more))) if len(more) else places


NOBODY: Final = Group(())


def places_of(instances: Iterable[InstanceRecord], index: Mapping[str, int]) -> Places:
    """Return the indexes of the nodes on which instances count, ascending, one entry for each instance there."""
    found = [index[node] for one in instances for node in one.nodes() if node in index]
    return np.sort(np.array(found, dtype=np.intp))


class _Settled:
    """The instances of before, indexed by namespace and tag key; shared by all indexes that differ in a few."""

    def __init__(self, by_uuid: Mapping[str, InstanceRecord], by_key: dict[_Key, Group] | None = None) -> None:
        self.by_uuid = by_uuid
        self._by_key = by_key
        self._by_pairs: dict[tuple[str, AbstractSet[tuple[str, str]]], Group] = {}

    def tagged(self, namespace: str, key: str) -> Group:
        if self._by_key is None:
            self._by_key = _grouped(self.by_uuid.values())
        return self._by_key.get((namespace, key), NOBODY)

    def carrying(self, namespace: str, pairs: Mapping[str, str]) -> Group:
        asked = (namespace, frozenset(pairs.items()))
        found = self._by_pairs.get(asked)
        if found is not None:
            return found
        fewest = min((self.tagged(namespace, key) for key in pairs), key=len, default=NOBODY)
        members = [one for one in fewest if _carries(one, pairs)]
        if not members:
            # Nothing is remembered of what nobody carries: there is no end to what may be asked.
            return NOBODY
        if len(self._by_pairs) >= GROUPS_MAX:
            self._by_pairs = {}
        found = self._by_pairs[asked] = Group(members)
        return found

    def with_recent(self, recent: Mapping[str, InstanceRecord | None]) -> _Settled:
        """Return these instances with others sorted in; groups in which nobody changed are the same ones."""
        by_uuid = dict(self.by_uuid)
        touched: set[_Key] = set()
        for uuid, one in recent.items():
            before = by_uuid.pop(uuid, None)
            if one is not None:
                by_uuid[uuid] = one
            touched |= {(each.namespace, key) for each in (before, one) if each is not None for key in each.tags}
        if self._by_key is None:
            return _Settled(by_uuid)
        by_key = dict(self._by_key)
        fresh = _grouped(one for one in recent.values() if one is not None)
        for key in touched:
            stay = [one for one in by_key.pop(key, NOBODY) if one.uuid not in recent]
            members = [*stay, *fresh.get(key, NOBODY)]
            if members:
                by_key[key] = Group(members)
        return _Settled(by_uuid, by_key)


class InstanceIndex(Mapping[str, InstanceRecord]):
    """Instances by uuid, and by namespace and tag."""

    def __init__(self, instances: Iterable[InstanceRecord] = ()) -> None:
        """Keep the instances; the index by tags is made when it is first asked for."""
        self._settled = _Settled({instance.uuid: instance for instance in instances})
        self._recent: Mapping[str, InstanceRecord | None] = {}

    def __getitem__(self, uuid: str) -> InstanceRecord:
        """Return the instance with a uuid."""
        found = self._recent[uuid] if uuid in self._recent else self._settled.by_uuid[uuid]
        if found is None:
            raise KeyError(uuid)
        return found

    def __iter__(self) -> Iterator[str]:
        """Yield the uuids."""
        settled = (uuid for uuid in self._settled.by_uuid if uuid not in self._recent)
        return chain(settled, (uuid for uuid, one in self._recent.items() if one is not None))

    def __len__(self) -> int:
        """Return how many instances there are."""
        replaced = sum(uuid in self._settled.by_uuid for uuid in self._recent)
        return len(self._settled.by_uuid) - replaced + sum(one is not None for one in self._recent.values())

    def changed(self, fresh: Mapping[str, InstanceRecord | None]) -> InstanceIndex:
        """Return the same instances with some more, replaced, or (None) gone."""
        index = InstanceIndex()
        index._settled, index._recent = self._settled, {**self._recent, **fresh}
        if len(index._recent) > RECENT_MAX:
            index._settled, index._recent = self._settled.with_recent(index._recent), {}
        return index

    def put(self, instance: InstanceRecord) -> InstanceIndex:
        """Return the same instances with one more, or one replaced."""
        return self.changed({instance.uuid: instance})

    def without(self, uuid: str) -> InstanceIndex:
        """Return the same instances less one."""
        return self.changed({uuid: None}) if uuid in self else self

    def tagged(self, namespace: str, key: str, exclude: str | None = None) -> Group:
        """Return the instances of a namespace that carry a tag key, whatever its value; never `exclude`."""
        return self._now(self._settled.tagged(namespace, key), namespace, lambda one: key in one.tags, exclude)

    def carrying(self, namespace: str, pairs: Mapping[str, str], exclude: str | None = None) -> Group:
        """Return the instances of a namespace that carry every pair; never `exclude`."""
        return self._now(self._settled.carrying(namespace, pairs), namespace, lambda one: _carries(one, pairs), exclude)

    def _now(
        self, settled: Group, namespace: str, carries: Callable[[InstanceRecord], bool], exclude: str | None
    ) -> Group:
        """Return a settled group as the recent changes left it."""

        def belongs(one: InstanceRecord | None) -> bool:
            return one is not None and one.namespace == namespace and not one.terminating and carries(one)

        changed = self._recent if exclude is None or exclude in self._recent else (*self._recent, exclude)
        before = self._settled.by_uuid
        gone = [before[uuid] for uuid in changed if belongs(before.get(uuid))]
        more = [one for uuid, one in self._recent.items() if one is not None and uuid != exclude and belongs(one)]
        return _Changed(settled, gone, more) if gone or more else settled


def _carries(one: InstanceRecord, pairs: Mapping[str, str]) -> bool:
    return all(one.tags.get(key) == value for key, value in pairs.items())


def _grouped(instances: Iterable[InstanceRecord]) -> dict[_Key, Group]:
    found: dict[_Key, list[InstanceRecord]] = {}
    for instance in instances:
        if not instance.terminating:
            for key in instance.tags:
                found.setdefault((instance.namespace, key), []).append(instance)
    return {key: Group(members) for key, members in found.items()}
