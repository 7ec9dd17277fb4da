"""Remedies carried out by the book: on the body of the request and on the document of the snapshot."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from fleet.model.request import PlacementRequest, parse_placement_request
from fleet.placement.snapshot import Snapshot

Change = Mapping[str, Any]


def body_of(request: PlacementRequest) -> dict[str, Any]:
    """The body that a request was read from."""
    return request.model_dump(mode="json", exclude_defaults=True)


def apply(change: Change, body: dict[str, Any], document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return body and document after one change, both copied."""
    body, document = copy.deepcopy(body), copy.deepcopy(document)
    if "field" in change and "action" not in change:
        _change_field(change, body)
    elif change["action"] == "name-destination":
        assert body.get("placement", {}).get("node") == change["from"]
        body = {name: value for name, value in body.items() if name not in {"placement_rules", "affinity", "metadata"}}
        body["placement"] = {"node": change["node"]}
    else:
        _act(change, document)
    return body, document


def _change_field(change: Change, body: dict[str, Any]) -> None:
    path, after = str(change["field"]), change["to"]
    if label := re.fullmatch(r"placement\.labels\[(.*)\]", path):
        assert body["placement"]["labels"].pop(label[1]) == change["from"]
    elif path == "placement.node":
        assert body["placement"].pop("node") == change["from"]
    elif "affinity." in path:
        *outer, name = path.split(".")
        spec = body["affinity"] if outer == ["affinity"] else body["metadata"]["affinity"]
        spec[name] = [entry for entry in spec[name] if entry != change["from"]]
    elif path.startswith("placement_rules["):
        steps = [int(step) if step.isdecimal() else step for step in re.findall(r"\w+", path)]
        holder: Any = body
        for step in steps[:-1]:
            holder = holder[step]
        assert holder.pop(steps[-1]) == change["from"]
    elif after is None:
        del body[path]
    else:
        body[path] = after


def _act(change: Change, document: dict[str, Any]) -> None:
    node: dict[str, Any] = next((node for node in document["nodes"] if node["name"] == change.get("node")), {})
    action = change["action"]
    if action in {"uncordon", "undrain"}:
        node["scheduling"] = "enabled"
    elif action in {"publish", "repair"}:
        node["state"], node["sample_age_seconds"] = "active", 0
    elif action == "update":
        node["max_instances"] = change["to"]
        if node.get("capacity"):
            node["capacity"]["limit_instances"] = change["to"]
    elif action == "label":
        key = change["field"].removeprefix("labels[").removesuffix("]")
        node["labels"] = {**node.get("labels", {}), key: change["to"] or "its-own"}
    elif action == "set-config":
        values = {"true": True, "false": False}
        document["config"][change["key"]] = values.get(change["to"], change["to"])
    elif action == "register":
        document["nodes"].append(_node(change["shape"], document))
    else:
        raise AssertionError(f"nobody can carry out {action}")


def _node(shape: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """A new node, idle, with just what a shape says."""
    memory = shape["memory_mb"] + document["config"].get("INSTANCE_OVERHEAD_MB", 0)
    count, kind, profile = (shape.get(name) for name in ("gpus", "gpu_kind", "gpu_profile"))
    gpus = {"gpus": [{"uuid": f"GPU-{at}", "model": kind or ""} for at in range(count or 0)]}
    if profile:
        slices = [{"uuid": f"MIG-{at}", "profile": profile, "kind": kind or ""} for at in range(count or 0)]
        gpus = {"mig_instances": slices}
    return {
        "name": "fresh",
        "state": "active",
        "scheduling": "enabled",
        "sample_age_seconds": 0,
        "labels": {**shape.get("labels", {}), **dict.fromkeys(shape.get("own_labels", ()), "its-own")},
        "region": shape.get("region", ""),
        "arch": shape.get("arch", ""),
        "backend": "libvirt",
        "sleepy_pool": bool(shape.get("sleepy_pool")),
        "metrics": {
            "is_hypervisor": True,
            "cpu_threads": shape["cpus"],
            "cpu_schedulable": shape["cpus"],
            "cpu_max_per_instance": shape["cpus"],
            "cpu_load_1": 0,
            "cpu_total_instance_vcpus": 0,
            "memory_max": memory,
            "memory_available": memory,
            "memory_reserved_mb": 0,
            "memory_total_instance_actual": 0,
            "disk_total_gb": shape["disk_gb"],
            "disk_free_gb": shape["disk_gb"],
            "disk_reservation_gb": 0,
            "disk_busy_ms_per_second": 0,
            "queue_waiting": 0,
        },
        "capacity": {
            "limit_cpus": shape["cpus"],
            "limit_memory_mb": memory,
            "limit_disk_gb": shape["disk_gb"],
            "limit_instances": 1,
            "used_cpus": 0,
            "used_memory_mb": 0,
            "used_disk_gb": 0,
            "used_instances": 0,
            "pending_memory_mb": 0,
            "pending_disk_gb": 0,
        },
        **gpus,
    }


def read(body: dict[str, Any], document: dict[str, Any]) -> tuple[PlacementRequest, Snapshot]:
    """Return the request and the snapshot of what was written down."""
    return parse_placement_request(body), Snapshot.from_json(document)
