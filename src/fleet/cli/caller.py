"""One caller's connection to the API: plain HTTP, kept alive, with bounded waits and bounded retries.

Promises: an answer that the service asks to repeat (503 or 429 with `Retry-After`) is repeated at most
`BUSY_RETRIES_MAX` times and counted; a lost connection is opened again and the call repeated only where repeating is
safe (everything but a POST without `Idempotency-Key`); an expired token is renewed. A `Caller` belongs to one thread,
the `Session` with its token is shared.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fleet.cli.outcome import reason

ANSWER_SECONDS_MAX = 30.0
BUSY_RETRIES_MAX = 8
RETRY_AFTER_SECONDS_MAX = 5.0
LOST_RETRIES_MAX = 3
TOKEN_REFUSED = frozenset({401, 429})
"""What a bad token is answered with; 429, when many from this address were bad, also says no more than that."""

REPEATABLE = frozenset({429, 503})


class Unreachable(Exception):
    """The service did not answer; the message says where and what was tried."""


class Unexpected(Exception):
    """The service answered something that this command cannot go on with."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `seconds` is the last call alone, `repeats` how often it had to be asked again."""

    status: int
    body: Any
    seconds: float
    repeats: int = 0

    @property
    def ok(self) -> bool:
        """Whether the service did what was asked."""
        return 200 <= self.status < 300

    def sentence(self) -> str:
        """The problem document in words."""
        if isinstance(self.body, Mapping):
            return f"{self.status} {self.body.get('code', '')}: {self.body.get('detail') or self.body.get('title', '')}"
        return f"{self.status}: {str(self.body)[:200]}"


class NoToken(Unexpected):
    """The key was refused; `answer` says why."""

    def __init__(self, url: str, answer: Answer) -> None:
        super().__init__(f"no token from {url}/auth: {answer.sentence()}")
        self.answer = answer


@dataclass(slots=True)
class Session:
    """Where the service is and who asks; one token for all callers, renewed when it has run out."""

    url: str
    key: str
    namespace: str = "system"
    sleep: Callable[[float], None] = time.sleep
    _token: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def caller(self) -> Caller:
        """A connection for one thread."""
        return Caller(self)

    def token(self, caller: Caller, refused: str = "") -> str:
        """The token; a new one when the one held was `refused`."""
        with self._lock:
            if not self._token or self._token == refused:
                answer = caller.raw("POST", "/auth", {"namespace": self.namespace, "key": self.key}, {})
                if not answer.ok:
                    raise NoToken(self.url, answer)
                self._token = answer.body["token"]
            return self._token


class Caller:
    """One kept-alive connection. Not for two threads at once."""

    def __init__(self, session: Session) -> None:
        """Remember the session; the connection is opened when first needed."""
        self._session = session
        parts = urlsplit(session.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise Unexpected(f"{session.url!r} is not a http:// or https:// address")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=ANSWER_SECONDS_MAX)
        self._prefix = parts.path.rstrip("/")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get(self, path: str) -> Any:
        """The body of a GET that must succeed."""
        return self.must("GET", path)

    def must(self, method: str, path: str, body: Any = None) -> Any:
        """The body of a call that must succeed."""
        answer = self.call(method, path, body)
        if not answer.ok:
            raise Unexpected(f"{method} {self._session.url}{path} answered {answer.sentence()}")
        return answer.body

    def pages(self, path: str, limit: int = 500) -> list[Any]:
        """All items of a paged list."""
        items: list[Any] = []
        separator = "&" if "?" in path else "?"
        cursor = ""
        while True:
            page = self.get(f"{path}{separator}limit={limit}{cursor}")
            items += page["items"]
            if not page.get("next_cursor"):
                return items
            cursor = f"&cursor={page['next_cursor']}"

    def call(self, method: str, path: str, body: Any = None, *, key: str = "") -> Answer:
        """Ask, and ask again where the service says that this helps; `key` is the call's `Idempotency-Key`."""
        headers = {"Idempotency-Key": key} if key else {}
        repeats = 0
        while True:
            answer = self._authorised(method, path, body, headers)
            if answer.status not in REPEATABLE or repeats >= BUSY_RETRIES_MAX or not _is_repeatable(answer):
                return Answer(answer.status, answer.body, answer.seconds, repeats)
            repeats += 1
            self._session.sleep(_retry_after(answer))

    def _authorised(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        token = self._session.token(self)
        answer = self.raw(method, path, body, {**headers, "Authorization": f"Bearer {token}"})
        if answer.status in TOKEN_REFUSED:
            token = self._session.token(self, refused=token)
            answer = self.raw(method, path, body, {**headers, "Authorization": f"Bearer {token}"})
        return answer

    def raw(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
        """One call, on a fresh connection when the kept one is gone."""
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers} if data is not None else dict(headers)
        safe = method != "POST" or "Idempotency-Key" in headers or path == "/auth"
        for attempt in range(LOST_RETRIES_MAX):
            fresh = self._connection.sock is None
            started = time.perf_counter()
            try:
                self._connection.request(method, self._prefix + path, body=data, headers=sent)
                response = self._connection.getresponse()
                content = response.read()
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                # A kept connection that the server had closed already has carried nothing.
                unsent = not fresh and isinstance(error, http.client.RemoteDisconnected | BrokenPipeError)
                if not (safe or unsent) or attempt == LOST_RETRIES_MAX - 1:
                    raise Unreachable(
                        f"{self._session.url} does not answer ({method} {path}): {reason(error)}"
                    ) from error
                self._session.sleep(0.1 * (attempt + 1))
                continue
            return Answer(response.status, _decoded(content, response), time.perf_counter() - started)
        raise AssertionError("the last attempt returns or raises")


def _decoded(content: bytes, response: http.client.HTTPResponse) -> Any:
    with contextlib.suppress(ValueError):
        body = json.loads(content) if content else None
        if isinstance(body, dict) and response.headers.get("Retry-After"):
            body["retry_after"] = response.headers["Retry-After"]
        return body
    return content.decode(errors="replace")


def _is_repeatable(answer: Answer) -> bool:
    return isinstance(answer.body, Mapping) and "retry_after" in answer.body


def _retry_after(answer: Answer) -> float:
    try:
        return min(RETRY_AFTER_SECONDS_MAX, max(0.0, float(answer.body["retry_after"])))
    except ValueError:
        return 1.0
