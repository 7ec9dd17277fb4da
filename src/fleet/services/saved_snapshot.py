"""The whole fleet as one document: everything that any decision may see, with every instance.

`fleet decide` on it answers what the service would answer now, for any request: rules and affinity included. A decision
of the service itself sees less of the instances, those alone that its request asks about.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from fleet.ledger import placed
from fleet.ledger.database import Database
from fleet.ledger.placed import PlacedCharge
from fleet.placement.frame import Frame
from fleet.placement.instances import InstanceRecord
from fleet.placement.neighbours import InstanceIndex
from fleet.placement.snapshot import Snapshot


def with_instances(db: Database, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with every instance that holds a charge.

    Raises:
        DatabaseUnavailable: the ledger cannot be read.
    """
    frame = snapshot.frame
    held: dict[str, list[PlacedCharge]] = {}
    for one in placed.everything(db):
        held.setdefault(one.charge.instance_uuid, []).append(one)
    found = [_record(frame, charges) for charges in held.values()]
    return Snapshot(frame.with_instances(InstanceIndex(found)))


def _record(frame: Frame, charges: Iterable[PlacedCharge]) -> InstanceRecord:
    by_role = {one.charge.role: one for one in charges}
    primary, incoming = by_role.get("primary"), by_role.get("incoming")
    first = primary or incoming
    assert first is not None, "an instance is listed by its charges"
    charge = first.charge
    other = None if incoming is None or incoming.charge.amounts == charge.amounts else incoming.charge.amounts
    return InstanceRecord(
        uuid=charge.instance_uuid,
        namespace=charge.namespace,
        node=_name(frame, primary),
        incoming_node=_name(frame, incoming),
        tags=first.tags,
        amounts=charge.amounts,
        incoming=other,
        grown_memory_mb=charge.grown.memory_mb,
        grown_disk_gb=charge.grown.disk_gb,
        sleepy=charge.sleepy,
        terminating=first.terminating,
        draft=charge.settled_at_us is None,
        charge_age_seconds=Decimal(max(0, frame.now_us - charge.placed_at_us)) / 1_000_000,
    )


def _name(frame: Frame, one: PlacedCharge | None) -> str | None:
    at = -1 if one is None else frame.roster.by_id.get(one.charge.node_id, -1)
    return None if at < 0 else frame.roster.names[at]
