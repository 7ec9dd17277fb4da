"""Neighbours: which instances of a namespace are where, found by their tags.

Promise: an instance counts on the node of each of its charges (a moving one on both), a terminating one on none. Only
instances of the asker's namespace are ever seen; the asker itself never is. A mapping of instances never changes, so
its index is made once, when the first rule asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from fleet.placement.instances import InstanceRecord


class InstanceIndex(Mapping[str, InstanceRecord]):
    """Instances by uuid, and by namespace and tag key."""

    def __init__(self, instances: Iterable[InstanceRecord] = ()) -> None:
        """Keep the instances; the index by tags is made when it is first asked for."""
        self._by_uuid = {instance.uuid: instance for instance in instances}

    def __getitem__(self, uuid: str) -> InstanceRecord:
        """Return the instance with a uuid."""
        return self._by_uuid[uuid]

    def __iter__(self) -> Iterator[str]:
        """Yield the uuids, in the order in which the instances were given."""
        return iter(self._by_uuid)

    def __len__(self) -> int:
        """Return how many instances there are."""
        return len(self._by_uuid)

    def put(self, instance: InstanceRecord) -> InstanceIndex:
        """Return the same instances with one more, or one replaced."""
        return InstanceIndex({**self._by_uuid, instance.uuid: instance}.values())

    def without(self, uuid: str) -> InstanceIndex:
        """Return the same instances less one."""
        return InstanceIndex(item for key, item in self._by_uuid.items() if key != uuid)

    def tagged(self, namespace: str, key: str) -> Sequence[InstanceRecord]:
        """Return the instances of a namespace that carry a tag key, whatever its value."""
        return self._by_key.get((namespace, key), ())

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, str], Sequence[InstanceRecord]]:
        found: dict[tuple[str, str], list[InstanceRecord]] = {}
        for instance in self._by_uuid.values():
            if instance.terminating:
                continue
            for key in instance.tags:
                found.setdefault((instance.namespace, key), []).append(instance)
        return found

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str, str], Sequence[InstanceRecord]]:
        return {}

    def carrying(self, namespace: str, pairs: Mapping[str, str]) -> Sequence[InstanceRecord]:
        """Return the instances of a namespace that carry every pair."""
        groups = [self._paired(namespace, key, value) for key, value in pairs.items()]
        fewest = min(groups, key=len, default=())
        if len(groups) < 2:
            return fewest
        return [one for one in fewest if all(one.tags.get(key) == value for key, value in pairs.items())]

    def _paired(self, namespace: str, key: str, value: str) -> Sequence[InstanceRecord]:
        """Return the instances with one pair; remembered, because the next decision asks the same."""
        found = self._by_pair.get((namespace, key, value))
        if found is None:
            found = [one for one in self.tagged(namespace, key) if one.tags[key] == value]
            self._by_pair[namespace, key, value] = found
        return found


NOBODY = InstanceIndex()
