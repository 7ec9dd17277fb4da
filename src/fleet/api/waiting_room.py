"""Who answers while sf-api waits for its database: `/healthz` says alive, everything else says "not yet, try again".

Without it the port would be closed, and a supervisor that asks `/healthz` would kill a process that waits as it should.
Promise: when `close` returns, no thread and no socket of it is left, so workers may be forked.
"""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any, Final

from starlette.responses import Response

import fleet
from fleet.api.answers import answer
from fleet.api.problems import problem
from fleet.model.errors import DatabaseUnavailable

CALLER_SECONDS_MAX: Final = 5
CALLERS_MAX: Final = 32
BODY_BYTES_MAX: Final = 1_048_576
POLL_SECONDS: Final = 0.1


class WaitingRoom:
    """Serves on a listening socket of its own, in threads, until `close`."""

    def __init__(self, listening: socket) -> None:
        """Take over `listening` and begin."""
        self._server = _Server(listening)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), name="waiting-room")
        self._thread.start()

    def close(self) -> None:
        """Hang up and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.hang_up()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    # Waited for at the end: a thread must not be carried over a fork.
    daemon_threads = False

    def __init__(self, listening: socket) -> None:
        super().__init__(listening.getsockname()[:2], _Caller, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._callers: set[socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; one caller too many is turned away."""
        if len(self._callers) >= CALLERS_MAX:
            self.shutdown_request(request)
            return
        self._callers.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The end of one call."""
        super().shutdown_request(request)
        self._callers.discard(request)

    def hang_up(self) -> None:
        """End the calls that are still open, however slow their callers are."""
        for caller in list(self._callers):
            with contextlib.suppress(OSError):
                caller.shutdown(SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is no news."""


class _Caller(BaseHTTPRequestHandler):
    # One answer a connection (HTTP/1.0), so that nobody holds on to a process that is about to hand over.
    timeout = CALLER_SECONDS_MAX

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/healthz":
            self._say(answer({"status": "ok", "version": fleet.__version__}))
        else:
            self._not_yet()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        # An unread body would turn the end of the connection into an error that hides the answer.
        length = self.headers.get("Content-Length", "0")
        self.rfile.read(min(BODY_BYTES_MAX, int(length) if length.isdecimal() else 0))
        self._not_yet()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_PATCH(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def _not_yet(self) -> None:
        detail = "the service waits for its ledger's database; nothing was decided, try again"
        self._say(problem(DatabaseUnavailable.code, detail))

    def _say(self, said: Response) -> None:
        self.send_response(said.status_code)
        for name, value in said.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said.body)

    def version_string(self) -> str:
        """Who answers is nobody's business, as in the service itself."""
        return "fleet"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the wait itself is in the log."""
