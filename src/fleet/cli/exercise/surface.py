"""The checks that need no instance: bodies, creation, reads, who may, changes, deletion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

from fleet.cli.caller import Caller
from fleet.cli.exercise.scene import SIZES, Claim, Scene, claim_of, limits_of, moved, path, used_of
from fleet.cli.exercise.tally import Wrong, answered, refused, same, true

WRONG_VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "a boolean is not a number": (True, False),
    "a negative number": (-1, -(2**63)),
    "a huge number": (2**40 + 1, 2**63, 10**30),
    "a fraction": (1.0, 1.5),
    "a text": ("1", ""),
    "nothing, a list, a map": (None, [], {}),
}
CREATED: Final = "db record created"
CHANGED: Final = "namespace claim changed"


def bodies(scene: Scene) -> None:
    """What is no claim is refused, field by field, and nothing is stored."""
    good = scene.body()

    def ask(body: Any, what: str, field: str) -> None:
        refused(scene.call("POST", scene.first, body=body), 400, "invalid_request", what, field=field)

    for told, values in WRONG_VALUES.items():
        with scene.tally.check(f"{told}: refused, and the field named"):
            for name in good:
                for value in values:
                    ask({**good, name: value}, f"{name} = {value!r}", name)
    with scene.tally.check("an end that is now: refused"):
        ask({**good, "expires_in_seconds": 0}, "expires_in_seconds = 0", "expires_in_seconds")
    with scene.tally.check("a missing field: refused, and all that are missing named"):
        for name in good:
            ask({field: value for field, value in good.items() if field != name}, f"without {name}", name)
        document = refused(scene.call("POST", scene.first, body={}), 400, "invalid_request", "an empty body")
        same("what is named", sorted(problem["field"] for problem in document["errors"]), sorted(good))
    with scene.tally.check("an unknown field: refused, and named"):
        ask({**good, "limit_gpus": 1}, "limit_gpus", "limit_gpus")
        # A time would be judged by a clock that the caller never saw.
        ask({**good, "expires_at": "2100-01-01T00:00:00Z"}, "expires_at", "expires_at")
    with scene.tally.check("a body that is no object: refused"):
        no_objects: tuple[Any, ...] = ([], "x", 1, None)
        for body in no_objects:
            refused(scene.call("POST", scene.first, body=body), 400, "invalid_request", f"body {body!r}")
    with scene.tally.check("nothing was stored by any of these"):
        same("the claims", scene.cluster.items(path(scene.first)), [])


def creation(scene: Scene) -> Claim:
    """A claim is made once, and takes its limits from the cluster's room. Returns it."""
    body, key = scene.body(), str(uuid4())
    made: Claim = {}
    with scene.tally.check("create: 201 with what was asked, nothing used, active", needed=True):
        before = scene.claimed()
        made = claim_of(answered(scene.call("POST", scene.first, body=body, key=key), 201))
        same("namespace", made["namespace"], scene.first)
        same("limits", limits_of(made), limits_of(body))
        same("used", used_of(made), dict.fromkeys(SIZES, 0))
        same("states", (made["state"], made["coverage_state"]), ("created", "active"))
        true(made["created_at"] < made["expires_at"], f"it ends at {made['expires_at']}, before {made['created_at']}")
    with scene.tally.check("the cluster keeps the claim's limits for it: claimed_* rose by them"):
        same("claimed_* rose by", moved(before, scene.claimed()), limits_of(made))
    with scene.tally.check("the same request again, by its Idempotency-Key: the same claim"):
        again = answered(scene.call("POST", scene.first, body=body, key=key), 201)
        same("the claim", again["uuid"], made["uuid"])
        same("how many there are", len(scene.cluster.items(path(scene.first))), 1)
    with scene.tally.check("a second claim: 409 claim_exists, which names the one that is there"):
        document = refused(scene.call("POST", scene.first, body=body), 409, "claim_exists")
        same("the claim named", document.get("claim"), made["uuid"])
        same("how many there are", len(scene.cluster.items(path(scene.first))), 1)
    with scene.tally.check("the claim's own events: created, by whom"):
        told = [payload for message, _, payload in scene.events(path(scene.first, made["uuid"])) if message == CREATED]
        same(f"how often {CREATED!r}", len(told), 1)
        true(told[0].get("by"), f"the event does not say by whom: {told[0]}")
    return made


def too_much(scene: Scene, made: Claim) -> None:
    """What the cluster cannot promise is 507 with the figures, and leaves nothing behind."""
    capacity = scene.cluster.get("/admin/cluster-capacity")
    bounded = [name for name in SIZES if capacity[f"total_{name}"] is not None]
    for name in SIZES:
        what = f"more {name} than the cluster has: 507 with limit, used and requested"
        if name not in bounded:
            scene.tally.skip(what, f"the cluster's {name} are unlimited")
            continue
        with scene.tally.check(what):
            asked = capacity[f"total_{name}"] + 1
            body = scene.body(**{f"limit_{name}": asked})
            document = refused(scene.call("POST", scene.second, body=body), 507, "claim_capacity")
            figures = {figure["dimension"]: figure for figure in document["dimensions"]}
            same("requested", int(figures[name]["requested"]), asked)
            true(figures[name]["limit"] < figures[name]["used"] + asked, f"by its figures it fits: {figures[name]}")
            over = [dimension for dimension, figure in figures.items() if figure["exceeded"]]
            same("what is too much", over, [name])
    with scene.tally.check("growing a claim beyond the cluster: 507, and nothing of the request is done"):
        true(bounded, "no dimension of the cluster has a limit")
        name = bounded[0]
        grown = {f"limit_{name}": capacity[f"total_{name}"] + 1, "expires_in_seconds": 7200}
        refused(scene.call("PUT", scene.first, made["uuid"], grown), 507, "claim_capacity")
        same("the claim", scene.read(scene.first, made["uuid"]), made)
    with scene.tally.check("a refused claim leaves nothing"):
        same("the claims", scene.cluster.items(path(scene.second)), [])


def reads(scene: Scene, made: Claim) -> None:
    """A claim is read under its own namespace only; elsewhere it is as one that never was."""
    with scene.tally.check("show and list answer the claim as it was made"):
        same("shown", scene.read(scene.first, made["uuid"]), made)
        same("listed", scene.cluster.items(path(scene.first)), [made])
        same("listed under another namespace", scene.cluster.items(path(scene.second)), [])
    nowhere = f"{scene.first}-nowhere"
    elsewhere = [
        (scene.second, made["uuid"]),
        (scene.second, str(uuid4())),
        (scene.second, "not-a-uuid"),
        (nowhere, made["uuid"]),
        (nowhere, str(uuid4())),
    ]
    for told, method, tail, body in (
        ("show", "GET", "", None),
        ("update", "PUT", "", {"limit_cpus": 0}),
        ("delete", "DELETE", "", None),
        ("events", "GET", "/events", None),
    ):
        with scene.tally.check(f"{told} of another namespace's claim: 404, the same body as where nothing is"):
            bodies = [
                refused(scene.call(method, namespace, uuid + tail, body), 404, "not_found", f"{namespace} {uuid}")
                for namespace, uuid in elsewhere
            ]
            for (namespace, uuid), document in zip(elsewhere, bodies, strict=True):
                same(f"the body for {namespace} {uuid}", document, bodies[1])
    with scene.tally.check("list and create in a namespace that is not there: 404, the same body again"):
        listed = refused(scene.call("GET", nowhere), 404, "not_found", "list")
        created = refused(scene.call("POST", nowhere, body=scene.body()), 404, "not_found", "create")
        same("the bodies", created, listed)
    with scene.tally.check("none of these changed the claim"):
        same("the claim", scene.read(scene.first, made["uuid"]), made)


def owner(scene: Scene, made: Claim) -> None:
    """Whoever is not the admin may do nothing, and learns nothing."""
    caller: Caller | None = None
    with scene.tally.check("a key of the namespace buys a token", needed=True):
        place = f"/auth/namespaces/{scene.first}/keys"
        key = answered(scene.cluster.call("POST", place, {"name": "exercise"}, key=str(uuid4())), 201)["key"]
        caller = scene.cluster.session(scene.first, key)
        answered(caller.call("GET", f"/auth/namespaces/{scene.first}"), 200)
    assert caller is not None
    for told, method, ref, body in _verbs(scene, made["uuid"]):
        with scene.tally.check(f"{told} without being the admin: 403, the same whether it exists or not"):
            found = [
                refused(caller.call(method, path(namespace, uuid), body), 403, "forbidden", f"{namespace} {uuid}")
                for namespace in (scene.first, scene.second, f"{scene.first}-nowhere")
                for uuid in ref
            ]
            for document in found:
                same("the body", document, found[0])
    with scene.tally.check("none of these changed the claim"):
        same("the claim", scene.read(scene.first, made["uuid"]), made)


def _verbs(scene: Scene, uuid: str) -> Iterator[tuple[str, str, tuple[str, ...], Any]]:
    refs = (uuid, str(uuid4()))
    yield "list", "GET", ("",), None
    yield "create", "POST", ("",), scene.body()
    yield "show", "GET", refs, None
    yield "update", "PUT", refs, {"limit_cpus": 0}
    yield "delete", "DELETE", refs, None
    yield "events", "GET", tuple(f"{ref}/events" for ref in refs), None


def changes(scene: Scene, made: Claim) -> None:
    """Only what is given changes, all of it or nothing."""
    uuid, now = made["uuid"], made

    def put(body: Any) -> Claim:
        return claim_of(answered(scene.call("PUT", scene.first, uuid, body), 200, str(body)))

    for name in SIZES:
        with scene.tally.check(f"update of limit_{name} alone: nothing else changes, claimed_* follows", needed=True):
            before = scene.claimed()
            grown = now[f"limit_{name}"] + 1
            changed = put({f"limit_{name}": grown})
            _kept(changed, now, **{f"limit_{name}": grown})
            now = changed
            same("claimed_* rose by", moved(before, scene.claimed()), {**dict.fromkeys(SIZES, 0), name: 1})
    with scene.tally.check("update of the end alone: later, counted from now, and the limits stay", needed=True):
        changed = put({"expires_in_seconds": 2 * 3600})
        true(changed["expires_at"] > now["expires_at"], f"it ends at {changed['expires_at']}, as before")
        _kept(changed, now, expires_at=changed["expires_at"])
        now = changed
    with scene.tally.check("zero is a value, and not nothing; one grows while another shrinks", needed=True):
        before = scene.claimed()
        mixed = {"limit_cpus": 0, "limit_disk_gb": now["limit_disk_gb"] + 1}
        changed = put(mixed)
        _kept(changed, now, **mixed)
        expected = {**dict.fromkeys(SIZES, 0), "cpus": -now["limit_cpus"], "disk_gb": 1}
        now = changed
        same("claimed_* moved by", moved(before, scene.claimed()), expected)
    with scene.tally.check("update of nothing, of an unknown field, by a wrong value: 400, and nothing changes"):
        refused(scene.call("PUT", scene.first, uuid, {}), 400, "invalid_request", "nothing")
        for body, field in _wrong_changes(now):
            refused(scene.call("PUT", scene.first, uuid, body), 400, "invalid_request", str(body), field=field)
        same("the claim", scene.read(scene.first, uuid), now)
    with scene.tally.check("the claim's own events: each change, by whom, with what was and what is"):
        told = [payload for message, _, payload in scene.events(path(scene.first, uuid)) if message == CHANGED]
        same(f"how often {CHANGED!r}", len(told), len(SIZES) + 2)
        mixed_from, mixed_to = told[-1]["old"], told[-1]["new"]
        same("what is told to have changed", (sorted(mixed_from), mixed_to), (sorted(mixed), mixed))
        true(all(payload.get("by") for payload in told), "an event does not say by whom")


def _wrong_changes(now: Claim) -> Iterator[tuple[dict[str, Any], str]]:
    for values in WRONG_VALUES.values():
        yield from (({"limit_disk_gb": 9, "limit_cpus": value}, "limit_cpus") for value in values)
    yield {"limit_cpus": 9, "uuid": now["uuid"]}, "uuid"
    yield {"limit_cpus": 9, "used_cpus": 0}, "used_cpus"
    yield {"limit_cpus": 9, "expires_in_seconds": 0}, "expires_in_seconds"


def _kept(changed: Claim, before: Claim, **given: Any) -> None:
    expected = {**before, **given, "updated_at": changed["updated_at"]}
    wrong = [name for name in before if changed[name] != expected[name]]
    if wrong:
        told = ", ".join(f"{name} is {changed[name]}, not {expected[name]}" for name in wrong)
        raise Wrong(f"asked for {given}: {told}")


def deletion(scene: Scene, made: Claim) -> None:
    """A deleted claim is gone at once, and its capacity is the cluster's."""
    uuid, namespace = made["uuid"], scene.first
    with scene.tally.check("delete: 200 with the claim as it was", needed=True):
        last, before = scene.read(namespace, uuid), scene.claimed()
        same("the claim", answered(scene.call("DELETE", namespace, uuid), 200), last)
    with scene.tally.check("its capacity is the cluster's again: claimed_* fell by its limits"):
        same("claimed_* fell by", moved(scene.claimed(), before), limits_of(last))
    verbs: tuple[tuple[str, Any], ...] = (("GET", None), ("PUT", {"limit_cpus": 1}), ("DELETE", None))
    with scene.tally.check("what is deleted is not there: 404"):
        for method, body in verbs:
            refused(scene.call(method, namespace, uuid, body), 404, "not_found", method)
        same("the claims", scene.cluster.items(path(namespace)), [])
    with scene.tally.check("the claim's own events are kept, its end the last of them"):
        message, _, payload = scene.events(path(namespace, uuid))[-1]
        same("the last event", (message, _of(payload, uuid)), ("namespace claim deleted, capacity returned", True))
    with scene.tally.check("the namespace's events: asked for, deleted and returned"):
        told = [message for message, _, payload in scene.events(f"/auth/namespaces/{namespace}") if _of(payload, uuid)]
        for message in (
            "create namespace claim request from REST API",
            "delete namespace claim request from REST API",
            "namespace claim deleted, capacity returned",
        ):
            true(message in told, f"no event {message!r} among {told}")
    with scene.tally.check("the ledger agrees with its charges"):
        scene.verify(uuid)


def _of(payload: Mapping[str, Any], uuid: str) -> bool:
    return payload.get("claim") == uuid
