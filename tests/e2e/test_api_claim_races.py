"""Eight who claim at the same moment over HTTP: one has it, and seven are told why not, in the documented words.

On MariaDB a lock is held until they stand before it, so that they race; a round in which they did not all come in time
must be answered as well, and is not counted. What SQLite's one writer shows is that each answer is right whoever comes
first. That these are races is shown on the ledger, by naive twins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import httpx
import pytest

from fleet.ledger.database import Database, Sql
from tests.e2e.claims_of import claims_of, give_back, path
from tests.e2e.served import ANSWER_SECONDS_MAX, As, Served, assert_problem
from tests.ledger.holding import open_transaction, waiting
from tests.servers import wait_until

EIGHT = 8
ROUNDS = 4
STAND_SECONDS_MAX = 5
"""So long those who came first stand in line at most: a little later they would give up, and be right to."""

NODE = "raced"
HOLD_CLUSTER = Sql("UPDATE cluster_capacity SET updated_at = updated_at WHERE id = 1")
BODY = {"limit_memory_mb": 0, "limit_disk_gb": 0, "expires_in_seconds": 3600}


@pytest.fixture(scope="module", autouse=True)
def node(served: Served) -> None:
    served.node(NODE)


@pytest.fixture
def callers(served: Served) -> Iterator[list[As]]:
    """Eight admins, each with a connection of his own."""
    with ExitStack() as stack:
        yield [stack.enter_context(served.admin()) for _ in range(EIGHT)]


@pytest.fixture
def made(admin: As) -> Iterator[list[str]]:
    """Namespaces of a test; their claims are given back, for they bind what other tests may use."""
    names: list[str] = []
    yield names
    for name in names:
        give_back(admin, name)


@contextmanager
def held(served: Served) -> Iterator[Callable[[int], bool]]:
    """Hold the cluster's row, and give a function that waits until so many stand before it, or behind one who does.

    It tells whether they came in time.
    """
    database = Database(served.database_url)
    if database.is_sqlite:
        database.close()
        yield lambda _count: True
        return
    with open_transaction(database) as conn:
        HOLD_CLUSTER.run(conn)
        yield partial(in_line, database)
    database.close()


def in_line(database: Database, count: int) -> bool:
    try:
        wait_until(lambda: waiting(database) >= count, seconds=STAND_SECONDS_MAX, what=f"{count} stand in line")
    except TimeoutError:
        return False
    return True


def at_once(
    served: Served, callers: list[As], names: list[str], cpus: int, stand: int = EIGHT, **headers: str
) -> tuple[list[httpx.Response], bool]:
    """Let each caller claim for its namespace, all behind one lock, which is let go when so many stand in line.

    Returns the answers, and whether it was a race.
    """
    body = {**BODY, "limit_cpus": cpus}
    with ThreadPoolExecutor(EIGHT) as pool:
        with held(served) as until_in_line:
            asked = [
                pool.submit(caller.post, path(name), body, **headers)
                for caller, name in zip(callers, names, strict=True)
            ]
            raced = until_in_line(stand)
        return [answer.result(ANSWER_SECONDS_MAX) for answer in asked], raced


def new_namespaces(admin: As, new_name: Callable[[str], str], made: list[str], count: int) -> list[str]:
    names = [new_name("race") for _ in range(count)]
    for name in names:
        assert admin.post("/auth/namespaces", {"name": name}).status_code == 201
    made += names
    return names


def left_cpus(admin: As) -> int:
    """What may be promised: it differs with what other tests' nodes and instances are."""
    found = admin.get("/admin/cluster-capacity").json()
    return int(found["total_cpus"] - found["claimed_cpus"] - found["unclaimed_used_cpus"] - found["overage_cpus"])


def test_of_eight_namespaces_claiming_the_last_capacity_one_has_it_and_seven_get_507_with_figures(
    served: Served, admin: As, callers: list[As], made: list[str], new_name: Callable[[str], str]
) -> None:
    raced = 0
    while raced < ROUNDS:
        names = new_namespaces(admin, new_name, made, EIGHT)
        last = left_cpus(admin)
        assert last > 0
        answers, all_stood = at_once(served, callers, names, last)
        raced += all_stood

        assert Counter(answer.status_code for answer in answers) == {201: 1, 507: EIGHT - 1}
        for answer in answers:
            if answer.status_code == 507:
                document = assert_problem(answer, 507, "claim_capacity")
                [cpus] = [item for item in document["dimensions"] if item["exceeded"]]
                assert (cpus["dimension"], cpus["requested"], cpus["shortfall"]) == ("cpus", last, last)
                assert f"requested {last}" in document["detail"]
        assert left_cpus(admin) == 0
        for name in names:
            give_back(admin, name)
        assert left_cpus(admin) == last


def test_of_eight_claims_of_one_namespace_one_is_made_and_seven_are_told_which(
    served: Served, admin: As, callers: list[As], made: list[str], new_name: Callable[[str], str]
) -> None:
    raced = 0
    while raced < ROUNDS:
        [name] = new_namespaces(admin, new_name, made, 1)
        before = left_cpus(admin)
        answers, all_stood = at_once(served, callers, [name] * EIGHT, 1)
        raced += all_stood

        assert Counter(answer.status_code for answer in answers) == {201: 1, 409: EIGHT - 1}
        [won] = [answer.json() for answer in answers if answer.status_code == 201]
        told = {assert_problem(answer, 409, "claim_exists")["claim"] for answer in answers if answer.status_code == 409}
        assert told == {won["uuid"]}
        assert claims_of(admin, name) == [won]
        assert left_cpus(admin) == before - 1


def test_eight_with_one_idempotency_key_make_one_claim_and_get_its_answer_or_are_told_to_wait(
    served: Served, admin: As, callers: list[As], made: list[str], new_name: Callable[[str], str]
) -> None:
    raced = 0
    while raced < ROUNDS:
        [name] = new_namespaces(admin, new_name, made, 1)
        before = left_cpus(admin)
        answers, both_stood = at_once(served, callers, [name] * EIGHT, 1, stand=2, Idempotency_Key=name)
        raced += both_stood

        [claim] = claims_of(admin, name)
        for answer in answers:
            if answer.status_code == 201:
                assert answer.json() == claim
                assert answer.headers["location"] == f"{path(name)}/{claim['uuid']}"
            else:
                assert answer.headers["retry-after"] == "1"
                assert_problem(answer, 409, "conflict")
        assert 201 in {answer.status_code for answer in answers}
        again = [caller.post(path(name), {**BODY, "limit_cpus": 1}, Idempotency_Key=name) for caller in callers]
        assert [answer.json() for answer in again] == [claim] * EIGHT
        assert left_cpus(admin) == before - 1
