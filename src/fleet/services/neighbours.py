"""The cache of neighbours: for one decision, the instances that its rules and its affinity can see, and no others.

A request that asks nothing of its neighbours pays nothing. For one that does, the tagged instances of its namespace are
kept up to date as the snapshot is, reading what changed; the decision gets those that carry what is asked about, with
the tags that are asked about, so what is stored beside it stays small: a value that nothing is compared with is told
only as far as it is shown. At most `NAMESPACES_MAX` namespaces and about
`INSTANCES_MAX` instances are kept; the one that was not asked about for longest goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fleet.ledger import neighbours as rows
from fleet.ledger.database import Database
from fleet.ledger.neighbours import Neighbour
from fleet.model.affinity import TagMatch
from fleet.model.request import PlacementRequest, Reason
from fleet.model.rules import Resource, leaves
from fleet.placement.frame import Frame
from fleet.placement.instances import InstanceRecord
from fleet.placement.neighbour_record import neighbour_bytes
from fleet.placement.neighbours import InstanceIndex
from fleet.placement.snapshot import Snapshot
from fleet.placement.stages.affinity import shortened
from fleet.services.cursor import Cursor
from fleet.services.snapshots import RELOAD_SECONDS, View

NAMESPACES_MAX = 64
INSTANCES_MAX = 200_000
UNCOMPARED_CHARACTERS_MAX = 65_536
"""Of values that nothing is compared with, one decision holds so many characters; the rest is told as left out."""

LEFT_OUT = "…"


class NeighbourCache:
    """Call `around()` for each decision, with the view that it is made on."""

    def __init__(self, db: Database, elapsed: Callable[[], float]) -> None:
        """Read nothing yet."""
        self._db = db
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Namespace] = OrderedDict()

    def around(self, view: View, request: PlacementRequest, *, fresh_since: float | None = None) -> View:
        """Return the view with the neighbours that `request` asks about; `fresh_since` as in `SnapshotCache.view`.

        Raises:
            DatabaseUnavailable: the ledger cannot be read.
        """
        found = self.seen(view.snapshot.frame, request, fresh_since=fresh_since)
        if found is None:
            return view
        frame = view.snapshot.frame.with_instances(found)
        return replace(view, snapshot=Snapshot(frame), neighbours=neighbour_bytes(frame.roster, found.values()))

    def seen(
        self, frame: Frame, request: PlacementRequest, *, fresh_since: float | None = None
    ) -> InstanceIndex | None:
        """Return the neighbours that `request` asks about, on the nodes of `frame`; None: it asks about none."""
        asked = _Asked(request)
        if not asked:
            return None
        found: list[InstanceRecord] = []
        if asked.pairs or asked.matches:
            namespace, name_of = request.namespace or "", frame.roster.name_of
            found = [
                InstanceRecord(
                    one.uuid,
                    namespace,
                    node=None if one.node_id is None else name_of(one.node_id),
                    incoming_node=None if one.incoming_id is None else name_of(one.incoming_id),
                    tags=asked.seen_of(one.tags),
                )
                for one in self._of(namespace).carrying(asked, fresh_since)
                if one.uuid != request.instance
            ]
        if asked.own is not None:
            found += self._own(frame, asked.own)
        return InstanceIndex(found)

    def _of(self, namespace: str) -> _Namespace:
        with self._lock:
            known = self._known.get(namespace)
            if known is None:
                known = self._known[namespace] = _Namespace(self._db, namespace, self._elapsed)
            self._known.move_to_end(namespace)
            while len(self._known) > 1 and (
                len(self._known) > NAMESPACES_MAX or sum(len(one) for one in self._known.values()) > INSTANCES_MAX
            ):
                self._known.popitem(last=False)
            return known

    def _own(self, frame: Frame, uuid: str) -> list[InstanceRecord]:
        """Return the instance that is placed again: a decision starts from what its charges hold."""
        own = rows.own(self._db, uuid)
        if own is None or not own.charges:
            return []
        return [
            InstanceRecord.of_charges(
                own.charges,
                tags=own.tags,
                terminating=own.terminating,
                name_of=frame.roster.name_of,
                now_us=frame.now_us,
            )
        ]


class _Asked:
    """What a request asks about: pairs that one instance carries together, single entries, and itself."""

    def __init__(self, request: PlacementRequest) -> None:
        spec = request.affinity_spec
        self.pairs = [
            rule.tags for rule in leaves(request.placement_rules) if rule.resource is Resource.VIRTUAL_MACHINE
        ]
        self.matches: tuple[TagMatch, ...] = () if spec is None else spec.entries
        self._compared = {pair for pairs in self.pairs for pair in pairs.items()}
        self._compared |= {(match.key, match.value) for match in self.matches if match.value is not None}
        self._any_value = {match.key for match in self.matches if match.value is None}
        self._characters_left = UNCOMPARED_CHARACTERS_MAX
        # A create that is placed again elsewhere is a create: its own charge is left out, and nothing starts from it.
        self.own = None if request.reason is Reason.CREATE else request.instance

    def seen_of(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Return the tags of a neighbour that a decision looks at: each answers every question as it did."""
        return {
            key: value if (key, value) in self._compared else self._uncompared(key, value)
            for key, value in tags.items()
            if key in self._any_value or (key, value) in self._compared
        }

    def _uncompared(self, key: str, value: str) -> str:
        """Return a value of a key that is asked for whatever its value: cut, and equal to none that is asked for."""
        told = shortened(value)
        self._characters_left -= len(told)
        if self._characters_left < 0:
            told = LEFT_OUT
        while (key, told) in self._compared:
            told += LEFT_OUT
        return told

    def __bool__(self) -> bool:
        return bool(self.pairs or self.matches or self.own)


class _Namespace:
    """The tagged instances of one namespace, by uuid and by tag. One thread reads, the others wait for what it read."""

    def __init__(self, db: Database, namespace: str, elapsed: Callable[[], float]) -> None:
        self._db, self._namespace, self._elapsed = db, namespace, elapsed
        self._lock = threading.Lock()
        self._by_uuid: dict[str, Neighbour] = {}
        self._by_tag: dict[tuple[str, str | None], dict[str, Neighbour]] = {}
        self._cursor = Cursor()
        self._loaded_at = self._thorough_at = self._quick_at = float("-inf")

    def __len__(self) -> int:
        return len(self._by_uuid)

    def carrying(self, asked: _Asked, fresh_since: float | None) -> list[Neighbour]:
        """Return the instances that carry all pairs of a rule, or match an entry, each once, in the order of uuids."""
        asked_at = self._elapsed()
        with self._lock:
            self._bring_up_to_date(asked_at, fresh_since)
            found: dict[str, Neighbour] = {}
            for pairs in asked.pairs:
                found |= self._with_pairs(pairs)
            for match in asked.matches:
                found |= self._by_tag.get((match.key, match.value), {})
        return [found[uuid] for uuid in sorted(found)]

    def _with_pairs(self, pairs: Mapping[str, str]) -> dict[str, Neighbour]:
        fewest = min((self._by_tag.get(pair, {}) for pair in pairs.items()), key=len)
        if len(pairs) == 1:
            return fewest
        return {
            uuid: one for uuid, one in fewest.items() if all(one.tags.get(key) == text for key, text in pairs.items())
        }

    def _bring_up_to_date(self, asked_at: float, fresh_since: float | None) -> None:
        at = self._elapsed()
        if at - self._loaded_at >= RELOAD_SECONDS:
            read = rows.everyone(self._db, self._namespace)
            self._by_uuid, self._by_tag = {}, {}
            self._take(read.found)
            self._cursor.advance(read.now_us, thorough=True)
            self._loaded_at = self._thorough_at = self._quick_at = at
        elif fresh_since is not None and self._thorough_at < fresh_since:
            self._read(thorough=True)
            self._thorough_at = self._quick_at = at
        elif self._quick_at < asked_at:
            # What another thread began to read after this one asked is as new: a rule judged on less only loses a try.
            self._read(thorough=False)
            self._quick_at = at

    def _read(self, *, thorough: bool) -> None:
        read = rows.changed(self._db, self._namespace, self._cursor.since(thorough=thorough))
        self._take(read.found)
        self._cursor.advance(read.now_us, thorough=thorough)

    def _take(self, found: Iterable[Neighbour]) -> None:
        for one in found:
            before = self._by_uuid.get(one.uuid)
            if before == one:
                continue
            if before is not None:
                self._drop(before)
            if one.is_somewhere:
                self._by_uuid[one.uuid] = one
                for tag in _tags_of(one):
                    self._by_tag.setdefault(tag, {})[one.uuid] = one

    def _drop(self, one: Neighbour) -> None:
        del self._by_uuid[one.uuid]
        for tag in _tags_of(one):
            group = self._by_tag[tag]
            del group[one.uuid]
            if not group:
                del self._by_tag[tag]


def _tags_of(one: Neighbour) -> Iterable[tuple[str, str | None]]:
    """Yield what finds an instance: each pair, and each key whatever its value."""
    for key, value in one.tags.items():
        yield key, value
        yield key, None
