"""What the checks share: the cluster, its settings, the namespaces, and claims as they are asked for and answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

from fleet.cli.caller import Answer
from fleet.cli.exercise.tally import Tally, answered, same, true
from fleet.cli.exercise.throwaway import Cluster
from fleet.cli.outcome import Refused

SIZES: Final = ("cpus", "memory_mb", "disk_gb")
FIELDS: Final = (
    *("uuid", "namespace", "state", "coverage_state"),
    *(f"{part}_{name}" for part in ("limit", "used") for name in SIZES),
    *("expires_at", "created_at", "updated_at"),
)
HOUR: Final = 3600
INSTANCE: Final = {"cpus": 1, "memory_mb": 64, "disk_gb": 1}
TIMES: Final = 3
"""How much of an instance the largest claim keeps."""

Claim = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """One run's stage: two namespaces, the settings that decide what is right, and what an instance is charged."""

    cluster: Cluster
    tally: Tally
    first: str
    second: str
    config: Mapping[str, str]
    charged: Mapping[str, int]
    sound: bool
    """Whether the ledger agreed with its charges before the run: only then does a difference say something."""

    @property
    def hard(self) -> bool:
        """Whether claims are ceilings."""
        return self.config["CLAIM_ENFORCEMENT"] == "hard"

    def body(self, *, seconds: int = HOUR, **limits: int) -> dict[str, int]:
        """A claim for two instances, but for the limits named."""
        amounts = {f"limit_{name}": 2 * amount for name, amount in self.charged.items()}
        return {**amounts, **limits, "expires_in_seconds": seconds}

    def call(self, method: str, namespace: str, uuid: str = "", body: Any = None, *, key: str = "") -> Answer:
        """Ask for the claims of a namespace, or one of them, as the admin."""
        return self.cluster.call(method, path(namespace, uuid), body, key=key)

    def make(self, namespace: str, body: Mapping[str, int]) -> Claim:
        """Make a claim that must be made."""
        return claim_of(answered(self.call("POST", namespace, body=body, key=str(uuid4())), 201, "a claim"))

    def read(self, namespace: str, uuid: str) -> Claim:
        """A claim that must be there."""
        return claim_of(answered(self.call("GET", namespace, uuid), 200, "the claim"))

    def events(self, place: str) -> list[tuple[str, str, Mapping[str, Any]]]:
        """The events of a timeline, oldest first: message, level, payload."""
        found = self.cluster.items(f"{place}/events", "&newest_first=false")
        return [(event["message"], event["level"], event["payload"]) for event in found]

    def claimed(self) -> dict[str, int]:
        """What the cluster keeps for claims."""
        found = self.cluster.get("/admin/cluster-capacity")
        return {name: int(found[f"claimed_{name}"]) for name in SIZES}

    def verify(self, *claims: str) -> None:
        """Expect the ledger's own proof to find nothing about the cluster's row and these claims."""
        if self.sound:
            rows = {"cluster", *(f"claim {uuid}" for uuid in claims)}
            found = answered(self.cluster.call("POST", "/admin/ledger/verify"), 200, "the ledger's proof")
            differences = [one for one in found["differences"] if one["row"] in rows]
            true(not differences, f"the ledger differs from its charges: {differences}")


def scene_of(cluster: Cluster, tally: Tally, *, instances: bool) -> Scene:
    """Look at the cluster, and make the namespaces.

    Raises:
        Refused: who asks is not the admin, or the cluster has no room for the checks.
    """
    config = {entry["key"]: str(entry["value"]) for entry in _wanted(cluster, "/admin/config")["items"]}
    overhead = int(config["INSTANCE_OVERHEAD_MB"])
    charged = {**INSTANCE, "memory_mb": INSTANCE["memory_mb"] + overhead}
    capacity = _wanted(cluster, "/admin/cluster-capacity")
    if capacity["counted_nodes"] == 0:
        raise _no_room(
            "no node counts in the cluster's capacity, so nothing can be claimed; has one published a sample?"
        )
    for name in SIZES:
        total, need = capacity[f"total_{name}"], 2 * TIMES * charged[name] + (charged[name] if instances else 0)
        taken = sum(capacity[f"{part}_{name}"] for part in ("claimed", "unclaimed_used", "overage"))
        if total is not None and total - taken < need:
            raise _no_room(f"the cluster has {max(0, total - taken)} {name} left, and the checks need {need}")
    proof = cluster.call("POST", "/admin/ledger/verify")
    sound = proof.ok and not [one for one in proof.body["differences"] if one["row"] == "cluster"]
    return Scene(cluster, tally, cluster.namespace("a"), cluster.namespace("b"), config, charged, sound)


def _wanted(cluster: Cluster, place: str) -> Any:
    answer = cluster.call("GET", place)
    if not answer.ok:
        document = answer.body if isinstance(answer.body, Mapping) and "code" in answer.body else {}
        raise Refused({"code": "unexpected", "detail": f"{place}: {answer.sentence()}", **document})
    return answer.body


def _no_room(told: str) -> Refused:
    return Refused({"code": "not_enough_room", "detail": told})


def path(namespace: str, uuid: str = "") -> str:
    """Where the claims of a namespace are, or one of them."""
    return f"/auth/namespaces/{namespace}/claims" + (f"/{uuid}" if uuid else "")


def claim_of(body: Any) -> Claim:
    """A claim with every documented field, or a complaint about the answer.

    Raises:
        Wrong: it is none.
    """
    missing = [name for name in FIELDS if name not in body]
    true(not missing, f"the claim has no {', '.join(missing)}: {body}")
    UUID(body["uuid"])
    for part in ("limit", "used"):
        for name in SIZES:
            same(f"{part}_{name} is a whole number", type(body[f"{part}_{name}"]), int)
    found: Claim = body
    return found


def limits_of(claim: Claim) -> dict[str, int]:
    """The limits of a claim, or of the body of one, by dimension."""
    return {name: claim[f"limit_{name}"] for name in SIZES if f"limit_{name}" in claim}


def used_of(claim: Claim) -> dict[str, int]:
    """What is used of a claim, by dimension."""
    return {name: claim[f"used_{name}"] for name in SIZES}


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much each dimension changed."""
    return {name: after[name] - before[name] for name in SIZES}
