"""What a create may ask for today: a field whose feature is not there yet is refused, never ignored."""

from __future__ import annotations

from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import NotSupported
from fleet.model.request import InstanceRequest


def refuse_unsupported(body: InstanceRequest) -> None:
    """Refuse a body that asks for what is not there yet.

    Raises:
        NotSupported: with every such field.
    """
    if body.wait_for_capacity_seconds:
        field = "wait_for_capacity_seconds"
        errors = [{"field": field, "message": "not supported yet; leave it out"}]
        raise NotSupported(f"not supported yet: {field}", errors=errors)


def refuse_unsupported_setting(key: str, value: object) -> None:
    """Refuse a cluster-wide setting that turns on what is not there yet."""
    if key == "AUTO_SPAWN" and value is True:
        detail = f"{key} cannot have this value yet; its default is {getattr(ClusterConfig(), key.lower())}"
        raise NotSupported(detail, errors=[{"field": key, "message": "not supported yet"}])
