"""A proxy in front of a real `sf-api` that breaks one promise of it: what a checker of that promise must notice."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

ANSWER_SECONDS_MAX = 30


@dataclass(slots=True)
class Call:
    """One request on its way through, with what it was answered; `ask` asks the real service beside it."""

    method: str
    path: str
    body: Any
    ask: Callable[..., tuple[int, Any]]
    status: int = 0
    answer: Any = None

    @property
    def place(self) -> str:
        return self.path.partition("?")[0]

    @property
    def of_claims(self) -> bool:
        return "/claims" in self.place

    @property
    def of_one_claim(self) -> bool:
        return self.of_claims and not self.place.endswith(("/claims", "/events"))

    @property
    def code(self) -> str:
        return str(self.answer.get("code", "")) if isinstance(self.answer, dict) else ""

    def claims(self) -> list[dict[str, Any]]:
        """The claims in the answer, to be changed in place."""
        if not self.of_claims or not 200 <= self.status < 300 or self.place.endswith("/events"):
            return []
        return list(self.answer["items"]) if "items" in self.answer else [self.answer]


class Fault:
    """A service that keeps every promise. `before` may change a request, `after` what is answered."""

    def before(self, call: Call) -> None:
        """Change the request. With a status set, it is not passed on."""

    def after(self, call: Call) -> None:
        """Change the answer."""


@dataclass
class Altered:
    """The proxy, on a port of its own for as long as the block."""

    url: str
    fault: Fault
    port: int = 0
    _server: ThreadingHTTPServer | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        altered, real = self, urlsplit(self.url)
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body in one packet: two would wait for each other, 40 ms a call.
            wbufsize = -1

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Nothing."""

            def handle_one(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length) if length else b""
                headers = {name: self.headers[name] for name in KEPT if name in self.headers}
                with lock:
                    status, answer, more = altered.pass_on(real, self.command, self.path, raw, headers)
                content = b"" if answer is None else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def own_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pass_on(
        self, real: Any, method: str, path: str, raw: bytes, headers: dict[str, str]
    ) -> tuple[int, Any, dict[str, str]]:
        kept: dict[str, str] = {}

        def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            content = b"" if body is None else json.dumps(body).encode()
            return send(real, method, path, content, headers, kept)

        call = Call(method, path, json.loads(raw) if raw else None, ask)
        self.fault.before(call)
        if not call.status:
            call.status, call.answer = ask(call.method, call.path, call.body)
        self.fault.after(call)
        return call.status, call.answer, kept


KEPT = ("Content-Type", "Authorization", "Idempotency-Key")


def send(
    real: Any, method: str, path: str, content: bytes, headers: dict[str, str], kept: dict[str, str]
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(real.hostname, real.port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request(method, path, content or None, headers)
        response = connection.getresponse()
        read = response.read()
        if "Retry-After" in response.headers:
            kept["Retry-After"] = response.headers["Retry-After"]
        return response.status, json.loads(read) if read else None
    finally:
        connection.close()
