"""A frame: one frozen view of the fleet as columns. Stages read frames; the snapshot replaces them, never changes
them.

Promise: nothing in a frame ever changes, so a decision can compute its reasons later, when somebody asks for them, and
other threads may decide on one frame while the snapshot moves on. Columns have the node's index as their axis.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleet.model.capacity import (
    Measured,
    floored_product,
    kept_memory_mb,
    ledger_headroom,
    measured_headroom,
    node_limits,
    offered_threads,
    over_demand_target,
    to_milli,
)
from fleet.model.cluster_config import ClusterConfig
from fleet.model.gpu_inventory import NO_GPUS
from fleet.model.node import NodeRecord
from fleet.placement.columns import (
    LEDGER_AT,
    SAMPLE_AT,
    UNKNOWN,
    UNLIMITED,
    Ints,
    Mask,
    shown,
)
from fleet.placement.draws import name_hash
from fleet.placement.gpus import GpuTable
from fleet.placement.neighbours import InstanceIndex


@dataclass(frozen=True, slots=True)
class Traits:
    """What an operator declared about a node; no column, because most stages do not need it."""

    labels: Mapping[str, str] = field(default_factory=dict)
    region: str = ""
    arch: str = ""
    backend: str = ""
    sleepy_pool: bool = False

    @classmethod
    def of(cls, record: NodeRecord) -> Traits:
        """Return the traits of a node record."""
        return cls(record.labels, record.region, record.arch, record.backend, record.sleepy_pool)


NO_TRAITS = Traits()


NO_VALUE: Final = -1


class Coded:
    """A declared word of every node as a small number, so that thousands are compared at once."""

    def __init__(self, codes: NDArray[np.int32], values: Mapping[str, int]) -> None:
        """Keep each node's code, and the code of each value."""
        self.codes = codes
        self.values = values

    @classmethod
    def of(cls, words: Sequence[str | None]) -> Coded:
        """Return the codes of words; None has none."""
        values: dict[str, int] = {}
        codes = [NO_VALUE if word is None else values.setdefault(word, len(values)) for word in words]
        return cls(np.array(codes, dtype=np.int32), values)

    def replace(self, words: Mapping[int, str | None]) -> Coded:
        """Return the same with other words at some indexes."""
        values, codes = dict(self.values), self.codes.copy()
        for at, word in words.items():
            codes[at] = NO_VALUE if word is None else values.setdefault(word, len(values))
        return Coded(codes, values)

    def equal(self, word: str) -> Mask:
        """Return which nodes have exactly this word."""
        code = self.values.get(word)
        if code is None:
            return np.zeros(len(self.codes), dtype=np.bool_)
        found: Mask = self.codes == code
        return found

    def present(self) -> list[str]:
        """Return the words that nodes have, each once."""
        there = np.unique(self.codes)
        return [word for word, code in self.values.items() if code in there]

    def has_value(self) -> Mask:
        """Return which nodes have any."""
        found: Mask = self.codes != NO_VALUE
        return found

    def groups_of(self, nodes: NDArray[np.intp]) -> Mask:
        """Return which nodes share their word with one of `nodes`; a node without a word shares it with nobody."""
        hit = np.zeros(len(self.values) + 1, dtype=np.bool_)
        hit[self.codes[nodes]] = True
        hit[NO_VALUE] = False
        found: Mask = hit[self.codes]
        return found


class Roster:
    """Who is in the snapshot, in index order. Replaced when a node comes, goes or is declared anew."""

    def __init__(self, names: Sequence[str], node_ids: Sequence[int], traits: Sequence[Traits]) -> None:
        """Index the nodes by name and by ledger id; id 0 means that there is no ledger."""
        self.names = tuple(names)
        self.node_ids = tuple(node_ids)
        self.traits = tuple(traits)
        self.index: Mapping[str, int] = {name: at for at, name in enumerate(self.names)}
        self.by_id: Mapping[int, int] = {node_id: at for at, node_id in enumerate(self.node_ids) if node_id}
        self.hashes: NDArray[np.uint64] = np.array([name_hash(name) for name in self.names], dtype=np.uint64)
        self._coded: dict[str, Coded] = {}
        self._labelled: dict[str, Coded] = {}

    def redeclared(self, fresh: Mapping[int, tuple[int, Traits]]) -> Roster:
        """Return the same nodes with another ledger id and other traits at some indexes; itself when none differs.

        Whatever was computed of the others is kept, so that a changed label costs no reading of all.
        """
        changed = {at: one for at, one in fresh.items() if one != (self.node_ids[at], self.traits[at])}
        if not changed:
            return self
        twin = copy.copy(self)
        own = vars(twin)
        node_ids, traits = list(self.node_ids), list(self.traits)
        for at, (node_id, declared) in changed.items():
            node_ids[at], traits[at] = node_id, declared
        twin.traits = tuple(traits)
        if any(node_id != self.node_ids[at] for at, (node_id, _) in changed.items()):
            twin.node_ids = tuple(node_ids)
            twin.by_id = {node_id: at for at, node_id in enumerate(node_ids) if node_id}
        own.pop("sleepy_pool", None)
        # Copied first: other threads may be adding what they need while this one reads.
        own["_coded"] = {
            trait: coded.replace({at: str(getattr(declared, trait)) for at, (_, declared) in changed.items()})
            for trait, coded in self._coded.copy().items()
        }
        own["_labelled"] = {
            key: coded.replace({at: declared.labels.get(key) for at, (_, declared) in changed.items()})
            for key, coded in self._labelled.copy().items()
        }
        return twin

    def name_of(self, node_id: int) -> str | None:
        """Return the name of the node with a ledger id; None: it is not in the snapshot."""
        at = self.by_id.get(node_id, -1)
        return None if at < 0 else self.names[at]

    def carrying(self, labels: Mapping[str, str]) -> Mask:
        """Return which nodes have every one of these labels; with none, all do."""
        masks = [self.labelled(key).equal(value) for key, value in labels.items()]
        return reduce(operator.and_, masks) if masks else np.ones(len(self.names), dtype=np.bool_)

    def coded(self, trait: str) -> Coded:
        """Return a declared trait of every node (`region`, `arch`, `backend`) as numbers; made once a trait."""
        found = self._coded.get(trait)
        if found is None:
            read = operator.attrgetter(trait)
            found = self._coded[trait] = Coded.of([str(read(traits)) for traits in self.traits])
        return found

    def labelled(self, key: str) -> Coded:
        """Return the value of a label on every node as numbers; NO_VALUE where a node lacks it. Made once a key."""
        found = self._labelled.get(key)
        if found is None:
            found = self._labelled[key] = Coded.of([traits.labels.get(key) for traits in self.traits])
        return found

    @cached_property
    def sleepy_pool(self) -> Mask:
        """Which nodes belong to the sleepy pool."""
        return np.array([traits.sleepy_pool for traits in self.traits], dtype=np.bool_)

    @cached_property
    def name_rank(self) -> Ints:
        """The place of each node in the order of names: what ties break on."""
        rank = np.empty(len(self.names), dtype=np.int64)
        rank[sorted(range(len(self.names)), key=self.names.__getitem__)] = np.arange(len(self.names))
        return rank


class Sample:
    """The sample columns with the document's fallbacks applied. Shared by all frames until a node publishes."""

    def __init__(self, matrix: Ints, config: ClusterConfig) -> None:
        """Keep the matrix; derived columns are computed once, when first read."""
        matrix.flags.writeable = False
        self.matrix = matrix
        self.config = config
        self._unknown: dict[str, Mask] = {}

    def column(self, name: str) -> Ints:
        """Return a column of the sample as published."""
        column: Ints = self.matrix[SAMPLE_AT[name]]
        return column

    def unknown(self, name: str) -> Mask:
        """Return where a figure is unknown."""
        found = self._unknown.get(name)
        if found is None:
            found = self._unknown[name] = self.column(name) == UNKNOWN
        return found

    @cached_property
    def schedulable_fallback(self) -> Ints:
        """`cpu_schedulable` for nodes whose sample lacks it: from `cpu_threads`, else from `cpu_max`."""
        threads = np.where(self.column("cpu_threads") > 0, self.column("cpu_threads"), self.column("cpu_max"))
        reserved = self.config.node_cpu_reservation_threads
        return np.where(threads > 0, offered_threads(threads, reserved), UNKNOWN)

    @cached_property
    def reserved_from_fallback(self) -> Mask:
        """Where the memory reservation comes from configuration."""
        return self.unknown("memory_reserved_mb")

    @cached_property
    def memory_reserved(self) -> Ints:
        """Memory kept for the host, MiB: as published, else from configuration, at most half of the machine."""
        wanted = floored_product(1024, self.config.node_ram_reservation_gb)
        total = self.column("memory_max")
        fallback = np.where(total == UNKNOWN, wanted, kept_memory_mb(wanted, total))
        return np.where(self.reserved_from_fallback, fallback, self.column("memory_reserved_mb"))

    @cached_property
    def disk_reserved_milli(self) -> Ints:
        """Disk kept free, in thousandths of a GiB: as published, else from configuration."""
        fallback = to_milli(self.config.node_disk_reservation_gb)
        return np.where(self.unknown("disk_reservation_gb"), fallback, self.column("disk_reservation_gb"))

    @cached_property
    def disk_reserved(self) -> Ints:
        """The same in whole GiB, rounded up: amounts are whole, so that a comparison with it is exact."""
        rounded: Ints = -(-self.disk_reserved_milli // 1000)
        return rounded

    def measured(self, at: int, schedulable: int | None) -> Measured:
        """Return the figures of one node that limits are computed from, fallbacks applied.

        `schedulable` is its `cpu_schedulable`, whose column is the ledger's.
        """
        figures = {name: shown(self.matrix[row, at]) for name, row in SAMPLE_AT.items()}
        return Measured(
            cpu_schedulable=schedulable,
            memory_max=figures["memory_max"],
            memory_reserved_mb=int(self.memory_reserved[at]),
            disk_total_gb=figures["disk_total_gb"],
            disk_reservation_gb=Decimal(int(self.disk_reserved_milli[at])) / 1000,
            cpu_foreign_vcpus=figures["cpu_foreign_vcpus"],
            memory_foreign_mb=figures["memory_foreign_mb"],
            disk_foreign_gb=figures["disk_foreign_gb"],
        )


class Frame:
    """Everything a decision may see. All attributes are read-only; `*_milli` columns are in thousandths."""

    def __init__(
        self,
        roster: Roster,
        ledger: Ints,
        sample: Sample,
        now_us: int,
        instances: InstanceIndex,
        gpus: GpuTable | None = None,
    ) -> None:
        """Keep the parts; columns that combine them are computed once, when first read."""
        ledger.flags.writeable = False
        self.roster = roster
        self.ledger = ledger
        self.sample = sample
        self.config = sample.config
        self.now_us = now_us
        self.instances = instances
        self.gpus = GpuTable.of([NO_GPUS] * len(roster.names)) if gpus is None else gpus

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self.roster.names)

    def at(self, now_us: int) -> Frame:
        """Return the same fleet at another time; no column depends on the time, so all are shared."""
        twin = copy.copy(self)
        twin.now_us = now_us
        return twin

    def with_instances(self, instances: InstanceIndex) -> Frame:
        """Return the same fleet with other instances in its index; no column depends on them."""
        twin = copy.copy(self)
        twin.instances = instances
        return twin

    def with_gpus(self, gpus: GpuTable) -> Frame:
        """Return the same fleet with other GPUs; no column depends on them."""
        twin = copy.copy(self)
        twin.gpus = gpus
        return twin

    def counter(self, name: str) -> Ints:
        """Return a column of the ledger."""
        column: Ints = self.ledger[LEDGER_AT[name]]
        return column

    @cached_property
    def unsized(self) -> Mask:
        """Where the ledger has no row."""
        mask: Mask = self.counter("row_present") == 0
        return mask

    @cached_property
    def limits(self) -> Ints:
        """The four limit rows; where there is no ledger row and unsized nodes may be admitted, the live product."""
        rows: Ints = self.ledger[0:4]
        if not self.config.admit_unsized_nodes or not self.unsized.any():
            return rows
        rows = rows.copy()
        for at in np.flatnonzero(self.unsized):
            rows[:, at] = self._live_limits(int(at))
        return rows

    @cached_property
    def used(self) -> Ints:
        """The four used rows; an unsized node that may be admitted is charged nothing by the ledger."""
        rows: Ints = self.ledger[4:8]
        if not self.config.admit_unsized_nodes or not self.unsized.any():
            return rows
        return np.where(self.unsized, 0, rows)

    def _live_limits(self, at: int) -> list[int]:
        measured = self.sample.measured(at, shown(self.schedulable[at]))
        most = shown(self.sample.column("max_instances")[at])
        limits = node_limits(measured, self.config.ratios, most).limits
        return [UNLIMITED if value is None else value for value in limits.as_dict().values()]

    @cached_property
    def schedulable(self) -> Ints:
        """`cpu_schedulable`, with the document's fallback where a sample lacks it."""
        published = self.counter("cpu_schedulable")
        missing = published == UNKNOWN
        return np.where(missing, self.sample.schedulable_fallback, published) if missing.any() else published

    @cached_property
    def schedulable_from_fallback(self) -> Mask:
        """Where `cpu_schedulable` is known only by the fallback."""
        mask: Mask = (self.sample.column("cpu_schedulable_published") == 0) & (self.schedulable != UNKNOWN)
        return mask

    @cached_property
    def charged_cpus(self) -> Ints:
        """What is charged in vCPUs, by measurement or by the ledger."""
        return charged(self.sample.column("cpu_total_instance_vcpus"), row(self.used, 0))

    @cached_property
    def charged_memory(self) -> Ints:
        """What is charged in memory, by measurement or by the ledger, MiB."""
        return charged(self.sample.column("memory_total_instance_actual"), row(self.used, 1))

    @cached_property
    def room_cpus(self) -> Ints:
        """What is left of the limit of vCPUs."""
        return ledger_headroom(row(self.limits, 0), self.charged_cpus)

    @cached_property
    def room_memory(self) -> Ints:
        """MiB left under the limit."""
        return ledger_headroom(row(self.limits, 1), self.charged_memory)

    @cached_property
    def room_disk(self) -> Ints:
        """GiB left under the limit."""
        return ledger_headroom(row(self.limits, 2), row(self.used, 2))

    @cached_property
    def room_instances(self) -> Ints:
        """Slots left under the limit."""
        return ledger_headroom(row(self.limits, 3), row(self.used, 3))

    @cached_property
    def measured_memory(self) -> Ints:
        """Measured memory headroom, MiB; meaningless where `memory_available` is unknown."""
        available = self.sample.column("memory_available")
        ratio = to_milli(self.config.ram_overcommit_ratio)
        return measured_headroom(available, self.sample.memory_reserved, self.counter("pending_memory_mb"), ratio)

    @cached_property
    def measured_disk(self) -> Ints:
        """Measured disk headroom, GiB; meaningless where `disk_free_gb` is unknown."""
        available = self.sample.column("disk_free_gb")
        ratio = to_milli(self.config.disk_overcommit_ratio)
        return measured_headroom(available, self.sample.disk_reserved, self.counter("pending_disk_gb"), ratio)

    def room(self, dimension: str) -> Ints:
        """Return what each node has left in a dimension: by the ledger, and by measurement where it is measured."""
        if dimension == "cpus":
            return self.room_cpus
        if dimension == "memory_mb":
            return np.minimum(self.room_memory, self.measured_memory)
        if dimension == "disk_gb":
            return np.minimum(self.room_disk, self.measured_disk)
        return self.room_instances

    def over_demand(self, at: NDArray[np.intp]) -> Mask:
        """Return for the nodes at the given indices whether they are over their load target already."""
        target = to_milli(self.config.scheduler_target_load)
        load, threads = self.counter("cpu_load_1")[at], self.counter("cpu_schedulable")[at]
        if target <= 0:
            return np.zeros(len(at), dtype=np.bool_)
        over: Mask = over_demand_target(load, self.counter("expected_demand")[at], target, np.maximum(threads, 0))
        over &= (load != UNKNOWN) & (threads != UNKNOWN)
        return over


def charged(measured: Ints, committed: Ints) -> Ints:
    """Return `capacity.charged` of every node: the same formula in its fastest form for columns."""
    return np.maximum(measured, committed)


def row(matrix: Ints, at: int) -> Ints:
    """Return one column of the fleet, which is a row of the matrix."""
    column: Ints = matrix[at]
    return column
