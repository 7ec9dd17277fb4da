"""Races on a real MariaDB, with threads and with processes: nothing is sold twice, nothing is lost.

Each race is a function that returns what it found wrong. The guarded admission must leave nothing, and the naive one
must be caught, every time: a race that the naive one survives proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.ledger.verify import verify
from fleet.model.admission import Admitted, Refused
from tests.ledger import fleet_of, naive, racing
from tests.ledger.fleet_of import ask
from tests.ledger.racing import Answers, Attempt, Crew, Processes, Threads

pytestmark = pytest.mark.slow

THREADS, PROCESSES = 8, 4


@pytest.fixture(scope="module", params=["threads", "processes"])
def crew(request: pytest.FixtureRequest, mariadb_ledger: str) -> Iterator[Crew]:
    """Started once: processes take seconds to start. The ledger itself is emptied for each test."""
    make = Threads(mariadb_ledger, THREADS) if request.param == "threads" else None
    with make or Processes(mariadb_ledger, PROCESSES) as racers:
        yield racers


def wrong(db: Database, answers: Answers) -> list[str]:
    """What is not as it must be after any race: an error reached a caller, a counter lies, a node is over its limit."""
    found = [answer for answer in answers if isinstance(answer, str)]
    checked = verify(db)
    return [*found, *map(str, checked.differences), *map(str, checked.over_limit)]


def count(answers: Answers, kind: type) -> int:
    return sum(isinstance(answer, kind) for answer in answers)


# --- the last slot -----------------------------------------------------------------------------------------------


def race_for_the_last_slot(db: Database, crew: Crew, attempt: Attempt, node_id: int) -> list[str]:
    answers = crew.run(racing.once, [(attempt, ask(node_id)) for _ in range(crew.size)])
    winners = count(answers, Admitted)
    found = wrong(db, answers)
    return found if winners == 1 else [f"{winners} winners", *found]


def test_the_last_slot_goes_to_exactly_one(maria: Database, crew: Crew) -> None:
    node_id = fleet_of.node(maria, cpus=3)
    fleet_of.admitted(maria, ask(node_id, cpus=2))
    for _ in range(25):
        assert race_for_the_last_slot(maria, crew, racing.guarded, node_id) == []
        late = fleet_of.admit(maria, ask(node_id))
        assert isinstance(late, Refused)
        assert [figure.dimension for figure in late.figures if figure.exceeded] == ["cpus"]
        winner = next(uuid for uuid in reversed(fleet_of.charged_to(maria)))
        fleet_of.delete(maria, winner)


def test_the_race_for_the_last_slot_catches_a_naive_admission(maria: Database, crew: Crew) -> None:
    for _ in range(5):
        node_id = fleet_of.node(maria, cpus=1)
        assert f"{crew.size} winners" in race_for_the_last_slot(maria, crew, naive.admit, node_id)


# --- two nodes, two binding dimensions ---------------------------------------------------------------------------

CREATES = 40
ROOM_CPUS, ROOM_MEMORY = 12, 14


def race_over_two_nodes(db: Database, crew: Crew, attempt: Attempt, round_: int) -> list[str]:
    """40 creates of 1 vCPU and 1024 MiB: one node has CPUs for 12, the other memory for 14."""
    by_cpus = fleet_of.node(db, f"cpus-{round_}", cpus=ROOM_CPUS)
    by_memory = fleet_of.node(db, f"memory-{round_}", cpus=fleet_of.PLENTY, memory_mb=ROOM_MEMORY * 1024)
    orders: list[list[list[NodeAsk]]] = [[] for _ in range(crew.size)]
    for number in range(CREATES):
        first = ask(by_cpus, memory_mb=1024)
        second = ask(by_memory, memory_mb=1024, instance_uuid=first.instance_uuid)
        orders[number % crew.size].append([first, second] if number % 2 else [second, first])
    answers = crew.run(racing.walk, [(attempt, creates) for creates in orders])
    found = wrong(db, answers)
    placed = sum(1 for answer in answers if isinstance(answer, list) for create in answer if count(create, Admitted))
    ends = (placed, fleet_of.used(db, by_cpus)[0], fleet_of.used(db, by_memory)[1])
    wanted = (ROOM_CPUS + ROOM_MEMORY, ROOM_CPUS, ROOM_MEMORY * 1024)
    return found if ends == wanted else [f"placed and used {ends}, not {wanted}", *found]


def test_creates_over_two_nodes_fill_each_to_its_own_bound(maria: Database, crew: Crew) -> None:
    for round_ in range(2):
        assert race_over_two_nodes(maria, crew, racing.guarded, round_) == []


def test_the_race_over_two_nodes_catches_a_naive_admission(maria: Database, crew: Crew) -> None:
    assert race_over_two_nodes(maria, crew, naive.admit, 0) != []


# --- crossing moves ----------------------------------------------------------------------------------------------


def race_of_crossing_moves(db: Database, crew: Crew, attempt: Attempt, rounds: int) -> list[str]:
    """Half of the instances move A -> B while the other half moves B -> A, then back, and so on."""
    nodes = [fleet_of.node(db, cpus=4 * THREADS), fleet_of.node(db, cpus=4 * THREADS)]
    mine = [(fleet_of.admitted(db, ask(nodes[index % 2], memory_mb=8)), index % 2) for index in range(crew.size)]
    for round_ in range(rounds):
        orders = []
        for instance, side in mine:
            source, target = nodes[(side + round_) % 2], nodes[(side + round_ + 1) % 2]
            orders.append((attempt, ask(target, memory_mb=8, instance_uuid=instance, source=source)))
        answers = crew.run(racing.until_decided, orders)
        found = wrong(db, answers)
        if count(answers, Admitted) != crew.size or found:
            return [f"{count(answers, Admitted)} of {crew.size} moved", *found]
    return []


def test_crossing_moves_do_not_deadlock_and_charges_follow(maria: Database, crew: Crew) -> None:
    assert race_of_crossing_moves(maria, crew, racing.guarded, 30) == []


def test_the_race_of_crossing_moves_catches_a_naive_lock_order(maria: Database, crew: Crew) -> None:
    found = race_of_crossing_moves(maria, crew, naive.move, 1)
    assert any("Deadlock" in item for item in found)


# --- B01, B53 ----------------------------------------------------------------------------------------------------


def race_for_one_block_of_memory(db: Database, url: str, attempt: Attempt) -> tuple[Answers, list[str]]:
    """B01: a node with 4096 MiB left, 20 threads at once each ask for a 4096 MiB create."""
    node_id = fleet_of.node(db, cpus=1000, memory_mb=64 * 1024)
    fleet_of.admitted(db, ask(node_id, memory_mb=60 * 1024))
    with Threads(url, 20) as racers:
        answers = racers.run(racing.until_decided, [(attempt, ask(node_id, memory_mb=4096)) for _ in range(20)])
    return answers, wrong(db, answers)


def test_b01_of_twenty_creates_for_the_last_memory_one_wins_and_the_rest_are_refused_on_memory(
    maria: Database, mariadb_ledger_url: str
) -> None:
    answers, found = race_for_one_block_of_memory(maria, mariadb_ledger_url, racing.guarded)

    assert found == []
    assert (count(answers, Admitted), count(answers, Refused)) == (1, 19)
    refusals = [answer for answer in answers if isinstance(answer, Refused)]
    assert {figure.dimension for refused in refusals for figure in refused.figures if figure.exceeded} == {"memory_mb"}


def test_b01_catches_a_naive_admission(maria: Database, mariadb_ledger_url: str) -> None:
    answers, found = race_for_one_block_of_memory(maria, mariadb_ledger_url, naive.admit)
    assert count(answers, Admitted) == 20
    assert found != []


GROWING = 20


def race_of_growths(db: Database, url: str, attempt: Attempt, rounds: int) -> list[str]:
    """B01, second run: on a node with 4096 MiB left, 20 instances that it holds each grow by 4096 MiB at once."""
    fleet_of.node(db, cpus=1000)  # what the naive one loses must not end in a full cluster
    node_id = fleet_of.node(db, cpus=1000, memory_mb=(GROWING + 4) * 1024)
    mine = [fleet_of.admitted(db, ask(node_id, memory_mb=1024)) for _ in range(GROWING)]
    for number, instance in enumerate(mine):
        # Some are drafts still: growth does not care.
        assert number % 3 == 0 or fleet_of.settle(db, instance)
    with Threads(url, GROWING) as racers:
        for _ in range(rounds):
            wanted = [ask(node_id, memory_mb=5 * 1024, instance_uuid=instance) for instance in mine]
            answers = racers.run(racing.until_decided, [(attempt, item) for item in wanted])
            winners = [item for item, answer in zip(wanted, answers, strict=True) if isinstance(answer, Admitted)]
            dimensions = [
                [figure.dimension for figure in answer.figures if figure.exceeded]
                for answer in answers
                if isinstance(answer, Refused)
            ]
            found = wrong(db, answers)
            if len(winners) != 1 or dimensions != [["memory_mb"]] * (GROWING - 1) or found:
                return [f"{len(winners)} winners", f"refused on {dimensions}", *found]
            back = fleet_of.grow(db, ask(node_id, memory_mb=1024, instance_uuid=winners[0].instance_uuid))
            assert isinstance(back, Admitted), back
    return []


def test_b01_of_twenty_instances_that_grow_into_the_last_memory_at_once_one_does(
    maria: Database, mariadb_ledger_url: str
) -> None:
    assert race_of_growths(maria, mariadb_ledger_url, racing.grown, 20) == []


def test_b01_catches_a_naive_growth(maria: Database, mariadb_ledger_url: str) -> None:
    for _ in range(2):
        found = race_of_growths(maria, mariadb_ledger_url, naive.grow, 1)
        assert found[0] == f"{GROWING} winners"
        assert any("used_memory_mb" in item for item in found)


def race_for_sixty(db: Database, url: str, attempt: Attempt) -> tuple[Answers, list[str]]:
    """B53: 60 claims of 1 vCPU at once on a node with 60 left."""
    node_id = fleet_of.node(db, cpus=100)
    fleet_of.admitted(db, ask(node_id, cpus=40))
    with Threads(url, 60) as racers:
        answers = racers.run(racing.until_decided, [(attempt, ask(node_id)) for _ in range(60)])
    left = fleet_of.row(db, node_id)
    full = left["used_cpus"] == left["limit_cpus"] == 100
    return answers, wrong(db, answers) + ([] if full else [f"used {left['used_cpus']} of 100"])


def test_b53_sixty_claims_at_once_on_a_node_with_sixty_left_are_all_admitted(
    maria: Database, mariadb_ledger_url: str
) -> None:
    answers, found = race_for_sixty(maria, mariadb_ledger_url, racing.guarded)
    assert (count(answers, Admitted), found) == (60, [])


def test_b53_catches_a_naive_admission(maria: Database, mariadb_ledger_url: str) -> None:
    assert race_for_sixty(maria, mariadb_ledger_url, naive.admit)[1] != []
