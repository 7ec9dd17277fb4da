"""Charges: what an instance holds on a node. They grow by admission and end by release; here they only settle."""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger.database import Database, Sql
from fleet.ledger.release import charges_of, lock_nodes
from fleet.model.admission import Charge

# The stamp is the moment of proof: a sample whose measuring began before it cannot include the domain.
SETTLE = Sql("""
    UPDATE charges SET settled_at = {now}
    WHERE instance_uuid = :instance_uuid AND role = 'primary' AND settled_at IS NULL
""")


def settle(conn: Connection, instance_uuid: str) -> bool:
    """Turn the instance's draft into a settled charge; False when it is settled already or there is none.

    Under its node's lock, like every publish: else a sample could be counted without a charge stamped before it.
    """
    lock_nodes(conn, charges_of(conn, instance_uuid))
    return SETTLE.run(conn, instance_uuid=instance_uuid).rowcount == 1


def of_instance(db: Database, instance_uuid: str) -> list[Charge]:
    """Return the charges that the instance holds."""
    with db.read() as conn:
        return charges_of(conn, instance_uuid)
