"""The truth about GPUs: each charge holds as many units on its node as it says, bound or counted, and nobody else any.

A unit's holder must be a charge on that unit's node; a pool's use is the sum of what charges count there. `differences`
reads only; `repair` sets one node right under its ledger row, by binding and unbinding whole units.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from fleet.ledger import events, gpus
from fleet.ledger.database import Sql
from fleet.model.gpu_inventory import GpuAsk, choose

CANNOT = "gpus of an instance cannot be bound"
TOLD_WITHIN_US = 86_400 * 1_000_000

_BOUND = "SELECT uuid, node_id, bound_to FROM node_gpus WHERE bound_to IS NOT NULL"
_HELD = "SELECT instance_uuid, node_id, gpus, gpus_counted, gpu_kind, gpu_profile FROM charges WHERE gpus > 0"
_POOLS = "SELECT node_id, profile, used FROM node_gpu_pools WHERE profile IS NOT NULL"
_OF_NODE = " AND node_id = :node_id"
BOUND = (Sql(_BOUND + " ORDER BY node_id, position, uuid"), Sql(_BOUND + _OF_NODE + " ORDER BY position, uuid"))
HELD = (Sql(_HELD), Sql(_HELD + _OF_NODE))
POOLS = (Sql(_POOLS), Sql(_POOLS + _OF_NODE))
OVER = Sql("""
    SELECT n.name, p.profile, p.used, p.total FROM node_gpu_pools p JOIN nodes n ON n.id = p.node_id
    WHERE p.used > p.total ORDER BY p.node_id, p.profile
""")
UNBIND_ONE = Sql("""
    UPDATE node_gpus SET bound_to = NULL, updated_at = {now}
    WHERE uuid = :uuid AND node_id = :node_id AND bound_to = :instance_uuid
""")
SET_USED = Sql("""
    UPDATE node_gpu_pools SET used = :used, updated_at = {now} WHERE node_id = :node_id AND profile = :profile
""")
ADD_POOL = Sql("""
    INSERT INTO node_gpu_pools (node_id, profile, total, used, updated_at) VALUES (:node_id, :profile, 0, :used, {now})
""")
TOLD = Sql("""
    SELECT id FROM events WHERE object_type = 'instance' AND object_id = :instance_uuid AND message = :message
        AND at > {now} - :within LIMIT 1
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDifference:
    """A node on which GPUs are not held as charges say: those of one instance, or the count of one pool."""

    node_id: int
    figure: str
    stored: int
    true: int
    asked: GpuAsk
    instance_uuid: str | None = None
    uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OverCount:
    """A pool of which more is held than its node declares."""

    node: str
    profile: str
    used: int
    total: int


def differences(conn: Connection, node_id: int | None = None) -> list[GpuDifference]:
    """Return what differs on every node, or on one. Exact in one snapshot, or under the one node's row."""
    at = 0 if node_id is None else 1
    binds = {} if node_id is None else {"node_id": node_id}
    bound: dict[tuple[int, str], list[str]] = defaultdict(list)
    for row in BOUND[at].run(conn, binds):
        bound[row.node_id, row.bound_to].append(row.uuid)
    due: Counter[tuple[int, str]] = Counter()
    counted: Counter[tuple[int, str]] = Counter()
    asked: dict[tuple[int, str], GpuAsk] = {}
    for row in HELD[at].run(conn, binds):
        due[row.node_id, row.instance_uuid] += int(row.gpus) - int(row.gpus_counted)
        counted[row.node_id, row.gpu_profile] += int(row.gpus_counted)
        asked[row.node_id, row.instance_uuid] = GpuAsk(0, row.gpu_kind, row.gpu_profile)
    used = {(int(row.node_id), str(row.profile)): int(row.used) for row in POOLS[at].run(conn, binds)}
    found = [
        GpuDifference(
            node_id=key[0],
            figure=f"gpus bound to {key[1]}",
            stored=len(bound.get(key, ())),
            true=due[key],
            asked=asked.get(key, GpuAsk(0)),
            instance_uuid=key[1],
            uuids=tuple(bound.get(key, ())),
        )
        for key in sorted(due.keys() | bound.keys())
        if len(bound.get(key, ())) != due[key]
    ]
    return found + [
        GpuDifference(
            node_id=key[0],
            figure=f"gpus_used {key[1]}".strip(),
            stored=used.get(key, 0),
            true=counted[key],
            asked=GpuAsk(0, profile=key[1]),
        )
        for key in sorted(counted.keys() | used.keys())
        if used.get(key, 0) != counted[key]
    ]


def over(conn: Connection) -> list[OverCount]:
    """Return the pools that hold more than is declared: legal, since a smaller declaration takes nothing away."""
    return [OverCount(row.name, row.profile, int(row.used), int(row.total)) for row in OVER.run(conn)]


def repair(conn: Connection, node_id: int) -> dict[str, tuple[int, int]]:
    """Set one node right, whose ledger row the caller holds. Return what was repaired: figure, stored, now."""
    repaired: dict[str, tuple[int, int]] = {}
    # What is held without a charge first: it may be what a charge lacks.
    for one in sorted(differences(conn, node_id), key=lambda item: item.stored < item.true):
        if one.instance_uuid is None:
            _set_used(conn, one)
        elif one.stored > one.true:
            _unbind(conn, one, one.uuids[one.true :])
        elif not _bind(conn, one):
            continue
        repaired[one.figure] = (one.stored, one.true)
    return repaired


def _set_used(conn: Connection, one: GpuDifference) -> None:
    binds = {"node_id": one.node_id, "profile": one.asked.profile, "used": one.true}
    if SET_USED.run(conn, binds).rowcount == 0:
        ADD_POOL.run(conn, binds)


def _unbind(conn: Connection, one: GpuDifference, surplus: Sequence[str]) -> None:
    for uuid in surplus:
        UNBIND_ONE.run(conn, uuid=uuid, node_id=one.node_id, instance_uuid=one.instance_uuid)
    _record(conn, one, "gpus of an instance corrected", {"unbound_uuids": list(surplus)}, "warning")


def _bind(conn: Connection, one: GpuDifference) -> bool:
    """Bind what a charge lacks, of the kind that it asked for; False: too few are free, which is told once a day."""
    assert one.instance_uuid is not None, "a pool is counted, not bound"
    wanted = GpuAsk(one.true - one.stored, one.asked.kind, one.asked.profile)
    uuids = choose(gpus.of_node(conn, one.node_id).inventory(), wanted)
    if uuids and gpus.bind(conn, one.node_id, one.instance_uuid, uuids):
        _record(conn, one, "gpus of an instance corrected", {"bound_uuids": list(uuids)}, "warning")
        return True
    if TOLD.run(conn, instance_uuid=one.instance_uuid, message=CANNOT, within=TOLD_WITHIN_US).first() is None:
        _record(conn, one, CANNOT, {"missing": wanted.count}, "error")
    return False


def _record(conn: Connection, one: GpuDifference, message: str, more: dict[str, object], level: str) -> None:
    payload = {"node_id": one.node_id, "bound": one.stored, "charged": one.true, **more}
    events.record(conn, "instance", str(one.instance_uuid), message, payload, level)
