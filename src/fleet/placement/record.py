"""How snapshots and decisions are stored: small bytes that replay to the same decision.

Promise: `decode(base, *changes)` gives back a snapshot on which `decide` answers, for the same request and seed,
exactly what it answered on the original. A base holds everything; changes hold the rows that differ since a version,
as differences where that version was marked. They are applied in the order in which they are given.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fleet.model.cluster_config import ClusterConfig
from fleet.model.decision import Decision
from fleet.model.gpu_inventory import NO_GPUS, GpuInventory
from fleet.placement.columns import LEDGER, LEDGER_AT, SAMPLE, UNKNOWN, UNLIMITED, Ints
from fleet.placement.document import instance_form, read_instance
from fleet.placement.frame import NO_TRAITS, Frame, Roster, Sample, Traits
from fleet.placement.gpus import GpuTable, inventory_form, inventory_of
from fleet.placement.instances import InstanceRecord
from fleet.placement.neighbours import InstanceIndex
from fleet.placement.snapshot import Snapshot

BASE: Final = b"fleet-base-1\n"
CHANGES: Final = b"fleet-changes-1\n"
DECISION: Final = b"fleet-decision-1\n"
LEVEL: Final = 1
STORED_NODES_MAX: Final = 200
"""Of the ranked nodes, and of the dropped ones for each reason, this many are stored or shown."""

_SAMPLE_AT = LEDGER_AT["sample_at_us"]
_ENDS: Final = {kind: (int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in ("i1", "i2", "i4")}


def pack(values: Ints) -> tuple[str, bytes]:
    """Return whole numbers in the narrowest type that holds them. Its two ends stand for unknown and unlimited."""
    kind = _narrowest(values)
    if kind is None:
        unknown, unlimited = values == UNKNOWN, values == UNLIMITED
        kind = _narrowest(values[~(unknown | unlimited)])
        if kind is not None:
            low, high = _ENDS[kind]
            values = np.where(unknown, low, np.where(unlimited, high, values))
    return kind or "i8", values.astype(f"<{kind or 'i8'}").tobytes()


def _narrowest(values: Ints) -> str | None:
    """Return the first type that holds all values between its two ends; None: none does."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return next((kind for kind, (least, most) in _ENDS.items() if least < low and high < most), None)


def unpack(kind: str, data: bytes) -> Ints:
    """Return what `pack` was given."""
    values = np.frombuffer(data, dtype=f"<{kind}").astype(np.int64)
    if kind == "i8":
        return values
    low, high = _ENDS[kind]
    found = np.where(values == low, UNKNOWN, np.where(values == high, UNLIMITED, values))
    return found.astype(np.int64)


class Writer:
    """A header of JSON and the blobs it describes."""

    def __init__(self) -> None:
        """Start without blobs."""
        self.blobs: list[bytes] = []

    def column(self, values: Ints) -> list[str | int]:
        """Add a column of whole numbers; return what describes it in the header."""
        kind, data = pack(values)
        self.blobs.append(data)
        return [kind, len(data)]

    def finish(self, magic: bytes, header: Mapping[str, Any]) -> bytes:
        """Return the magic word, and compressed after it the header and the blobs in the order they were added."""
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        return magic + zlib.compress(struct.pack("<I", len(text)) + text + b"".join(self.blobs), LEVEL)


class Source:
    """The header, and the blobs in the order in which they were written."""

    def __init__(self, magic: bytes, data: bytes) -> None:
        """Read the header.

        Raises:
            ValueError: the bytes do not begin with the magic word.
        """
        if not data.startswith(magic):
            raise ValueError(f"these {len(data)} bytes are not {magic.decode().strip()}")
        body = zlib.decompress(data[len(magic) :])
        (length,) = struct.unpack_from("<I", body)
        self.header: dict[str, Any] = json.loads(body[4 : 4 + length])
        self._body, self._at = body, 4 + length

    def blob(self, length: int) -> bytes:
        """Return the next so many bytes."""
        self._at += length
        return self._body[self._at - length : self._at]

    def column(self, described: Sequence[Any]) -> Ints:
        """Return the next column, as its description in the header says."""
        return unpack(described[0], self.blob(described[1]))


def encode_base(snapshot: Snapshot) -> bytes:
    """Return everything a decision may see, and mark this version so that changes since can be small."""
    frame, writer = snapshot.frame, Writer()
    snapshot.mark()
    ledger = frame.ledger.copy()
    ledger[_SAMPLE_AT] = _shift(ledger[_SAMPLE_AT], -frame.now_us)
    roster = frame.roster
    header = {
        "now_us": frame.now_us,
        "config": frame.config.to_mapping(),
        "names": roster.names,
        "traits": [[at, _traits_form(traits)] for at, traits in enumerate(roster.traits) if traits != NO_TRAITS],
        "instances": [instance_form(instance) for instance in frame.instances.values()],
        "gpus": [[at, inventory_form(one)] for at, one in frame.gpus.inventories().items()],
        "node_ids": writer.column(np.array(roster.node_ids, dtype=np.int64)),
        "ledger": [[name, *writer.column(ledger[at])] for at, name in enumerate(LEDGER)],
        "sample": [[name, *writer.column(frame.sample.matrix[at])] for at, name in enumerate(SAMPLE)],
    }
    return writer.finish(BASE, header)


def encode_changes(snapshot: Snapshot, since_version: int) -> bytes:
    """Return the rows that changed after a version of this snapshot.

    Raises:
        ValueError: the nodes or the configuration changed since; store a new base instead.
    """
    if snapshot.layout_version > since_version:
        raise ValueError(
            f"nodes or configuration changed at version {snapshot.layout_version}, after {since_version}: "
            "these need a new base"
        )
    frame, writer = snapshot.frame, Writer()
    before = snapshot.marked(since_version)
    header: dict[str, Any] = {"now_us": frame.now_us, "relative": before is not None}
    for key, rows, now, then in (
        ("ledger", snapshot.rows_changed_since(since_version), frame.ledger, None if before is None else before.ledger),
        (
            "sample",
            snapshot.samples_changed_since(since_version),
            frame.sample.matrix,
            None if before is None else before.sample.matrix,
        ),
    ):
        if len(rows):
            header[key] = _differences(writer, rows, now, then)
    gpus = snapshot.gpus_changed_since(since_version)
    if len(gpus):
        header["gpus"] = [[int(at), inventory_form(frame.gpus.inventory(int(at)))] for at in gpus]
    return writer.finish(CHANGES, header)


def _differences(writer: Writer, rows: NDArray[np.intp], now: Ints, then: Ints | None) -> dict[str, Any]:
    """Write the columns in which `rows` differ; without a former state, all columns as they are."""
    steps = np.diff(rows, prepend=0).astype(np.int64)
    described: dict[str, Any] = {"rows": writer.column(steps), "columns": []}
    values = now[:, rows] if then is None else now[:, rows] - then[:, rows]
    for at in range(len(values)) if then is None else np.flatnonzero(values.any(axis=1)).tolist():
        described["columns"].append([at, *writer.column(values[at])])
    return described


@dataclass(frozen=True, slots=True)
class DecodedBase:
    """A base that was read once; the snapshots of many decisions on it are made of it."""

    roster: Roster
    config: ClusterConfig
    now_us: int
    ledger: Ints = field(repr=False)
    sample: Ints = field(repr=False)
    gpus: Mapping[int, GpuInventory] = field(repr=False)
    table: GpuTable = field(repr=False)
    instances: Mapping[str, InstanceRecord] = field(repr=False)

    def with_changes(self, *changes: bytes) -> Snapshot:
        """Return the snapshot with changes applied, in order; the base stays what it is."""
        ledger, sample, now_us = self.ledger.copy(), self.sample.copy(), self.now_us
        gpus: dict[int, GpuInventory] = {}
        for blob in changes:
            more = Source(CHANGES, blob)
            now_us = more.header["now_us"]
            for key, matrix in (("ledger", ledger), ("sample", sample)):
                if key in more.header:
                    _apply(more, more.header[key], matrix, relative=more.header["relative"])
            gpus |= {at: inventory_of(form) for at, form in more.header.get("gpus", [])}
        table = _table({**self.gpus, **gpus}, len(self.roster.names)) if gpus else self.table
        index = InstanceIndex(self.instances.values())
        return Snapshot(Frame(self.roster, ledger, Sample(sample, self.config), now_us, index, table))


def decode_base(base: bytes) -> DecodedBase:
    """Return a base, read.

    Raises:
        ValueError: bytes of another kind.
    """
    source = Source(BASE, base)
    header = source.header
    config = ClusterConfig.from_mapping(header["config"], ignore_unknown=True)
    node_ids = source.column(header["node_ids"]).tolist()
    ledger = _matrix(source, header["ledger"], LEDGER)
    sample = _matrix(source, header["sample"], SAMPLE)
    ledger[_SAMPLE_AT] = _shift(ledger[_SAMPLE_AT], header["now_us"])
    traits = [NO_TRAITS] * len(header["names"])
    gpus = {at: inventory_of(form) for at, form in header.get("gpus", [])}
    for at, form in header["traits"]:
        # Versions before GPUs had a place of their own kept what was declared of them among the traits.
        gpus.setdefault(at, inventory_of(form.pop("gpu", {})))
        traits[at] = Traits(**form)
    return DecodedBase(
        roster=Roster(header["names"], node_ids, traits),
        config=config,
        now_us=header["now_us"],
        ledger=ledger,
        sample=sample,
        gpus=gpus,
        table=_table(gpus, len(header["names"])),
        instances={item["uuid"]: read_instance(item) for item in header["instances"]},
    )


def decode(base: bytes, *changes: bytes) -> Snapshot:
    """Return the snapshot of a base with changes applied, in order.

    Raises:
        ValueError: bytes of another kind.
    """
    return decode_base(base).with_changes(*changes)


def _table(gpus: Mapping[int, GpuInventory], length: int) -> GpuTable:
    return GpuTable.of([gpus.get(at, NO_GPUS) for at in range(length)])


def _apply(source: Source, described: Mapping[str, Any], matrix: Ints, *, relative: bool) -> None:
    rows = np.cumsum(source.column(described["rows"]))
    for at, *column in described["columns"]:
        values = source.column(column)
        matrix[at, rows] = matrix[at, rows] + values if relative else values


def _matrix(source: Source, described: Sequence[Sequence[Any]], names: Sequence[str]) -> Ints:
    """Return the columns by name: one that an older version did not write is unknown, one nobody knows is skipped."""
    found = {name: source.column(column) for name, *column in described}
    length = len(next(iter(found.values()))) if found else 0
    missing = np.full(length, UNKNOWN, dtype=np.int64)
    return np.array([found.get(name, missing) for name in names], dtype=np.int64).reshape(len(names), length)


def _shift(times: Ints, by: int) -> Ints:
    return np.where(times == UNKNOWN, UNKNOWN, times + by)


def _traits_form(traits: Traits) -> dict[str, Any]:
    form = {
        "labels": dict(traits.labels),
        "region": traits.region,
        "arch": traits.arch,
        "backend": traits.backend,
        "sleepy_pool": traits.sleepy_pool,
    }
    return {name: value for name, value in form.items() if value}


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision as it is stored. Indexes are those of the stored snapshot; names come from there.

    `dropped` holds every dropped node as a mask by stage and reason; `ranked` the first of the ranked ones.
    """

    outcome: str
    code: str | None
    stage: str | None
    transient: bool
    strategy: str
    seed: int
    version: str
    summary: str
    remedy: str
    node_count: int
    ranked_count: int
    ranked: NDArray[np.intp] = field(repr=False)
    counts: Mapping[str, Mapping[str, int]] = field(repr=False)
    dropped: Mapping[str, Mapping[str, NDArray[np.bool_]]] = field(repr=False)

    def as_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the stored form as JSON; with the snapshot's names, nodes are named, else they are indexes."""
        name_of: Callable[[int], str | int] = int if names is None else names.__getitem__
        out: dict[str, Any] = {
            "outcome": self.outcome,
            "code": self.code,
            "stage": self.stage,
            "transient": self.transient,
            "strategy": self.strategy,
            "seed": self.seed,
            "version": self.version,
            "summary": self.summary,
            "nodes": self.node_count,
            "ranked_total": self.ranked_count,
            "ranked": [name_of(int(at)) for at in self.ranked],
            "counts": {stage: dict(reasons) for stage, reasons in self.counts.items()},
            "dropped": {
                stage: {
                    reason: [name_of(int(at)) for at in np.flatnonzero(mask)[:STORED_NODES_MAX]]
                    for reason, mask in reasons.items()
                }
                for stage, reasons in self.dropped.items()
            },
        }
        return {**out, "remedy": self.remedy} if self.remedy else out


def encode_decision(decision: Decision, version: str = "") -> bytes:
    """Return what is stored of a decision; `version` is the product's. Never a list of all nodes."""
    writer = Writer()
    ranked = decision.ranked_indices[:STORED_NODES_MAX].astype(np.int64)
    header: dict[str, Any] = {
        "outcome": str(decision.outcome),
        "code": decision.code,
        "stage": decision.stage,
        "transient": decision.transient,
        "strategy": decision.strategy,
        "seed": decision.seed,
        "version": version,
        "summary": decision.summary,
        "remedy": decision.remedy,
        "nodes": decision.node_count,
        "ranked_total": len(decision.ranked_indices),
        "ranked": writer.column(ranked),
        "dropped": [],
    }
    for stage, reasons in decision.evidence.masks().items():
        for reason, mask in reasons.items():
            bits = np.packbits(mask).tobytes()
            writer.blobs.append(bits)
            header["dropped"].append([stage, reason, int(np.count_nonzero(mask)), len(bits)])
    return writer.finish(DECISION, header)


def decode_decision(data: bytes) -> StoredDecision:
    """Return what was stored of a decision.

    Raises:
        ValueError: bytes of another kind.
    """
    source = Source(DECISION, data)
    header = source.header
    ranked = source.column(header.pop("ranked")).astype(np.intp)
    counts: dict[str, dict[str, int]] = {}
    dropped: dict[str, dict[str, NDArray[np.bool_]]] = {}
    for stage, reason, count, length in header.pop("dropped"):
        bits = np.frombuffer(source.blob(length), dtype=np.uint8)
        counts.setdefault(stage, {})[reason] = count
        dropped.setdefault(stage, {})[reason] = np.unpackbits(bits, count=header["nodes"]).astype(np.bool_)
    return StoredDecision(
        **{name: value for name, value in header.items() if name not in {"nodes", "ranked_total"}},
        node_count=header["nodes"],
        ranked_count=header["ranked_total"],
        ranked=ranked,
        counts=counts,
        dropped=dropped,
    )
