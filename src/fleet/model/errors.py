"""One tree of errors. Each has a stable `code` (API: never renamed) and a sentence that says what would help.

Expected outcomes of placing (no room, busy) are values, see `fleet.model.decision` and `fleet.model.admission`;
these exceptions are for requests that cannot be carried out and for services that cannot be reached.
HTTP statuses belong to one place only, `fleet.api.problems`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class FleetError(Exception):
    """Base of all errors of the product. `detail` is a sentence; `extra` holds JSON figures for programs.

    `told` is the sentence for a caller of the API, who may be anybody: `detail`, unless that is for operators only.
    `in_words` is the sentence for an operator at a terminal: `detail`, unless that is for logs.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(self, detail: str, **extra: Any) -> None:
        """Keep the sentence and its figures."""
        super().__init__(detail)
        self.detail = detail
        self.told = detail
        self.in_words = detail
        self.extra = extra


class InvalidRequest(FleetError):
    """The body or a parameter breaks a rule; `extra["errors"]` lists every problem with its field."""

    code = "invalid_request"

    def __init__(self, detail: str, errors: list[dict[str, str]] | None = None, **extra: Any) -> None:
        """Keep all problems: `[{"field": …, "message": …}]`."""
        super().__init__(detail, errors=errors or [], **extra)


class NotSupported(InvalidRequest):
    """A known field whose feature is not there yet. Never silently ignored."""

    code = "not_supported"


class Unauthenticated(FleetError):
    """No token, a bad one, an expired one, or a wrong key; the answer never says which namespace exists."""

    code = "unauthenticated"


class Forbidden(FleetError):
    """The caller may never use this verb."""

    code = "forbidden"


class NotFound(FleetError):
    """No such object, or another namespace's: the same words for both."""

    code = "not_found"


class NodeNotFound(FleetError):
    """A request names a node that is not registered."""

    code = "node_not_found"


class Conflict(FleetError):
    """The object's state forbids the verb; the sentence says which state."""

    code = "conflict"


class ClaimExists(Conflict):
    """The namespace holds an active claim already."""

    code = "claim_exists"


class ClaimBelowUsage(Conflict):
    """A claim cannot shrink below what its namespace uses of it."""

    code = "claim_below_usage"


class ClaimNotActive(Conflict):
    """The claim has ended: it can be deleted and replaced, not changed."""

    code = "claim_not_active"


class ClaimCapacity(FleetError):
    """The cluster has no room to promise that; `extra["dimensions"]` holds the figures of every dimension."""

    code = "claim_capacity"


class ClaimNotReady(FleetError):
    """The cluster's capacity is not known, so nothing can be promised yet: retry."""

    code = "claim_not_ready"


class ClaimConflict(FleetError):
    """The claim, or what it depends on, was changed by others again and again: retry."""

    code = "claim_conflict"


class ClaimDeleteFailed(FleetError):
    """A claim could not be deleted: it stands, with its capacity. Why is for operators only."""

    code = "claim_delete_failed"

    def __init__(self, reason: str) -> None:
        """Keep the reason; a caller is told what stands and what to do."""
        told = "the claim could not be deleted: it stands and holds its capacity; repeat the request"
        super().__init__(f"{told} ({reason})")
        self.told = told


class RateLimited(FleetError):
    """Too many failures from one address; `retry_after_seconds` says when the next try is judged."""

    code = "rate_limited"

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        """Keep the wait beside the sentence."""
        super().__init__(detail, retry_after_seconds=retry_after_seconds)


class IdempotencyMismatch(FleetError):
    """The same idempotency key came with another body."""

    code = "idempotency_mismatch"


class RequestInProgress(Conflict):
    """The first request with this idempotency key has not ended yet; retry after a second."""


class Unavailable(FleetError):
    """A server the product needs is away. A driver's own words name hosts and users: they are for operators."""

    def __init__(self, detail: str, *, told: str = "", in_words: str = "") -> None:
        """Keep the sentences; without `told` the detail holds nothing that a caller may not see."""
        super().__init__(detail)
        self.told = told or detail
        self.in_words = in_words or detail


class DatabaseUnavailable(Unavailable):
    """The ledger could not be reached or did not answer in time. Nothing is known about room: retry."""

    code = "database_unavailable"


class QueueUnavailable(Unavailable):
    """Redis could not be reached. Accepted work is safe: the sweeper wakes it."""

    code = "queue_unavailable"


class StrategyUnavailable(FleetError):
    """The cluster's strategy is not installed in the process that was asked: for its operator to mend."""

    code = "strategy_unavailable"


class BrokenPromise(FleetError):
    """A law of the product does not hold (a negative counter, two rows where one is promised): a bug, stop."""

    code = "broken_promise"
