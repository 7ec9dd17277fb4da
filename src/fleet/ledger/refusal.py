"""Why a guard refused: figures read after the rollback, on a connection of their own.

They can differ from what the guard saw, and may even show room: the answer stays a refusal, it is only less sharp.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, RowMapping

from fleet.ledger import claims, cluster, gpus
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database, Sql, decimal_of
from fleet.model.admission import Refused, Stage
from fleet.model.errors import BrokenPromise
from fleet.model.gpu_inventory import free_units, owned_units
from fleet.model.resources import CLUSTER_DIMENSIONS, DIMENSIONS, Amounts, DimensionFigure

NODE = Sql("SELECT c.*, {now} - c.sample_at AS age_us FROM scheduler_node_capacity c WHERE node_id = :node_id")
HOLD = Sql("SELECT id FROM nodes WHERE id = :node_id {share}")
UNSIZED = Sql("""
    SELECT n.id FROM nodes n LEFT JOIN scheduler_node_capacity c ON c.node_id = n.id
    WHERE n.id = :node_id AND c.node_id IS NULL AND n.state = 'created' AND n.scheduling = 'enabled' {share}
""")
CHARGE = Sql("SELECT id FROM charges WHERE instance_uuid = :instance_uuid AND role = 'primary'")


def hold_unsized(conn: Connection, node_id: int) -> None:
    """Hold the row of a node that has no capacity row: its first sample waits, and counts what is charged before it."""
    HOLD.run(conn, node_id=node_id).first()


def is_unsized(conn: Connection, node_id: int) -> bool:
    """Return whether the node is registered and only its first sample is missing: nobody removed or cordoned it.

    Its row is held, as by `hold_unsized`.
    """
    return UNSIZED.run(conn, node_id=node_id).first() is not None


def charge_stands(conn: Connection, instance_uuid: str) -> bool:
    """Return whether the instance holds a charge already: the reason of a duplicate key."""
    return CHARGE.run(conn, instance_uuid=instance_uuid).first() is not None


def explain(db: Database, ask: NodeAsk, stage: Stage, payer: str | None) -> Refused:
    """Return the refusal of `stage` with its figures."""
    with db.read() as conn:
        if stage is Stage.NODE:
            return _node(conn, ask)
        if stage is Stage.GPU:
            return _gpus(conn, ask)
        if stage is Stage.CLAIM:
            row = claims.READ.run(conn, uuid=payer).mappings().first()
            unclaimed = _cluster(cluster.READ.run(conn).mappings().first(), ask)
            return Refused(ask.node_id, stage, _claim(row, ask) if row is not None else (), unclaimed=unclaimed)
        row = cluster.READ.run(conn).mappings().first()
        return Refused(ask.node_id, stage, _cluster(row, ask), idle={} if row is None else cluster.claims_unused(row))


def _node(conn: Connection, ask: NodeAsk) -> Refused:
    row = NODE.run(conn, node_id=ask.node_id).mappings().first()
    if row is None:
        return Refused(ask.node_id, Stage.NODE, ineligible="no_capacity_row")
    figures = [
        _figure(name, row[f"limit_{name}"], row[f"used_{name}"], ask.charged, ask.unjudged) for name in DIMENSIONS
    ]
    demand = _demand(row, ask)
    if demand is not None:
        figures.append(demand)
    age = row["age_us"] / 1_000_000
    ineligible = ""
    if row["state"] != "active":
        ineligible = "state"
    elif row["scheduling"] not in ask.schedulings:
        ineligible = "scheduling"
    elif age >= ask.sample_age_max_seconds:
        ineligible = "sample_age"
    elif not row["counted"]:
        ineligible = "not_counted"
    return Refused(
        ask.node_id,
        Stage.NODE,
        tuple(figures),
        state=row["state"],
        scheduling=row["scheduling"],
        sample_age_seconds=round(age, 3),
        ineligible=ineligible,
    )


def _gpus(conn: Connection, ask: NodeAsk) -> Refused:
    inventory = gpus.of_node(conn, ask.node_id).inventory()
    owned, free = owned_units(inventory, ask.gpus), free_units(inventory, ask.gpus)
    figure = DimensionFigure.of("gpus", limit=owned, used=owned - free, requested=ask.gpus.count)
    return Refused(ask.node_id, Stage.GPU, (figure,))


def _demand(row: Any, ask: NodeAsk) -> DimensionFigure | None:
    """Return the demand clause's figures, what was measured and what is expected each beside their sum."""
    load, schedulable = decimal_of(row["cpu_load_1"]), row["cpu_schedulable"]
    if ask.target_load <= 0 or load is None or schedulable is None:
        return None
    expected = decimal_of(row["expected_demand"]) or Decimal(0)
    used = load + expected
    limit = ask.target_load * schedulable
    over = max(0, used - limit) if ask.charged.cpus > ask.unjudged else 0
    return DimensionFigure(
        "demand",
        float(limit),
        float(used),
        float(ask.demand),
        exceeded=over > 0,
        shortfall=float(over),
        cpu_load_1=float(load),
        expected_demand=float(expected),
    )


def _figure(name: str, limit: int | None, used: int, added: Amounts, unjudged: int) -> DimensionFigure:
    """Judge one dimension as the guard does: where a charge that is there does not grow, nothing is exceeded."""
    requested = getattr(added, name)
    return DimensionFigure.of(name, limit=limit, used=used, requested=requested, judged=requested > unjudged)


def _claim(row: RowMapping, ask: NodeAsk) -> tuple[DimensionFigure, ...]:
    return tuple(
        _figure(name, row[f"limit_{name}"], row[f"used_{name}"], ask.paid, ask.unjudged_by_payer)
        for name in CLUSTER_DIMENSIONS
    )


def _cluster(row: Any, ask: NodeAsk) -> tuple[DimensionFigure, ...]:
    """Return the unclaimed side: limit is what is not promised to claims, use includes what claims overdraw."""
    if row is None:
        # A guard that has no row to match is a broken database, not a full cluster.
        raise BrokenPromise(cluster.MISSING)
    return tuple(
        _figure(name, *cluster.unclaimed_side(row, name), ask.paid, ask.unjudged_by_payer)
        for name in CLUSTER_DIMENSIONS
    )
