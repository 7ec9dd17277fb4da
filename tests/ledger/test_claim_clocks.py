"""B39: a claim for an hour covers for an hour, in whatever zone the database, its sessions and the callers live.

The server lives in Central European Time, whose clock was put back at 2026-10-25T01:00Z and goes forward at
2027-03-28T01:00Z; its default zone is another, and sessions get a zone after the product has set its own, as a pooler
might do. The database's clock is moved for whole sessions (`SET timestamp`); no stamp in a row is ever edited.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import event

from fleet.api.answers import iso
from fleet.ledger import claim_grants, leases
from fleet.ledger.claim_grants import Granted
from fleet.ledger.cluster import now_us
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from fleet.ledger.reconcile import reconcile
from fleet.model.admission import Admitted
from tests.faults.rig import Rig
from tests.faults.soak import Answer, Client, StartApi, apis_of
from tests.ledger import claiming, fleet_of
from tests.ledger.fleet_of import ask
from tests.ledger.ledgers import empty
from tests.provision import MARIADB, required
from tests.servers import MariaDBServer, wait_until
from tests.tidy.tree import ROOT

# With the rules of Europe/Berlin, so that no file of zones is needed.
CENTRAL_EUROPE: Final = "CET-1CEST,M3.5.0/2,M10.5.0/3"
ZONES: Final = ("+00:00", "+03:00", "-05:00", "SYSTEM")
HOUR: Final = 3600
MINUTE: Final = 60
NAIVE_NOW: Final = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"


def at(iso: str) -> Decimal:
    """Seconds since 1970, exact."""
    moment = datetime.fromisoformat(iso).replace(tzinfo=UTC)
    return Decimal(int(moment.timestamp())) + Decimal(moment.microsecond) / 1_000_000


PUT_BACK, PUT_FORWARD = at("2026-10-25T01:00:00"), at("2027-03-28T01:00:00")
AROUND: Final = [
    change + Decimal(offset)
    for change in (PUT_BACK, PUT_FORWARD)
    for offset in ("-3600", "-1800.5", "-0.000001", "0", "0.25", "1800.123456", "3599.999999", "3600")
]


@pytest.fixture(scope="module")
def abroad() -> Iterator[MariaDBServer]:
    """A server whose machine lives in Central Europe, and whose default zone is three hours east."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", CENTRAL_EUROPE)
        with MariaDBServer(required(MARIADB), options=("--default-time-zone=+03:00",)) as server:
            yield server


@pytest.fixture(scope="module")
def migrated(abroad: MariaDBServer) -> str:
    found = abroad.url(abroad.create_database())
    database = Database(found)
    migrate(database)
    database.close()
    return found


@pytest.fixture
def url(migrated: str) -> str:
    empty(migrated)
    return migrated


Open = Callable[..., Database]


@pytest.fixture
def open_at(url: str) -> Iterator[Open]:
    """Open the ledger in sessions of a zone, whose clock stands at a moment."""
    opened: list[Database] = []

    def one(moment: Decimal, zone: str = "+00:00") -> Database:
        database = Database(url, pool_size=2)

        def set_up(connection: Any, _record: object) -> None:
            cursor = connection.cursor()
            cursor.execute(f"SET SESSION time_zone = '{zone}', timestamp = {moment}")
            cursor.close()

        for engine in (database.engine, database._reads):
            event.listen(engine, "connect", set_up)
        opened.append(database)
        return database

    yield one
    for database in opened:
        database.close()


def test_the_server_lives_in_a_zone_with_summer_time(abroad: MariaDBServer) -> None:
    with abroad.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.time_zone, @@system_time_zone")
        assert cursor.fetchone() == ("+03:00", "CET")
        hours = []
        for moment in (PUT_BACK - 1, PUT_BACK, PUT_FORWARD - 1, PUT_FORWARD):
            cursor.execute(f"SET time_zone = 'SYSTEM', timestamp = {moment}")
            cursor.execute("SELECT HOUR(NOW())")
            hours += [row[0] for row in cursor.fetchall()]
    assert hours == [2, 2, 1, 3]


@pytest.mark.parametrize("zone", ZONES)
def test_b39_the_databases_time_is_the_same_in_every_zone(open_at: Open, zone: str) -> None:
    for moment in AROUND:
        database = open_at(moment, zone)

        assert now_us(database) == int(moment * 1_000_000)
        assert database.unit(lambda conn: conn.exec_driver_sql("SELECT @@time_zone").scalar_one()) == zone


def test_b39_a_time_that_was_local_in_between_is_an_hour_wrong_in_the_repeated_hour(open_at: Open) -> None:
    """What the expression must not be: this is the fault that the test above finds."""
    with open_at(PUT_BACK - 1800, "SYSTEM").read() as conn:
        wrong = int(conn.exec_driver_sql(NAIVE_NOW).scalar_one())
    assert wrong - int((PUT_BACK - 1800) * 1_000_000) == HOUR * 1_000_000


# --- a claim's hour ----------------------------------------------------------------------------------------------


STARTS: Final = [PUT_BACK - 1800, PUT_BACK - 3599, PUT_FORWARD - 1800, at("2026-12-24T17:00:00.5")]


def paid_by(db: Database, node_id: int, namespace: str) -> str | None:
    """Who pays for a new instance of the namespace, now."""
    outcome = fleet_of.admit(db, ask(node_id, namespace=namespace))
    assert isinstance(outcome, Admitted), outcome
    return outcome.payer


def swept(db: Database) -> int:
    lease = leases.acquire(db, "reconciler", f"at {now_us(db)}", 1)
    assert lease is not None
    report = reconcile(db, lease, fleet_of.PLAIN)
    leases.drop(db, lease)
    assert report.corrections == ()
    return report.claims_expired


@pytest.mark.parametrize("granted_in", ZONES)
@pytest.mark.parametrize("start", STARTS)
def test_b39_a_claim_for_an_hour_covers_at_59_minutes_and_not_after_60_whoever_reads(
    open_at: Open, start: Decimal, granted_in: str
) -> None:
    first = open_at(start, granted_in)
    node_id = fleet_of.node(first, "n", cpus=1000)
    claim = claiming.granted(first, "tenant", 10, 1000, seconds=HOUR)
    assert claim.expires_at_us == int((start + HOUR) * 1_000_000)

    for moment in (start + 59 * MINUTE, start + HOUR - Decimal("0.000001")):
        fleet_of.publish(open_at(moment), "n", cpus=1000)
        for zone in ZONES:
            reader = open_at(moment, zone)
            assert paid_by(reader, node_id, "tenant") == claim.uuid
            assert claiming.code(claiming.grant(reader, "tenant", 1)) == "claim_exists"
            assert isinstance(claim_grants.change(reader, claim.uuid, {"disk_gb": 0}), Granted)
            assert swept(reader) == 0
            fleet_of.assert_exact(reader)

    ends = start + HOUR
    fleet_of.publish(open_at(ends), "n", cpus=1000)
    for zone in ZONES:
        assert paid_by(open_at(ends, zone), node_id, "tenant") is None
    assert [swept(open_at(ends, zone)) for zone in ZONES] == [1, 0, 0, 0]
    for zone in ZONES:
        reader = open_at(ends + 1, zone)
        assert claiming.code(claim_grants.change(reader, claim.uuid, {}, HOUR)) == "claim_not_active"
        assert fleet_of.claim_row(reader, claim.uuid)["coverage_state"] == "expired"
        fleet_of.assert_exact(reader)
    assert fleet_of.unclaimed(first)[0] == 3 * len(ZONES)


@pytest.mark.parametrize("zone", ZONES)
def test_b39_an_unswept_claim_past_its_hour_is_over_for_whoever_meets_it_first(open_at: Open, zone: str) -> None:
    """No pass came by: the first that changes it, or asks for another, finds it ended."""
    start = PUT_BACK - 1800
    first = open_at(start, "SYSTEM")
    fleet_of.node(first, "n", cpus=1000)
    changed = claiming.granted(first, "changed", 10, 1000, seconds=HOUR)
    replaced = claiming.granted(first, "replaced", 10, 1000, seconds=HOUR)
    prolonged = claiming.granted(first, "prolonged", 10, 1000, seconds=HOUR)
    half_way = open_at(start + HOUR // 2, zone)
    assert isinstance(claim_grants.change(half_way, prolonged.uuid, {}, HOUR), Granted)

    late = open_at(start + HOUR, zone)
    assert claiming.code(claim_grants.change(late, changed.uuid, {"cpus": 1})) == "claim_not_active"
    assert claiming.granted(late, "replaced", 10, 1000).uuid != replaced.uuid
    assert isinstance(claim_grants.change(late, prolonged.uuid, {"cpus": 11}), Granted)
    assert fleet_of.claim_row(late, prolonged.uuid)["expires_at"] == int((start + HOUR // 2 + HOUR) * 1_000_000)
    fleet_of.assert_exact(late)


# --- the whole product -------------------------------------------------------------------------------------------

CLAIMS: Final = "/auth/namespaces/system/claims"
PLACED_SECONDS_MAX: Final = 120
SKEW_SECONDS: Final = 400 * 86_400
SKEWED: Final = f"""\
import time
_real = time.time
time.time = lambda: _real() + {SKEW_SECONDS}
"""
"""A `sitecustomize` with which a process lives more than a year in the future."""

BODY: Final = {"limit_cpus": 30, "limit_memory_mb": 30_000, "limit_disk_gb": 300}


class Abroad:
    """Three sf-api in three zones, one of them with a clock that is wrong by more than a year, on one database."""

    def __init__(self, rig: Rig, start: StartApi, folder: Path) -> None:
        self.rig = rig
        (folder / "sitecustomize.py").write_text(SKEWED)
        own = dict(rig.environment)
        self.clients: dict[str, Client] = {}
        for zone, more in (
            ("<+03>-3", {}),
            ("<-05>5", {}),
            (CENTRAL_EUROPE, {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}),
        ):
            rig.environment = {**own, "TZ": zone, **more}
            self.clients[zone] = start().client()
        rig.environment = own

    def everywhere(self, method: str, path: str, body: Any = None) -> list[Answer]:
        """The same request to each, once it has met the database again."""
        return [self._once(client, method, path, body) for client in self.clients.values()]

    def placed_everywhere(self) -> None:
        """One more instance by each; a process looks at the nodes' samples only now and then."""
        for client in self.clients.values():
            answers, deadline = [client.create("i")], time.monotonic() + PLACED_SECONDS_MAX
            while answers[-1].status != 201 and time.monotonic() < deadline:
                time.sleep(0.25)
                answers.append(client.create("i"))
            assert answers[-1].status == 201, (answers[-1], self.rig.logs())

    def _once(self, client: Client, method: str, path: str, body: Any) -> Answer:
        answers = [client.call(method, path, body)]
        # A session that was ended is met once by each that is kept.
        while answers[-1].status == 503 and len(answers) < 30:
            answers.append(client.call(method, path, body))
        return answers[-1]


@pytest.fixture
def start_api(rig: Rig) -> Iterator[StartApi]:
    with apis_of(rig) as start:
        yield start


@pytest.fixture(params=["sqlite", "mariadb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[Rig]:
    made = Rig(tmp_path, request.getfixturevalue(f"{request.param}_url"), redis_url)
    yield made
    made.close()


@pytest.mark.slow
def test_b39_a_short_claim_ends_at_the_same_moment_for_every_api_wherever_its_machine_lives(
    rig: Rig, start_api: StartApi, tmp_path: Path
) -> None:
    world = Abroad(rig, start_api, tmp_path)
    first = next(iter(world.clients.values()))
    made = first.call("POST", CLAIMS, {**BODY, "expires_in_seconds": HOUR})
    assert made.status == 201, made
    one = f"{CLAIMS}/{made.body['uuid']}"
    rig.publish()
    world.placed_everywhere()
    shown = world.everywhere("GET", one)
    assert [answer.body for answer in shown] == [shown[0].body] * 3
    assert (shown[0].body["coverage_state"], shown[0].body["used_cpus"]) == ("active", 3)

    cut = first.call("PUT", one, {"expires_in_seconds": 2})
    assert cut.status == 200, cut
    assert {answer.body["expires_at"] for answer in world.everywhere("GET", one)} == {cut.body["expires_at"]}
    wait_until(lambda: str(iso(now_us(rig.db))) >= cut.body["expires_at"], seconds=60, what="the claim's end")
    rig.publish()
    world.placed_everywhere()
    assert fleet_of.claim_row(rig.db, made.body["uuid"])["used_cpus"] == 3
    assert fleet_of.unclaimed(rig.db)[0] == 3
    answers = world.everywhere("PUT", one, {"limit_cpus": 20})
    assert {(answer.status, answer.code) for answer in answers} == {(409, "claim_not_active")}
    assert {answer.body["coverage_state"] for answer in world.everywhere("GET", one)} == {"expired"}
    assert fleet_of.unclaimed(rig.db)[0] == 6
    assert rig.differences() == []


@pytest.mark.slow
@pytest.mark.parametrize("start", [PUT_BACK - 1800, PUT_FORWARD - 1800])
def test_b39_an_hour_across_a_change_of_the_clocks_is_an_hour_for_every_api(
    abroad: MariaDBServer, tmp_path: Path, redis_url: str, start: Decimal
) -> None:
    """The database's clock is moved under running processes: each of their sessions begins with it."""
    name = abroad.create_database()
    administer(abroad, "CREATE OR REPLACE USER fleet@127.0.0.1", f"GRANT ALL ON {name}.* TO fleet@127.0.0.1")
    move_clock(abroad, start)
    rig = Rig(tmp_path, abroad.url(name).replace("root@", "fleet@"), redis_url)
    try:
        with apis_of(rig) as start_apis:
            world = Abroad(rig, start_apis, tmp_path)
            made = next(iter(world.clients.values())).call("POST", CLAIMS, {**BODY, "expires_in_seconds": HOUR})
            assert made.status == 201, made
            assert made.body["expires_at"] == iso(int((start + HOUR) * 1_000_000))
            one = f"{CLAIMS}/{made.body['uuid']}"

            move_clock(abroad, start + 59 * MINUTE, rig)
            world.placed_everywhere()
            shown = world.everywhere("GET", one)
            assert {(a.body["coverage_state"], a.body["used_cpus"]) for a in shown} == {("active", 3)}
            assert {a.status for a in world.everywhere("PUT", one, {"limit_cpus": 31})} == {200}

            move_clock(abroad, start + HOUR, rig)
            world.placed_everywhere()
            assert fleet_of.unclaimed(rig.db)[0] == 3
            answers = world.everywhere("PUT", one, {"expires_in_seconds": HOUR})
            assert {(answer.status, answer.code) for answer in answers} == {(409, "claim_not_active")}
            assert {answer.body["coverage_state"] for answer in world.everywhere("GET", one)} == {"expired"}
            assert fleet_of.unclaimed(rig.db)[0] == 6
            assert rig.differences() == []
    finally:
        rig.close()
        administer(abroad, "SET GLOBAL init_connect = ''")
        abroad.drop_database(name)


def administer(server: MariaDBServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def move_clock(server: MariaDBServer, moment: Decimal, rig: Rig | None = None) -> None:
    """Let every session of the product begin at this moment, end those that began before, and measure the nodes."""
    administer(server, f"SET GLOBAL init_connect = 'SET SESSION timestamp = {moment}'", "KILL CONNECTION USER fleet")
    if rig is not None:
        rig.db.close()
        assert now_us(rig.db) == int(moment * 1_000_000)
        rig.publish()


# --- no other clock ----------------------------------------------------------------------------------------------

ZONED = re.compile(
    r"\b(NOW|SYSDATE|CURDATE|CURTIME|FROM_UNIXTIME|LOCALTIME|CONVERT_TZ|UTC_TIMESTAMP|DATE_FORMAT)\s*\(|"
    r"CURRENT_TIMESTAMP|CURRENT_DATE|localtime"
)
OF_THE_HOST = re.compile(r"\btime\.time\b|\btime_ns\b|datetime\.(now|today)|\butcnow\b|\bdate\.today\b")
SOURCES = ROOT / "src" / "fleet"


def found_in(files: Iterator[Path], wanted: re.Pattern[str]) -> set[str]:
    return {
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if wanted.search(line)
    }


def test_b39_no_sql_but_the_databases_one_clock_knows_a_calendar_or_a_zone() -> None:
    found = found_in(SOURCES.rglob("*.py"), ZONED)

    assert {line.split(":")[0] for line in found} == {"ledger/database.py"}, found
    assert len(found) == 1, found


def test_b39_the_ledger_and_the_services_never_ask_the_hosts_clock() -> None:
    folders = ("ledger", "services", "api", "placement", "model")
    assert found_in((path for name in folders for path in (SOURCES / name).rglob("*.py")), OF_THE_HOST) == set()


def test_b39_the_zone_of_this_process_changes_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for zone in ("UTC0", "<+14>-14", "<-12>12", CENTRAL_EUROPE):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        seen.append(now_us(db))
    monkeypatch.delenv("TZ")
    time.tzset()

    assert seen == sorted(seen)
    assert seen[-1] - seen[0] < 60_000_000
    assert abs(seen[0] / 1e6 - time.time()) < 60
    assert os.environ.get("TZ") is None
