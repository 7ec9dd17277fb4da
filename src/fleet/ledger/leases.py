"""Leases with a fencing number: who leads. Held in the database, by its clock; a stopped holder's number is worthless.

A named lock would not do: it is held per server on a cluster, and it outlives a stopped holder.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from fleet.ledger.database import Database, Sql

MAKE = Sql(
    "INSERT {ignore} INTO leases (name, holder, number, expires_at) VALUES (:name, '', 0, 0) {conflict}",
    mysql_ignore="IGNORE",
    sqlite_conflict="ON CONFLICT DO NOTHING",
)
TAKE = Sql("""
    UPDATE leases SET holder = :holder, number = number + 1, expires_at = {now} + :seconds * 1000000
    WHERE name = :name AND expires_at <= {now}
""")
READ = Sql("SELECT number FROM leases WHERE name = :name")
RENEW = Sql("""
    UPDATE leases SET expires_at = {now} + :seconds * 1000000
    WHERE name = :name AND holder = :holder AND number = :number
""")
DROP = Sql("UPDATE leases SET expires_at = 0 WHERE name = :name AND holder = :holder AND number = :number")
HELD = Sql("SELECT number FROM leases WHERE name = :name AND number = :number AND expires_at > {now} {share}")


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act under `number`, until the database says that it expired."""

    name: str
    holder: str
    number: int


class LeaseLost(Exception):
    """Another holder leads now: whatever this one still wants to write must not be written."""


def acquire(db: Database, name: str, holder: str, seconds: int) -> Lease | None:
    """Take the lease if nobody holds it (any more); None when somebody does."""

    def take(conn: Connection) -> Lease | None:
        binds = {"name": name, "holder": holder, "seconds": seconds}
        if TAKE.run(conn, binds).rowcount == 0:
            # Made only where it is missing: an INSERT that finds the row shares its lock, and two that share it and
            # want it for themselves are a deadlock.
            if READ.run(conn, name=name).first() is not None:
                return None
            MAKE.run(conn, name=name)
            if TAKE.run(conn, binds).rowcount == 0:
                return None
        return Lease(name, holder, int(READ.run(conn, name=name).one().number))

    return db.unit(take)


def renew(db: Database, lease: Lease, seconds: int) -> bool:
    """Push the lease's end out; False when it was taken by another."""
    binds = {"name": lease.name, "holder": lease.holder, "number": lease.number, "seconds": seconds}
    return db.unit(lambda conn: RENEW.run(conn, binds).rowcount) == 1


def drop(db: Database, lease: Lease) -> None:
    """Give the lease up, so that the next holder need not wait for its end."""
    binds = {"name": lease.name, "holder": lease.holder, "number": lease.number}
    db.unit(lambda conn: DROP.run(conn, binds).rowcount)


def check(conn: Connection, lease: Lease) -> None:
    """Hold the lease's row (shared) for this transaction, first in the lock order.

    Raises:
        LeaseLost: the number is no longer the current one, or it expired.
    """
    if HELD.run(conn, name=lease.name, number=lease.number).first() is None:
        raise LeaseLost(lease.name)
