"""The snapshot: a worker's view of the fleet, kept in memory and brought up to date row by row.

Promise: `frame` is always a whole, consistent and frozen view; every change makes a new frame and leaves old ones as
they were, so one writer may refresh while any number of threads decide. Versions only grow: `rows_changed_since` tells
cheaply which nodes differ from a version that was stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fleet.model.cluster_config import ClusterConfig
from fleet.model.gpu_inventory import GpuInventory
from fleet.model.node import NodeRecord
from fleet.placement.columns import (
    LEDGER,
    SAMPLE,
    CounterRow,
    Ints,
    counter_row,
    ledger_row,
    sample_row,
)
from fleet.placement.document import Document, read_document, write_document
from fleet.placement.frame import Frame, Roster, Sample, Traits
from fleet.placement.gpus import GpuTable
from fleet.placement.instances import InstanceRecord
from fleet.placement.neighbours import InstanceIndex

MARKS_MAX: Final = 4
"""How many stored bases a snapshot remembers, so that what changed since can be stored as small differences."""


class Snapshot:
    """The fleet as columns, and who changed when. See the module for its promise."""

    def __init__(self, frame: Frame) -> None:
        """Start at version 1 with every row as new. Most callers want `from_records` or `from_json`."""
        self._frame = frame
        self._version = 1
        self.layout_version = 1
        self._ledger_versions = np.full(len(frame), 1, dtype=np.int64)
        self._sample_versions = np.full(len(frame), 1, dtype=np.int64)
        self._gpu_versions = np.full(len(frame), 1, dtype=np.int64)
        self._marks: OrderedDict[int, Frame] = OrderedDict()

    @classmethod
    def from_records(
        cls,
        records: Sequence[NodeRecord],
        config: ClusterConfig,
        now_us: int,
        instances: Iterable[InstanceRecord] = (),
    ) -> Snapshot:
        """Return the snapshot of node records. `now_us` is the database's UTC time in microseconds."""
        roster = Roster(
            [record.name for record in records],
            [record.node_id for record in records],
            [Traits.of(record) for record in records],
        )
        if len(roster.index) != len(records):
            raise ValueError(f"{len(records)} node records hold only {len(roster.index)} different names")
        ledger = _matrix([ledger_row(record) for record in records], len(LEDGER))
        sample = _matrix([sample_row(record.metrics, record.max_instances) for record in records], len(SAMPLE))
        gpus = GpuTable.of([record.gpu for record in records])
        return cls(Frame(roster, ledger, Sample(sample, config), now_us, InstanceIndex(instances), gpus))

    @classmethod
    def from_json(cls, document: Any) -> Snapshot:
        """Return the snapshot of a snapshot document.

        Raises:
            InvalidRequest: with every problem of the document and its JSON path.
        """
        read: Document = read_document(document)
        roster = Roster(read.names, read.node_ids, read.traits)
        ledger, sample = _matrix(read.ledger, len(LEDGER)), _matrix(read.sample, len(SAMPLE))
        index, gpus = InstanceIndex(read.instances), GpuTable.of(read.gpus)
        return cls(Frame(roster, ledger, Sample(sample, read.config), read.now_us, index, gpus))

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot document: everything that a decision may see."""
        return write_document(self._frame)

    @property
    def frame(self) -> Frame:
        """The present view; it never changes afterwards."""
        return self._frame

    @property
    def version(self) -> int:
        """A number that grows with every change of a row, of the nodes or the configuration."""
        return self._version

    @property
    def config(self) -> ClusterConfig:
        """The cluster's configuration that decisions on this snapshot follow."""
        return self._frame.config

    @property
    def now_us(self) -> int:
        """The database's time of this view, in microseconds since 1970, UTC."""
        return self._frame.now_us

    @now_us.setter
    def now_us(self, now_us: int) -> None:
        self._frame = self._frame.at(now_us)

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self._frame)

    def index_of(self, name: str) -> int:
        """Return the index of the node called `name`, or -1."""
        return self._frame.roster.index.get(name, -1)

    def index_of_id(self, node_id: int) -> int:
        """Return the index of the node with the ledger's key `node_id`, or -1."""
        return self._frame.roster.by_id.get(node_id, -1)

    def node_id(self, index: int) -> int:
        """Return the ledger's key of the node at an index."""
        return self._frame.roster.node_ids[index]

    def name(self, index: int) -> str:
        """Return the name of the node at an index."""
        return self._frame.roster.names[index]

    def configure(self, config: ClusterConfig) -> None:
        """Follow another configuration from now on."""
        old = self._frame
        if config == old.config:
            return
        sample = Sample(old.sample.matrix, config)
        self._frame = Frame(old.roster, old.ledger, sample, old.now_us, old.instances, old.gpus)
        self.layout_version = self._next_version()

    def update_records(self, records: Sequence[NodeRecord]) -> None:
        """Take in nodes that are new, or whose sample or declaration changed; the columns are copied once for all."""
        latest = {record.name: record for record in records}
        self._extend([record for name, record in latest.items() if name not in self._frame.roster.index])
        self._redeclare(list(latest.values()))
        old = self._frame
        known = list(latest.values())
        at = np.array([old.roster.index[record.name] for record in known], dtype=np.intp)
        ledger = _matrix([ledger_row(record) for record in known], len(LEDGER))
        self._replace_counters(at, ledger)
        sample = _matrix([sample_row(record.metrics, record.max_instances) for record in known], len(SAMPLE))
        self._replace_samples(at, sample)
        self._replace_gpus({int(place): record.gpu for place, record in zip(at, known, strict=True)})

    def update_gpus(self, inventories: Mapping[int, GpuInventory]) -> None:
        """Take in what GPUs known nodes have, by the ledger's key; unknown nodes are left out."""
        by_id = self._frame.roster.by_id
        self._replace_gpus({by_id[node_id]: one for node_id, one in inventories.items() if node_id in by_id})

    def update_counters(self, rows: Iterable[CounterRow]) -> list[int]:
        """Take in ledger rows of known nodes; return the ids of unknown or unsized ones, to be loaded.

        Rows that hold what is known already cost a comparison and change no version, so re-reading everything is cheap.
        """
        by_id = self._frame.roster.by_id
        unsized = self._frame.unsized
        known: list[list[int]] = []
        places: list[int] = []
        unknown: list[int] = []
        for row in rows:
            at = by_id.get(row[0])
            # A ledger row is born with the first sample, so a node that has one was measured after it was read here.
            if at is None or unsized[at]:
                unknown.append(row[0])
                continue
            places.append(at)
            known.append(counter_row(row))
        if known:
            self._replace_counters(np.array(places, dtype=np.intp), np.array(known, dtype=np.int64).T)
        return unknown

    def _replace_counters(self, places: NDArray[np.intp], fresh: Ints) -> None:
        old = self._frame
        differs = (fresh != old.ledger[:, places]).any(axis=0)
        if not differs.any():
            return
        places = places[differs]
        ledger = old.ledger.copy()
        ledger[:, places] = fresh[:, differs]
        self._ledger_versions[places] = self._next_version()
        self._frame = Frame(old.roster, ledger, old.sample, old.now_us, old.instances, old.gpus)

    def _replace_samples(self, places: NDArray[np.intp], fresh: Ints) -> None:
        old = self._frame
        differs = (fresh != old.sample.matrix[:, places]).any(axis=0)
        if not differs.any():
            return
        places = places[differs]
        matrix = old.sample.matrix.copy()
        matrix[:, places] = fresh[:, differs]
        self._sample_versions[places] = self._next_version()
        self._frame = Frame(old.roster, old.ledger, Sample(matrix, old.config), old.now_us, old.instances, old.gpus)

    def _replace_gpus(self, fresh: Mapping[int, GpuInventory]) -> None:
        old = self._frame
        changed = {at: one for at, one in fresh.items() if one != old.gpus.inventory(at)}
        if changed:
            self._gpu_versions[list(changed)] = self._next_version()
            self._frame = old.with_gpus(old.gpus.replace(changed))

    def remove(self, node_id: int) -> None:
        """Forget a node by the ledger's key; nothing happens when it is not known."""
        at = self.index_of_id(node_id)
        if at < 0:
            return
        old = self._frame
        stays = np.arange(len(old)) != at
        keep = np.flatnonzero(stays)
        roster = Roster(
            [old.roster.names[i] for i in keep],
            [old.roster.node_ids[i] for i in keep],
            [old.roster.traits[i] for i in keep],
        )
        self.layout_version = self._next_version()
        self._ledger_versions, self._sample_versions = self._ledger_versions[stays], self._sample_versions[stays]
        self._gpu_versions = self._gpu_versions[stays]
        sample, gpus = Sample(old.sample.matrix[:, stays], old.config), old.gpus.resized(keep.tolist())
        self._frame = Frame(roster, old.ledger[:, stays], sample, old.now_us, old.instances, gpus)

    def rows_changed_since(self, version: int) -> NDArray[np.intp]:
        """Return the indexes of the nodes whose columns changed after `version`."""
        return np.flatnonzero(np.maximum(self._ledger_versions, self._sample_versions) > version)

    def samples_changed_since(self, version: int) -> NDArray[np.intp]:
        """Return the indexes of the nodes whose sample columns changed after `version`."""
        return np.flatnonzero(self._sample_versions > version)

    def gpus_changed_since(self, version: int) -> NDArray[np.intp]:
        """Return the indexes of the nodes whose GPUs changed after `version`."""
        return np.flatnonzero(self._gpu_versions > version)

    def mark(self) -> int:
        """Remember the present view under its version, for `encode_changes`; only the last few are kept."""
        self._marks[self._version] = self._frame
        while len(self._marks) > MARKS_MAX:
            self._marks.popitem(last=False)
        return self._version

    def marked(self, version: int) -> Frame | None:
        """Return the view remembered under a version, if it is still kept."""
        return self._marks.get(version)

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _extend(self, records: Sequence[NodeRecord]) -> None:
        if not records:
            return
        old, more, version = self._frame, len(records), self._next_version()
        roster = Roster(
            [*old.roster.names, *(record.name for record in records)],
            [*old.roster.node_ids, *(record.node_id for record in records)],
            [*old.roster.traits, *(Traits.of(record) for record in records)],
        )
        ledger = np.concatenate([old.ledger, np.zeros((len(LEDGER), more), dtype=np.int64)], axis=1)
        sample = np.concatenate([old.sample.matrix, np.zeros((len(SAMPLE), more), dtype=np.int64)], axis=1)
        new_versions = np.full(more, version, dtype=np.int64)
        self._ledger_versions = np.concatenate([self._ledger_versions, new_versions])
        self._sample_versions = np.concatenate([self._sample_versions, new_versions])
        self._gpu_versions = np.concatenate([self._gpu_versions, new_versions])
        self.layout_version = version
        gpus = old.gpus.resized(range(len(old)), more)
        self._frame = Frame(roster, ledger, Sample(sample, old.config), old.now_us, old.instances, gpus)

    def _redeclare(self, records: Sequence[NodeRecord]) -> None:
        """Follow what operators declare about known nodes."""
        old = self._frame
        roster = old.roster.redeclared(
            {old.roster.index[record.name]: (record.node_id, Traits.of(record)) for record in records}
        )
        if roster is not old.roster:
            self.layout_version = self._next_version()
            self._frame = Frame(roster, old.ledger, old.sample, old.now_us, old.instances, old.gpus)


def _matrix(rows: Sequence[Sequence[int]], width: int) -> Ints:
    """Return rows of nodes as a matrix of columns, each column contiguous."""
    if not rows:
        return np.zeros((width, 0), dtype=np.int64)
    return np.ascontiguousarray(np.array(rows, dtype=np.int64).T)
