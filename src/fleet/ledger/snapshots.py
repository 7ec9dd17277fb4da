"""Reading what a decision sees: node records as a whole, and only the rows that changed. Reads only, no locks.

Stamps are set before the commit, so a row can appear with a stamp older than one that was read already. A *quick* read
therefore overlaps a little, a *thorough* one by longer than any transaction may live; and everything is read again from
time to time, which also finds deletions. A read tells the database's time when it began, from which the next one
starts: the time and not the newest stamp, so that a burst of changes is read once or twice, and not before every
decision until the next change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping

from fleet.ledger import gpus
from fleet.ledger.database import Database, Sql, SqlOfLists, decimal_of
from fleet.ledger.gpus import NodeGpus
from fleet.model.gpu_inventory import GpuInventory
from fleet.model.node import CapacityRow, NodeRecord
from fleet.model.resources import Amounts, Limits

QUICK_OVERLAP_US = 50_000
THOROUGH_OVERLAP_US = 10_000_000

# The order of the columns is the contract of `Snapshot.update_counters`.
COUNTERS = """
    c.node_id, c.limit_cpus, c.limit_memory_mb, c.limit_disk_gb, c.limit_instances,
    c.used_cpus, c.used_memory_mb, c.used_disk_gb, c.used_instances, c.expected_demand,
    c.pending_memory_mb, c.pending_disk_gb, c.cpu_load_1, c.cpu_schedulable, c.state, c.scheduling, c.sample_at,
    c.counted, c.sleepy_memory_mb
"""
# One row at least, so that the database's time always comes along. A row is one JSON value: this runs before nearly
# every decision, and a driver in Python spends more on describing eighteen columns than on all else.
CHANGED = Sql(f"""
    SELECT t.now_us, c.updated_at, JSON_ARRAY({COUNTERS}) AS counters FROM (SELECT {{now}} AS now_us) t
    LEFT JOIN scheduler_node_capacity c ON c.updated_at > :since
""")
RECORDS = (
    """
    SELECT n.id, n.name, n.state AS node_state, n.scheduling AS node_scheduling, n.labels, n.region, n.arch, n.backend,
        n.sleepy_pool, n.max_instances, n.gpu_kind, m.metrics, m.sample_at AS measured_at, """
    + COUNTERS
    + """
    FROM nodes n LEFT JOIN node_metrics m ON m.node_id = n.id
    LEFT JOIN scheduler_node_capacity c ON c.node_id = n.id
    WHERE n.state <> 'deleted'
"""
)
PAGE = Sql(RECORDS + " AND n.id > :after ORDER BY n.id LIMIT :limit")
PAGE_NODES = 500
SINCE = Sql(RECORDS + " AND (m.updated_at > :cursor OR n.updated_at > :cursor)")
SOME = SqlOfLists(RECORDS + " AND n.id IN ({nodes})")
DECLARED = Sql(RECORDS + " AND n.updated_at > :cursor")
NOW = Sql("SELECT {now} AS now_us")
_MOVED = "SELECT node_id FROM {table} WHERE updated_at > :since"
# One row at least here too.
GPUS_CHANGED = Sql(
    "SELECT t.now_us, g.node_id FROM (SELECT {now} AS now_us) t LEFT JOIN ("
    + " UNION ".join(_MOVED.replace("{table}", table) for table in ("node_gpus", "node_gpu_pools"))
    + ") g ON g.node_id IS NOT NULL"
)


@dataclass(frozen=True, slots=True)
class Changes:
    """Ledger rows that changed. `rows` are tuples in the order of `Snapshot.update_counters`."""

    rows: Sequence[tuple[Any, ...]]
    now_us: int


@dataclass(frozen=True, slots=True)
class Records:
    """Whole nodes, and the database's time when reading began: what is stamped later is not among them."""

    records: Sequence[NodeRecord]
    now_us: int


@dataclass(frozen=True, slots=True)
class GpuChanges:
    """The GPUs, by node id, of the nodes on which some changed or changed hands."""

    inventories: Mapping[int, GpuInventory]
    now_us: int


def changed(db: Database, since: int) -> Changes:
    """Return the ledger rows stamped after `since`."""
    with db.read() as conn:
        found = CHANGED.run(conn, since=since).all()
    changed_rows = [row for row in found if row.updated_at is not None]
    rows = [tuple(json.loads(row.counters)) for row in changed_rows]
    return Changes(rows, int(found[0].now_us))


def gpus_changed(db: Database, since: int) -> GpuChanges:
    """Return the GPUs of nodes where a row of them was stamped after `since`."""
    with db.read() as conn:
        found = GPUS_CHANGED.run(conn, since=since).all()
        known = gpus.of_nodes(conn, [int(row.node_id) for row in found if row.node_id is not None])
    inventories = {node_id: one.inventory() for node_id, one in known.items()}
    return GpuChanges(inventories, int(found[0].now_us))


def everything(db: Database) -> Iterator[Records]:
    """Yield every node that is not deleted, in pages: thousands of samples at once would cost the process its memory.

    The stamps of all pages are those of the first moment, so nothing that changes meanwhile is missed later.
    """
    with db.read() as conn:
        now_us = int(NOW.run(conn).one().now_us)
    after = 0
    while True:
        with db.read() as conn:
            rows = PAGE.run(conn, after=after, limit=PAGE_NODES).mappings().all()
            records = _records(conn, rows)
        yield Records(records, now_us)
        if len(rows) < PAGE_NODES:
            return
        after = int(rows[-1]["id"])


def published_since(db: Database, cursor: int) -> Records:
    """Return the nodes that published or were declared anew after `cursor`, less the thorough overlap."""
    with db.read() as conn:
        now_us = int(NOW.run(conn).one().now_us)
        rows = SINCE.run(conn, cursor=cursor - THOROUGH_OVERLAP_US).mappings().all()
        return Records(_records(conn, rows), now_us)


def declared_since(db: Database, cursor: int) -> Sequence[NodeRecord]:
    """Return the nodes of which something was declared (or whose state changed) after `cursor`, less the overlap."""
    with db.read() as conn:
        return _records(conn, DECLARED.run(conn, cursor=cursor - THOROUGH_OVERLAP_US).mappings().all())


def some(db: Database, node_ids: Sequence[int]) -> Sequence[NodeRecord]:
    """Return the records of the nodes with these ids."""
    with db.read() as conn:
        return _records(conn, SOME.run(conn, {"nodes": node_ids}).mappings().all())


def _records(conn: Connection, rows: Sequence[RowMapping]) -> list[NodeRecord]:
    """Return the records of rows, with the GPUs of those that have any."""
    known = gpus.of_nodes(conn, [int(row["id"]) for row in rows])
    return [_record(row, known.get(row["id"]) or NodeGpus(kind=row["gpu_kind"])) for row in rows]


def _record(row: RowMapping, known_gpus: NodeGpus) -> NodeRecord:
    sized = row["node_id"] is not None
    return NodeRecord(
        name=row["name"],
        node_id=int(row["id"]),
        state=row["state"] if sized else row["node_state"],
        scheduling=row["scheduling"] if sized else row["node_scheduling"],
        sample_at_us=row["sample_at"] if sized else row["measured_at"],
        labels=_json(row["labels"]),
        region=row["region"],
        arch=row["arch"],
        backend=row["backend"],
        sleepy_pool=bool(row["sleepy_pool"]),
        max_instances=row["max_instances"],
        metrics=_json(row["metrics"]),
        capacity=_capacity(row) if sized else None,
        counted=bool(row["counted"]),
        gpu=known_gpus.inventory(),
    )


def _json(text: Any) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = json.loads(text) if text else {}
    return loaded


def _capacity(row: RowMapping) -> CapacityRow:
    return CapacityRow(
        limits=Limits(row["limit_cpus"], row["limit_memory_mb"], row["limit_disk_gb"], row["limit_instances"]),
        used=Amounts(row["used_cpus"], row["used_memory_mb"], row["used_disk_gb"], row["used_instances"]),
        expected_demand=decimal_of(row["expected_demand"]) or decimal_of(0),  # type: ignore[arg-type]
        pending_memory_mb=row["pending_memory_mb"],
        pending_disk_gb=row["pending_disk_gb"],
        sleepy_memory_mb=row["sleepy_memory_mb"],
    )
