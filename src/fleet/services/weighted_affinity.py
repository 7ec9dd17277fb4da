"""Finding the instances that were made with weights, the deprecated form of tag affinity: those to convert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.ledger import instances
from fleet.ledger.database import Database
from fleet.ledger.instances import InstanceView, Position
from fleet.model.affinity import parse_affinity
from fleet.model.errors import InvalidRequest

INSTANCES_PER_READ: Final = 500


@dataclass(frozen=True, slots=True)
class Weighted:
    """One instance, its weights, and the lists that they are taken for.

    `mixed`: the weights differ in size, which says nothing any more; these deserve a second look when converting.
    """

    uuid: str
    namespace: str
    name: str
    affinity: Mapping[str, Any]
    mapped_to: Mapping[str, Any]
    mixed: bool


def find(db: Database) -> Iterator[Weighted]:
    """Yield the instances that are not deleted and use weights, youngest first, read in bounded pieces."""
    cursor: Position | None = None
    while True:
        page = instances.listing(db, None, INSTANCES_PER_READ, cursor)
        yield from (found for view in page if (found := _weighted(view)) is not None)
        if len(page) < INSTANCES_PER_READ:
            return
        cursor = Position(page[-1].created_at_us, page[-1].uuid)


def _weighted(view: InstanceView) -> Weighted | None:
    given = view.request.get("affinity")
    if given is None:
        given = (view.request.get("metadata") or {}).get("affinity")
    if not isinstance(given, dict):
        return None
    try:
        spec = parse_affinity(given)
    except InvalidRequest:
        # Stored by a version that accepted it; whatever it is, it is not the weighted form of this one.
        return None
    if not spec.deprecated:
        return None
    sizes = {abs(weight) for weight in given.values() if weight}
    return Weighted(view.uuid, view.namespace, view.name, given, spec.form(), mixed=len(sizes) > 1)
