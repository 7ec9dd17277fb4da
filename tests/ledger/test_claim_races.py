"""Who asks at the same moment: the last capacity is promised once, a namespace holds one claim, nothing is paid twice.

Every race is run many times, and each is shown to be one: the same crew with a naive twin of the act oversells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fleet.ledger import claim_grants, claims, namespaces
from fleet.ledger.claim_grants import ClaimRefused, Granted
from fleet.ledger.database import Database
from fleet.ledger.idempotency import Keyed
from fleet.ledger.migrate import migrate
from fleet.model.admission import Admitted
from tests.ledger import claiming, fleet_of, racing
from tests.ledger.claiming import code
from tests.ledger.fleet_of import ask
from tests.ledger.racing import Crew, Pause, Processes, Threads

EIGHT = 8
ROUNDS = 20
LAST = 5

Job = Callable[..., Any]


def granting(db: Database, pause: Pause, namespace: str, cpus: int) -> Granted | ClaimRefused:
    """The product's: there is no place to pause."""
    return claiming.grant(db, namespace, cpus)


# --- the last capacity -------------------------------------------------------------------------------------------


def race_for_the_last(db: Database, crew: Crew, rounds: int) -> None:
    for _ in range(rounds):
        names = claiming.new_namespaces(db, EIGHT)
        answers = crew.run(granting, [(name, LAST) for name in names])

        [won] = [answer for answer in answers if isinstance(answer, Granted)]
        lost = [answer for answer in answers if isinstance(answer, ClaimRefused)]
        assert [answer.code for answer in lost] == ["claim_capacity"] * (EIGHT - 1), answers
        for answer in lost:
            # 20 in all, of which 8 and the winner's 5 are promised; 7 are used outside claims.
            (figure,) = (item for item in answer.figures if item.exceeded)
            assert (figure.dimension, figure.limit, figure.used, figure.requested) == ("cpus", 7, 7, LAST)
        assert claiming.claimed_cpus(db) == 13
        fleet_of.assert_exact(db)
        assert claim_grants.delete(db, won.uuid) is not None


def room_for_one_more(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=20)
    claiming.granted(db, "early", 8)
    fleet_of.admitted(db, ask(node_id, cpus=7, namespace="unclaimed"))


def test_of_eight_namespaces_racing_for_the_last_capacity_exactly_one_is_promised_it(db: Database, db_url: str) -> None:
    room_for_one_more(db)
    with Threads(db_url, EIGHT) as crew:
        race_for_the_last(db, crew, ROUNDS)

        answers = crew.run(claiming.naive_grant, [(name, LAST) for name in claiming.new_namespaces(db, EIGHT)])
    assert Counter(map(code, answers)) == {"granted": EIGHT}, "without its guard the race oversells"
    assert claiming.claimed_cpus(db) == 8 + EIGHT * LAST > 20


def growing(db: Database, pause: Pause, claim: str, to: int) -> str:
    return code(claim_grants.change(db, claim, {"cpus": to}))


def test_of_eight_claims_growing_into_the_last_capacity_exactly_one_grows(db: Database, db_url: str) -> None:
    fleet_of.node(db, cpus=EIGHT * 2 + LAST)
    claims_ = [claiming.granted(db, name, 2).uuid for name in claiming.new_namespaces(db, EIGHT)]
    with Threads(db_url, EIGHT) as crew:
        for _ in range(ROUNDS):
            answers = crew.run(growing, [(claim, 2 + LAST) for claim in claims_])

            assert Counter(answers) == {"granted": 1, "claim_capacity": EIGHT - 1}
            assert claiming.claimed_cpus(db) == EIGHT * 2 + LAST
            fleet_of.assert_exact(db)
            grown = claims_[answers.index("granted")]
            assert isinstance(claim_grants.change(db, grown, {"cpus": 2}), Granted)

        assert Counter(crew.run(claiming.naive_grow, [(claim, 2 + LAST) for claim in claims_])) == {"granted": EIGHT}
    assert claiming.claimed_cpus(db) > EIGHT * 2 + LAST


def granting_or_creating(db: Database, pause: Pause, what: str, namespace: str, node_id: int, cpus: int) -> str:
    if what == "grant":
        return code(claiming.grant(db, namespace, cpus))
    outcome = racing.until_decided(db, pause, racing.guarded, ask(node_id, cpus=cpus, namespace=namespace))
    return "admitted" if isinstance(outcome, Admitted) else "refused"


def naively(db: Database, pause: Pause, what: str, namespace: str, node_id: int, cpus: int) -> str:
    if what == "grant":
        return code(claiming.naive_grant(db, pause, namespace, cpus))
    return claiming.naive_create(db, pause, namespace, node_id, cpus)


def test_the_last_capacity_is_either_promised_or_used_by_an_unclaimed_namespace_never_both(
    db: Database, db_url: str
) -> None:
    # Two nodes, so that it is the cluster's row and no node's that says how much is left.
    node_id, _ = fleet_of.node(db, cpus=100), fleet_of.node(db, cpus=100)
    claiming.granted(db, "early", 200 - LAST, fleet_of.PLENTY)
    winners: Counter[str] = Counter()
    with Threads(db_url, 4) as crew:
        for _ in range(ROUNDS):
            names = claiming.new_namespaces(db, 4)
            jobs = [(what, name, node_id, LAST) for what, name in zip(["grant", "create"] * 2, names, strict=True)]
            answers = crew.run(granting_or_creating, jobs)

            assert len([answer for answer in answers if answer in {"granted", "admitted"}]) == 1, answers
            winners[next(answer for answer in answers if answer in {"granted", "admitted"})] += 1
            fleet_of.assert_exact(db)
            for name in names:
                for claim in claiming.active_of(db, name):
                    assert claim_grants.delete(db, claim) is not None
            for instance in fleet_of.charged_to(db):
                fleet_of.delete(db, instance)

        jobs = [("grant", "twin-1", node_id, LAST), ("create", "twin-2", node_id, LAST)] * 2
        answers = crew.run(naively, [(w, f"{n}-{i}", d, c) for i, (w, n, d, c) in enumerate(jobs)])
    assert Counter(answers) == {"granted": 2, "admitted": 2}, "without its guard the race oversells"


# --- one namespace -----------------------------------------------------------------------------------------------


def race_in_one_namespace(db: Database, crew: Crew, node_id: int, rounds: int) -> None:
    for _ in range(rounds):
        [name] = claiming.new_namespaces(db, 1)
        fleet_of.admitted(db, ask(node_id, cpus=2, namespace=name))
        before = claiming.claimed_cpus(db)
        answers = crew.run(granting, [(name, LAST)] * EIGHT)

        assert Counter(map(code, answers)) == {"granted": 1, "claim_exists": EIGHT - 1}, answers
        [won] = [answer for answer in answers if isinstance(answer, Granted)]
        assert {answer.claim for answer in answers if isinstance(answer, ClaimRefused)} == {won.uuid}
        assert claiming.active_of(db, name) == [won.uuid]
        assert won.used.cpus == 2
        assert claiming.claimed_cpus(db) == before + LAST
        fleet_of.assert_exact(db)


def test_of_eight_asks_of_one_namespace_one_makes_its_claim(db: Database, db_url: str) -> None:
    node_id = fleet_of.node(db, cpus=10_000)
    with Threads(db_url, EIGHT) as crew:
        race_in_one_namespace(db, crew, node_id, ROUNDS)


@pytest.mark.slow
def test_the_same_races_between_eight_processes(maria: Database, mariadb_ledger_url: str) -> None:
    room_for_one_more(maria)
    with Processes(mariadb_ledger_url, EIGHT) as crew:
        race_for_the_last(maria, crew, ROUNDS)
        race_in_one_namespace(maria, crew, fleet_of.node(maria, cpus=10_000), ROUNDS)

        answers = crew.run(claiming.naive_grant, [(name, 6_000) for name in claiming.new_namespaces(maria, EIGHT)])
    assert Counter(map(code, answers)) == {"granted": EIGHT}, "without its guard the race oversells"


@pytest.fixture
def unconstrained(mariadb_url: str) -> str:
    """A ledger without the constraint of one active claim a namespace, as one that looks first would have it."""
    database = Database(mariadb_url)
    migrate(database)
    with database.engine.begin() as conn:
        names = conn.exec_driver_sql("SHOW INDEX FROM namespace_claims WHERE Column_name = 'active_namespace'")
        [index] = [row.Key_name for row in names]
        conn.exec_driver_sql(f"ALTER TABLE namespace_claims DROP INDEX {index}")
    database.close()
    return mariadb_url


def test_without_the_constraint_each_of_eight_that_look_first_makes_a_claim(unconstrained: str) -> None:
    database = Database(unconstrained)
    fleet_of.node(database, cpus=10_000)
    namespaces.ensure(database, "one")
    with Threads(unconstrained, EIGHT) as crew:
        answers = crew.run(claiming.naive_grant, [("one", LAST)] * EIGHT)
        many = claiming.active_of(database, "one")
    database.close()

    assert Counter(map(code, answers)) == {"granted": EIGHT}
    assert len(many) == EIGHT


def keyed_granting(db: Database, pause: Pause, namespace: str, key: str) -> str:
    keyed = Keyed(namespace="system", key=key, digest="d", status=201)
    return code(claiming.grant(db, namespace, LAST, keyed=keyed))


def test_of_eight_asks_with_one_key_one_makes_the_claim_and_stores_its_answer_once(db: Database, db_url: str) -> None:
    fleet_of.node(db, cpus=10_000)
    with Threads(db_url, EIGHT) as crew:
        for number in range(ROUNDS):
            [name] = claiming.new_namespaces(db, 1)
            answers = crew.run(keyed_granting, [(name, f"key-{number}")] * EIGHT)

            assert Counter(answers)["granted"] == 1, answers
            assert len(claiming.active_of(db, name)) == 1
            kept = fleet_of.rows(
                db, "SELECT answer FROM idempotency_keys WHERE idempotency_key = :k", k=f"key-{number}"
            )
            assert len(kept) == 1
            assert claiming.active_of(db, name)[0] in kept[0]["answer"]
    fleet_of.assert_exact(db)


# --- endings -----------------------------------------------------------------------------------------------------


def folding(db: Database, pause: Pause, claim: str) -> str:
    return f"folded {db.unit(lambda conn: claims.fold_expired(conn, claim))}"


def deleting(db: Database, pause: Pause, claim: str) -> str:
    return f"deleted {claim_grants.delete(db, claim) is not None}"


def changing(db: Database, pause: Pause, claim: str) -> str:
    return code(claim_grants.change(db, claim, {"cpus": 1}))


def releasing(db: Database, pause: Pause, instance: str) -> str:
    return type(fleet_of.delete(db, instance)).__name__


def again(db: Database, pause: Pause, namespace: str) -> str:
    return code(claiming.grant(db, namespace, LAST, 1000))


def either(db: Database, pause: Pause, job: Job, *arguments: Any) -> Any:
    return job(db, pause, *arguments)


def paid_by_claims(db: Database) -> int:
    return int(fleet_of.rows(db, "SELECT COUNT(*) AS n FROM charges WHERE payer IS NOT NULL")[0]["n"])


def naive_fold(db: Database, pause: Pause, claim: str) -> str:
    """Look what the claim holds, pause, give that back."""
    held = fleet_of.claim_row(db, claim)
    pause()
    fleet_of.execute(db, "UPDATE namespace_claims SET folded = 1, coverage_state = 'expired' WHERE uuid = :c", c=claim)
    fleet_of.execute(
        db,
        "UPDATE cluster_capacity SET claimed_cpus = claimed_cpus - :l, unclaimed_used_cpus = unclaimed_used_cpus + :u",
        l=held["limit_cpus"],
        u=held["used_cpus"],
    )
    return "folded True"


def test_what_a_claim_held_comes_back_once_however_many_end_it(db: Database, db_url: str) -> None:
    node_id = fleet_of.node(db, cpus=10_000)
    ended = []
    with claiming.long_ago(db):
        for name in claiming.new_namespaces(db, ROUNDS + 1):
            ended.append(claiming.granted(db, name, LAST))
            fleet_of.admitted(db, ask(node_id, cpus=2, memory_mb=0, namespace=name))
    assert paid_by_claims(db) == ROUNDS + 1
    with Threads(db_url, 5) as crew:
        for claim in ended[:ROUNDS]:
            before = claiming.claimed_cpus(db)
            jobs = [(folding, claim.uuid)] * 2 + [(deleting, claim.uuid)] * 2 + [(changing, claim.uuid)]
            answers = crew.run(either, jobs)

            assert Counter(answers)["deleted True"] == 1, answers
            assert Counter(answers)["folded True"] <= 1, answers
            assert answers[4] in {"claim_not_active", "not_found"}
            assert claiming.claimed_cpus(db) == before - LAST
            fleet_of.assert_exact(db)

        crew.run(naive_fold, [(ended[ROUNDS].uuid,)] * 5)
    assert claiming.claimed_cpus(db) == -4 * LAST, "without its row's lock a claim is given back five times"


def test_a_release_credits_who_pays_exactly_once_while_the_claim_ends_and_another_is_granted(
    db: Database, db_url: str
) -> None:
    node_id = fleet_of.node(db, cpus=10_000)
    names = claiming.new_namespaces(db, ROUNDS)
    with claiming.long_ago(db):
        first = [claiming.granted(db, name, LAST, 1000) for name in names]
        held = {name: [fleet_of.admitted(db, ask(node_id, cpus=2, namespace=name)) for _ in range(2)] for name in names}
    assert paid_by_claims(db) == 2 * ROUNDS
    with Threads(db_url, 5) as crew:
        for name, claim in zip(names, first, strict=True):
            leaves, stays = held[name]
            jobs = [(again, name), (releasing, leaves), (releasing, leaves), (folding, claim.uuid), (again, name)]
            answers = crew.run(either, jobs)

            released = Counter(answers[1:3])
            assert released == {"Released": 1, "NothingToRelease": 1}, answers
            assert sorted((answers[0], answers[4])) == ["claim_exists", "granted"], answers
            # Exactly once: what is left is paid by the new claim, what was released by nobody.
            [new] = claiming.active_of(db, name)
            payers = fleet_of.rows(db, "SELECT instance_uuid, payer FROM charges WHERE namespace = :ns", ns=name)
            assert payers == [{"instance_uuid": stays, "payer": new}]
            assert fleet_of.claim_row(db, new)["used_cpus"] == 2
            fleet_of.assert_exact(db)


def test_a_release_after_its_claim_ended_credits_the_claim_until_it_is_folded_and_the_cluster_then(
    db: Database,
) -> None:
    node_id = fleet_of.node(db, cpus=100)
    with claiming.long_ago(db):
        claim = claiming.granted(db, "tenant", 10, 1000)
        before, after, stays = (fleet_of.admitted(db, ask(node_id, cpus=2, namespace="tenant")) for _ in range(3))
    assert fleet_of.claim_row(db, claim.uuid)["used_cpus"] == 6
    # It covers nothing any more, and still holds what it paid.
    outcome = fleet_of.admit(db, ask(node_id, cpus=1, namespace="tenant"))
    assert isinstance(outcome, Admitted)
    assert outcome.payer is None

    fleet_of.delete(db, before)
    assert (fleet_of.claim_row(db, claim.uuid)["used_cpus"], fleet_of.unclaimed(db)[0]) == (4, 1)
    fleet_of.assert_exact(db)
    assert db.unit(lambda conn: claims.fold_expired(conn, claim.uuid))
    assert (fleet_of.claim_row(db, claim.uuid)["used_cpus"], fleet_of.unclaimed(db)[0]) == (0, 5)
    fleet_of.delete(db, after)
    assert fleet_of.unclaimed(db)[0] == 3
    fleet_of.assert_exact(db)

    new = claiming.granted(db, "tenant", 10, 1000)
    assert (new.used.cpus, fleet_of.unclaimed(db)[0]) == (3, 0)
    assert claim_grants.delete(db, claim.uuid) is not None, (
        "the old row goes, and what it once paid stays the new one's"
    )
    fleet_of.assert_exact(db)
    fleet_of.delete(db, stays)
    assert (fleet_of.claim_row(db, new.uuid)["used_cpus"], fleet_of.unclaimed(db)[0]) == (1, 0)
    fleet_of.assert_exact(db)
