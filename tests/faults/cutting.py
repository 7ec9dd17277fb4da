"""A wire between a process and its MariaDB that is cut at the worst moment: around a COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import Enum
from typing import Self

from sqlalchemy.engine import make_url

from tests.servers import HOST

# A command packet of the wire: length, number, "query", text. The driver sends each alone and waits for the answer.
COMMIT = b"\x07\x00\x00\x00\x03COMMIT"
WAIT_SECONDS = 30.0


class Cut(Enum):
    """Where the wire breaks."""

    BEFORE = "the server never gets the COMMIT"
    AFTER = "the server commits, and its answer is lost"


class Wire:
    """Forwards connections to a server; armed, it cuts the one that sends the next COMMIT, once."""

    def __init__(self, url: str) -> None:
        self._server = make_url(url)
        self._listening = socket.create_server((HOST, 0))
        self._listening.settimeout(0.2)
        self._armed: Cut | None = None
        self._for_good = False
        self._guard = threading.Lock()
        self._open: list[socket.socket] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self.cut = threading.Event()
        # What happens between the break and the moment at which the server gets a COMMIT that it carries out.
        self.meanwhile: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        """The server's URL through this wire."""
        return self._server.set(port=self._listening.getsockname()[1]).render_as_string(hide_password=False)

    def arm(self, where: Cut, *, for_good: bool = False) -> None:
        """Cut at the next COMMIT, and for good: let nobody through any more. `cut` says when it happened."""
        self.cut.clear()
        self._for_good = for_good
        self._armed = where

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._threads[0].join(WAIT_SECONDS)
        for sock in self._open:
            _close(sock)
        for thread in self._threads[1:]:
            thread.join(WAIT_SECONDS)
        self._listening.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listening.accept()
            except TimeoutError:
                continue
            if self._for_good and self.cut.is_set():
                client.close()
                continue
            server = socket.create_connection((HOST, self._server.port or 0), WAIT_SECONDS)
            server.settimeout(None)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [client, server]
            for pump in (self._upward, self._downward):
                thread = threading.Thread(target=pump, args=(client, server))
                self._threads.append(thread)
                thread.start()

    def _upward(self, client: socket.socket, server: socket.socket) -> None:
        """Forward what the client says, and watch for the COMMIT that is to be cut."""
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                where = self._take(data)
                if where is not None:
                    # First the client's end, so that no answer can slip through.
                    _close(client)
                if where is Cut.AFTER:
                    self.meanwhile()
                if where is not Cut.BEFORE:
                    server.sendall(data)
                if where is not None:
                    break
        # It carries out what it has got, and then finds the line dead.
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _downward(self, client: socket.socket, server: socket.socket) -> None:
        """Forward what the server answers until one end is closed."""
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                client.sendall(data)
        _close(client)
        _close(server)

    def _take(self, data: bytes) -> Cut | None:
        with self._guard:
            if data != COMMIT or self._armed is None:
                return None
            where, self._armed = self._armed, None
            self.cut.set()
            return where


def _close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
