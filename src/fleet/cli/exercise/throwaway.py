"""The cluster as the exercise sees it: the admin's calls, and namespaces of its own, gone afterwards.

Promises: nothing is made outside these namespaces; a name is remembered before it is asked for, and what is in a
namespace is looked up and not remembered, so nothing is missed whose answer was lost. The cleaning up has a bound, goes
on over errors until then, and returns in words what is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.cli.caller import Answer, Caller, Session, Unexpected, Unreachable
from fleet.cli.exercise.interrupt import Interrupt
from fleet.cli.exercise.tally import Wrong, answered, shown

PREFIX: Final = "exercise-claims"
POLL_SECONDS: Final = 0.25
UNSURE_SECONDS: Final = 5.0
NOT_FOUND: Final = 404
NO_CONTENT: Final = 204
GONE: Final = frozenset({NO_CONTENT, NOT_FOUND})


@dataclass(slots=True)
class Cluster:
    """One run's hold on a cluster, as the namespace `who`; `token` is in the names of all that is made."""

    url: str
    who: str
    key: str
    interrupt: Interrupt
    token: str
    timeout: float
    namespaces: list[str] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    _callers: list[Caller] = field(default_factory=list)
    _admin: Caller | None = None

    def session(self, namespace: str, key: str) -> Caller:
        """A connection of its own, for the owner of a key."""
        session = Session(self.url, key, namespace, sleep=self.interrupt.sleep)
        self._callers.append(session.caller())
        return self._callers[-1]

    def call(self, method: str, path: str, body: Any = None, *, key: str = "") -> Answer:
        """Ask as the admin."""
        self.interrupt.check()
        if self._admin is None:
            self._admin = self.session(self.who, self.key)
        return self._admin.call(method, path, body, key=key)

    def get(self, path: str) -> Any:
        """The body of a GET that must succeed."""
        return answered(self.call("GET", path), 200, path)

    def items(self, path: str, query: str = "") -> list[Any]:
        """All items of a list."""
        found: list[Any] = []
        cursor = ""
        while True:
            page = self.get(f"{path}?limit=500{query}{cursor}")
            found += page["items"]
            if not page["next_cursor"]:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def namespace(self, suffix: str) -> str:
        """Make a namespace, gone when the run ends."""
        name = f"{PREFIX}-{self.token}-{suffix}"
        self.namespaces.append(name)
        self.unsure.add(name)
        answered(self.call("POST", "/auth/namespaces", {"name": name}, key=name), 201, f"the namespace {name}")
        self.unsure.discard(name)
        return name

    def until(self, what: str, seconds: float, poll: float = POLL_SECONDS) -> Iterator[None]:
        """Turn once for each look, and in between wait.

        Raises:
            Wrong: it has not come about in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            yield
            if time.monotonic() >= deadline:
                raise Wrong(f"{what}: not within {seconds:g} s")
            self.interrupt.sleep(poll)

    def close(self) -> None:
        """Close every connection."""
        for caller in self._callers:
            caller.close()

    # --- cleaning up ---------------------------------------------------------------------------------------------

    def clean(self) -> list[str]:
        """Remove every namespace of this run with what is in it; return in words what is left."""
        self.interrupt.clean()
        # The connection may stand in the middle of an answer.
        self.close()
        self._admin = None
        deadline = time.monotonic() + self.timeout
        sure_at = time.monotonic() + (UNSURE_SECONDS if self.unsure else 0.0)
        while True:
            left = [told for name in self.namespaces for told in self._remains(name)]
            now = time.monotonic()
            # A namespace whose making was not answered may yet be made by a request that is under way.
            if now >= deadline or (not left and now >= sure_at):
                return left
            self.interrupt.sleep(POLL_SECONDS)

    def _remains(self, namespace: str) -> list[str]:
        """Remove what can be removed of one namespace now; return what is still there."""
        try:
            return self._remove(namespace)
        except (Unreachable, Unexpected, Wrong, LookupError, TypeError) as fault:
            return [f"namespace {namespace}, with what may be in it: {fault}"]

    def _remove(self, namespace: str) -> list[str]:
        place = f"/auth/namespaces/{namespace}"
        if self.call("GET", place).status == NOT_FOUND:
            return []
        left = []
        for claim in self.items(f"{place}/claims"):
            answer = self.call("DELETE", f"{place}/claims/{claim['uuid']}")
            if not answer.ok and answer.status != NOT_FOUND:
                left.append(f"claim {claim['uuid']} of {namespace}: {shown(answer)}")
        for instance in self.items("/instances", f"&namespace={namespace}"):
            told = f"instance {instance['uuid']} of {namespace} on {instance['node']}: {instance['state']}"
            if instance["state"] != "deleting":
                answer = self.call("DELETE", f"/instances/{instance['uuid']}")
                told += "" if answer.ok or answer.status == NOT_FOUND else f", {shown(answer)}"
            left.append(told)
        if left:
            return [*left, f"namespace {namespace}"]
        answer = self.call("DELETE", place)
        return [] if answer.status in GONE else [f"namespace {namespace}: {shown(answer)}"]
