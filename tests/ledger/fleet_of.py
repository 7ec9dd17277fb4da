"""A small fleet in a ledger: nodes with exact limits, asks, and the rows that go with a charge.

With `PLAIN` a node's limits are the figures it publishes: every ratio is 1 and nothing is reserved.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from fleet.ledger import admission, charges, growth, nodes, release, samples
from fleet.ledger.admission import Rows
from fleet.ledger.ask import NodeAsk
from fleet.ledger.cluster import now_us as cluster_now
from fleet.ledger.database import Batch, Database, Sql
from fleet.ledger.decisions import DecisionRow
from fleet.ledger.verify import verify
from fleet.model.admission import AdmissionOutcome, Admitted
from fleet.model.cluster_config import ClusterConfig
from fleet.model.gpu_report import ReportedUnit
from fleet.model.resources import DIMENSIONS, Amounts
from tests.servers import wait_until

PLAIN = ClusterConfig(
    cpu_overcommit_ratio=Decimal(1),
    ram_overcommit_ratio=Decimal(1),
    disk_overcommit_ratio=Decimal(1),
    node_ram_reservation_gb=Decimal(0),
    node_cpu_reservation_threads=0,
    node_disk_reservation_gb=Decimal(0),
)
NAMESPACE = "tenant"
PLENTY = 1_000_000

INSTANCE = Sql("""
    INSERT INTO instances (uuid, namespace, name, cpus, memory_mb, disk_gb, request, state, node_id,
                           created_at, updated_at)
    VALUES (:uuid, :namespace, 'instance', :cpus, :memory_mb, :disk_gb, '{{}}', 'creating', :node_id, {now}, {now})
""")
INSTANCE_MOVED = Sql("UPDATE instances SET node_id = :node_id, updated_at = {now} WHERE uuid = :uuid")
INSTANCE_RESIZED = Sql("""
    UPDATE instances SET cpus = :cpus, memory_mb = :memory_mb, disk_gb = :disk_gb, updated_at = {now} WHERE uuid = :uuid
""")
INSTANCE_DELETED = Sql("UPDATE instances SET state = 'deleted', updated_at = {now} WHERE uuid = :uuid")
NODE_ROW = Sql("SELECT * FROM scheduler_node_capacity WHERE node_id = :node_id")
CLUSTER_ROW = Sql("SELECT * FROM cluster_capacity WHERE id = 1")
CLAIM_ROW = Sql("SELECT * FROM namespace_claims WHERE uuid = :uuid")
CHARGES = Sql("SELECT instance_uuid, node_id, payer FROM charges ORDER BY id")
INSERT_CLAIM = Sql("""
    INSERT INTO namespace_claims (uuid, namespace, limit_cpus, limit_memory_mb, limit_disk_gb,
        used_cpus, used_memory_mb, used_disk_gb, coverage_state, folded, expires_at, created_at, updated_at)
    VALUES (:uuid, :namespace, :limit_cpus, :limit_memory_mb, :limit_disk_gb,
        :used_cpus, :used_memory_mb, :used_disk_gb, 'active', 0, {now} + :seconds * 1000000, {now}, {now})
""")
PROMISE = Sql("""
    UPDATE cluster_capacity SET claimed_cpus = claimed_cpus + :limit_cpus,
        claimed_memory_mb = claimed_memory_mb + :limit_memory_mb, claimed_disk_gb = claimed_disk_gb + :limit_disk_gb,
        overage_cpus = overage_cpus + :over_cpus, overage_memory_mb = overage_memory_mb + :over_memory_mb,
        overage_disk_gb = overage_disk_gb + :over_disk_gb
    WHERE id = 1
""")
_names = itertools.count(1)


def figures(*, cpus: int, memory_mb: int = PLENTY, disk_gb: int = PLENTY, **more: Any) -> dict[str, Any]:
    """The metrics of a node that offers exactly this under `PLAIN`."""
    sample = {
        "is_hypervisor": True,
        "cpu_schedulable": cpus,
        "cpu_load_1": 0.0,
        "cpu_total_instance_vcpus": 0,
        "memory_total_instance_actual": 0,
        "memory_max": memory_mb,
        "memory_available": memory_mb,
        "memory_reserved_mb": 0,
        "disk_total_gb": disk_gb,
        "disk_free_gb": disk_gb,
        "disk_reservation_gb": 0,
    }
    return {name: value for name, value in {**sample, **more}.items() if value is not None}


def publish(
    db: Database,
    name: str,
    *,
    age: float | str = 0,
    config: ClusterConfig = PLAIN,
    failed: Mapping[str, str] | None = None,
    healthy: bool | None = None,
    gpus: Sequence[ReportedUnit] | None = None,
    mig_instances: Sequence[ReportedUnit] | None = None,
    strict_gpus: bool = False,
    **metrics: Any,
) -> None:
    sample = samples.SampleIn(
        name,
        figures(**metrics),
        age_seconds=Decimal(str(age)),
        failed=failed or {},
        healthy=healthy,
        gpus=gpus,
        mig_instances=mig_instances,
        strict_gpus=strict_gpus,
    )
    samples.publish(db, [sample], config)


def register(db: Database, name: str = "", **declared: Any) -> int:
    name = name or f"node-{next(_names)}"
    return nodes.register(db, nodes.NodeIn(name=name, declared=declared))[0].node_id


def node(
    db: Database, name: str = "", *, max_instances: int | None = None, config: ClusterConfig = PLAIN, **metrics: Any
) -> int:
    """A registered node with one fresh sample; returns its id."""
    name = name or f"node-{next(_names)}"
    node_id = register(db, name, max_instances=max_instances)
    publish(db, name, config=config, **metrics)
    return node_id


def ask(node_id: int, *, cpus: int = 1, memory_mb: int = 1, disk_gb: int = 0, **more: Any) -> NodeAsk:
    """A try of one fresh instance; the demand clause is off unless `target_load` says otherwise.

    A sample serves for an hour: a test that is not about its age may take as long as it does.
    """
    defaults: dict[str, Any] = {
        "instance_uuid": str(uuid.uuid4()),
        "namespace": NAMESPACE,
        "demand": Decimal(0),
        "target_load": Decimal(0),
        "sample_age_max_seconds": 3600,
    }
    return NodeAsk(node_id=node_id, amounts=Amounts(cpus, memory_mb, disk_gb, 1), **{**defaults, **more})


def new_instance(target: Connection | Batch, wanted: NodeAsk) -> None:
    """The instance's row, as a create writes it in the admission's transaction."""
    sizes = wanted.amounts
    INSTANCE.into(
        target,
        uuid=wanted.instance_uuid,
        namespace=wanted.namespace,
        cpus=sizes.cpus,
        memory_mb=sizes.memory_mb,
        disk_gb=sizes.disk_gb,
        node_id=wanted.node_id,
    )


def moved_instance(conn: Connection, wanted: NodeAsk) -> None:
    """What a redirect changes of the instance's row."""
    INSTANCE_MOVED.run(conn, uuid=wanted.instance_uuid, node_id=wanted.node_id)


def admit(db: Database, wanted: NodeAsk) -> AdmissionOutcome:
    """Admit as the product does: a create's new rows travel with the charge, a redirect changes rows that exist."""
    if wanted.charges_payer:
        return admission.admit(db, wanted, Rows(new=lambda batch: new_instance(batch, wanted)))
    return admission.admit(db, wanted, Rows(changed=lambda conn: moved_instance(conn, wanted)))


def grow(db: Database, wanted: NodeAsk, *, per_vcpu: Decimal = Decimal(0)) -> AdmissionOutcome:
    """Bring the charge of `wanted.instance_uuid` to `wanted.amounts` where it is, as a resize in place does."""
    return growth.grow(db, wanted, Rows(changed=lambda conn: resized_instance(conn, wanted)), per_vcpu=per_vcpu)


def resized_instance(conn: Connection, wanted: NodeAsk) -> None:
    """What a resize changes of the instance's row."""
    INSTANCE_RESIZED.run(conn, wanted.amounts.as_dict(), uuid=wanted.instance_uuid)


def admitted(db: Database, wanted: NodeAsk) -> str:
    """Admit, or fail the test; returns the instance's uuid."""
    outcome = admit(db, wanted)
    assert isinstance(outcome, Admitted), outcome
    return wanted.instance_uuid


def delete(db: Database, instance: str) -> release.Released | release.NothingToRelease:
    return release.release(db, instance, rows=lambda conn: _deleted(conn, instance))


def _deleted(conn: Connection, instance: str) -> None:
    INSTANCE_DELETED.run(conn, uuid=instance)


def settle(db: Database, instance: str) -> bool:
    return db.unit(lambda conn: charges.settle(conn, instance))


def tick(db: Database) -> None:
    """Let the database's clock move on: SQLite's counts milliseconds, and equal times count as newer."""
    now = cluster_now(db)
    wait_until(lambda: cluster_now(db) > now, seconds=5, what="the database's clock moves")


def claim(
    db: Database,
    *,
    limit: tuple[int, int, int],
    used: tuple[int, int, int] = (0, 0, 0),
    seconds: int = 3600,
    namespace: str = NAMESPACE,
) -> str:
    """An active claim, written as the claims' own code will: the promise on the cluster's row goes with it."""
    claim_uuid = str(uuid.uuid4())
    names = ("cpus", "memory_mb", "disk_gb")
    binds: dict[str, Any] = {f"limit_{name}": value for name, value in zip(names, limit, strict=True)}
    binds |= {f"used_{name}": value for name, value in zip(names, used, strict=True)}
    over = {f"over_{name}": max(0, binds[f"used_{name}"] - binds[f"limit_{name}"]) for name in names}

    def write(conn: Connection) -> None:
        INSERT_CLAIM.run(conn, binds, uuid=claim_uuid, namespace=namespace, seconds=seconds)
        PROMISE.run(conn, {**binds, **over})

    db.unit(write)
    return claim_uuid


def execute(db: Database, statement: str, **binds: Any) -> int:
    """A write past the ledger's functions, such as an accident would make."""
    return int(db.unit(lambda conn: Sql(statement).run(conn, binds).rowcount))


def rows(db: Database, statement: str, **binds: Any) -> list[dict[str, Any]]:
    with db.read() as conn:
        return [dict(row) for row in Sql(statement).run(conn, binds).mappings()]


def row(db: Database, node_id: int) -> dict[str, Any]:
    """The node's ledger row; fails where there is none."""
    with db.read() as conn:
        return dict(NODE_ROW.run(conn, node_id=node_id).mappings().one())


def used(db: Database, node_id: int) -> tuple[int, ...]:
    """What is used on the node: cpus, memory_mb, disk_gb, instances."""
    found = row(db, node_id)
    return tuple(found[f"used_{name}"] for name in DIMENSIONS)


def cluster(db: Database) -> dict[str, Any]:
    with db.read() as conn:
        return dict(CLUSTER_ROW.run(conn).mappings().one())


def unclaimed(db: Database) -> tuple[int, int, int]:
    """What is used outside claims: cpus, memory_mb, disk_gb."""
    found = cluster(db)
    return found["unclaimed_used_cpus"], found["unclaimed_used_memory_mb"], found["unclaimed_used_disk_gb"]


def claim_row(db: Database, claim_uuid: str) -> dict[str, Any]:
    with db.read() as conn:
        return dict(CLAIM_ROW.run(conn, uuid=claim_uuid).mappings().one())


def charged_to(db: Database) -> dict[str, int]:
    """Which node each instance's charge is on."""
    with db.read() as conn:
        return {row.instance_uuid: int(row.node_id) for row in CHARGES.run(conn)}


def events_of(db: Database, message: str) -> list[dict[str, Any]]:
    return rows(
        db, "SELECT object_type, object_id, level, payload FROM events WHERE message = :m ORDER BY id", m=message
    )


def assert_exact(db: Database, *, over_limit: Iterable[str] = ()) -> None:
    """Every counter is what the charges say, and no node is over its limit but those named."""
    found = verify(db)
    assert list(found.differences) == []
    assert {item.node for item in found.over_limit} == set(over_limit)


def refused_decision(decision_id: str) -> DecisionRow:
    """A refusal's decision as it is stored, with nothing in it to read."""
    return DecisionRow(
        id=decision_id,
        instance_uuid=None,
        namespace=NAMESPACE,
        reason="create",
        outcome="refused",
        code="out_of_capacity",
        node_id=None,
        seed=1,
        base_id=None,
        changes=b"",
        record=b"{}",
        request={},
        walk=[],
        summary="no room",
        version="1",
    )
