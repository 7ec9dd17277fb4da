"""The stored configuration: every change is one event with the value before it, and who made it; nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet.ledger import cluster_config, events
from fleet.ledger.database import Database
from fleet.model.config_value import ConfigError
from fleet.services.configuration import Configuration
from tests.ledger import racing
from tests.ledger.fleet_of import events_of, execute, rows

KEY = "CLEANER_DELAY_SECONDS"
WRITERS = 6


def changes(db: Database) -> list[dict[str, Any]]:
    return [json.loads(found["payload"]) for found in events_of(db, cluster_config.CHANGED)]


def test_a_change_is_an_event_with_who_and_both_values(db: Database) -> None:
    set_now = cluster_config.store(db, KEY, "60", by="system/ops")
    cluster_config.store(db, KEY, "90", by="ctl:ann@control")

    first, second = changes(db)
    assert first == {
        "key": KEY,
        "old": "3600",
        "new": "60",
        "old_is_default": True,
        "new_is_default": False,
        "by": "system/ops",
    }
    assert (second["old"], second["new"], second["old_is_default"], second["by"]) == (
        "60",
        "90",
        False,
        "ctl:ann@control",
    )
    assert (set_now.value, set_now.is_set, set_now.updated_by) == ("60", True, "system/ops")
    assert set_now.updated_at_us is not None


def test_storing_what_is_stored_is_no_event_and_changes_nobody(db: Database) -> None:
    before = cluster_config.store(db, "CPU_OVERCOMMIT_RATIO", "2.50", by="system/ops")

    after = cluster_config.store(db, "CPU_OVERCOMMIT_RATIO", "2.50", by="system/other")

    assert after == before
    assert len(changes(db)) == 1


def test_a_default_that_is_set_on_purpose_stays_set(db: Database) -> None:
    found = cluster_config.store(db, KEY, "3600", by="system/ops")

    assert (found.is_set, found.value) == (True, "3600")
    assert [(one["old"], one["new"], one["old_is_default"]) for one in changes(db)] == [("3600", "3600", True)]


def test_a_reset_gives_the_default_back_and_says_who_did_it(db: Database) -> None:
    cluster_config.store(db, KEY, "60", by="system/ops")

    found = cluster_config.reset(db, KEY, by="system/second")

    assert (found.value, found.is_set, found.updated_by) == ("3600", False, "system/second")
    assert found.updated_at_us is not None
    last = changes(db)[-1]
    assert (last["old"], last["new"], last["new_is_default"]) == ("60", "3600", True)
    assert cluster_config.load(db).cleaner_delay_seconds == 3600


def test_resetting_what_is_not_set_is_no_event(db: Database) -> None:
    found = cluster_config.reset(db, KEY, by="system/ops")

    assert (found.is_set, found.updated_at_us, found.updated_by) == (False, None, "")
    assert changes(db) == []
    assert rows(db, "SELECT name FROM config") == []


@pytest.mark.parametrize("key", ["NODE_LABELS", "SPAWN_COMMAND", "CPU_OVERCOMIT_RATIO"])
def test_a_key_that_is_none_of_the_clusters_leaves_nothing(db: Database, key: str) -> None:
    with pytest.raises(ConfigError):
        cluster_config.store(db, key, "1", by="system/ops")
    with pytest.raises(ConfigError):
        cluster_config.reset(db, key, by="system/ops")

    assert rows(db, "SELECT name FROM config") == []
    assert changes(db) == []


def test_who_set_a_key_is_known_after_its_event_is_forgotten(db: Database) -> None:
    cluster_config.store(db, KEY, "60", by="system/ops")
    execute(db, "DELETE FROM events")

    assert cluster_config.entry(db, KEY).updated_by == "system/ops"


def test_a_reset_is_known_beside_a_key_of_a_newer_version(db: Database) -> None:
    insert = "INSERT INTO config (name, value, updated_at, updated_by) VALUES (:name, '1', 0, '')"
    execute(db, insert, name="OF_A_NEWER_VERSION")
    cluster_config.store(db, KEY, "60", by="system/ops")
    cluster_config.reset(db, KEY, by="system/other")

    assert cluster_config.entry(db, KEY).updated_by == "system/other"


def carefully(db: Database, pause: racing.Pause, value: str) -> None:
    cluster_config.store(db, KEY, value, by=f"system/{value}")


def naively(db: Database, pause: racing.Pause, value: str) -> None:
    """What a store does that reads the former value before it holds anything."""
    old = cluster_config.entry(db, KEY).value
    pause()

    def work(conn: Any) -> None:
        cluster_config.LOCK.run(conn, name=KEY)
        cluster_config.STORE.run(conn, name=KEY, value=value, by="")
        payload = {"key": KEY, "old": old, "new": value}
        events.record(conn, "cluster", "config", cluster_config.CHANGED, payload)

    db.unit(work)


def is_a_chain(found: list[dict[str, Any]], last: str) -> bool:
    """Whether each former value is the one that some other change wrote, and each was the former one once."""
    olds, news = [one["old"] for one in found], [one["new"] for one in found]
    return sorted(olds) == sorted(["3600", *(value for value in news if value != last)])


@pytest.mark.parametrize(("job", "sound"), [(carefully, True), (naively, False)])
def test_two_writers_never_report_the_same_former_value(
    db: Database, db_url: str, job: racing.Job, *, sound: bool
) -> None:
    with racing.Threads(db_url, WRITERS) as crew:
        answers = crew.run(job, [(str(10 + at),) for at in range(WRITERS)])

    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    found = changes(db)
    assert len(found) == WRITERS
    assert is_a_chain(found, cluster_config.entry(db, KEY).value) is sound


def test_every_process_follows_within_the_cache_timeout(db: Database, db_url: str) -> None:
    clock = [0.0]
    other = Database(db_url, pool_size=1)
    here, there = Configuration(db, lambda: clock[0]), Configuration(other, lambda: clock[0])
    assert (here().cleaner_delay_seconds, there().cleaner_delay_seconds) == (3600, 3600)

    cluster_config.store(db, KEY, "60", by="system/ops")
    here.forget()

    assert here().cleaner_delay_seconds == 60
    clock[0] = 4.9
    assert there().cleaner_delay_seconds == 3600
    clock[0] = 5.0
    assert there().cleaner_delay_seconds == 60
    other.close()
