"""Listening sockets, one a worker, on one port: the kernel spreads connections over them.

Sockets are made with IPPROTO_TCP named: only on those does asyncio turn Nagle's algorithm off, and with it on, each
answer waits 40 ms for the client's acknowledgement.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from fleet.model.errors import FleetError

BACKLOG: Final = 1024


def listen(host: str, port: int, workers: int) -> list[socket.socket]:
    """Return `workers` listening sockets on one address.

    Raises:
        FleetError: the address is not ours, or somebody listens there already.
    """
    opened: list[socket.socket] = []
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Sockets that share a port would also share it with a second server of the same user, unseen: so it is tried
        # alone first.
        with _bound(family, address, shared=False):
            pass
        for _ in range(workers):
            opened.append(_bound(family, address, shared=True))
            opened[-1].listen(BACKLOG)
    except OSError as error:
        for sock in opened:
            with contextlib.suppress(OSError):
                sock.close()
        raise FleetError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; end what listens there, or set API_HOST "
            "and API_PORT"
        ) from None
    return opened


def _bound(family: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
