"""Claims for races, soaks and failures: how they are made and ended here, and naive twins that oversell.

Ends come by the database's clock: it was behind while a claim was used, or is waited for; no stamp in a row is ever
edited. The twins do what seems natural: look, compare, write what follows from the look. Each race that the product
survives must break them. Never used by it.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from fleet.ledger import claim_grants, claims, namespaces
from fleet.ledger.claim_grants import ClaimRefused, Granted
from fleet.ledger.cluster import PING, now_us
from fleet.ledger.database import Database, Sql
from fleet.ledger.idempotency import Keyed
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts, DimensionFigure
from tests.ledger import fleet_of, past
from tests.ledger.racing import Pause
from tests.servers import wait_until

HOUR = 3600
_names = itertools.count(1)

PROBE = Sql("SELECT uuid FROM namespace_claims WHERE namespace = :namespace AND coverage_state = 'active'")
OVERWRITE = Sql(
    "UPDATE cluster_capacity SET "
    + ", ".join(f"claimed_{name} = claimed_{name} + :limit_{name}" for name in CLUSTER_DIMENSIONS)
    + " WHERE id = 1"
)
SET_LIMIT = Sql("UPDATE namespace_claims SET limit_cpus = :cpus WHERE uuid = :uuid")
NAIVE_INSTANCE = Sql("""
    INSERT INTO charges (instance_uuid, role, node_id, namespace, cpus, memory_mb, disk_gb, instances, placed_at)
    VALUES (:instance_uuid, 'primary', :node_id, :namespace, :cpus, 1, 0, 1, {now})
""")
NAIVE_USE = Sql("""
    UPDATE cluster_capacity SET unclaimed_used_cpus = unclaimed_used_cpus + :cpus,
        unclaimed_used_memory_mb = unclaimed_used_memory_mb + 1 WHERE id = 1
""")


def new_namespaces(db: Database, count: int) -> list[str]:
    """Make namespaces that no other round has."""
    names = [f"tenant-{next(_names)}" for _ in range(count)]
    for name in names:
        namespaces.ensure(db, name)
    return names


def grant(
    db: Database,
    namespace: str,
    cpus: int,
    memory_mb: int = 0,
    disk_gb: int = 0,
    *,
    seconds: int = HOUR,
    keyed: Keyed | None = None,
    claim: str = "",
) -> Granted | ClaimRefused:
    """Ask for a claim of a namespace that is there."""
    limits = Amounts(cpus, memory_mb, disk_gb)
    return claim_grants.grant(db, namespace, limits, seconds, uuid=claim or str(uuid.uuid4()), by="test", keyed=keyed)


def granted(db: Database, namespace: str, *limits: int, **how: Any) -> Granted:
    """Make the namespace too where it is missing, and get the claim, or fail the test."""
    namespaces.ensure(db, namespace)
    outcome = grant(db, namespace, *limits, **how)
    assert isinstance(outcome, Granted), outcome
    return outcome


def code(outcome: Granted | ClaimRefused) -> str:
    """What was answered, in one word."""
    return outcome.code if isinstance(outcome, ClaimRefused) else "granted"


@contextmanager
def long_ago(db: Database) -> Iterator[None]:
    """More than an HOUR ago: a claim that is granted and used within has ended after it, and nobody raced with its end.

    What is settled within would be older than the samples of nodes that were made before it; settle it after.
    """
    with past.ago(db, HOUR + 100):
        yield


def until_past(db: Database, *ending: Granted | str) -> None:
    """Wait until the database's clock is past the end of all of them."""
    end = max(_end(db, claim) for claim in ending)
    wait_until(lambda: now_us(db) > end, seconds=15, what="the claims' end")


def _end(db: Database, claim: Granted | str) -> int:
    return claim.expires_at_us if isinstance(claim, Granted) else int(fleet_of.claim_row(db, claim)["expires_at"])


def ending_before_it_pays(patch: pytest.MonkeyPatch, db: Database, claim: str) -> list[str]:
    """Long ago: whoever charges the claim finds it past its end, having read that it pays. Returns what was charged so.

    The clock of its connection comes to the present there; all others stay behind.
    """
    charge, end, met = claims.charge, _end(db, claim), list[str]()

    def late(conn: Connection, uuid: str, *given: Any, **how: Any) -> Any:
        assert uuid == claim
        assert int(PING.run(conn).scalar_one()) < end
        past.present(conn)
        assert int(PING.run(conn).scalar_one()) > end
        met.append(uuid)
        return charge(conn, uuid, *given, **how)

    patch.setattr(claims, "charge", late)
    return met


def claimed_cpus(db: Database) -> int:
    """What the cluster has promised."""
    return int(fleet_of.cluster(db)["claimed_cpus"])


def active_of(db: Database, namespace: str) -> list[str]:
    """The claims of a namespace that are not folded."""
    statement = "SELECT uuid FROM namespace_claims WHERE namespace = :ns AND folded = 0"
    return [row["uuid"] for row in fleet_of.rows(db, statement, ns=namespace)]


# --- naive twins -------------------------------------------------------------------------------------------------


def naive_grant(db: Database, pause: Pause, namespace: str, cpus: int) -> Granted | ClaimRefused:
    """Look whether it has a claim and whether there is room, pause, promise."""
    with db.read() as conn:
        stands = PROBE.run(conn, namespace=namespace).first()
        row = fleet_of.CLUSTER_ROW.run(conn).mappings().one()
    if stands is not None:
        return ClaimRefused("claim_exists", claim=stands.uuid)
    refused = _without_room(row, cpus)
    if refused is not None:
        return refused
    pause()
    claim_uuid = str(uuid.uuid4())

    def write(conn: Connection) -> None:
        limits = {"limit_cpus": cpus, "limit_memory_mb": 0, "limit_disk_gb": 0}
        used = {"used_cpus": 0, "used_memory_mb": 0, "used_disk_gb": 0}
        fleet_of.INSERT_CLAIM.run(conn, {**limits, **used}, uuid=claim_uuid, namespace=namespace, seconds=HOUR)
        OVERWRITE.run(conn, limits)

    db.unit(write)
    return Granted(
        uuid=claim_uuid,
        namespace=namespace,
        coverage_state="active",
        limits=Amounts(cpus),
        used=Amounts(),
        expires_at_us=0,
        created_at_us=0,
        updated_at_us=0,
    )


def naive_grow(db: Database, pause: Pause, claim: str, to: int) -> str:
    """Look whether there is room for more, pause, promise it."""
    with db.read() as conn:
        row = fleet_of.CLUSTER_ROW.run(conn).mappings().one()
        more = to - int(fleet_of.CLAIM_ROW.run(conn, uuid=claim).mappings().one()["limit_cpus"])
    if _without_room(row, more) is not None:
        return "claim_capacity"
    pause()

    def write(conn: Connection) -> None:
        SET_LIMIT.run(conn, uuid=claim, cpus=to)
        OVERWRITE.run(conn, limit_cpus=more, limit_memory_mb=0, limit_disk_gb=0)

    db.unit(write)
    return "granted"


def naive_create(db: Database, pause: Pause, namespace: str, node_id: int, cpus: int) -> str:
    """Look whether the unclaimed side has room, pause, use it."""
    with db.read() as conn:
        row = fleet_of.CLUSTER_ROW.run(conn).mappings().one()
    if _without_room(row, cpus) is not None:
        return "refused"
    pause()
    binds = {"instance_uuid": str(uuid.uuid4()), "node_id": node_id, "namespace": namespace, "cpus": cpus}

    def write(conn: Connection) -> None:
        NAIVE_INSTANCE.run(conn, binds)
        NAIVE_USE.run(conn, binds)

    db.unit(write)
    return "admitted"


def _without_room(row: Any, cpus: int) -> ClaimRefused | None:
    figure = DimensionFigure.of(
        "cpus",
        limit=row["total_cpus"] - row["claimed_cpus"],
        used=row["unclaimed_used_cpus"] + row["overage_cpus"],
        requested=cpus,
    )
    return ClaimRefused("claim_capacity", (figure,)) if figure.exceeded else None
