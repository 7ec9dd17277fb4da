"""The schema: a migrated database is what the code's metadata says, and migrating again changes nothing."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import pytest
from alembic import command
from sqlalchemy import inspect, text
from sqlalchemy.exc import OperationalError

from fleet.ledger import charges, database_servers, events, migrate
from fleet.ledger.database import Database
from fleet.ledger.events import Filter
from fleet.ledger.migrations.versions import r0009_done_by
from fleet.ledger.schema import metadata
from fleet.model.resources import Amounts
from tests.ledger.holding import Other, open_transaction
from tests.servers import MariaDBServer, fresh_database


def reflected(db: Database, *, without: str = "alembic_version") -> dict[str, Any]:
    """Everything that the server says about the tables, in one comparable form."""
    found = inspect(db.engine)
    return {
        table: {
            "columns": {
                column["name"]: (
                    str(column["type"]),
                    column["nullable"],
                    column["default"],
                    str(column.get("computed")),
                )
                for column in found.get_columns(table)
            },
            "primary key": found.get_pk_constraint(table)["constrained_columns"],
            "unique": sorted(tuple(item["column_names"]) for item in found.get_unique_constraints(table)),
            "indexes": sorted(
                (str(item["name"]), tuple(map(str, item["column_names"])), bool(item["unique"]))
                for item in found.get_indexes(table)
            ),
            "checks": sorted(str(item["sqltext"]) for item in found.get_check_constraints(table)),
            "options": found.get_table_options(table),
        }
        for table in sorted(found.get_table_names())
        if table != without
    }


def test_a_migrated_schema_equals_a_fresh_one(ledger_url: str) -> None:
    db = Database(ledger_url)
    migrate.migrate(db)
    migrated = reflected(db)
    assert migrate.current(db) == migrate.head()

    metadata.drop_all(db.engine)
    metadata.create_all(db.engine)
    assert reflected(db) == migrated
    assert set(migrated) == set(metadata.tables)
    db.close()


def test_migrating_twice_is_a_no_op(ledger_url: str) -> None:
    db = Database(ledger_url)
    migrate.migrate(db)
    once = reflected(db)
    migrate.migrate(db)

    assert reflected(db) == once
    with db.read() as conn:
        assert conn.exec_driver_sql("SELECT COUNT(*) FROM cluster_capacity").scalar_one() == 1
    db.close()


def test_a_charge_from_before_growth_in_place_has_grown_by_nothing(ledger_url: str) -> None:
    db = Database(ledger_url)
    command.upgrade(migrate._config(db), "r0001")
    assert "grown_at" not in reflected(db)["charges"]["columns"]
    with db.engine.connect() as conn:
        conn.exec_driver_sql(
            "INSERT INTO charges (instance_uuid, role, node_id, namespace, cpus, memory_mb, disk_gb, instances,"
            " placed_at) VALUES ('i', 'primary', 1, 'n', 2, 64, 8, 1, 5)"
        )
        conn.commit()
    migrate.migrate(db)

    (charge,) = charges.of_instance(db, "i")
    assert (charge.amounts, charge.grown, charge.grown_at_us) == (Amounts(2, 64, 8, 1), Amounts(), None)
    command.downgrade(migrate._config(db), "r0001")
    assert "grown_at" not in reflected(db)["charges"]["columns"]
    db.close()


def migrate_at(url: str, barrier: Any, answers: Any) -> None:
    db = Database(url)
    barrier.wait(30)
    try:
        migrate.migrate(db)
        answers.put("")
    except Exception as error:  # noqa: BLE001  # what reached the caller is the finding
        answers.put(f"{type(error).__name__}: {error}")
    db.close()


@pytest.mark.slow
def test_two_processes_that_migrate_at_once_both_end_well(ledger_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    processes = [context.Process(target=migrate_at, args=(ledger_url, barrier, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    said = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)

    assert said == ["", ""]
    db = Database(ledger_url)
    assert migrate.current(db) == migrate.head()
    assert set(reflected(db)) == set(metadata.tables)
    with db.read() as conn:
        assert conn.exec_driver_sql("SELECT COUNT(*) FROM cluster_capacity").scalar_one() == 1
    db.close()


def test_labels_that_were_declared_before_are_found_by_their_values(ledger_url: str) -> None:
    db = Database(ledger_url)
    command.upgrade(migrate._config(db), "r0003")
    with db.engine.connect() as conn:
        conn.exec_driver_sql(
            "INSERT INTO nodes (id, name, labels, registered_at, updated_at) VALUES"
            """ (1, 'a', '{"rack": "r1", "type": "storage"}', 1, 1), (2, 'b', '{}', 1, 1)"""
        )
        conn.commit()
    migrate.migrate(db)

    with db.read() as conn:
        found = conn.exec_driver_sql("SELECT node_id, label, value FROM node_labels ORDER BY label").all()
    assert [tuple(row) for row in found] == [(1, "rack", "r1"), (1, "type", "storage")]
    db.close()


def test_who_did_what_was_done_before_is_found_afterwards(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r0009_done_by, "STRETCH", 2)
    db = Database(ledger_url)
    command.upgrade(migrate._config(db), "r0008")
    payloads = [
        '{"by":"ci/one"}',
        "{}",
        '{"by":null}',
        '{"of":{"by":"x"}}',
        '{"by":"ci/two"}',
        f'{{"by":"{"é" * 300}"}}',
    ]
    with db.engine.connect() as conn:
        for at, payload in enumerate(payloads):
            conn.execute(
                text(
                    "INSERT INTO events (id, object_type, object_id, at, message, payload) "
                    "VALUES (:i, 'n', 'n', 1, 'm', :p)"
                ),
                {"i": 7 + 3 * at, "p": payload},
            )
        conn.commit()
    migrate.migrate(db)

    assert [event.event_id for event in events.search(db, Filter(by="ci/"), newest_first=False).events] == [7, 19]
    with db.read() as conn:
        found = conn.exec_driver_sql("SELECT done_by FROM events ORDER BY id").scalars().all()
    assert found == ["ci/one", None, None, None, "ci/two", "é" * 255]
    db.close()


def test_a_migration_that_was_ended_while_it_filled_in_is_done_again(ledger_url: str) -> None:
    db = Database(ledger_url)
    command.upgrade(migrate._config(db), "r0008")
    with db.engine.connect() as conn:
        conn.exec_driver_sql("ALTER TABLE events ADD COLUMN done_by VARCHAR(255)")
        conn.commit()
    migrate.migrate(db)

    assert migrate.current(db) == migrate.head()
    db.close()


def test_a_migration_waits_for_an_answer_longer_than_anything_else_may(
    mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changing a large table takes minutes; given up halfway it would be done and not known to be."""
    monkeypatch.setattr(database_servers, "ANSWER_TIMEOUT_SECONDS", 1)
    with fresh_database(mariadb) as url:
        db = Database(url)
        command.upgrade(migrate._config(db), "r0006")
        held, free = threading.Event(), threading.Event()

        def hold(other: Database) -> None:
            with open_transaction(other) as conn:
                conn.exec_driver_sql("SELECT COUNT(*) FROM namespace_keys")
                held.set()
                free.wait(2.5)

        holder = Other(url, hold)
        assert held.wait(10)
        migrate.migrate(db)
        holder.result()

        assert migrate.current(db) == migrate.head()
        with db.read() as conn, pytest.raises(OperationalError, match="timed out"):
            conn.exec_driver_sql("SELECT SLEEP(1.5)")
        db.close()
