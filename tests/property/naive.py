"""Who fits, node by node and figure by figure, as the documents say it: slow, plain, and without the product's code.

Nodes have all of their figures here; what is unknown has laws of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

Form = Mapping[str, Any]

SPELLINGS = {"": "amd64", "x86_64": "amd64", "aarch64": "arm64"}
QUEUE_MAX, BUSY_MAX = 20, 1200


class Naive:
    """One request on one document."""

    def __init__(self, document: Form, body: Form) -> None:
        self.nodes: Sequence[Form] = document["nodes"]
        self.config: Form = document["config"]
        self.body = body
        self.reason = body.get("reason", "create")
        everyone: Sequence[Form] = document["instances"]
        self.itself = next((one for one in everyone if one["uuid"] == body.get("instance")), None)
        self.home = None if self.itself is None else self.itself.get("node")
        self.neighbours = [
            one
            for one in everyone
            if one["namespace"] == body.get("namespace", "") and not one["terminating"] and one is not self.itself
        ]

    def fitting(self) -> set[str]:
        """The names of the nodes that a decision has to rank."""
        left = [node for node in self.nodes if self._may_take(node) and self._has_room(node)]
        left = [node for node in left if self._is_home(node) or self._keeps_required(node)]
        rules = self.body.get("placement_rules", [])
        keeping = [node for node in left if self._is_home(node) or all(self._holds(rule, node) for rule in rules)]
        if keeping or self.config.get("AFFINITY_MATCHING", "enforced") == "enforced":
            left = keeping
        calm = [node for node in left if self._is_home(node) or self._is_calm(node)]
        best = max((self._score(node) for node in left), default=0)
        preferred = [node for node in left if self._is_home(node) or self._score(node) == best]
        # Load shedding narrows the group that is preferred; it never leaves it, but may leave nobody at all.
        narrowed = [node for node in calm if node in preferred] or (preferred if calm else [])
        return {node["name"] for node in narrowed}

    def _is_home(self, node: Form) -> bool:
        return bool(self.reason == "resize" and node["name"] == self.home)

    def _may_take(self, node: Form) -> bool:
        body, age = self.body, node["sample_age_seconds"]
        if body.get("placement", {}).get("node", node["name"]) != node["name"]:
            return False
        fresh = age is not None and age < self.config.get("NODE_METRICS_MAX_AGE_SECONDS", 120)
        if node["state"] != "active" or not fresh or not node["metrics"]["is_hypervisor"]:
            return False
        leaves = self.reason in {"migrate", "evacuate"} and node["name"] == self.home
        if leaves or node["name"] not in body.get("destinations", [node["name"]]):
            return False
        if node["scheduling"] == "draining":
            return False
        return self._is_home(node) or (node["scheduling"] == "enabled" and self._is_of_the_kind(node))

    def _is_of_the_kind(self, node: Form) -> bool:
        body, sleepy = self.body, self.body.get("sleep_after_idle_seconds", 0) > 0
        arch, asked = node["arch"], body.get("arch", "")
        return (
            (not self.config.get("DEDICATED_SLEEPY_NODES") or node["sleepy_pool"] == sleepy)
            and body.get("region", "") in {"", node["region"]}
            and (not asked or SPELLINGS.get(asked, asked) == SPELLINGS.get(arch, arch))
            and (not body.get("gpus") or node["backend"] in {"qemu", "libvirt", "simulated"})
            and body.get("placement", {}).get("labels", {}).items() <= node["labels"].items()
        )

    def _has_room(self, node: Form) -> bool:
        metrics, row, ratio = node["metrics"], node["capacity"], self._ratio
        wanted = {
            "cpus": self.body["cpus"],
            "memory_mb": self.body["memory_mb"] + self.config.get("INSTANCE_OVERHEAD_MB", 0),
            "disk_gb": self.body.get("disk_gb", 0),
            "instances": 1,
        }
        held = self._held(node)
        added = wanted if held is None else dict.fromkeys(wanted, 0)
        if held is not None and self.reason == "resize":
            added |= {name: max(0, wanted[name] - amount) for name, amount in held.items()}
        grows = not self._is_home(node) or added["cpus"] > 0
        memory = metrics["memory_available"] - metrics["memory_reserved_mb"]
        disk = metrics["disk_free_gb"] - Fraction(str(metrics["disk_reservation_gb"]))
        rooms: list[tuple[str, Any]] = [
            ("cpus", self._left(row, "cpus", metrics["cpu_total_instance_vcpus"])),
            ("memory_mb", self._left(row, "memory_mb", metrics["memory_total_instance_actual"])),
            ("memory_mb", memory - math.ceil(row["pending_memory_mb"] / ratio("RAM", 3))),
            ("disk_gb", self._left(row, "disk_gb", 0)),
            ("disk_gb", disk - math.ceil(row["pending_disk_gb"] / ratio("DISK", 1))),
            ("instances", self._left(row, "instances", 0)),
        ]
        if grows and wanted["cpus"] > metrics["cpu_max_per_instance"]:
            return False
        if any(added[name] > room and (added[name] or held is None) for name, room in rooms):
            return False
        return held is not None or not self.body.get("gpus") or self._free_gpus(node) >= self.body["gpus"]

    def _ratio(self, name: str, default: int) -> Fraction:
        return Fraction(str(self.config.get(f"{name}_OVERCOMMIT_RATIO", default)))

    @staticmethod
    def _left(row: Form, name: str, measured: int) -> float:
        limit = row[f"limit_{name}"]
        return math.inf if limit is None else limit - max(row[f"used_{name}"], measured)

    def _held(self, node: Form) -> dict[str, int] | None:
        one = self.itself
        if one is None or node["name"] not in {one["node"], one["incoming_node"]}:
            return None
        memory = one["memory_mb"] if node["name"] == one["node"] else one.get("incoming_memory_mb", one["memory_mb"])
        return {"cpus": one["cpus"], "memory_mb": memory, "disk_gb": one["disk_gb"]}

    def _free_gpus(self, node: Form) -> int:
        kind, profile = self.body.get("gpu_kind", "").lower(), self.body.get("gpu_profile", "")
        cards, slices = node.get("gpus", []), node.get("mig_instances", [])

        def is_of(model: str) -> bool:
            own = node.get("gpu_kind", "").lower()
            return kind in model.lower() if model else not own or kind in {"", own}

        def is_there(unit: Form) -> bool:
            return bool(unit["uuid"]) and not unit.get("missing") and not unit.get("bound_to")

        def can_be_given(part: Form) -> bool:
            card = next((one for one in cards if one["uuid"] == part.get("parent_gpu_uuid")), None)
            model = "" if card is None else card.get("model", "")
            if card is not None and not (card.get("mig_capable") and (not model or is_of(model))):
                return False
            own = part.get("kind", "").lower()
            return kind in own if own else is_of(model)

        if profile and slices:
            return sum(is_there(part) and part["profile"] == profile and can_be_given(part) for part in slices)
        if profile:
            free: int = node.get("mig_profiles", {}).get(profile, 0) - node.get("mig_profiles_used", {}).get(profile, 0)
            cut = [card["model"] for card in cards if card.get("mig_capable") and not card.get("missing")]
            return free if any(is_of(model) for model in (cut if cards else [""])) else 0
        if cards:
            return sum(is_there(card) and not card.get("mig_mode") and is_of(card.get("model", "")) for card in cards)
        if self.body.get("gpu_kind", "") not in {"", node.get("gpu_kind", "")}:
            return 0
        left: int = node.get("gpu_count", 0) - node.get("gpu_count_used", 0)
        return left

    def _on(self, names: set[str]) -> list[Form]:
        return [one for one in self.neighbours if {one["node"], one["incoming_node"]} & names]

    def _keeps_required(self, node: Form) -> bool:
        asked, there = self.body.get("affinity", {}), self._on({node["name"]})
        return all(
            any(_carries(one, entry) for one in there) for entry in asked.get("require_with_tag", [])
        ) and not any(_carries(one, entry) for one in there for entry in asked.get("require_without_tag", []))

    def _score(self, node: Form) -> int:
        asked, there = self.body.get("affinity", {}), self._on({node["name"]})
        weighed = {key: weight for key, weight in asked.items() if isinstance(weight, int)}
        liked = [*asked.get("prefer_with_tag", []), *(key for key, weight in weighed.items() if weight > 0)]
        shunned = [*asked.get("prefer_without_tag", []), *(key for key, weight in weighed.items() if weight < 0)]
        # A tag that is named twice is one tag.
        return sum(
            sum(_carries(one, entry) for entry in set(liked)) - sum(_carries(one, entry) for entry in set(shunned))
            for one in there
        )

    def _holds(self, rule: Form, node: Form) -> bool:
        if "any_of" in rule:
            return any(self._holds(inner, node) for inner in rule["any_of"])
        if "all_of" in rule:
            return all(self._holds(inner, node) for inner in rule["all_of"])
        tags, key = rule["tags"].items(), rule.get("within")
        if rule["resource"] == "metal_server":
            return (tags <= node["labels"].items()) is (rule["operator"] == "has")
        names = {node["name"]}
        if key is not None:
            if key not in node["labels"]:
                return False
            names = {other["name"] for other in self.nodes if other["labels"].get(key) == node["labels"][key]}
        return any(tags <= one["tags"].items() for one in self._on(names)) is (rule["operator"] == "has")

    @staticmethod
    def _is_calm(node: Form) -> bool:
        metrics = node["metrics"]
        return bool(
            metrics.get("queue_waiting", 0) <= QUEUE_MAX and metrics.get("disk_busy_ms_per_second", 0) <= BUSY_MAX
        )


def _carries(one: Form, entry: str) -> bool:
    key, equals, value = entry.partition("=")
    return key in one["tags"] and (not equals or one["tags"][key] == value)
