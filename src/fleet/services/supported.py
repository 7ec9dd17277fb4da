"""What a create may ask for today: a field whose feature is not there yet is refused, never ignored.

Which fields of a request have their stage is the stages' own word (`serves`); here is what comes without one.
"""

from __future__ import annotations

from typing import Final

from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import NotSupported
from fleet.model.request import InstanceRequest
from fleet.placement.ask import fields_asked
from fleet.placement.stage import served_fields

STRATEGIES_LATER: Final = frozenset({"balanced", "spread-3", "best-fit", "spread", "binpack"})
"""Known names whose files are not there yet; a name that nobody knows is the pipeline's to refuse."""


def refuse_unsupported(body: InstanceRequest) -> None:
    """Refuse a body that asks for what is not there yet.

    Raises:
        NotSupported: with every such field.
    """
    fields = [name for name in fields_asked(body) if name not in served_fields()]
    if body.wait_for_capacity_seconds:
        fields.append("wait_for_capacity_seconds")
    if body.strategy in STRATEGIES_LATER:
        fields.append("strategy")
    if fields:
        raise later(fields)


def later(fields: list[str], message: str = "not supported yet; leave it out") -> NotSupported:
    """Return the refusal that names each field."""
    detail = f"not supported yet: {', '.join(fields)}"
    return NotSupported(detail, errors=[{"field": name, "message": message} for name in fields])


def refuse_unsupported_setting(key: str, value: object) -> None:
    """Refuse a cluster-wide setting that turns on what is not there yet."""
    turned_on = {
        "AUTO_SPAWN": value is True,
        "DEDICATED_SLEEPY_NODES": value is True,
        "PLACEMENT_STRATEGY": value in STRATEGIES_LATER,
    }
    if turned_on.get(key, False):
        detail = f"{key} cannot have this value yet; its default is {getattr(ClusterConfig(), key.lower())}"
        raise NotSupported(detail, errors=[{"field": key, "message": "not supported yet"}])
