"""The checks that need time or instances, one at a time: drawing a claim down, its end, and its namespace's end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from fleet.cli.caller import Answer
from fleet.cli.exercise.scene import SIZES, Claim, Scene, claim_of, limits_of, moved, path, used_of
from fleet.cli.exercise.tally import Wrong, answered, refused, same, shown, true

OVER: Final = "placement admitted over namespace capacity claim"
EXPIRED: Final = "namespace claim expired, usage folded"
NOTHING: Final = dict.fromkeys(SIZES, 0)
SOON_SECONDS: Final = 1
LOOK_SECONDS: Final = 0.5


def drawn_down(scene: Scene) -> None:
    """An instance draws its namespace's claim down, sets the bound for shrinking, and gives back when it goes."""
    made = scene.make(scene.first, scene.body())
    uuid, instance = made["uuid"], ""
    with scene.tally.check("an instance within its namespace's claim: admitted, used_* rise by it", needed=True):
        instance = _placed(scene, scene.first)
        same("used", used_of(scene.read(scene.first, uuid)), dict(scene.charged))
    with scene.tally.check("within the claim nothing is told to be over"):
        told = [message for message, _, _ in scene.events(f"/instances/{instance}")]
        true(OVER not in told, f"the instance has the event {OVER!r}")
    with scene.tally.check("a claim below what is used: 409 with the figures, and nothing of the request is done"):
        _below_usage(scene, uuid)
    with scene.tally.check("shrink to exactly what is used, growing another dimension: done"):
        body = {**{f"limit_{name}": scene.charged[name] for name in ("cpus", "memory_mb")}, "limit_disk_gb": 3}
        before = scene.read(scene.first, uuid)
        changed = claim_of(answered(scene.call("PUT", scene.first, uuid, body), 200))
        same("limits", limits_of(changed), limits_of(body))
        same("used and end", (used_of(changed), changed["expires_at"]), (used_of(before), before["expires_at"]))
    with scene.tally.check("the ledger agrees with its charges"):
        scene.verify(uuid)
    with scene.tally.check("a deleted instance gives back to the claim: used_* are zero", needed=True):
        _gone(scene, instance)
        same("used", used_of(scene.read(scene.first, uuid)), NOTHING)
    _exceeded(scene, uuid)
    answered(scene.call("DELETE", scene.first, uuid), 200)


def _below_usage(scene: Scene, uuid: str) -> None:
    before = scene.read(scene.first, uuid)
    body = {"limit_cpus": scene.charged["cpus"] - 1, "limit_disk_gb": before["limit_disk_gb"] + 1}
    document = refused(scene.call("PUT", scene.first, uuid, body), 409, "claim_below_usage")
    figures = {figure["dimension"]: figure for figure in document["dimensions"] if figure["exceeded"]}
    same("what is below", list(figures), ["cpus"])
    told = (int(figures["cpus"]["limit"]), int(figures["cpus"]["used"]))
    same("limit and used", told, (body["limit_cpus"], scene.charged["cpus"]))
    same("the claim", scene.read(scene.first, uuid), before)


def _exceeded(scene: Scene, uuid: str) -> None:
    """A placement over the claim: told where claims are advisory, refused where they are hard."""
    answered(scene.call("PUT", scene.first, uuid, {"limit_cpus": 0}), 200)
    if scene.hard:
        with scene.tally.check("an instance over the claim (hard): 403 claim_exceeded, nothing is charged"):
            document = refused(_place(scene, scene.first), 403, "claim_exceeded")
            told = [figure["dimension"] for figure in document["dimensions"] if figure["exceeded"]]
            same("what is exceeded", told, ["cpus"])
            same("used", used_of(scene.read(scene.first, uuid)), NOTHING)
        return
    instance = ""
    with scene.tally.check(
        "an instance over the claim (advisory): admitted, and used_* are above limit_*", needed=True
    ):
        instance = _placed(scene, scene.first)
        same("used", used_of(scene.read(scene.first, uuid)), dict(scene.charged))
    for place in (f"/instances/{instance}", f"/auth/namespaces/{scene.first}"):
        whose = "instance" if instance in place else "namespace"
        with scene.tally.check(f"the {whose} has the warning of it, with the dimension, limit, used and requested"):
            told = [(level, payload) for message, level, payload in scene.events(place) if message == OVER]
            same(f"how often {OVER!r}", len(told), 1)
            level, payload = told[0]
            same("level and namespace", (level, payload["namespace"]), ("warning", scene.first))
            figures = [[one[key] for key in ("dimension", "limit", "used", "requested")] for one in _over(payload)]
            same("claim_dimensions", figures, [["cpus", 0, 0, scene.charged["cpus"]]])
    with scene.tally.check("the ledger agrees with its charges, over the claim"):
        scene.verify(uuid)
    with scene.tally.check("gone again, used_* are zero"):
        _gone(scene, instance)
        same("used", used_of(scene.read(scene.first, uuid)), NOTHING)


def _over(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {name: int(value) if isinstance(value, float) else value for name, value in figure.items()}
        for figure in payload["claim_dimensions"]
    ]


def taken_over(scene: Scene) -> tuple[Claim, str]:
    """What a namespace uses already is its new claim's. Returns the claim, and the instance that it pays."""
    instance = ""
    made: Claim = {}
    with scene.tally.check("an instance in a namespace without a claim", needed=True):
        instance = _placed(scene, scene.second)
    with scene.tally.check("a claim made afterwards takes over what is used already", needed=True):
        body = {f"limit_{name}": amount for name, amount in scene.charged.items()}
        made = scene.make(scene.second, scene.body(**body))
        same("used", used_of(made), dict(scene.charged))
    with scene.tally.check("the ledger agrees with its charges"):
        scene.verify(made["uuid"])
    return made, instance


def expiry(scene: Scene, namespace: str, made: Claim, instance: str) -> None:
    """A claim past its end keeps nothing and covers nothing, stays listed, is not revived, and is replaced."""
    uuid = made["uuid"]
    used = used_of(made)
    bound = int(scene.config["RECONCILE_INTERVAL_SECONDS"]) + scene.cluster.timeout
    scene.tally.say(f"waiting for a pass of the reconciler, at most {bound:g} s")
    with scene.tally.check("past its end it expires by itself, with the next pass of the reconciler", needed=True):
        before, after, expired = _expired(scene, namespace, uuid, bound)
        same("state", expired["state"], "created")
        same("limits", limits_of(expired), limits_of(made))
    with scene.tally.check("it keeps nothing: claimed_* fell by its limits, used_* are zero"):
        same("claimed_* fell by", moved(after, before), limits_of(made))
        same("used", used_of(expired), NOTHING)
    with scene.tally.check("its events and its namespace's: expired, with what was used"):
        for place in (path(namespace, uuid), f"/auth/namespaces/{namespace}"):
            told = [payload for message, _, payload in scene.events(place) if message == EXPIRED]
            told = [payload for payload in told if payload.get("claim") == uuid]
            same(f"how often {EXPIRED!r} at {place}", len(told), 1)
            same("what was used", {name: told[0][f"used_{name}"] for name in SIZES}, used)
    with scene.tally.check("it cannot be revived: 409 claim_not_active, by any field"):
        for body in ({"expires_in_seconds": 3600}, {"limit_cpus": made["limit_cpus"] + 1}, {"limit_cpus": 0}):
            refused(scene.call("PUT", namespace, uuid, body), 409, "claim_not_active", str(body))
        same("the claim", scene.read(namespace, uuid), expired)
    if instance:
        instance = _uncovered(scene, namespace, expired, instance)
    _replaced(scene, namespace, expired, instance)
    if instance:
        with scene.tally.check("the last instance goes"):
            _gone(scene, instance)


def _expired(
    scene: Scene, namespace: str, uuid: str, bound: float
) -> tuple[Mapping[str, int], Mapping[str, int], Claim]:
    """Let a claim end; return what was claimed just before the end was seen and just after, and the claim."""
    last = scene.claimed()
    answered(scene.call("PUT", namespace, uuid, {"expires_in_seconds": SOON_SECONDS}), 200)
    told = "the claim is still active; is sf-reconciler running?"
    for _ in scene.cluster.until(told, SOON_SECONDS + bound, LOOK_SECONDS):
        before = scene.claimed()
        found = scene.read(namespace, uuid)
        if found["coverage_state"] == "expired":
            # Read before the last look: what was claimed then may be of either side of the end.
            return last, scene.claimed(), found
        same("coverage_state", found["coverage_state"], "active")
        last = before
    raise AssertionError("the waiting ends by returning or raising")


def _uncovered(scene: Scene, namespace: str, expired: Claim, instance: str) -> str:
    """What its namespace places now, the cluster pays. Returns the instance that stands afterwards."""
    another = ""
    with scene.tally.check("the instance it paid goes: the cluster is credited, and not the claim"):
        _gone(scene, instance)
        same("used", used_of(scene.read(namespace, expired["uuid"])), NOTHING)
        scene.verify(expired["uuid"])
    with scene.tally.check(
        "an instance after the end is the cluster's: admitted, nothing used or exceeded", needed=True
    ):
        another = _placed(scene, namespace)
        same("used", used_of(scene.read(namespace, expired["uuid"])), NOTHING)
        told = [message for message, _, _ in scene.events(f"/instances/{another}")]
        true(OVER not in told, f"the instance has the event {OVER!r}")
        scene.verify(expired["uuid"])
    return another


def _replaced(scene: Scene, namespace: str, expired: Claim, instance: str) -> None:
    made: Claim = {}
    with scene.tally.check("a new claim in its place: 201, and it takes over what is used", needed=True):
        made = scene.make(namespace, scene.body())
        true(made["uuid"] != expired["uuid"], "it has the uuid of the expired one")
        same("used", used_of(made), dict(scene.charged) if instance else NOTHING)
    with scene.tally.check("the expired one stays listed until somebody deletes it"):
        listed = [(claim["uuid"], claim["coverage_state"]) for claim in scene.cluster.items(path(namespace))]
        same("the claims", listed, [(made["uuid"], "active"), (expired["uuid"], "expired")])
    with scene.tally.check("the expired one is deleted: as it was, and it has nothing to return"):
        before = scene.claimed()
        same("the claim", answered(scene.call("DELETE", namespace, expired["uuid"]), 200), expired)
        same("claimed_* fell by", moved(scene.claimed(), before), NOTHING)
    with scene.tally.check("the new one is deleted, and the ledger agrees with its charges"):
        answered(scene.call("DELETE", namespace, made["uuid"]), 200)
        scene.verify(made["uuid"], expired["uuid"])


def ended_namespace(scene: Scene) -> None:
    """In a deleted namespace no claim is made or changed, and what its claim kept returns."""
    delay = int(scene.config["CLEANER_DELAY_SECONDS"])
    waits = delay <= scene.cluster.timeout
    namespace = scene.cluster.namespace("c")
    made = scene.make(namespace, scene.body())
    if not waits:
        # Deleted first, it keeps nothing back for that long.
        answered(scene.call("DELETE", namespace, made["uuid"]), 200)
    before = scene.claimed()
    with scene.tally.check("the namespace is deleted: no claim is made in it, and none changed", needed=True):
        answered(scene.cluster.call("DELETE", f"/auth/namespaces/{namespace}"), 204)
        for method, uuid, body in (("POST", "", scene.body()), ("PUT", made["uuid"], {"limit_cpus": 0})):
            refused(scene.call(method, namespace, uuid, body), 404, "not_found", method)
    what = "what its claim kept returns by itself after CLEANER_DELAY_SECONDS"
    if not waits:
        scene.tally.skip(what, f"that is {delay} s here: more than --timeout {scene.cluster.timeout:g}")
        return
    scene.tally.say(f"waiting for the capacity of a deleted namespace, at most {delay + scene.cluster.timeout:g} s")
    with scene.tally.check(what):
        last = before
        for _ in scene.cluster.until("claimed_* has not fallen by its limits", delay + scene.cluster.timeout):
            now = scene.claimed()
            # Step by step: others' claims come and go as well.
            if limits_of(made) in (moved(now, last), moved(now, before)):
                break
            last = now


# --- instances ---------------------------------------------------------------------------------------------------


def _place(scene: Scene, namespace: str) -> Answer:
    size = {**scene.charged, "memory_mb": scene.charged["memory_mb"] - int(scene.config["INSTANCE_OVERHEAD_MB"])}
    body = {"name": "exercise", "namespace": namespace, **size}
    return scene.cluster.call("POST", "/instances", body, key=str(uuid4()))


def _placed(scene: Scene, namespace: str) -> str:
    uuid: str = answered(_place(scene, namespace), 201, "an instance")["uuid"]
    return uuid


def _gone(scene: Scene, instance: str) -> None:
    """Delete an instance, and wait until its node has done it."""
    place = f"/instances/{instance}"
    asked = scene.cluster.call("DELETE", place)
    for _ in scene.cluster.until(
        f"instance {instance} is not deleted; is its sf-worker running?", scene.cluster.timeout
    ):
        if not asked.ok:
            asked = scene.cluster.call("DELETE", place)
        found = scene.cluster.call("GET", place)
        if found.status == 404 or (found.ok and found.body["state"] == "deleted"):
            return
        if asked.status not in {202, 404, 409}:
            raise Wrong(f"DELETE {place}: expected 202, got {shown(asked)}")
