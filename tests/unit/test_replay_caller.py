"""One caller's connection: what is asked again, how often, and what never is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from fleet.cli.caller import BUSY_RETRIES_MAX, Caller, Session, Unexpected, Unreachable

BUSY = (503, {"code": "placement_busy"}, {"Retry-After": "1"})
DROPPED = None


class Script(BaseHTTPRequestHandler):
    """Answers from a list; `None` closes the connection without an answer. `/auth` gives tokens t1, t2, …"""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[list[Any]] = []
    seen: ClassVar[list[tuple[str, str, str]]] = []
    tokens: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/auth":
            self.tokens.append(f"t{len(self.tokens) + 1}")
            self.answer(200, {"token": self.tokens[-1], "expires_in": 60}, {})
            return
        self.seen.append((self.command, self.path, self.headers.get("Authorization", "")))
        scripted = self.answers.pop(0) if self.answers else (200, {"items": [], "next_cursor": None}, {})
        if scripted is DROPPED:
            self.close_connection = True
            return
        self.answer(*scripted)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the base class's names

    def answer(self, status: int, body: Any, headers: dict[str, str]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def caller(slept: list[float]) -> Iterator[Caller]:
    Script.answers, Script.seen, Script.tokens = [], [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Script) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        session = Session(f"http://127.0.0.1:{server.server_port}", "key", sleep=slept.append)
        with closing(session.caller()) as made:
            yield made
        server.shutdown()


def test_a_busy_answer_is_asked_again_after_the_time_it_names(caller: Caller, slept: list[float]) -> None:
    Script.answers = [BUSY, BUSY, (201, {"uuid": "u"}, {})]

    answer = caller.call("POST", "/instances", {}, key="k")

    assert (answer.status, answer.repeats) == (201, 2)
    assert slept == [1.0, 1.0]


def test_a_service_that_stays_busy_is_asked_a_bounded_number_of_times(caller: Caller) -> None:
    Script.answers = [BUSY] * (BUSY_RETRIES_MAX + 5)

    answer = caller.call("POST", "/instances", {}, key="k")

    assert (answer.status, answer.repeats) == (503, BUSY_RETRIES_MAX)
    assert len(Script.seen) == BUSY_RETRIES_MAX + 1


def test_a_refusal_is_not_asked_again(caller: Caller) -> None:
    Script.answers = [(507, {"code": "out_of_capacity", "transient": True}, {"Retry-After": "15"})]

    answer = caller.call("POST", "/instances", {}, key="k")

    assert (answer.status, answer.repeats, len(Script.seen)) == (507, 0, 1)


def test_a_token_that_has_run_out_is_renewed_once(caller: Caller) -> None:
    Script.answers = [(401, {"code": "unauthenticated"}, {}), (200, {"items": [], "next_cursor": None}, {})]

    assert caller.get("/nodes") == {"items": [], "next_cursor": None}
    assert [authorization for _method, _path, authorization in Script.seen] == ["Bearer t1", "Bearer t2"]


def test_a_lost_answer_is_asked_for_again_where_that_is_safe(caller: Caller) -> None:
    caller.get("/nodes")
    Script.answers = [DROPPED, (201, {"uuid": "u"}, {})]

    answer = caller.call("POST", "/instances", {}, key="k")

    assert answer.status == 201


def test_a_lost_answer_of_a_create_without_a_key_is_told(caller: Caller) -> None:
    Script.answers = [DROPPED, (201, {"uuid": "u"}, {})]
    # A fresh connection: what was sent on it may have arrived.
    caller._session.token(caller)
    caller.close()

    with pytest.raises(Unreachable, match=r"POST .*/instances"):
        caller.call("POST", "/instances", {})


def test_pages_are_followed_to_the_end(caller: Caller) -> None:
    Script.answers = [
        (200, {"items": [1, 2], "next_cursor": "2"}, {}),
        (200, {"items": [3], "next_cursor": None}, {}),
    ]

    assert caller.pages("/nodes?state=x", limit=2) == [1, 2, 3]
    assert [path for _method, path, _token in Script.seen] == [
        "/nodes?state=x&limit=2",
        "/nodes?state=x&limit=2&cursor=2",
    ]


def test_a_call_that_must_succeed_says_what_was_answered(caller: Caller) -> None:
    Script.answers = [(404, {"code": "not_found", "detail": "no such node"}, {})]

    with pytest.raises(Unexpected, match="404 not_found: no such node"):
        caller.get("/nodes/n1")


def test_nobody_there_is_unreachable() -> None:
    session = Session("http://127.0.0.1:9", "key", sleep=lambda _seconds: None)

    with closing(session.caller()) as caller, pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        caller.get("/nodes")


@pytest.mark.parametrize("url", ["127.0.0.1:13000", "ftp://host", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Unexpected, match="is not a http"):
        Session(url, "key").caller()
