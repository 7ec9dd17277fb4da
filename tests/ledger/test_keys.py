"""Keys of namespaces in the ledger: what a rotation leaves of the former secret, and when an expired key goes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fleet.ledger import leases, namespaces, retention
from fleet.ledger.database import Database
from fleet.ledger.namespaces import Credential, KeyView
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import Conflict
from fleet.model.moment import iso
from tests.ledger import fleet_of, past
from tests.servers import wait_until

SECOND = 1_000_000
WHO = "system/ops"


@pytest.fixture(autouse=True)
def _tenant(db: Database) -> None:
    namespaces.create(db, "tenant", by=WHO)


def make(db: Database, name: str = "k", *, seconds: int | None = None) -> KeyView:
    made = namespaces.create_key(
        db, "tenant", name, f"hash of {name}", lifetime_us=None if seconds is None else seconds * SECOND, by=WHO
    )
    assert made is not None
    return made


def rotate(
    db: Database, *, grace: int = 0, seconds: int | None = None, same: bool = True, name: str = "k", new: str = "new"
) -> KeyView | None:
    return namespaces.rotate_key(
        db,
        "tenant",
        name,
        new,
        selector=f"of {new}",
        grace_us=grace * SECOND,
        lifetime_us=None if seconds is None else seconds * SECOND,
        same_lifetime=same,
        by=WHO,
    )


def secrets_of(db: Database, name: str = "k") -> dict[str, Credential]:
    return {one.key_hash: one for one in namespaces.credentials(db, "tenant", name)}


def events(db: Database, message: str) -> list[dict[str, Any]]:
    return [{**json.loads(event["payload"]), "on": event["object_id"]} for event in fleet_of.events_of(db, message)]


def test_without_a_grace_a_rotation_leaves_one_secret(db: Database) -> None:
    made = make(db)

    rotated = rotate(db)

    assert rotated is not None
    assert rotated.created_at_us >= made.created_at_us
    assert (rotated.expires_at_us, rotated.former_ends_at_us) == (None, None)
    (only,) = namespaces.credentials(db, "tenant", "k")
    assert (only.key_hash, only.selector, only.former) == ("new", "of new", False)


def test_within_the_grace_both_secrets_are_good_and_told_apart(db: Database) -> None:
    made = make(db)

    with past.still(db) as now:
        rotated = rotate(db, grace=100)
        found = secrets_of(db)

    assert rotated is not None
    assert rotated.former_ends_at_us == now + 100 * SECOND
    assert set(found) == {"hash of k", "new"}
    former = found["hash of k"]
    assert former.former
    assert former.created_at_us == made.created_at_us
    assert former.left_us == 100 * SECOND
    (listed,) = namespaces.keys(db, "tenant", 10)
    assert listed == rotated


def test_a_grace_ends_by_itself(db: Database) -> None:
    with past.ago(db, 200):
        make(db)
        rotate(db, grace=100)
        assert set(secrets_of(db)) == {"hash of k", "new"}

    assert set(secrets_of(db)) == {"new"}
    assert namespaces.keys(db, "tenant", 10)[0].former_ends_at_us is None
    assert rotate(db, grace=100, new="newer") is not None
    assert set(secrets_of(db)) == {"new", "newer"}


@pytest.mark.parametrize(("former_seconds", "new_seconds"), [(50, None), (None, 50), (50, 60), (60, 50)])
def test_a_former_secret_outlives_neither_its_own_end_nor_the_new_ones(
    db: Database, former_seconds: int | None, new_seconds: int | None
) -> None:
    with past.still(db) as now:
        make(db, seconds=former_seconds)

        rotated = rotate(db, grace=100, seconds=new_seconds, same=False)

    assert rotated is not None
    assert rotated.former_ends_at_us == now + 50 * SECOND


def test_a_rotated_key_lives_as_long_as_it_was_made_for_unless_told_otherwise(db: Database) -> None:
    make(db, seconds=1000)

    same = rotate(db)
    assert same is not None
    assert same.expires_at_us is not None
    assert 999 * SECOND <= same.expires_at_us - same.created_at_us <= 1001 * SECOND
    shorter = rotate(db, seconds=10, same=False)
    assert shorter is not None
    assert shorter.expires_at_us is not None
    assert shorter.expires_at_us - shorter.created_at_us <= 11 * SECOND
    endless = rotate(db, seconds=None, same=False)
    assert endless is not None
    assert endless.expires_at_us is None


def test_a_second_grace_is_refused_while_the_first_runs_and_no_grace_ends_both(db: Database) -> None:
    make(db)
    rotate(db, grace=100)

    with pytest.raises(Conflict) as refused:
        rotate(db, grace=100, new="newer")
    assert refused.value.extra["state"] == "rotating"
    [until] = [iso(found.former_ends_at_us) for found in namespaces.keys(db, "tenant", 10)]
    assert f"still good until {until};" in refused.value.detail
    assert set(secrets_of(db)) == {"hash of k", "new"}

    rotate(db, grace=0, new="newest")
    assert set(secrets_of(db)) == {"newest"}


def test_what_is_not_there_is_not_rotated(db: Database) -> None:
    assert rotate(db, name="absent") is None
    make(db)
    namespaces.delete(db, "tenant")
    assert rotate(db) is None


def test_a_key_that_has_not_expired_keeps_its_name(db: Database) -> None:
    make(db, seconds=1000)

    with pytest.raises(Conflict):
        make(db)


def test_an_expired_key_is_shown_as_expired_buys_nothing_and_makes_room_for_a_new_one(db: Database) -> None:
    make(db, seconds=1)

    wait_until(lambda: namespaces.keys(db, "tenant", 10)[0].expired, seconds=10, what="the key expires")

    assert secrets_of(db) == {}
    assert make(db).expired is False
    assert len(namespaces.keys(db, "tenant", 10)) == 1


def test_an_expired_key_that_is_rotated_lives_again_without_its_former_secret(db: Database) -> None:
    make(db, seconds=1)
    wait_until(lambda: namespaces.keys(db, "tenant", 10)[0].expired, seconds=10, what="the key expires")

    rotated = rotate(db, grace=100)

    assert rotated is not None
    assert (rotated.expired, rotated.former_ends_at_us) == (False, None)
    assert set(secrets_of(db)) == {"new"}


def test_the_reconciler_removes_what_expired_long_ago_and_says_so(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(db, "old", seconds=1)
    make(db, "young", seconds=1000)
    make(db, "endless")
    wait_until(lambda: namespaces.keys(db, "tenant", 10)[1].expired, seconds=10, what="the key expires")
    lease = leases.acquire(db, "reconciler", "tests", 600)
    assert lease is not None

    assert retention.sweep(db, lease, ClusterConfig())["expired_keys"] == 0
    monkeypatch.setattr(namespaces, "EXPIRED_KEPT_SECONDS", 0)
    assert retention.sweep(db, lease, ClusterConfig())["expired_keys"] == 1

    assert [key.name for key in namespaces.keys(db, "tenant", 10)] == ["endless", "young"]
    assert events(db, "expired key removed") == [{"key": "old", "by": "reconciler", "on": "tenant"}]


def test_every_act_says_who_did_it_and_for_how_long(db: Database) -> None:
    make(db, seconds=60)
    rotate(db, grace=5)
    namespaces.replace_key(db, "tenant", "k", "again", by=WHO)
    namespaces.delete_key(db, "tenant", "k", by=WHO)
    namespaces.delete(db, "tenant", by=WHO)

    on = {"by": WHO, "on": "tenant"}
    assert events(db, "namespace created") == [on]
    assert events(db, "key created") == [{"key": "k", "lifetime_seconds": 60, **on}]
    assert events(db, "key rotated") == [{"key": "k", "lifetime_seconds": 60, "grace_seconds": 5, **on}]
    assert events(db, "key replaced") == [{"key": "k", **on}]
    assert events(db, "key deleted") == [{"key": "k", **on}]
    assert events(db, "namespace deleted") == [on]


def test_where_one_is_kept_the_last_usable_key_is_not_deleted(db: Database) -> None:
    make(db, "short", seconds=1)
    make(db, "k")
    wait_until(lambda: namespaces.keys(db, "tenant", 10)[1].expired, seconds=10, what="the key expires")

    with pytest.raises(Conflict, match="key k is the last usable one of namespace tenant; make another one first"):
        namespaces.delete_key(db, "tenant", "k", keep_one=True, by=WHO)

    assert list(secrets_of(db)) == ["hash of k"]
    assert events(db, "key deleted") == []
    assert namespaces.delete_key(db, "tenant", "short", keep_one=True, by=WHO)
    make(db, "another")
    assert namespaces.delete_key(db, "tenant", "k", keep_one=True, by=WHO)
    assert not namespaces.delete_key(db, "tenant", "k", keep_one=True, by=WHO)
    assert namespaces.delete_key(db, "tenant", "another", by=WHO), "other namespaces may be without a key"


def test_of_two_keys_deleted_at_once_one_stays(maria: Database) -> None:
    namespaces.ensure(maria, "admins")
    for _ in range(10):
        for name in ("a", "b"):
            namespaces.replace_key(maria, "admins", name, f"hash of {name}", by=WHO)

        def delete(name: str) -> bool:
            try:
                return namespaces.delete_key(maria, "admins", name, keep_one=True, by=WHO)
            except Conflict:
                return False

        with ThreadPoolExecutor(2) as threads:
            gone = list(threads.map(delete, ("a", "b")))
        assert sorted(gone) == [False, True]
        assert len(namespaces.keys(maria, "admins", 10)) == 1
