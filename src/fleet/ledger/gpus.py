"""Who holds which GPU: units bound by their uuids, and pools where a node only counts.

Promise: whoever writes a row of `node_gpus` or `node_gpu_pools` holds its node's ledger row, so what is read under that
row is exact, and these rows wait for nobody. A unit is bound by a guarded update and given back by the charge that
holds it, on that charge's node alone: an instance that moves holds units on both nodes. Which units a request gets is
the law of `model/gpu_inventory.py`, the same that placement shows.

One exception: a unit that nobody holds and that its node misses is taken over by the node that reports it now, without
the row of the node that it leaves (`gpu_refresh.TAKE_OVER`). The unit's own guard makes that safe: nobody can be given
a missing unit, and every other write of one names its node, so whichever of two writers comes second matches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, RowMapping

from fleet.ledger import events
from fleet.ledger.database import Database, Sql, SqlOfLists
from fleet.model.admission import Charge
from fleet.model.gpu_inventory import GpuAsk, GpuDevice, GpuInventory, MigInstance, choose
from fleet.model.gpu_report import ReportedUnit, Unit

IDS_MAX = 500
"""Up to so many nodes are named in a statement; more are read by reading everything."""

_UNITS = """
    SELECT g.uuid, g.node_id, g.unit, g.position, g.model, g.profile, g.kind, g.parent_gpu_uuid, g.mig_capable,
        g.mig_mode, g.memory_mb, g.details, g.missing, g.bound_to
    FROM node_gpus g
"""
_POOLS = """
    SELECT n.id AS node_id, n.gpu_kind, p.profile, p.total, p.used FROM nodes n
    LEFT JOIN node_gpu_pools p ON p.node_id = n.id
"""
_ORDER = " ORDER BY g.node_id, g.position, g.uuid"
UNITS_OF_NODE = Sql(_UNITS + " WHERE g.node_id = :node_id" + _ORDER)
UNITS_OF_NODES = SqlOfLists(_UNITS + " WHERE g.node_id IN ({nodes})" + _ORDER)
UNITS = Sql(_UNITS + _ORDER)
POOLS_OF_NODE = Sql(_POOLS + " WHERE n.id = :node_id")
POOLS_OF_NODES = SqlOfLists(_POOLS + " WHERE n.id IN ({nodes})")
POOLS = Sql(_POOLS + " WHERE p.profile IS NOT NULL OR n.id IN (SELECT node_id FROM node_gpus)")
BOUND = Sql("SELECT uuid, missing FROM node_gpus WHERE bound_to = :instance_uuid AND node_id = :node_id ORDER BY uuid")
HELD = SqlOfLists(
    "SELECT uuid, node_id, bound_to FROM node_gpus WHERE bound_to IN ({instances}) ORDER BY position, uuid"
)
BIND = SqlOfLists("""
    UPDATE node_gpus SET bound_to = :instance_uuid, updated_at = {now}
    WHERE node_id = :node_id AND bound_to IS NULL AND missing = 0 AND (unit = 'slice' OR mig_mode = 0)
        AND uuid IN ({uuids})
""")
HELD_COUNTED = Sql("""
    SELECT gpus_counted FROM charges
    WHERE instance_uuid = :instance_uuid AND role = 'primary' AND node_id = :node_id
""")
TAKE_COUNTED = Sql("""
    UPDATE node_gpu_pools SET used = used + :count, updated_at = {now}
    WHERE node_id = :node_id AND profile = :profile AND used + :count <= total
""")
UNBIND = Sql("""
    UPDATE node_gpus SET bound_to = NULL, updated_at = {now} WHERE bound_to = :instance_uuid AND node_id = :node_id
""")
GIVE_COUNTED = Sql("""
    UPDATE node_gpu_pools SET used = {greatest}(0, used - :count), updated_at = {now}
    WHERE node_id = :node_id AND profile = :profile
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUnit:
    """A unit as the ledger knows it: as it was last reported, whether it still is, and the instance that holds it."""

    reported: ReportedUnit
    position: int
    missing: bool = False
    bound_to: str | None = None

    @property
    def uuid(self) -> str:
        """The unit's own uuid."""
        return self.reported.uuid

    @property
    def state(self) -> str:
        """One word for people: free, bound, missing, or cut (a whole card that serves slices only)."""
        if self.missing:
            return "missing"
        if self.bound_to is not None:
            return "bound"
        return "cut" if self.reported.mig_mode and self.reported.unit is Unit.CARD else "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Units that a node only counts."""

    total: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """All that the ledger knows of one node's GPUs. Pools are by MIG profile; the empty one is whole cards."""

    kind: str = ""
    units: tuple[HeldUnit, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=dict)

    def of(self, unit: Unit) -> tuple[HeldUnit, ...]:
        """Return its cards, or its slices, in inventory order."""
        return tuple(one for one in self.units if one.reported.unit is unit)

    def counts(self) -> dict[str, Pool]:
        """Return how many whole cards (under the empty name) and slices there are and are held, as people count.

        What is declared is the total; where nothing is, those that are there.
        """
        names = ["", *sorted({one.reported.profile for one in self.of(Unit.SLICE)} | (self.pools.keys() - {""}))]
        return {name: self._count(name) for name in names}

    def _count(self, profile: str) -> Pool:
        units = self.of(Unit.SLICE if profile else Unit.CARD)
        mine = [one for one in units if not profile or one.reported.profile == profile]
        declared = self.pools.get(profile, Pool(total=0, used=0))
        there = sum(not one.missing and (bool(profile) or not one.reported.mig_mode) for one in mine)
        return Pool(total=declared.total or there, used=declared.used + sum(one.bound_to is not None for one in mine))

    def inventory(self) -> GpuInventory:
        """Return it as placement sees it."""
        whole = self.pools.get("", Pool(total=0, used=0))
        counted = {profile: pool for profile, pool in self.pools.items() if profile}
        return GpuInventory(
            count=whole.total,
            used=whole.used,
            kind=self.kind,
            profiles={profile: pool.total for profile, pool in counted.items()},
            profiles_used={profile: pool.used for profile, pool in counted.items()},
            devices=tuple(_device(one) for one in self.of(Unit.CARD)),
            instances=tuple(_slice(one) for one in self.of(Unit.SLICE)),
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """What an instance got: units by uuid, or so many of a count."""

    uuids: tuple[str, ...] = ()
    counted: int = 0


NOTHING_TAKEN = Taken()


def of_node(conn: Connection, node_id: int) -> NodeGpus:
    """Return one node's GPUs: exact under its ledger row's lock."""
    pools = POOLS_OF_NODE.run(conn, node_id=node_id).mappings().all()
    units = UNITS_OF_NODE.run(conn, node_id=node_id).mappings()
    return _gpus(pools, [unit_of(row) for row in units])


def of_nodes(conn: Connection, node_ids: Sequence[int]) -> dict[int, NodeGpus]:
    """Return the GPUs of those nodes that have any."""
    if not node_ids:
        return {}
    wanted = frozenset(node_ids)
    if len(wanted) <= IDS_MAX:
        named = {"nodes": sorted(wanted)}
        units, pools = UNITS_OF_NODES.run(conn, named), POOLS_OF_NODES.run(conn, named)
    else:
        units, pools = UNITS.run(conn), POOLS.run(conn)
    found_units: dict[int, list[HeldUnit]] = {}
    for row in units.mappings():
        found_units.setdefault(int(row["node_id"]), []).append(unit_of(row))
    found_pools: dict[int, list[RowMapping]] = {}
    for row in pools.mappings():
        found_pools.setdefault(int(row["node_id"]), []).append(row)
    here = (found_units.keys() | found_pools.keys()) & wanted
    return {node_id: _gpus(found_pools.get(node_id, []), found_units.get(node_id, [])) for node_id in here}


def _gpus(pools: Iterable[RowMapping], units: Sequence[HeldUnit]) -> NodeGpus:
    rows = list(pools)
    return NodeGpus(
        kind=str(rows[0]["gpu_kind"]) if rows else "",
        units=tuple(units),
        pools={
            str(row["profile"]): Pool(total=int(row["total"]), used=int(row["used"]))
            for row in rows
            if row["profile"] is not None
        },
    )


def unit_of(row: RowMapping) -> HeldUnit:
    """Return the unit of a row of `node_gpus`."""
    reported = ReportedUnit(
        uuid=row["uuid"],
        unit=Unit(row["unit"]),
        model=row["model"],
        profile=row["profile"],
        kind=row["kind"],
        parent_gpu_uuid=row["parent_gpu_uuid"],
        mig_capable=bool(row["mig_capable"]),
        mig_mode=bool(row["mig_mode"]),
        memory_mb=row["memory_mb"],
        details=json.loads(row["details"]),
    )
    return HeldUnit(reported=reported, position=row["position"], missing=bool(row["missing"]), bound_to=row["bound_to"])


def _device(one: HeldUnit) -> GpuDevice:
    told = one.reported
    return GpuDevice(told.uuid, told.model, told.mig_capable, told.mig_mode, one.bound_to, one.missing)


def _slice(one: HeldUnit) -> MigInstance:
    told = one.reported
    return MigInstance(told.uuid, told.profile, told.kind, told.parent_gpu_uuid, one.bound_to, one.missing)


def take(conn: Connection, node_id: int, instance_uuid: str, asked: GpuAsk) -> Taken | None:
    """Give an instance what it asks for, the node's ledger row being held; None: too few are free, nothing changed."""
    chosen = choose(of_node(conn, node_id).inventory(), asked)
    if chosen is None:
        return None
    if chosen:
        taken, is_free = Taken(uuids=chosen), bind(conn, node_id, instance_uuid, chosen)
    else:
        binds = {"node_id": node_id, "profile": asked.profile, "count": asked.count}
        taken, is_free = Taken(counted=asked.count), TAKE_COUNTED.run(conn, binds).rowcount == 1
    if not is_free:
        return None
    payload = {"node_id": node_id, "gpu_uuids": list(taken.uuids), "gpus_counted": taken.counted}
    events.record(conn, "instance", instance_uuid, "gpus bound to instance", payload)
    return taken


def bind(conn: Connection, node_id: int, instance_uuid: str, uuids: Sequence[str]) -> bool:
    """Bind free units of the node to an instance; False: one is not free, and the caller must roll back."""
    matched = BIND.run(conn, {"uuids": uuids}, node_id=node_id, instance_uuid=instance_uuid).rowcount
    return matched == len(uuids)


def give_back(conn: Connection, charge: Charge) -> None:
    """Give back what a charge holds on its node, whose ledger row is held; nothing of other charges is touched."""
    if charge.gpus.count > charge.gpus_counted:
        UNBIND.run(conn, instance_uuid=charge.instance_uuid, node_id=charge.node_id)
    if charge.gpus_counted:
        give_counted(conn, charge.node_id, replace(charge.gpus, count=charge.gpus_counted))


def give_counted(conn: Connection, node_id: int, held: GpuAsk) -> None:
    """Take GPUs off the count of a node, whose ledger row is held."""
    GIVE_COUNTED.run(conn, node_id=node_id, profile=held.profile, count=held.count)


def counted_by(conn: Connection, instance_uuid: str, node_id: int) -> int:
    """Return how many GPUs of an instance's primary charge on a node are counted, that node's row being held."""
    return int(HELD_COUNTED.run(conn, instance_uuid=instance_uuid, node_id=node_id).scalar() or 0)


def held_by(db: Database, instance_uuid: str, node_id: int) -> dict[str, bool]:
    """Return the units that an instance holds on a node, by uuid, and whether each is missing."""
    with db.read() as conn:
        rows = BOUND.run(conn, instance_uuid=instance_uuid, node_id=node_id)
        return {str(row.uuid): bool(row.missing) for row in rows}


def held_by_each(conn: Connection, instances: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return the units that each of many instances holds on its own node."""
    found: dict[str, list[str]] = {}
    uuids = list(instances)
    for start in range(0, len(uuids), IDS_MAX):
        part = uuids[start : start + IDS_MAX]
        for row in HELD.run(conn, {"instances": part}):
            if row.node_id == instances[row.bound_to]:
                found.setdefault(row.bound_to, []).append(str(row.uuid))
    return {instance: tuple(held) for instance, held in found.items()}
