"""How claims end: deleted at once, folded when their time is over, or some time after their namespace was deleted."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import fakeredis
import pytest
import structlog

from fleet.ledger import (
    claim_grants,
    claim_views,
    claims,
    cluster_config,
    database,
    events,
    leases,
    namespace_cleanup,
    namespaces,
)
from fleet.ledger.claim_grants import ClaimRefused, Granted
from fleet.ledger.claim_views import ClaimView
from fleet.ledger.database import Database
from fleet.ledger.namespace_cleanup import Cleaned
from fleet.model.errors import BrokenPromise, ClaimDeleteFailed, Conflict, DatabaseUnavailable
from fleet.model.resources import Amounts
from fleet.queue.jobs import WakeUps
from fleet.services.leadership import Leadership
from fleet.services.reconciler import Reconciler
from tests.ledger import claiming, fleet_of, injecting, racing
from tests.ledger.fleet_of import NAMESPACE, ask
from tests.ledger.holding import Other, open_transaction
from tests.ledger.injecting import Injector
from tests.ledger.racing import Job, Pause, Threads
from tests.servers import free_port

ROUNDS = 10
DELETED = "namespace claim deleted, capacity returned"
FOLDED = "namespace claim expired, usage folded"


def granted(db: Database, *limits: int, namespace: str = NAMESPACE, seconds: int = 3600) -> Granted:
    namespaces.ensure(db, namespace)
    outcome = claim_grants.grant(db, namespace, Amounts(*limits), seconds, uuid=str(uuid.uuid4()))
    assert isinstance(outcome, Granted), outcome
    return outcome


def promised(db: Database) -> tuple[int, int, int]:
    """Vcpus claimed, overdrawn and used outside claims."""
    row = fleet_of.cluster(db)
    return row["claimed_cpus"], row["overage_cpus"], row["unclaimed_used_cpus"]


def messages(db: Database, kind: str, name: str) -> list[str]:
    return [event.message for event in events.listing(db, kind, name, newest_first=False)]


def test_a_deleted_claim_gives_back_its_limits_its_overage_and_its_use(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=10)
    claim = granted(db, 4, 100, 0)
    instance = fleet_of.admitted(db, ask(node_id, cpus=6))
    assert promised(db) == (4, 2, 0)
    stood = claim_views.get(db, NAMESPACE, claim.uuid)

    assert claim_grants.delete(db, claim.uuid, by="system/k") == stood

    assert promised(db) == (0, 0, 6)
    fleet_of.assert_exact(db)
    told = {event["object_id"]: json.loads(event["payload"]) for event in fleet_of.events_of(db, DELETED)}
    assert list(told) == [claim.uuid, NAMESPACE]
    for payload in told.values():
        assert {"namespace": NAMESPACE, "used_cpus": 6, "by": "system/k"}.items() <= payload.items()
    # Its charge goes on naming it, and the cluster is credited.
    assert fleet_of.rows(db, "SELECT payer FROM charges") == [{"payer": claim.uuid}]
    fleet_of.delete(db, instance)
    assert promised(db) == (0, 0, 0)
    fleet_of.assert_exact(db)


def test_a_second_delete_finds_nothing_and_moves_nothing(db: Database) -> None:
    fleet_of.node(db, cpus=10)
    claim = granted(db, 4, 100, 0)
    granted(db, 3, 0, 0, namespace="other")

    assert isinstance(claim_grants.delete(db, claim.uuid), ClaimView)
    assert claim_grants.delete(db, claim.uuid) is None
    assert promised(db) == (3, 0, 0)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("swept", [False, True])
def test_an_expired_claim_gives_back_once_whether_it_was_swept_or_not(db: Database, swept: bool) -> None:
    node_id = fleet_of.node(db, cpus=10)
    with claiming.long_ago(db):
        claim = granted(db, 4, 100, 0)
        fleet_of.admitted(db, ask(node_id, cpus=3))
    assert promised(db) == (4, 0, 0)
    if swept:
        assert claim_grants.change(db, claim.uuid, {"cpus": 5}) == ClaimRefused("claim_not_active")
        assert promised(db) == (0, 0, 3)

    gone = claim_grants.delete(db, claim.uuid)

    assert isinstance(gone, ClaimView)
    assert (gone.coverage_state, gone.used.cpus, gone.limits.cpus) == ("expired", 0, 4)
    assert promised(db) == (0, 0, 3)
    assert messages(db, "namespace", NAMESPACE)[-3:] == [FOLDED, *_asked(DELETED)]
    assert messages(db, "claim", claim.uuid) == ["db record created", FOLDED, DELETED]
    fleet_of.assert_exact(db)


def _asked(message: str) -> list[str]:
    return ["delete namespace claim request from REST API", message]


def test_a_claim_that_ends_between_the_fold_and_the_grant_stands_in_nobodys_way(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_of.node(db, cpus=10)
    looked, real = list[list[str]](), claim_grants._expired

    with ExitStack() as behind:
        behind.enter_context(claiming.long_ago(db))
        granted(db, 6, 100, 0)

        def too_early(database: Database, namespace: str) -> list[str]:
            """It has ended right after the first look: there the clock comes to the present."""
            looked.append(real(database, namespace))
            behind.close()
            return looked[-1]

        monkeypatch.setattr(claim_grants, "_expired", too_early)

        assert granted(db, 8, 100, 0).limits.cpus == 8
    assert looked[0] == []
    assert promised(db) == (8, 0, 0)
    fleet_of.assert_exact(db)


def test_a_claim_that_is_deleted_while_it_is_changed_is_not_there(maria: Database, mariadb_ledger_url: str) -> None:
    fleet_of.node(maria, cpus=10)
    claim = granted(maria, 4, 100, 0)
    with open_transaction(maria) as conn:
        claims.delete(conn, claim.uuid, by="")
        other = Other(mariadb_ledger_url, lambda db: claim_grants.change(db, claim.uuid, {"cpus": 5}))
        other.stands(maria)
    assert other.result() == ClaimRefused("not_found")
    assert promised(maria) == (0, 0, 0)
    fleet_of.assert_exact(maria)


# --- failures ----------------------------------------------------------------------------------------------------


def test_without_the_clusters_row_nothing_is_promised_and_nothing_deleted(db: Database) -> None:
    fleet_of.node(db, cpus=10)
    claim = granted(db, 4, 100, 0)
    kept = fleet_of.cluster(db)
    fleet_of.execute(db, "DELETE FROM cluster_capacity")

    namespaces.ensure(db, "other")
    refused = claim_grants.grant(db, "other", Amounts(1, 1, 1), 60, uuid=str(uuid.uuid4()))
    assert refused == ClaimRefused("no_cluster_capacity")
    with pytest.raises(ClaimDeleteFailed, match="it stands and holds its capacity"):
        claim_grants.delete(db, claim.uuid)
    assert claim_views.get(db, NAMESPACE, claim.uuid) == claim

    columns = ", ".join(kept)
    fleet_of.execute(
        db, f"INSERT INTO cluster_capacity ({columns}) VALUES ({', '.join(':' + n for n in kept)})", **kept
    )
    assert isinstance(claim_grants.delete(db, claim.uuid), ClaimView)
    fleet_of.assert_exact(db)


def test_a_database_that_is_away_is_never_read_as_no_claim() -> None:
    away = Database(f"mysql+pymysql://nobody@127.0.0.1:{free_port()}/ledger")
    reads: tuple[Callable[[], Any], ...] = (
        lambda: claim_views.get(away, NAMESPACE, "c"),
        lambda: claim_views.listing(away, NAMESPACE, 10),
        lambda: claim_views.active(away, NAMESPACE),
        lambda: claim_grants.delete(away, "c"),
        lambda: namespace_cleanup.clean(away, leases.Lease("reconciler", "me", 1), 0),
    )
    for read in reads:
        with pytest.raises(DatabaseUnavailable):
            read()


@pytest.mark.slow
def test_rows_that_stay_locked_are_a_conflict_and_a_delete_that_was_not_done(
    maria: Database, mariadb_ledger_url: str
) -> None:
    fleet_of.node(maria, cpus=10)
    claim = granted(maria, 4, 100, 0)
    namespaces.ensure(maria, "other")
    fresh = str(uuid.uuid4())
    with open_transaction(maria) as conn:
        conn.exec_driver_sql("SELECT id FROM cluster_capacity WHERE id = 1 FOR UPDATE")
        asked = Other(mariadb_ledger_url, lambda db: claim_grants.grant(db, "other", Amounts(1, 1, 1), 60, uuid=fresh))
        changed = Other(mariadb_ledger_url, lambda db: claim_grants.change(db, claim.uuid, {"cpus": 5}))
        assert (asked.result(), changed.result()) == (ClaimRefused("claim_conflict"),) * 2
        with pytest.raises(ClaimDeleteFailed, match="locked"):
            claim_grants.delete(maria, claim.uuid)

    assert claim_views.listing(maria, NAMESPACE, 10) == [claim]
    assert claim_views.listing(maria, "other", 10) == []
    fleet_of.assert_exact(maria)


FAULTS = {"deadlock": injecting.error(1213), "lost": injecting.lost(after=False), "unread": injecting.lost(after=True)}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["grant", "change", "delete"])
def test_a_fault_at_any_step_leaves_one_claim_or_none_and_the_ledger_exact(
    maria: Database,
    injector: Injector,
    verb: str,
    fault: str,
) -> None:
    node_id = fleet_of.node(maria, cpus=1000)

    def work(namespace: str) -> Callable[[], Any]:
        namespaces.ensure(maria, namespace)
        fleet_of.admitted(maria, ask(node_id, cpus=2, namespace=namespace))
        fresh = str(uuid.uuid4())
        if verb == "grant":
            return lambda: claim_grants.grant(maria, namespace, Amounts(1, 10, 0), 60, uuid=fresh)
        claim = granted(maria, 1, 10, 0, namespace=namespace)
        if verb == "change":
            return lambda: claim_grants.change(maria, claim.uuid, {"cpus": 3, "memory_mb": 5})
        return lambda: claim_grants.delete(maria, claim.uuid)

    # The first one opens the connections.
    work("first")()
    steps = injector.count(work("second"))
    assert steps > 5
    for step in range(steps):
        name = f"tenant-{step}"
        action = work(name)
        # The look for ended claims is no part of the promise: a caller repeats a request that failed there.
        looks = (verb, step) == ("grant", 0)
        with injector.at(step, FAULTS[fault]), pytest.raises(DatabaseUnavailable) if looks else nullcontext():
            outcome = action()
        assert injector.struck, step
        outcome = action() if looks else outcome
        assert isinstance(outcome, ClaimView), (step, outcome)
        assert claim_views.listing(maria, name, 10) == ([] if verb == "delete" else [outcome])
    fleet_of.assert_exact(maria)


# --- races -------------------------------------------------------------------------------------------------------


def either(db: Database, pause: Pause, job: Job, *arguments: Any) -> str:
    return str(job(db, pause, *arguments))


def ending(db: Database, pause: Pause, claim: str) -> str:
    return type(claim_grants.delete(db, claim)).__name__


def growing(db: Database, pause: Pause, claim: str) -> str:
    outcome = claim_grants.change(db, claim, {"cpus": 9})
    return outcome.code if isinstance(outcome, ClaimRefused) else "granted"


def releasing(db: Database, pause: Pause, instance: str) -> str:
    return type(fleet_of.delete(db, instance)).__name__


def creating(db: Database, pause: Pause, namespace: str, node_id: int) -> str:
    wanted = ask(node_id, cpus=3, namespace=namespace)
    return type(racing.until_decided(db, pause, racing.guarded, wanted)).__name__


def test_deletes_of_a_claim_racing_with_all_who_use_it_give_back_once(db: Database, db_url: str) -> None:
    node_id = fleet_of.node(db, cpus=1000)
    with Threads(db_url, 6) as crew:
        for round_ in range(ROUNDS):
            namespace = f"tenant-{round_}"
            claim = granted(db, 4, 100, 0, namespace=namespace)
            held = fleet_of.admitted(db, ask(node_id, cpus=3, namespace=namespace))
            jobs = [(ending, claim.uuid), (ending, claim.uuid), (growing, claim.uuid), (releasing, held)]
            answers = crew.run(either, [*jobs, *[(creating, namespace, node_id)] * 2])

            assert sorted(answers[:2]) == ["ClaimView", "NoneType"]
            assert answers[2] in {"granted", "not_found"}
            assert answers[3:] == ["Released", "Admitted", "Admitted"]
            fleet_of.assert_exact(db)
    assert promised(db) == (0, 0, 6 * ROUNDS)


# --- namespaces --------------------------------------------------------------------------------------------------


def lease_of(db: Database, holder: str = "leader") -> leases.Lease:
    lease = leases.acquire(db, "reconciler", holder, 60)
    assert lease is not None
    return lease


def test_a_claim_of_a_deleted_namespace_goes_after_the_delay_and_returns_its_capacity(db: Database) -> None:
    fleet_of.node(db, cpus=10)
    gone, kept = granted(db, 4, 100, 0), granted(db, 3, 100, 0, namespace="kept")
    assert namespaces.delete(db, NAMESPACE)
    lease = lease_of(db)

    assert namespace_cleanup.clean(db, lease, 3600) == Cleaned(0)
    assert promised(db) == (7, 0, 0)
    assert namespace_cleanup.clean(db, lease, 0) == Cleaned(1)
    assert namespace_cleanup.clean(db, lease, 0) == Cleaned(0)

    assert promised(db) == (3, 0, 0)
    assert claim_views.listing(db, NAMESPACE, 10) == []
    assert claim_views.listing(db, "kept", 10) == [kept]
    told = fleet_of.events_of(db, DELETED)
    assert [event["object_id"] for event in told] == [gone.uuid, NAMESPACE]
    assert all(f'"claim":"{gone.uuid}"' in event["payload"] for event in told)
    assert all('"by":"reconciler"' in event["payload"] for event in told)
    with pytest.raises(Conflict, match="stays reserved"):
        namespaces.create(db, NAMESPACE)
    fleet_of.assert_exact(db)


def left_behind(db: Database, count: int) -> list[str]:
    """Claims of deleted namespaces, in the order in which they are cleaned."""
    fleet_of.node(db, cpus=10)
    made = [granted(db, 1, 100, 0, namespace=f"left-{number}").uuid for number in range(count)]
    for number in range(count):
        assert namespaces.delete(db, f"left-{number}")
    return sorted(made)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_claim_that_cannot_be_deleted_keeps_no_other_from_being_returned(
    db: Database, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    bad = left_behind(db, 3)[at]
    deleted = claims.delete

    def broken(conn: Any, uuid: str, **options: Any) -> Any:
        found = deleted(conn, uuid, **options)
        if uuid == bad:
            raise BrokenPromise("its row is not what it should be")
        return found

    lease = lease_of(db)
    with monkeypatch.context() as patched:
        patched.setattr(claims, "delete", broken)
        cleaned = namespace_cleanup.clean(db, lease, 0)

    assert (cleaned.gone, [(stuck.uuid, type(stuck.error)) for stuck in cleaned.stuck]) == (2, [(bad, BrokenPromise)])
    assert promised(db) == (1, 0, 0)
    fleet_of.assert_exact(db)
    assert namespace_cleanup.clean(db, lease, 0) == Cleaned(1)
    assert promised(db) == (0, 0, 0)


def test_a_claim_that_others_hold_keeps_no_other_from_being_returned(
    maria: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = left_behind(maria, 3)[0]
    lease = lease_of(maria)
    monkeypatch.setattr(database, "UNIT_ATTEMPTS_MAX", 1)
    with open_transaction(maria) as conn:
        claims.LOCK.run(conn, uuid=first)
        cleaned = namespace_cleanup.clean(maria, lease, 0)

    assert (cleaned.gone, [stuck.uuid for stuck in cleaned.stuck]) == (2, [first])
    assert isinstance(cleaned.stuck[0].error, DatabaseUnavailable)
    assert namespace_cleanup.clean(maria, lease, 0) == Cleaned(1)
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), leases.LeaseLost("another leads")])
def test_without_the_database_or_the_lead_cleaning_ends_and_says_so(
    db: Database, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    left_behind(db, 3)
    tried = []

    def away(_conn: Any, uuid: str, **_options: Any) -> Any:
        tried.append(uuid)
        raise error

    lease = lease_of(db)
    monkeypatch.setattr(claims, "delete", away)
    with pytest.raises(type(error)):
        namespace_cleanup.clean(db, lease, 0)

    assert len(tried) == 1
    assert promised(db) == (3, 0, 0)


def test_the_reconciler_tells_of_the_claims_that_stay(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = left_behind(db, 2)[0]
    deleted = claims.delete

    def broken(conn: Any, uuid: str, **options: Any) -> Any:
        if uuid == bad:
            raise BrokenPromise("its row is not what it should be")
        return deleted(conn, uuid, **options)

    monkeypatch.setattr(claims, "delete", broken)
    cluster_config.store(db, "CLEANER_DELAY_SECONDS", "0")
    leadership = Leadership(db, "one")
    reconciler = Reconciler(
        db, WakeUps(fakeredis.FakeStrictRedis()), lambda: cluster_config.load(db), leadership, monotonic=time.monotonic
    )
    assert leadership.stand() is not None

    with structlog.testing.capture_logs() as logged:
        assert reconciler.clean_namespaces() == 1

    [entry] = [entry for entry in logged if entry["event"] == "namespaces.claims_stay"]
    assert (entry["log_level"], entry["claim"], entry["claims"]) == ("error", bad, 1)


def test_only_the_leader_cleans(db: Database) -> None:
    fleet_of.node(db, cpus=10)
    granted(db, 4, 100, 0)
    namespaces.delete(db, NAMESPACE)
    former = lease_of(db)
    assert leases.renew(db, former, 0)
    lease_of(db, "other")

    with pytest.raises(leases.LeaseLost):
        namespace_cleanup.clean(db, former, 0)

    assert promised(db) == (4, 0, 0)
    fleet_of.assert_exact(db)


def test_the_reconciler_cleans_by_the_clusters_delay(db: Database) -> None:
    fleet_of.node(db, cpus=10)
    granted(db, 4, 100, 0)
    namespaces.delete(db, NAMESPACE)
    wake_ups, leadership = WakeUps(fakeredis.FakeStrictRedis()), Leadership(db, "one")
    reconciler = Reconciler(db, wake_ups, lambda: cluster_config.load(db), leadership, monotonic=time.monotonic)
    assert leadership.stand() is not None

    assert reconciler.clean_namespaces() == 0
    cluster_config.store(db, "CLEANER_DELAY_SECONDS", "0")
    assert reconciler.clean_namespaces() == 1
    assert promised(db) == (0, 0, 0)


def test_no_claim_is_made_in_a_namespace_that_is_gone_or_never_was(db: Database) -> None:
    fleet_of.node(db, cpus=10)
    stood = granted(db, 2, 1, 1)
    namespaces.delete(db, NAMESPACE)

    for namespace in (NAMESPACE, "nobody"):
        claim_grants.delete(db, stood.uuid)
        refused = claim_grants.grant(db, namespace, Amounts(1, 1, 1), 60, uuid=str(uuid.uuid4()))
        assert refused == ClaimRefused("not_found")
    assert fleet_of.rows(db, "SELECT uuid FROM namespace_claims") == []
    fleet_of.assert_exact(db)


def test_a_claim_of_a_deleted_namespace_does_not_grow(db: Database) -> None:
    fleet_of.node(db, cpus=10)
    claim = granted(db, 2, 1, 1)
    namespaces.delete(db, NAMESPACE)

    assert claim_grants.change(db, claim.uuid, {"cpus": 3}) == ClaimRefused("not_found")
    assert promised(db) == (2, 0, 0)


@pytest.mark.parametrize("verb", ["grant", "change"])
def test_whoever_meets_a_deletion_of_the_namespace_waits_for_it_and_finds_none(
    maria: Database, mariadb_ledger_url: str, verb: str
) -> None:
    fleet_of.node(maria, cpus=10)
    namespaces.ensure(maria, NAMESPACE)
    fresh = str(uuid.uuid4())
    claim = granted(maria, 2, 1, 1).uuid if verb == "change" else ""

    def meet(db: Database) -> Granted | ClaimRefused:
        if verb == "change":
            return claim_grants.change(db, claim, {"cpus": 3})
        return claim_grants.grant(db, NAMESPACE, Amounts(1, 1, 1), 60, uuid=fresh)

    with open_transaction(maria) as conn:
        assert namespaces.DELETE.run(conn, name=NAMESPACE).rowcount == 1
        other = Other(mariadb_ledger_url, meet)
        other.stands(maria)
    assert other.result() == ClaimRefused("not_found")
    assert promised(maria)[0] == (2 if verb == "change" else 0)
    fleet_of.assert_exact(maria)
