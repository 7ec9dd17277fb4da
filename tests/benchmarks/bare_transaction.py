"""The floor below everything: the transaction alone, as plain statements, from processes without any HTTP.

Three guarded UPDATEs (a node's capacity, a pool, a project's quota), two INSERTs into tables with four indexes each,
COMMIT; every row drawn from 100, so that some meet. It decides nothing, keeps no audit and knows no retry.
"""

from __future__ import annotations

import multiprocessing
import random
import time
import uuid
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import pymysql

from tests.servers import MariaDBServer

ROWS = 100
START_SECONDS_MAX = 60
DEFINITIONS = (
    """CREATE TABLE node (id INT PRIMARY KEY, cpus BIGINT NOT NULL, memory_mb BIGINT NOT NULL, disk_gb BIGINT NOT NULL,
       cpus_max BIGINT NOT NULL, memory_mb_max BIGINT NOT NULL, disk_gb_max BIGINT NOT NULL)""",
    "CREATE TABLE pool (id INT PRIMARY KEY, used BIGINT NOT NULL, used_max BIGINT NOT NULL)",
    "CREATE TABLE project (id INT PRIMARY KEY, used BIGINT NOT NULL, used_max BIGINT NOT NULL)",
    """CREATE TABLE vm (id CHAR(36) PRIMARY KEY, node INT NOT NULL, project INT NOT NULL, state VARCHAR(16) NOT NULL,
       created BIGINT NOT NULL, INDEX (node), INDEX (project), INDEX (state), INDEX (created))""",
    """CREATE TABLE job (id CHAR(36) PRIMARY KEY, vm CHAR(36) NOT NULL, node INT NOT NULL, state VARCHAR(16) NOT NULL,
       due BIGINT NOT NULL, INDEX (vm), INDEX (node), INDEX (state), INDEX (due))""",
)
HUGE = 10**12


def connect(port: int, database: str) -> Any:
    """A connection as a claim wants it: matched rows are counted, no autocommit, no TLS on loopback."""
    return pymysql.connect(
        host="127.0.0.1",
        port=port,
        user="root",
        database=database,
        autocommit=False,
        client_flag=pymysql.constants.CLIENT.FOUND_ROWS,
        ssl_disabled=True,
        connect_timeout=5,
        read_timeout=20,
        write_timeout=20,
    )


def prepare(server: MariaDBServer, database: str) -> None:
    """The tables, with `ROWS` rows in each of the guarded ones."""
    connection = connect(server.port, database)
    with connection.cursor() as cursor:
        for definition in DEFINITIONS:
            cursor.execute(f"{definition} ENGINE=InnoDB")
        for number in range(1, ROWS + 1):
            cursor.execute("INSERT INTO node VALUES (%s, 0, 0, 0, %s, %s, %s)", (number, HUGE, HUGE, HUGE))
            cursor.execute("INSERT INTO pool VALUES (%s, 0, %s)", (number, HUGE))
            cursor.execute("INSERT INTO project VALUES (%s, 0, %s)", (number, HUGE))
    connection.commit()
    connection.close()


def claim(connection: Any, draw: random.Random) -> bool:
    """One transaction; whether every guard held."""
    node, pool, project = (draw.randint(1, ROWS) for _ in range(3))
    vm, now = str(uuid.UUID(int=draw.getrandbits(128))), time.time_ns()
    with connection.cursor() as cursor:
        held = cursor.execute(
            "UPDATE node SET cpus = cpus + 2, memory_mb = memory_mb + 4096, disk_gb = disk_gb + 20 WHERE id = %s"
            " AND cpus + 2 <= cpus_max AND memory_mb + 4096 <= memory_mb_max AND disk_gb + 20 <= disk_gb_max",
            (node,),
        )
        held += cursor.execute("UPDATE pool SET used = used + 2 WHERE id = %s AND used + 2 <= used_max", (pool,))
        held += cursor.execute("UPDATE project SET used = used + 2 WHERE id = %s AND used + 2 <= used_max", (project,))
        if held != 3:
            connection.rollback()
            return False
        cursor.execute("INSERT INTO vm VALUES (%s, %s, %s, 'new', %s)", (vm, node, project, now))
        job = str(uuid.UUID(int=draw.getrandbits(128)))
        cursor.execute("INSERT INTO job VALUES (%s, %s, %s, 'new', %s)", (job, vm, node, now))
    connection.commit()
    return True


def transactions_per_second(server: MariaDBServer, *, clients: int, seconds: float) -> float:
    """The floor, by as many processes as the product has clients."""
    database = server.create_database()
    prepare(server, database)
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(clients + 1)
    ends, processes = [], []
    for number in range(clients):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_client, args=(server.port, database, (number, seconds), gate, theirs), daemon=True
        )
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    gate.wait(START_SECONDS_MAX)
    done = 0
    for end in ends:
        if not end.poll(seconds + START_SECONDS_MAX):
            raise TimeoutError("a process of the bare transaction did not come back")
        done += end.recv()
    for process in processes:
        process.join(START_SECONDS_MAX)
    server.drop_database(database)
    return done / seconds


def _client(port: int, database: str, work: tuple[int, float], gate: Barrier, answers: Connection) -> None:
    number, seconds = work
    connection = connect(port, database)
    draw = random.Random(number)
    gate.wait(START_SECONDS_MAX)
    end = time.perf_counter() + seconds
    done = 0
    while time.perf_counter() < end:
        done += claim(connection, draw)
    connection.close()
    answers.send(done)
