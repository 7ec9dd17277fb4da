"""What a create may ask for today: a field whose feature is not there yet is refused, never ignored.

A line goes when its feature arrives; when the table is empty, so may this module.
"""

from __future__ import annotations

from typing import Final

from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import NotSupported
from fleet.model.request import InstanceRequest

STRATEGIES_LATER: Final = frozenset({"balanced", "spread-3", "best-fit", "spread", "binpack"})
"""Known names whose files are not there yet; a name that nobody knows is the pipeline's to refuse."""

# Field of the body, as its error names it, and whether the body asks for it.
_LATER: Final = (
    ("affinity", lambda body: bool(body.affinity)),
    ("metadata.affinity", lambda body: bool((body.metadata or {}).get("affinity"))),
    ("placement.node", lambda body: body.placement.node is not None),
    ("placement.labels", lambda body: bool(body.placement.labels)),
    ("placement_rules", lambda body: bool(body.placement_rules)),
    ("region", lambda body: bool(body.region)),
    ("arch", lambda body: bool(body.arch)),
    ("gpus", lambda body: body.gpus > 0),
    ("gpu_kind", lambda body: bool(body.gpu_kind)),
    ("gpu_profile", lambda body: bool(body.gpu_profile)),
    ("sleep_after_idle_seconds", lambda body: body.sleep_after_idle_seconds > 0),
    ("wait_for_capacity_seconds", lambda body: body.wait_for_capacity_seconds > 0),
)


def refuse_unsupported(body: InstanceRequest) -> None:
    """Refuse a body that asks for what is not there yet.

    Raises:
        NotSupported: with every such field.
    """
    fields = [name for name, asked in _LATER if asked(body)]
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
