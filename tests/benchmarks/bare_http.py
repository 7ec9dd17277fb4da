"""The floor beside the product: a bare program that takes a create over HTTP, ranks cached nodes and claims.

No validation, no token, no events, no audit, no retry; its metrics are never refreshed and its claims do not change its
ranking. Two processes of eight threads, a connection each, HTTP/1.1 kept alive: what the same interpreter, driver and
database can do at best.

    python -m tests.benchmarks.bare_http --port N --mariadb-port N --database NAME --nodes N
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer
from typing import Any, cast

import numpy as np

from tests.benchmarks import bare_transaction

PROCESSES, THREADS = 2, 8
HOST = "127.0.0.1"
COLUMNS = 15
CONDITIONS = 7


class Ranker:
    """Fifteen columns, seven conditions, a score of seven terms, the best ten: as in the floors' description."""

    def __init__(self, nodes: int) -> None:
        generator = np.random.default_rng(1)
        self._columns = generator.random((COLUMNS, nodes))
        self._weights = generator.random(CONDITIONS)

    def best(self) -> list[int]:
        """The ten best of those that fit."""
        fits = np.ones(self._columns.shape[1], dtype=bool)
        for column in self._columns[:CONDITIONS]:
            fits &= column > 0.05
        scores = np.where(fits, self._weights @ self._columns[CONDITIONS : 2 * CONDITIONS], -1.0)
        top = np.argpartition(scores, -10)[-10:]
        return [int(index) for index in top[np.argsort(scores[top])[::-1]]]


class Handler(BaseHTTPRequestHandler):
    """One kept-alive connection."""

    protocol_version = "HTTP/1.1"
    # One write for headers and body, and no waiting for a full packet.
    wbufsize = -1
    disable_nagle_algorithm = True
    ranker: Ranker
    connection_of: threading.local
    arguments: argparse.Namespace

    def do_POST(self) -> None:
        """Rank, claim, answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["cpus"] > 0
        best = self.ranker.best()
        if not hasattr(self.connection_of, "value"):
            arguments = self.arguments
            self.connection_of.value = bare_transaction.connect(arguments.mariadb_port, arguments.database)
            self.connection_of.draw = random.Random(uuid.uuid4().int)
        done = bare_transaction.claim(self.connection_of.value, self.connection_of.draw)
        content = json.dumps({"uuid": str(uuid.uuid4()), "node": best[0], "state": "new"}).encode()
        self.send_response(201 if done else 507)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """Say nothing."""


def serve(listener: socket.socket) -> None:
    """Threads that each take a connection at a time."""

    def loop() -> None:
        while True:
            connection, address = listener.accept()
            # The handler uses the server for nothing that is used here.
            Handler(connection, address, cast("BaseServer", None))
            connection.close()

    for _ in range(THREADS):
        threading.Thread(target=loop, daemon=True).start()
    signal.pause()


def main() -> None:
    """Listen, fork, serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="the bare HTTP + rank + claim program")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mariadb-port", type=int, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    Handler.arguments = parser.parse_args()
    Handler.ranker = Ranker(Handler.arguments.nodes)
    Handler.connection_of = threading.local()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, Handler.arguments.port))
    listener.listen(128)
    children = []
    for _ in range(PROCESSES):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            serve(listener)
        children.append(child)

    def stop(_number: int, _frame: object) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    print("serving", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
