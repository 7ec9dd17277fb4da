"""A node's GPUs as it reports them replace the inventory, by uuid; and what operators declare of counted ones.

Promise: run under the node's ledger row, like every writer of these rows; a unit that another node misses is taken over
without that node's (`gpus.py` says why it may). A unit that is known keeps whoever holds it, one that is gone is
*missing* and never free, one that returns is itself again. A uuid exists once in the fleet: one that another node still
has is refused, naming both, or skipped where the rest of a sample must not be lost with it.
GPUs that were only counted until the node told them apart are bound, so nobody gets them a second time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from fleet.ledger import events, gpus
from fleet.ledger.database import Sql, SqlOfLists
from fleet.ledger.gpus import HeldUnit
from fleet.model.errors import Conflict, InvalidRequest
from fleet.model.gpu_inventory import Form, GpuAsk, choose, form_of
from fleet.model.gpu_report import ReportedUnit, Unit, backend_problem, twins, unit_problem

EVENT_UUIDS_MAX = 32
FORGET_AFTER_US = 30 * 86_400 * 1_000_000
"""A unit that nobody holds is forgotten when it has been missing for so long: each new cut of a card has new uuids."""

_VALUES = (
    *("unit", "position", "model", "profile", "kind", "parent_gpu_uuid"),
    *("mig_capable", "mig_mode", "memory_mb", "details"),
)
UPDATE = Sql(
    "UPDATE node_gpus SET missing = 0, updated_at = {now}, "
    + ", ".join(f"{name} = :{name}" for name in _VALUES)
    + " WHERE uuid = :uuid AND node_id = :node_id"
)
# A uuid that another node reported at the same moment is no error of ours: no row is written, and that says it.
INSERT = Sql(
    f"INSERT {{ignore}} INTO node_gpus (uuid, node_id, {', '.join(_VALUES)}, missing, bound_to, updated_at) "
    f"VALUES (:uuid, :node_id, {', '.join(f':{name}' for name in _VALUES)}, 0, NULL, {{now}})",
    mysql_ignore="IGNORE",
    sqlite_ignore="OR IGNORE",
)
# A card that was taken out of one machine and put into another.
TAKE_OVER = Sql("""
    UPDATE node_gpus SET node_id = :node_id, updated_at = {now}
    WHERE uuid = :uuid AND node_id = :was_node_id AND missing = 1 AND bound_to IS NULL
""")
ELSEWHERE = SqlOfLists("""
    SELECT g.uuid, g.node_id, n.name, g.bound_to FROM node_gpus g JOIN nodes n ON n.id = g.node_id
    WHERE g.node_id <> :node_id AND g.uuid IN ({uuids}) ORDER BY g.uuid
""")
GONE = Sql("UPDATE node_gpus SET missing = 1, updated_at = {now} WHERE uuid = :uuid AND node_id = :node_id")
FORGET = Sql("""
    DELETE FROM node_gpus WHERE node_id = :node_id AND missing = 1 AND bound_to IS NULL
        AND updated_at < {now} - :forget_after_us
""")
COUNTED = Sql("""
    SELECT id, instance_uuid, gpus_counted, gpu_kind, gpu_profile FROM charges
    WHERE node_id = :node_id AND gpus_counted > 0 ORDER BY id {for_update}
""")
NOT_COUNTED = Sql("UPDATE charges SET gpus_counted = 0 WHERE id = :charge_id")
DECLARE = Sql(
    """
    INSERT INTO node_gpu_pools (node_id, profile, total, used, updated_at)
    VALUES (:node_id, :profile, :total, 0, {now})
    {conflict} total = :total, updated_at = {now}
    """,
    mysql_conflict="ON DUPLICATE KEY UPDATE",
    sqlite_conflict="ON CONFLICT (node_id, profile) DO UPDATE SET",
)
DECLARED = Sql("SELECT profile FROM node_gpu_pools WHERE node_id = :node_id AND profile <> ''")
SERVES = Sql("""
    SELECT n.backend,
        (SELECT COUNT(*) FROM node_gpu_pools p WHERE p.node_id = n.id AND p.total > 0)
        + (SELECT COUNT(*) FROM node_gpus g WHERE g.node_id = n.id AND g.missing = 0) AS gpus
    FROM nodes n WHERE n.id = :node_id
""")
FORGET_UNITS = Sql("DELETE FROM node_gpus WHERE node_id = :node_id")
FORGET_POOLS = Sql("DELETE FROM node_gpu_pools WHERE node_id = :node_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a node says of its GPUs now. None: it was not asked, so nothing is known anew; empty: it has none.

    `strict`: a problem refuses the report as a whole. Else what is sound is kept and the problems are told. `by`: who
    declares it; empty: the node measured it itself.
    """

    cards: Sequence[ReportedUnit] | None = None
    slices: Sequence[ReportedUnit] | None = None
    strict: bool = False
    by: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing at all."""
        return self.cards is None and self.slices is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node that reports."""

    node_id: int
    name: str
    backend: str


def refresh(conn: Connection, node: Node, report: Report) -> tuple[str, ...]:
    """Replace the node's inventory by what it reports; the problems of what was skipped are returned.

    Raises:
        InvalidRequest: a strict report breaks a rule.
        Conflict: a strict report names a unit that another node has.
    """
    if report.is_empty:
        return ()
    held = {one.uuid: one for one in gpus.of_node(conn, node.node_id).units}
    wanted, problems = _usable(node, report)
    problems += _cut_beneath_slices(node, report, wanted, held)
    if problems and report.strict:
        errors = [{"field": "gpus", "message": text} for text in problems]
        raise InvalidRequest(f"gpus: {'; '.join(problems)}", errors=errors)
    conflicts = _take_over(conn, node, [uuid for uuid in wanted if uuid not in held], report.by)
    changed: list[str] = []
    added: list[str] = []
    # In the order of the uuids, so that two reports that cross never wait for each other in a ring.
    for uuid in sorted(wanted.keys() - conflicts.keys()):
        before = held.get(uuid)
        if before == replace(wanted[uuid], bound_to=None if before is None else before.bound_to):
            continue
        if not _keep(conn, node, wanted[uuid]):
            conflicts[uuid] = f"{uuid!r} was reported by another node at the same moment; {node.name!r} reports it too"
            continue
        (added if before is None else changed).append(uuid)
    if conflicts and report.strict:
        raise Conflict("; ".join(conflicts[uuid] for uuid in sorted(conflicts)), gpus=sorted(conflicts))
    gone = [one for one in held.values() if _is_gone(one, report, wanted)]
    for one in sorted(gone, key=lambda item: item.uuid):
        GONE.run(conn, uuid=one.uuid, node_id=node.node_id)
    if added or changed or gone:
        FORGET.run(conn, node_id=node.node_id, forget_after_us=FORGET_AFTER_US)
        _record(conn, node, held, wanted, (added, changed, [one.uuid for one in gone]), by=report.by)
        _bind_counted(conn, node)
    return (*problems, *(conflicts[uuid] for uuid in sorted(conflicts)))


def _usable(node: Node, report: Report) -> tuple[dict[str, HeldUnit], list[str]]:
    """Return the units that can be kept, by uuid, and what is wrong with the others."""
    lists = [list(enumerate(part)) for part in (report.cards, report.slices) if part is not None]
    reported = [item for part in lists for item in part]
    uuids = {str(place): one.uuid for place, (_, one) in enumerate(reported)}
    doubled = dict.fromkeys(uuids[place] for place in twins(uuids))
    problems = [f"{uuid!r} stands twice in what {node.name!r} reports" for uuid in doubled]
    hindrance = backend_problem(node.backend) if reported else None
    if hindrance is not None:
        return {}, [f"node {node.name!r}: {hindrance}"]
    wanted: dict[str, HeldUnit] = {}
    for position, one in reported:
        problem = unit_problem(one)
        if problem is not None:
            problems.append(f"node {node.name!r}: {problem}")
        elif one.uuid not in wanted:
            wanted[one.uuid] = HeldUnit(reported=replace(one, profile=one.profile.lower()), position=position)
    return wanted, problems


def _cut_beneath_slices(
    node: Node, report: Report, wanted: dict[str, HeldUnit], held: Mapping[str, HeldUnit]
) -> list[str]:
    """Mark each card as cut that a slice is cut from, whatever is said of it; return for which that was not said.

    Nobody gets a card whole beside its slices. A list that was left out stays what is known.
    """
    cards = wanted if report.cards is not None else {**held, **wanted}
    slices = wanted if report.slices is not None else held
    cut: dict[str, str] = {}
    for uuid, one in sorted(slices.items()):
        card = cards.get(one.reported.parent_gpu_uuid) if one.reported.unit is Unit.SLICE and not one.missing else None
        if card is None or card.missing or card.reported.unit is not Unit.CARD or card.reported.mig_mode:
            continue
        cut.setdefault(card.reported.uuid, uuid)
    for uuid in cut:
        wanted[uuid] = replace(cards[uuid], reported=replace(cards[uuid].reported, mig_mode=True), bound_to=None)
    return [f"{uuid!r} of {node.name!r} must be in MIG mode: {one!r} is a slice of it" for uuid, one in cut.items()]


def _take_over(conn: Connection, node: Node, new: Sequence[str], by: str) -> dict[str, str]:
    """Take units that nobody holds and their node misses; return why not, for those that another node has."""
    refused: dict[str, str] = {}
    for row in _others(conn, node.node_id, new):
        binds = {"uuid": row.uuid, "node_id": node.node_id, "was_node_id": row.node_id}
        if TAKE_OVER.run(conn, binds).rowcount == 1:
            payload = {"gpu": row.uuid, "from": row.name, "to": node.name}
            for name in (row.name, node.name):
                events.record(conn, "node", name, "gpu moved to another node", payload, by=by)
            continue
        holds = f", bound to instance {row.bound_to}" if row.bound_to else ""
        refused[row.uuid] = f"{row.uuid!r} is node {row.name!r}'s{holds}; {node.name!r} reports it too"
    return refused


def _others(conn: Connection, node_id: int, uuids: Sequence[str]) -> Iterable[Any]:
    if not uuids:
        return ()
    return ELSEWHERE.run(conn, {"uuids": uuids}, node_id=node_id).all()


def _keep(conn: Connection, node: Node, one: HeldUnit) -> bool:
    """Write one unit; False: another node has it."""
    told = one.reported
    binds: dict[str, Any] = {
        "uuid": one.uuid,
        "node_id": node.node_id,
        "unit": str(told.unit),
        "position": one.position,
        "model": told.model,
        "profile": told.profile,
        "kind": told.kind,
        "parent_gpu_uuid": told.parent_gpu_uuid,
        "mig_capable": int(told.mig_capable),
        "mig_mode": int(told.mig_mode),
        "memory_mb": told.memory_mb,
        "details": json.dumps(dict(told.details), separators=(",", ":"), sort_keys=True),
    }
    return UPDATE.run(conn, binds).rowcount == 1 or INSERT.run(conn, binds).rowcount == 1


def _is_gone(one: HeldUnit, report: Report, wanted: Mapping[str, HeldUnit]) -> bool:
    told = report.cards if one.reported.unit is Unit.CARD else report.slices
    return told is not None and not one.missing and one.uuid not in wanted


def _record(
    conn: Connection,
    node: Node,
    held: Mapping[str, HeldUnit],
    wanted: Mapping[str, HeldUnit],
    what: tuple[Sequence[str], Sequence[str], Sequence[str]],
    *,
    by: str,
) -> None:
    """Record what changed, and tell the instances whose units are gone, cut into slices or back."""
    added, changed, gone = what
    figures = {"added": len(added), "changed": len(changed), "gone": len(gone)}
    lists = {"added_uuids": added, "changed_uuids": changed, "gone_uuids": gone}
    named = {name: uuids[:EVENT_UUIDS_MAX] for name, uuids in lists.items()}
    events.record(conn, "node", node.name, "gpu inventory changed", {**figures, **named}, by=by)
    for uuid in gone:
        _tell(conn, node, held[uuid], "instance bound to a gpu that is gone")
    for uuid in changed:
        if held[uuid].missing:
            _tell(conn, node, held[uuid], "gpu of an instance is back", level="info")
        if wanted[uuid].reported.mig_mode and not held[uuid].reported.mig_mode:
            _tell(conn, node, held[uuid], "instance bound to a gpu that is cut into slices")


def _tell(conn: Connection, node: Node, one: HeldUnit, message: str, level: str = "error") -> None:
    if one.bound_to is None:
        return
    payload = {"gpu": one.uuid, "node": node.name, "instance": one.bound_to}
    events.record(conn, "instance", one.bound_to, message, payload, level)
    events.record(conn, "node", node.name, message, payload, level)


def _bind_counted(conn: Connection, node: Node) -> None:
    """Bind GPUs that charges hold by count on a node that tells them apart now; which ones they are, nobody knows."""
    for row in COUNTED.run(conn, node_id=node.node_id).all():
        inventory = gpus.of_node(conn, node.node_id).inventory()
        asked = GpuAsk(int(row.gpus_counted), row.gpu_kind, row.gpu_profile)
        if form_of(inventory, asked) not in {Form.DEVICES, Form.MIG_INSTANCES}:
            continue
        uuids = choose(inventory, asked) or choose(inventory, replace(asked, kind=""))
        payload = {"node": node.name, "instance": row.instance_uuid, "gpus": asked.count, "gpu_uuids": uuids or ()}
        if uuids and gpus.bind(conn, node.node_id, row.instance_uuid, uuids):
            NOT_COUNTED.run(conn, charge_id=row.id)
            gpus.give_counted(conn, node.node_id, asked)
            message = "counted gpus of an instance are bound to cards"
            events.record(conn, "instance", row.instance_uuid, message, payload, "warning")
        else:
            message = "counted gpus of an instance match no free cards"
            events.record(conn, "instance", row.instance_uuid, message, payload, "error")
            events.record(conn, "node", node.name, message, payload, "error")


def declare(
    conn: Connection, node_id: int, *, count: int | None = None, profiles: Mapping[str, int] | None = None
) -> None:
    """Set what an operator declares of counted GPUs; None leaves it. What is used stays, also above a smaller total."""
    if count is not None:
        DECLARE.run(conn, node_id=node_id, profile="", total=count)
    if profiles is not None:
        known = [str(row.profile) for row in DECLARED.run(conn, node_id=node_id)]
        for profile in sorted({*known, *profiles}):
            DECLARE.run(conn, node_id=node_id, profile=profile, total=profiles.get(profile, 0))


def check_backend(conn: Connection, node_id: int) -> None:
    """Refuse what was just declared when the node has GPUs, declared or reported, that its hypervisor cannot serve.

    Raises:
        InvalidRequest: it cannot; the caller rolls back.
    """
    row = SERVES.run(conn, node_id=node_id).one()
    problem = backend_problem(str(row.backend)) if row.gpus else None
    if problem is not None:
        raise InvalidRequest(f"backend: {problem}", errors=[{"field": "backend", "message": problem}])


def forget(conn: Connection, node_id: int) -> None:
    """Forget all GPUs of a node that is removed; it holds no charge, so nobody holds one."""
    FORGET_UNITS.run(conn, node_id=node_id)
    FORGET_POOLS.run(conn, node_id=node_id)
