"""The whole fleet as one document: everything that any decision may see, with every instance.

`fleet decide` on it answers what the service would answer now, for any request: rules and affinity included. A decision
of the service itself sees less of the instances, those alone that its request asks about.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def _record(frame: Frame, placed_charges: Sequence[PlacedCharge]) -> InstanceRecord:
    first = placed_charges[0]
    return InstanceRecord.of_charges(
        (one.charge for one in placed_charges),
        tags=first.tags,
        terminating=first.terminating,
        name_of=frame.roster.name_of,
        now_us=frame.now_us,
    )
