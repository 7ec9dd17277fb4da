"""Admission: the atomic guarded capacity claim. Every growth in use passes through `admit`, and nothing else grows use.

One transaction a candidate, READ COMMITTED, no SELECT before the first guarded write:

    1. the node's row     guarded: room in every dimension, demand, state, scheduling, sample age; never waits
       rules              judged again, when the instance has any, on what is committed (`locked_rules.py`)
       its GPUs           when any are asked for: units by uuid, or a guarded count, exact under that row
    2. the caller's key   the idempotency key, when there is one
    3. the charge         reads its payer itself (a covering claim, or the cluster); then instance, decision, operation
    4. the payer's claim  guarded only under hard enforcement
    5. the cluster's row  guarded; last, so that the only hot row is held for one statement and the commit

Steps 3 and 5 travel in one batch: the cluster's guard asks the charge itself whether the cluster pays. A charge that
grows where it is (`ledger/growth.py`) passes the same statements with what is added, and is rewritten in step 3; which
amounts each guard is to judge, `ledger/ask.py` says.

A guard that matches no row *is* the refusal: the transaction is rolled back and the figures are read afterwards, so
they can differ from what the guard saw. The lock order of every writer is nodes by id, GPUs, idempotency key, charges,
instances, operations, claims by id, cluster. Source: decisions, section "Admission".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fleet.ledger import events, gpus, held, locked_rules, node_rows, payer, refusal, release, totals
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import (
    LOCK_WAIT_TIMEOUT,
    STATEMENT_TIMEOUT,
    Batch,
    Database,
    Sql,
    Trouble,
    error_number,
    trouble,
)
from fleet.model.admission import AdmissionOutcome, Admitted, AlreadyPlaced, Busy, Charge, RuleBroken, Stage
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts, DimensionFigure
from fleet.placement.walk import FINAL_WAIT_SECONDS


def nothing(_target: Connection | Batch) -> None:
    """Write no further rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The caller's rows, which stand or fall with the charge, each part written at its place in the lock order:

        key      before the charge: the idempotency key
        changed  after it: changes to rows that exist
        new      last, in one batch: rows whose keys nobody else can hold (the instance, its decision, its operation);
                 a new charge that a payer pays travels in that batch, with the cluster's guard, if nothing is `changed`

    Whatever they raise rolls everything back and is passed on.
    """

    key: Callable[[Connection], None] = nothing
    new: Callable[[Batch], None] = nothing
    changed: Callable[[Connection], None] = nothing


NO_ROWS = Rows()

UNGUARDED: Final = "instance placed without capacity guard"


class _GuardRefused(Exception):
    def __init__(self, stage: Stage, payer: str | None = None) -> None:
        self.stage = stage
        self.payer = payer


class _RowLocked(Exception):
    """The node's row is locked by another transaction."""


class _RuleBroken(Exception):
    """A rule that the instance brings does not hold on the node; `args` names it."""


class _ChargeStands(Exception):
    """The instance holds a charge already."""


class NewRowRefused(Exception):
    """A new row's own condition did not hold (its namespace was deleted meanwhile): everything was rolled back."""


_USE = """
    used_cpus = used_cpus + :cpus,
    used_memory_mb = used_memory_mb + :memory_mb,
    used_disk_gb = used_disk_gb + :disk_gb,
    used_instances = used_instances + :instances,
    pending_memory_mb = pending_memory_mb + :memory_mb,
    pending_disk_gb = pending_disk_gb + :disk_gb,
    sleepy_memory_mb = sleepy_memory_mb + :sleepy_memory_mb,
    expected_demand = ROUND(expected_demand + :demand, 3),
    generation = generation + 1,
    updated_at = {now}
"""

_GUARDS = """
    AND state = 'active' AND (scheduling = :scheduling OR scheduling = :or_scheduling) AND counted = 1
    AND sample_at > {now} - :sample_age_max_us
    AND (:cpus <= :unjudged OR limit_cpus IS NULL OR used_cpus + :cpus <= limit_cpus)
    AND (:memory_mb <= :unjudged OR limit_memory_mb IS NULL OR used_memory_mb + :memory_mb <= limit_memory_mb)
    AND (:disk_gb <= :unjudged OR limit_disk_gb IS NULL OR used_disk_gb + :disk_gb <= limit_disk_gb)
    AND (:instances <= :unjudged OR limit_instances IS NULL OR used_instances + :instances <= limit_instances)
    AND (:target_load <= 0 OR :cpus <= :unjudged OR cpu_load_1 IS NULL OR cpu_schedulable IS NULL
         OR ROUND(cpu_load_1 + expected_demand - :target_load * cpu_schedulable, 3) <= 0)
"""

# The demand clause leaves the request out on purpose: it asks whether the node is over its target already.
NODE_GUARD = Sql(
    "{nowait} UPDATE scheduler_node_capacity SET " + _USE + " WHERE node_id = :node_id" + _GUARDS,
    mysql_nowait="SET STATEMENT innodb_lock_wait_timeout = 0 FOR",
)

# The one final wait of a walk: bounded by the statement's time, since a lock wait is counted in whole seconds.
NODE_GUARD_WAITING = Sql(
    "{bounded} UPDATE scheduler_node_capacity SET " + _USE + " WHERE node_id = :node_id" + _GUARDS,
    mysql_bounded=f"SET STATEMENT max_statement_time = {FINAL_WAIT_SECONDS} FOR",
)

NODE_FORCED = Sql("UPDATE scheduler_node_capacity SET " + _USE + " WHERE node_id = :node_id")

CHARGE = Sql("""
    INSERT INTO charges (instance_uuid, role, node_id, namespace, payer,
                         cpus, memory_mb, disk_gb, instances, placed_at, settled_at,
                         gpus, gpus_counted, gpu_kind, gpu_profile, sleepy)
    SELECT :instance_uuid, :role, :node_id, :namespace,
           (SELECT uuid FROM namespace_claims WHERE active_namespace = :payer_of AND expires_at > {now}),
           :cpus, :memory_mb, :disk_gb, :instances, {now}, NULL,
           :gpus, :gpus_counted, :gpu_kind, :gpu_profile, :sleepy
    RETURNING payer
""")

# In its size: what the source was credited must be what the charge holds.
CHARGE_MOVED = Sql("""
    UPDATE charges SET node_id = :node_id, placed_at = {now}, settled_at = NULL,
        grown_cpus = 0, grown_memory_mb = 0, grown_disk_gb = 0, grown_at = NULL, gpus_counted = :gpus_counted
    WHERE instance_uuid = :instance_uuid AND role = 'primary' AND node_id = :source AND settled_at IS NULL
        AND cpus = :cpus AND memory_mb = :memory_mb AND disk_gb = :disk_gb
        AND gpus = :gpus AND gpu_kind = :gpu_kind AND gpu_profile = :gpu_profile AND sleepy = :sleepy
""")

CHARGE_STANDS = Sql("""
    SELECT node_id FROM charges WHERE instance_uuid = :instance_uuid AND role = :role {for_update}
""")

IS_UNCOUNTED = Sql("SELECT node_id FROM scheduler_node_capacity WHERE counted = 0 AND node_id = :node_id")


def admit(db: Database, ask: NodeAsk, rows: Rows = NO_ROWS) -> AdmissionOutcome:
    """Try to charge `ask.instance_uuid` to `ask.node_id`, with all rows that must stand or fall with the charge.

    Returns:
        Admitted, AlreadyPlaced (the instance holds its charge, in the size asked for: safe to repeat), Refused (figures
        read after the rollback; `ineligible` also where a charge to grow is not what it was read to be), Busy (the
        node's row, or one of a group that its rules ask about, is locked) or RuleBroken: both prove nothing about room.

    Raises:
        DatabaseUnavailable: nothing is known; the caller must not read it as "full".
    """

    def work(conn: Connection) -> AdmissionOutcome:
        return _admit(conn, ask, rows)

    try:
        return db.unit(work, on_lost=lambda: _read_back(db, ask))
    except _GuardRefused as refused:
        return refusal.explain(db, ask, refused.stage, refused.payer)
    except (_RowLocked, locked_rules.GroupLocked):
        return Busy(ask.node_id)
    except _RuleBroken as broken:
        return RuleBroken(ask.node_id, str(broken))
    except held.NotAsHeld as differs:
        return differs.outcome
    except _ChargeStands:
        with db.read() as conn:
            row = CHARGE_STANDS.run(conn, _parameters(ask)).first()
        if row is None:
            # Released between the duplicate and this read; nothing of ours stands, and a new try may be made.
            return Busy(ask.node_id)
        return AlreadyPlaced(int(row.node_id))


def _admit(conn: Connection, ask: NodeAsk, rows: Rows) -> Admitted:
    params = _parameters(ask)
    unguarded, change = _charge_nodes(conn, ask, params)
    _judge_rules(conn, ask)
    taken = _take_gpus(conn, ask, params)
    # What no node's row guards, the cluster's does not guard either: an unsized node is in no total.
    cluster_guard = payer.CLUSTER_GUARD if ask.enforce and not unguarded else payer.CLUSTER_FORCED
    rows.key(conn)
    if ask.in_place:
        pays, over_claim, shrunk = _change_size(conn, ask, params, rows, cluster_guard)
        change += shrunk
    elif ask.charges_payer and rows.changed is nothing:
        pays, over_claim = _charge_together(conn, ask, params, rows, cluster_guard)
    else:
        named = _insert_charge(conn, params) if ask.source is None else _move_charge(conn, params)
        _write(conn, rows)
        pays, over_claim = None, ()
        if ask.charges_payer:
            named = payer.recorded(conn, ask) if ask.incoming else named
            pays, over_claim = _charge_payer(conn, ask, params, named, cluster_guard)
    _correct_totals(conn, ask, params, change)
    if unguarded and ask.enforce:
        named_node = {"node": node_rows.name_of(conn, ask.node_id)}
        events.record(conn, "instance", ask.instance_uuid, UNGUARDED, named_node, level="warning")
    return Admitted(ask.node_id, pays, over_claim, unguarded=unguarded, gpu_uuids=taken.uuids)


def _write(conn: Connection, rows: Rows) -> None:
    rows.changed(conn)
    batch = Batch(conn)
    rows.new(batch)
    batch.send()


def _parameters(ask: NodeAsk) -> dict[str, Any]:
    return {
        "instance_uuid": ask.instance_uuid,
        "namespace": ask.namespace,
        "role": "incoming" if ask.incoming else "primary",
        # An incoming charge has no payer: no namespace of that name holds a claim.
        "payer_of": "" if ask.incoming else ask.namespace,
        "node_id": ask.node_id,
        **ask.charged.as_dict(),
        "unjudged": ask.unjudged,
        "scheduling": ask.schedulings[0],
        "or_scheduling": ask.schedulings[1],
        "gpus": ask.gpus.count,
        "gpus_counted": 0,
        "gpu_kind": ask.gpus.kind,
        "gpu_profile": ask.gpus.profile,
        "sleepy": int(ask.sleepy),
        "sleepy_memory_mb": ask.charged.memory_mb if ask.sleepy else 0,
        "demand": ask.demand,
        "target_load": ask.target_load,
        "sample_age_max_us": ask.sample_age_max_seconds * 1_000_000,
        "source": ask.source,
    }


def _charge_nodes(conn: Connection, ask: NodeAsk, params: dict[str, Any]) -> tuple[bool, totals.Change]:
    """Charge the destination and credit the source, in the order of their ids.

    Returns:
        Whether no guard was there, and what crediting the source changes in the totals.
    """
    change = totals.Change()
    if ask.source is not None and ask.source < ask.node_id:
        change = _credit_source(conn, ask, ask.source)
    unguarded = _charge_node(conn, ask, params)
    if ask.source is not None and ask.source > ask.node_id:
        change = _credit_source(conn, ask, ask.source)
    return unguarded, change


def _judge_rules(conn: Connection, ask: NodeAsk) -> None:
    if ask.enforced is None:
        return
    broken = locked_rules.broken(
        conn, ask.enforced, node_id=ask.node_id, namespace=ask.namespace, instance_uuid=ask.instance_uuid
    )
    if broken:
        raise _RuleBroken(broken)


def _take_gpus(conn: Connection, ask: NodeAsk, params: dict[str, Any]) -> gpus.Taken:
    """Give the instance its GPUs, if it asks for any; a charge that is there keeps those it has."""
    if not ask.gpus.count or ask.in_place:
        return gpus.NOTHING_TAKEN
    taken = gpus.take(conn, ask.node_id, ask.instance_uuid, ask.gpus)
    if taken is None and ask.enforce:
        raise _GuardRefused(Stage.GPU)
    if taken is None:
        # The domain is there; which GPUs it has, if any, nobody can say, so its charge holds none.
        params["gpus"] = 0
        payload = {"node_id": ask.node_id, "gpus": ask.gpus.count}
        message = "gpus of an instance are not known where its domain is"
        events.record(conn, "instance", ask.instance_uuid, message, payload, level="error")
        return gpus.NOTHING_TAKEN
    params["gpus_counted"] = taken.counted
    return taken


def _charge_node(conn: Connection, ask: NodeAsk, params: dict[str, Any]) -> bool:
    statement = NODE_FORCED if not ask.enforce else NODE_GUARD_WAITING if ask.wait else NODE_GUARD
    try:
        matched = statement.run(conn, params).rowcount
    except DBAPIError as error:
        if ask.enforce and error_number(error) in {LOCK_WAIT_TIMEOUT, STATEMENT_TIMEOUT}:
            raise _RowLocked from error
        raise
    if matched == 1:
        return False
    if not ask.enforce:
        # The capacity row may have come since; it does not from here on.
        refusal.hold_unsized(conn, ask.node_id)
        return statement.run(conn, params).rowcount == 0
    if ask.admit_unsized and refusal.is_unsized(conn, ask.node_id):
        return True
    raise _GuardRefused(Stage.NODE)


def _credit_source(conn: Connection, ask: NodeAsk, source: int) -> totals.Change:
    """Credit the node that holds the draft until now; what it held too little of is recorded."""
    draft = Charge(
        charge_id=0,
        instance_uuid=ask.instance_uuid,
        namespace=ask.namespace,
        node_id=source,
        role="primary",
        payer=None,
        amounts=ask.amounts,
        placed_at_us=0,
        settled_at_us=None,
        gpus=ask.gpus,
        gpus_counted=gpus.counted_by(conn, ask.instance_uuid, source) if ask.gpus.count else 0,
        sleepy=ask.sleepy,
    )
    clamped: list[tuple[str, int]] = []
    change = release.credit_node(conn, draft, release.lock_node(conn, source), clamped)
    release.record_clamps(conn, ask.instance_uuid, clamped)
    return change


def _charge_together(
    conn: Connection, ask: NodeAsk, params: dict[str, Any], rows: Rows, cluster_guard: Sql
) -> tuple[str | None, tuple[DimensionFigure, ...]]:
    """Send charge, new rows and the cluster's guard in one batch; a claim that pays is charged after it."""
    batch = Batch(conn)
    CHARGE.into(batch, params)
    rows.new(batch)
    cluster_guard.into(batch, params)
    try:
        answers = batch.send()
    except DBAPIError as error:
        if trouble(error) is Trouble.DUPLICATE and refusal.charge_stands(conn, ask.instance_uuid):
            raise _ChargeStands from error
        raise
    if any(answer.matched != 1 for answer in answers[1:-1]):
        raise NewRowRefused
    named = answers[0].row[0] if answers[0].row else None
    if answers[-1].matched == 1:
        return None, ()
    if named is None:
        raise _GuardRefused(Stage.CLUSTER)
    return _charge_payer(conn, ask, params, str(named), cluster_guard)


def _insert_charge(conn: Connection, params: dict[str, Any]) -> str | None:
    try:
        row = CHARGE.run(conn, params).one()
    except DBAPIError as error:
        if trouble(error) is Trouble.DUPLICATE:
            raise _ChargeStands from error
        raise
    return str(row.payer) if row.payer is not None else None


def _move_charge(conn: Connection, params: dict[str, Any]) -> str | None:
    if CHARGE_MOVED.run(conn, params).rowcount != 1:
        raise _ChargeStands
    return None


def _charge_payer(
    conn: Connection, ask: NodeAsk, params: dict[str, Any], named: str | None, cluster_guard: Sql
) -> tuple[str | None, tuple[DimensionFigure, ...]]:
    paid = payer.charge(conn, ask, params, named, cluster_guard)
    if isinstance(paid, Stage):
        raise _GuardRefused(paid, named)
    return paid.payer, paid.over_claim


def _change_size(
    conn: Connection, ask: NodeAsk, params: dict[str, Any], rows: Rows, cluster_guard: Sql
) -> tuple[str | None, tuple[DimensionFigure, ...], totals.Change]:
    """Rewrite the charge that the node holds; its payer is charged what grows and credited what shrinks."""
    rewritten = held.rewrite(conn, ask)
    _write(conn, rows)
    pays, clamped = rewritten.before.payer, list(rewritten.clamped)
    over_claim: tuple[DimensionFigure, ...] = ()
    if ask.paid != Amounts():
        pays, over_claim = _charge_payer(conn, ask, params, pays, cluster_guard)
    if rewritten.shrunk != Amounts():
        clamped += release.give_back(conn, pays, rewritten.shrunk)
    release.record_clamps(conn, ask.instance_uuid, clamped)
    return pays, over_claim, rewritten.change


def _correct_totals(conn: Connection, ask: NodeAsk, params: dict[str, Any], change: totals.Change) -> None:
    """Keep `total_*` true where use changed on a row that does not count: totals hold its use, not its limits.

    An enforced admission charges counted rows only (its guard says so): no read.
    """
    if not ask.enforce and IS_UNCOUNTED.run(conn, params).first() is not None:
        change += totals.Change({name: getattr(ask.charged, name) for name in CLUSTER_DIMENSIONS})
    totals.apply(conn, change)


def _read_back(db: Database, ask: NodeAsk) -> AdmissionOutcome | None:
    """After a lost answer: does the charge stand? A locking read waits for a transaction that is still ending."""

    def stands(conn: Connection) -> AdmissionOutcome | None:
        if ask.in_place:
            found = held.standing(ask, held.read(conn, ask.instance_uuid))
            return found if isinstance(found, AlreadyPlaced) else None
        row = CHARGE_STANDS.run(conn, _parameters(ask)).first()
        if row is None or (ask.source is not None and int(row.node_id) != ask.node_id):
            return None
        return AlreadyPlaced(int(row.node_id))

    return db.unit(stands)
