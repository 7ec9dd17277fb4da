"""A naive admission, kept so that every race test can show that it finds the fault it is there for.

It does what seems natural: read what is used, compare, write what was read plus what is asked, two statements with a
gap between. Each race that the guarded admission survives must break this one, every time. Never used by the product.
"""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database, Sql
from fleet.model.admission import AdmissionOutcome, Admitted, Refused, Stage
from fleet.model.resources import DIMENSIONS, DimensionFigure
from tests.ledger import fleet_of
from tests.ledger.racing import Pause

READ = Sql("SELECT * FROM scheduler_node_capacity WHERE node_id = :node_id")
WRITE = Sql("""
    UPDATE scheduler_node_capacity SET used_cpus = :cpus, used_memory_mb = :memory_mb, used_disk_gb = :disk_gb,
        used_instances = :instances, pending_memory_mb = :memory_mb, pending_disk_gb = :disk_gb
    WHERE node_id = :node_id
""")
CHARGE = Sql("""
    INSERT INTO charges (instance_uuid, role, node_id, namespace, cpus, memory_mb, disk_gb, instances, placed_at)
    VALUES (:instance_uuid, 'primary', :node_id, :namespace, :cpus, :memory_mb, :disk_gb, :instances, {now})
""")
CLUSTER = Sql("""
    UPDATE cluster_capacity SET unclaimed_used_cpus = unclaimed_used_cpus + :cpus,
        unclaimed_used_memory_mb = unclaimed_used_memory_mb + :memory_mb,
        unclaimed_used_disk_gb = unclaimed_used_disk_gb + :disk_gb
    WHERE id = 1
""")
HELD = Sql("SELECT cpus, memory_mb, disk_gb, instances FROM charges WHERE instance_uuid = :instance_uuid")
RESIZE_CHARGE = Sql("""
    UPDATE charges SET cpus = :cpus, memory_mb = :memory_mb, disk_gb = :disk_gb WHERE instance_uuid = :instance_uuid
""")
MOVE_CHARGE = Sql("UPDATE charges SET node_id = :node_id WHERE instance_uuid = :instance_uuid")
ADD = Sql("""
    UPDATE scheduler_node_capacity SET used_cpus = used_cpus + :cpus, used_memory_mb = used_memory_mb + :memory_mb,
        used_disk_gb = used_disk_gb + :disk_gb, used_instances = used_instances + :instances,
        pending_memory_mb = pending_memory_mb + :memory_mb, pending_disk_gb = pending_disk_gb + :disk_gb
    WHERE node_id = :node_id
""")


def admit(db: Database, wanted: NodeAsk, pause: Pause) -> AdmissionOutcome:
    """Read, compare, pause, write."""
    with db.read() as conn:
        row = READ.run(conn, node_id=wanted.node_id).mappings().one()
    asked = wanted.amounts.as_dict()
    figures = [
        DimensionFigure.of(name, limit=row[f"limit_{name}"], used=row[f"used_{name}"], requested=asked[name])
        for name in DIMENSIONS
    ]
    if any(figure.exceeded for figure in figures):
        return Refused(wanted.node_id, Stage.NODE, tuple(figures))
    pause()
    after = {name: row[f"used_{name}"] + asked[name] for name in DIMENSIONS}

    def write(conn: Connection) -> AdmissionOutcome:
        WRITE.run(conn, after, node_id=wanted.node_id)
        CHARGE.run(
            conn,
            asked,
            instance_uuid=wanted.instance_uuid,
            node_id=wanted.node_id,
            namespace=wanted.namespace,
        )
        fleet_of.new_instance(conn, wanted)
        CLUSTER.run(conn, asked)
        return Admitted(wanted.node_id)

    return db.unit(write)


def grow(db: Database, wanted: NodeAsk, pause: Pause) -> AdmissionOutcome:
    """Read, compare the increase, pause, write what was read plus the increase."""
    with db.read() as conn:
        row = READ.run(conn, node_id=wanted.node_id).mappings().one()
        held = HELD.run(conn, instance_uuid=wanted.instance_uuid).mappings().one()
    target = wanted.amounts.as_dict()
    added = {name: target[name] - held[name] for name in DIMENSIONS}
    figures = [
        DimensionFigure.of(name, limit=row[f"limit_{name}"], used=row[f"used_{name}"], requested=added[name])
        for name in DIMENSIONS
    ]
    if any(figure.exceeded for figure in figures):
        return Refused(wanted.node_id, Stage.NODE, tuple(figures))
    pause()

    def write(conn: Connection) -> AdmissionOutcome:
        WRITE.run(conn, {name: row[f"used_{name}"] + added[name] for name in DIMENSIONS}, node_id=wanted.node_id)
        RESIZE_CHARGE.run(conn, target, instance_uuid=wanted.instance_uuid)
        CLUSTER.run(conn, added)
        return Admitted(wanted.node_id)

    return db.unit(write)


def move(db: Database, wanted: NodeAsk, pause: Pause) -> AdmissionOutcome:
    """Destination first, then source: two moves in opposite directions hold what the other needs."""
    asked = wanted.amounts.as_dict()
    with db.engine.connect() as conn:
        try:
            ADD.run(conn, asked, node_id=wanted.node_id)
            pause()
            ADD.run(conn, {name: -amount for name, amount in asked.items()}, node_id=wanted.source)
            MOVE_CHARGE.run(conn, instance_uuid=wanted.instance_uuid, node_id=wanted.node_id)
            fleet_of.moved_instance(conn, wanted)
            conn.commit()
        except BaseException:
            conn.rollback()
            raise
    return Admitted(wanted.node_id)
