"""What a sample cannot include: the statement that sums it says of every charge what the formulas say."""

from __future__ import annotations

import itertools

from fleet.ledger import pending
from fleet.ledger.database import Database, Sql
from fleet.model.admission import Charge
from fleet.model.resources import Amounts

SAMPLE_AT = 1_000_000
MOMENTS = (None, SAMPLE_AT - 1, SAMPLE_AT, SAMPLE_AT + 1)
SUMS = Sql(f"""
    SELECT {pending.amount_of("memory_mb")} AS memory_mb, {pending.amount_of("disk_gb")} AS disk_gb
    FROM (SELECT :role AS role, :settled_at AS settled_at, :grown_at AS grown_at, 512 AS memory_mb, 30 AS disk_gb,
        64 AS grown_memory_mb, 7 AS grown_disk_gb) ch
    CROSS JOIN (SELECT :sample_at AS sample_at) c
""")


def test_the_statement_and_the_formulas_agree_on_every_charge(db: Database) -> None:
    found = set()
    for role, settled_at, grown_at in itertools.product(("primary", "incoming"), MOMENTS, MOMENTS):
        held, grown = Amounts(1, 512, 30, 1), Amounts(0, 64, 7)
        charge = Charge(1, "i", "ns", 1, role, None, held, 0, settled_at, grown=grown, grown_at_us=grown_at)
        binds = {"role": role, "settled_at": settled_at, "grown_at": grown_at, "sample_at": SAMPLE_AT}
        with db.read() as conn:
            told = tuple(SUMS.run(conn, binds).one())

        assert told == pending.amounts(charge, SAMPLE_AT), binds
        found.add(told)
    assert found == {(512, 30), (64, 7), (0, 0)}
