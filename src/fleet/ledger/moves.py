"""Moves: an instance is charged on both nodes until one step settles or aborts; a failure leaves it at its source.

`begin` holds the destination through admission (an *incoming* charge, which nobody pays). A move may change the size:
the destination is guarded and charged with all of the new size, the payer with what grows, at once; the primary charge
keeps both what it holds and what is paid ahead, so that an instance has one payer at every moment. `settle` turns
incoming into primary, credits the source, and the payer what shrank; `abort` credits the destination, and the payer
what was paid ahead. Both lock the node rows by id before the charges, and both find nothing to do when repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, RowMapping

from fleet.ledger import admission, events, release, totals
from fleet.ledger.admission import NO_ROWS, Rows, nothing
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database, Sql
from fleet.ledger.held import CHARGE_CHANGED, LOCK_PRIMARY
from fleet.model.admission import AdmissionOutcome, Charge, Refused, Stage
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts

PAY_AHEAD = Sql("""
    UPDATE charges SET ahead_cpus = :cpus, ahead_memory_mb = :memory_mb, ahead_disk_gb = :disk_gb WHERE id = :charge_id
""")
ARRIVE = Sql("""
    UPDATE charges SET role = 'primary', payer = :payer, settled_at = {now}
    WHERE id = :charge_id AND role = 'incoming' AND node_id = :node_id
""")
# Whoever watches the instances of a namespace reads those whose stamp moved: a move changes where one counts.
STAMP = Sql("UPDATE instances SET updated_at = {now} WHERE uuid = :instance_uuid")

NOTHING_TO_MOVE = "nothing_to_move"
ALREADY_THERE = "already_there"
OVERRIDDEN = "placement rules overridden by a named destination"


@dataclass(frozen=True, slots=True)
class _Move:
    """Both charges of a move, and the rows of their nodes, all locked."""

    primary: Charge
    incoming: Charge
    nodes: Mapping[int, RowMapping | None]


class _NotAsDecided(Exception):
    """The instance's charge was released or grew while the move was decided; says which."""


def begin(db: Database, ask: NodeAsk, rows: Rows = NO_ROWS, *, named: bool = False) -> AdmissionOutcome:
    """Hold the destination of a move: the same guard as every other growth in use, and the same rules.

    `ask.amounts` is the size it arrives with; `ask.held` the one that its primary charge was read to hold, where that
    differs. What grows is judged and paid now, dimension by dimension; what shrinks is paid until the move settles.

    `named`: an operator chose the destination. That overrides the rules that the instance brings, and is recorded.

    An instance that holds no charge is refused with `ineligible` "nothing_to_move": nobody would ever give the
    destination back. One whose charge is on this very node is refused with "already_there": two charges of one instance
    on one node could not be told apart when one of them gives its GPUs back. One whose charge has another size by now
    is refused with "charge_changed": the destination would be all that is left of it.
    """

    def held(conn: Connection) -> None:
        # A release that is under way has deleted the charge (then it is waited for), or finds this one after us.
        primary = LOCK_PRIMARY.run(conn, instance_uuid=ask.instance_uuid).mappings().first()
        if primary is None:
            raise _NotAsDecided(NOTHING_TO_MOVE)
        charge = release.charge_of(primary)
        if charge.node_id == ask.node_id:
            raise _NotAsDecided(ALREADY_THERE)
        expected = ask.amounts if ask.held is None else ask.held
        if (charge.amounts, charge.gpus, charge.sleepy) != (expected, ask.gpus, ask.sleepy):
            raise _NotAsDecided(CHARGE_CHANGED)
        grows = (ask.amounts - expected).floored()
        if grows != Amounts():
            _pay_ahead(conn, charge, grows)
        STAMP.run(conn, instance_uuid=ask.instance_uuid)
        rows.changed(conn)
        if named and ask.enforced is not None:
            events.record(conn, "instance", ask.instance_uuid, OVERRIDDEN, {"node_id": ask.node_id}, level="warning")

    enforced = None if named else ask.enforced
    moving = replace(ask, incoming=True, enforced=enforced)
    try:
        return admission.admit(db, moving, replace(rows, changed=held))
    except _NotAsDecided as reason:
        return Refused(ask.node_id, Stage.NODE, ineligible=str(reason))


def settle(db: Database, instance_uuid: str, *, rows: Callable[[Connection], None] = nothing) -> bool:
    """The instance runs on the destination: the incoming charge replaces the primary one. False: there is no move."""

    def work(conn: Connection) -> bool:
        move = _locked(conn, instance_uuid)
        if move is None:
            return False
        primary, incoming = move.primary, move.incoming
        release.delete_charge(conn, primary)
        ARRIVE.run(conn, charge_id=incoming.charge_id, node_id=incoming.node_id, payer=primary.payer)
        credited = _credit(conn, move, primary)
        STAMP.run(conn, instance_uuid=instance_uuid)
        rows(conn)
        payload = {"from_node_id": primary.node_id, "to_node_id": incoming.node_id}
        events.record(conn, "instance", instance_uuid, "instance move settled", payload)
        _give_back(conn, primary, (primary.paid - incoming.amounts).floored())
        totals.apply(conn, credited)
        return True

    return release.following(db, work)


def abort(db: Database, instance_uuid: str, reason: str, *, rows: Callable[[Connection], None] = nothing) -> bool:
    """The instance stays at its source: the incoming charge goes and the destination is credited. False: no move."""

    def work(conn: Connection) -> bool:
        move = _locked(conn, instance_uuid)
        if move is None:
            return False
        primary, incoming = move.primary, move.incoming
        release.delete_charge(conn, incoming)
        credited = _credit(conn, move, incoming)
        if primary.ahead != Amounts():
            _pay_ahead(conn, primary, Amounts())
        STAMP.run(conn, instance_uuid=instance_uuid)
        rows(conn)
        payload = {"node_id": primary.node_id, "refused_node_id": incoming.node_id, "reason": reason}
        events.record(conn, "instance", instance_uuid, "instance move aborted", payload, level="warning")
        _give_back(conn, primary, primary.ahead)
        totals.apply(conn, credited)
        return True

    return release.following(db, work)


def _pay_ahead(conn: Connection, primary: Charge, amounts: Amounts) -> None:
    binds = {name: getattr(amounts, name) for name in CLUSTER_DIMENSIONS}
    PAY_AHEAD.run(conn, binds, charge_id=primary.charge_id)


def _give_back(conn: Connection, primary: Charge, amounts: Amounts) -> None:
    """Credit the payer of a move: what was paid and is not held in the end. Claims and cluster come last."""
    if amounts != Amounts():
        release.record_clamps(conn, primary.instance_uuid, release.give_back(conn, primary.payer, amounts))


def _credit(conn: Connection, move: _Move, charge: Charge) -> totals.Change:
    """Credit the node that a deleted charge was on; what it held too little of is recorded."""
    clamped: list[tuple[str, int]] = []
    change = release.credit_node(conn, charge, move.nodes[charge.node_id], clamped)
    release.record_clamps(conn, charge.instance_uuid, clamped)
    return change


def _locked(conn: Connection, instance_uuid: str) -> _Move | None:
    """Lock both nodes by id and return the move as it stands under the locks.

    Raises:
        ChargeMovedError: another move took its place while nodes were waited for.
    """
    nodes = release.lock_nodes(conn, release.charges_of(conn, instance_uuid))
    charges = {charge.role: charge for charge in release.locked_charges_of(conn, instance_uuid)}
    if "incoming" not in charges or "primary" not in charges:
        return None
    if not {charge.node_id for charge in charges.values()} <= nodes.keys():
        raise release.ChargeMovedError(instance_uuid)
    return _Move(charges["primary"], charges["incoming"], nodes)
