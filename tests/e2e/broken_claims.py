"""Services that break one promise of claims each, and the check that must fail for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.e2e.altering import Call, Fault

SIZES = ("cpus", "memory_mb", "disk_gb")
LIMITS = tuple(f"limit_{name}" for name in SIZES)
NEEDED = (*LIMITS, "expires_in_seconds")


class TakesBooleans(Fault):
    def before(self, call: Call) -> None:
        if call.method == "POST" and call.of_claims and isinstance(call.body, dict):
            call.body = {name: int(value) if isinstance(value, bool) else value for name, value in call.body.items()}


class TakesUnknownFields(Fault):
    def before(self, call: Call) -> None:
        if call.method == "POST" and call.of_claims and isinstance(call.body, dict):
            call.body = {name: value for name, value in call.body.items() if name in NEEDED}


class FillsMissingFields(Fault):
    def before(self, call: Call) -> None:
        if call.method == "POST" and call.of_claims and isinstance(call.body, dict):
            call.body = {**dict.fromkeys(NEEDED, 1), **call.body}


class TakesNegatives(Fault):
    def before(self, call: Call) -> None:
        if call.method == "POST" and call.of_claims and isinstance(call.body, dict):
            call.body = {name: 1 if type(value) is int and value < 0 else value for name, value in call.body.items()}


class AnswersCreatesWith200(Fault):
    def after(self, call: Call) -> None:
        if call.method == "POST" and call.of_claims and call.status == 201:
            call.status = 200


class ForgetsAField(Fault):
    def after(self, call: Call) -> None:
        for claim in call.claims():
            claim.pop("used_disk_gb", None)


class HasTwoClaims(Fault):
    """A second create is answered with the first claim."""

    def after(self, call: Call) -> None:
        if call.code == "claim_exists":
            call.status, call.answer = 201, call.ask("GET", f"{call.place}/{call.answer['claim']}")[1]


class SaysRetryForNoRoom(Fault):
    def after(self, call: Call) -> None:
        if call.code == "claim_capacity":
            call.status = 503
            call.answer |= {"status": 503, "code": "claim_not_ready"}


class RefusesWithoutFigures(Fault):
    def after(self, call: Call) -> None:
        if call.code == "claim_capacity":
            call.answer.pop("dimensions")


class KnowsClaims(Fault):
    """One that remembers which claims there are."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def after(self, call: Call) -> None:
        self.known |= {str(claim["uuid"]) for claim in call.claims() if "uuid" in claim}

    def exists(self, call: Call) -> bool:
        return any(uuid in call.place for uuid in self.known)


class TellsOthersClaims(KnowsClaims):
    def after(self, call: Call) -> None:
        super().after(call)
        if call.status == 404 and call.method == "GET" and self.exists(call):
            call.answer["detail"] = "the claim is another namespace's"


class ForbidsOthersClaims(KnowsClaims):
    def after(self, call: Call) -> None:
        super().after(call)
        if call.status == 404 and call.method == "DELETE" and self.exists(call):
            call.status = 403
            call.answer |= {"status": 403, "code": "forbidden"}


class LetsOwnersList(Fault):
    def after(self, call: Call) -> None:
        if call.status == 403 and call.method == "GET" and call.place.endswith("/claims"):
            call.status, call.answer = 200, {"items": [], "next_cursor": None}


class TellsOwnersWhatExists(KnowsClaims):
    def after(self, call: Call) -> None:
        super().after(call)
        if call.status == 403 and call.of_one_claim and not self.exists(call):
            call.status = 404
            call.answer |= {"status": 404, "code": "not_found"}


class IgnoresTheMask(Fault):
    """What is left out of an update becomes zero."""

    def before(self, call: Call) -> None:
        if call.method == "PUT" and call.of_claims and isinstance(call.body, dict) and "limit_cpus" in call.body:
            call.body = {**dict.fromkeys(LIMITS, 0), **call.body}


class ReadsZeroAsNothing(Fault):
    def before(self, call: Call) -> None:
        if call.method == "PUT" and call.of_claims and isinstance(call.body, dict) and len(call.body) > 1:
            call.body = {name: value for name, value in call.body.items() if value != 0 or isinstance(value, bool)}


class DoesHalfOfARefusal(Fault):
    def before(self, call: Call) -> None:
        if call.method == "PUT" and call.of_claims and isinstance(call.body, dict) and "limit_disk_gb" in call.body:
            call.ask("PUT", call.path, {"limit_disk_gb": call.body["limit_disk_gb"]})


class KeepsClaimedAfterDelete(Fault):
    def __init__(self) -> None:
        self.kept = dict.fromkeys(SIZES, 0)

    def after(self, call: Call) -> None:
        if call.method == "DELETE" and call.of_one_claim and call.status == 200:
            for name in SIZES:
                self.kept[name] += call.answer[f"limit_{name}"]
        if call.place == "/admin/cluster-capacity":
            for name in SIZES:
                call.answer[f"claimed_{name}"] += self.kept[name]


class NeverCountsClaims(Fault):
    def after(self, call: Call) -> None:
        if call.place == "/admin/cluster-capacity":
            call.answer |= {f"claimed_{name}": 0 for name in SIZES}


class DeletesSoftly(Fault):
    """A deleted claim is answered as deleted, and stands."""

    def before(self, call: Call) -> None:
        if call.method == "DELETE" and call.of_one_claim:
            call.status, call.answer = call.ask("GET", call.path)


class ForgetsWho(Fault):
    def after(self, call: Call) -> None:
        if call.of_claims and call.place.endswith("/events") and call.status == 200:
            for event in call.answer["items"]:
                event["payload"].pop("by", None)


class ForgetsTheEnd(Fault):
    def after(self, call: Call) -> None:
        if call.of_claims and call.place.endswith("/events") and call.status == 200:
            call.answer["items"] = [event for event in call.answer["items"] if "deleted" not in event["message"]]


class CountsNoUse(Fault):
    def after(self, call: Call) -> None:
        for claim in call.claims():
            claim |= {f"used_{name}": 0 for name in SIZES}


class DoesNotWarn(Fault):
    def after(self, call: Call) -> None:
        if call.place.endswith("/events") and call.status == 200:
            kept = [event for event in call.answer["items"] if not event["message"].startswith("placement admitted")]
            call.answer["items"] = kept


class ShrinksBelowUse(Fault):
    def after(self, call: Call) -> None:
        if call.code == "claim_below_usage":
            call.status, call.answer = call.ask("GET", call.path)


class DoesNotTakeOver(Fault):
    """What a namespace used before its claim stays outside it, by the first answer."""

    def after(self, call: Call) -> None:
        if call.method == "POST" and call.of_claims and call.status == 201:
            call.answer |= {f"used_{name}": 0 for name in SIZES}


class NeverExpires(Fault):
    def after(self, call: Call) -> None:
        for claim in call.claims():
            claim["coverage_state"] = "active"


class Revives(Fault):
    def after(self, call: Call) -> None:
        if call.code == "claim_not_active":
            call.status, call.answer = call.ask("GET", call.path)


class HidesExpired(Fault):
    def after(self, call: Call) -> None:
        if call.of_claims and call.place.endswith("/claims") and call.method == "GET" and call.status == 200:
            kept = [claim for claim in call.answer["items"] if claim["coverage_state"] == "active"]
            call.answer["items"] = kept


class KeepsClaimedAfterExpiry(Fault):
    """What an expired claim kept is still counted."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    def after(self, call: Call) -> None:
        for claim in call.claims():
            if claim["coverage_state"] == "expired":
                self.kept[claim["uuid"]] = claim
        if call.place == "/admin/cluster-capacity":
            for claim in self.kept.values():
                for name in SIZES:
                    call.answer[f"claimed_{name}"] += claim[f"limit_{name}"]


class PromisesToDeletedNamespaces(Fault):
    def after(self, call: Call) -> None:
        if call.status == 404 and call.of_claims and call.place.endswith("-c/claims") and call.method == "POST":
            call.status, call.answer = 201, {}


class LosesTheLedger(Fault):
    """The ledger's own proof finds a difference as soon as a claim was made."""

    def __init__(self) -> None:
        self.made = False

    def after(self, call: Call) -> None:
        self.made |= bool(call.claims())
        if call.place == "/admin/ledger/verify" and self.made:
            found = {"row": "cluster", "figure": "claimed_cpus", "stored": 1, "recomputed": 0}
            call.answer["differences"].append(found)


QUICK: tuple[tuple[Callable[[], Fault], str], ...] = (
    (TakesBooleans, "a boolean is not a number"),
    (TakesNegatives, "a negative number"),
    (TakesUnknownFields, "an unknown field"),
    (FillsMissingFields, "a missing field"),
    (AnswersCreatesWith200, "create: 201"),
    (ForgetsAField, "create: 201"),
    (HasTwoClaims, "a second claim: 409"),
    (SaysRetryForNoRoom, "more cpus than the cluster has"),
    (RefusesWithoutFigures, "more cpus than the cluster has"),
    (TellsOthersClaims, "show of another namespace's claim"),
    (ForbidsOthersClaims, "delete of another namespace's claim"),
    (LetsOwnersList, "list without being the admin"),
    (TellsOwnersWhatExists, "show without being the admin"),
    (IgnoresTheMask, "update of limit_cpus alone"),
    (ReadsZeroAsNothing, "zero is a value"),
    (KeepsClaimedAfterDelete, "its capacity is the cluster's again"),
    (NeverCountsClaims, "the cluster keeps the claim's limits"),
    (DeletesSoftly, "what is deleted is not there"),
    (ForgetsWho, "the claim's own events: created"),
    (ForgetsTheEnd, "the claim's own events are kept"),
    (LosesTheLedger, "the ledger agrees with its charges"),
    (PromisesToDeletedNamespaces, "the namespace is deleted"),
)
"""Noticed without an instance and without waiting for an end."""
WITH_INSTANCES: tuple[tuple[Callable[[], Fault], str], ...] = (
    (CountsNoUse, "an instance within its namespace's claim"),
    (DoesNotWarn, "the instance has the warning"),
    (ShrinksBelowUse, "a claim below what is used"),
    (DoesHalfOfARefusal, "a claim below what is used"),
    (DoesNotTakeOver, "takes over what is used already"),
)
WITH_EXPIRY: tuple[tuple[Callable[[], Fault], str], ...] = (
    (NeverExpires, "past its end it expires"),
    (Revives, "it cannot be revived"),
    (HidesExpired, "the expired one stays listed"),
    (KeepsClaimedAfterExpiry, "it keeps nothing"),
)
