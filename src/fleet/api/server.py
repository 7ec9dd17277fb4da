"""One worker: uvicorn on one socket, with a heartbeat from the loop that serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from socket import socket
from typing import Final

import uvicorn
import uvloop
from starlette.types import ASGIApp

from fleet.api.prefork import BEAT_SECONDS
from fleet.api.sockets import BACKLOG

GRACE_SECONDS: Final = 20
KEEP_ALIVE_SECONDS: Final = 75


def serve(app: ASGIApp, listening: socket, beat: Callable[[], bool]) -> None:
    """Serve until SIGTERM or SIGINT, or until `beat` says that nobody watches any more."""
    # Its starting and stopping is in our own events.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        http="httptools",
        # A proxy's word about the caller is used for nothing here.
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        lifespan="on",
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(uvicorn.Server(config), listening, beat))


async def _serve(server: uvicorn.Server, listening: socket, beat: Callable[[], bool]) -> None:
    beating = asyncio.create_task(_beat(server, beat))
    try:
        await server.serve(sockets=[listening])
    finally:
        beating.cancel()


async def _beat(server: uvicorn.Server, beat: Callable[[], bool]) -> None:
    while not server.should_exit:
        if server.started and not beat():
            server.should_exit = True
        await asyncio.sleep(BEAT_SECONDS if server.started else 0.01)
