"""A command's connection to the service: who calls, with which key, and the token kept between commands.

The token is kept in the user's cache folder, mode 0600, under a name that holds no secret; a token that is refused is
bought anew. Without a key the command says where one may come from.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from fleet.cli import told_refusals
from fleet.cli.caller import Caller, NoToken, Session, Unexpected
from fleet.cli.outcome import Misused, Refused, reason
from fleet.cli.output import Output

URL_DEFAULT: Final = "http://127.0.0.1:13000"
SYSTEM: Final = "system"
PAGE_ITEMS: Final = 500
NEAR_KEY: Final = Path("var/admin.key")
INSTALLED_KEY: Final = Path("/var/lib/sf/admin.key")


class KeptSession(Session):
    """A session whose token outlives the command."""

    _store: Path | None = None

    def keep_in(self, store: Path) -> None:
        """Read the kept token, and keep the next one."""
        self._store = store
        with contextlib.suppress(OSError, UnicodeError):
            self._token = store.read_text(encoding="ascii").strip()

    def token(self, caller: Caller, refused: str = "") -> str:
        """The token, a kept one if there is one."""
        before = self._token
        token = super().token(caller, refused)
        if token != before and self._store is not None:
            _write_private(self._store, token)
        return token


@dataclass(slots=True)
class Shell:
    """What every command is given: the output, and the service when it needs one."""

    output: Output
    url: str
    namespace: str
    key_file: Path | None
    environ: Mapping[str, str]
    _caller: Caller | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def caller(self) -> Caller:
        """The connection, made at the first call."""
        with self._lock:
            if self._caller is None:
                key = find_key(self.namespace, self.key_file, self.environ)
                session = KeptSession(self.url, key, self.namespace)
                session.keep_in(_token_file(self.environ, self.url, self.namespace, key))
                try:
                    self._caller = Caller(session)
                except Unexpected as fault:
                    raise Misused(str(fault), f"for example --url {URL_DEFAULT}") from None
            return self._caller

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._caller is not None:
            self._caller.close()

    def call(self, method: str, path: str, body: Any = None, *, key: str = "") -> Any:
        """The body of a successful answer.

        Raises:
            Refused: the service said no.
            Unreachable: it did not answer.
        """
        try:
            answer = self.caller().call(method, path, body, key=key)
        except NoToken as no:
            raise self._without_token(no) from None
        if answer.ok:
            return answer.body
        if isinstance(answer.body, Mapping) and "code" in answer.body:
            told = told_refusals.in_words(answer.body, path, body)
            raise Refused(answer.body, told=told, hints=told_refusals.hints(answer.body, path, body))
        raise Refused({"code": "unexpected", "status": answer.status, "detail": answer.sentence()})

    def _without_token(self, no: NoToken) -> Exception:
        """Return the refusal of the key, and which key of which namespace it was; no secret is told."""
        document = no.answer.body
        if not isinstance(document, Mapping) or "code" not in document:
            return no
        source = key_source(self.namespace, self.key_file, self.environ)
        asked = f"asked at {self.url} for the namespace {self.namespace} with the key from {source}"
        return Refused(document, hints=[asked])

    def get(self, path: str, **query: Any) -> Any:
        """The body of a GET."""
        return self.call("GET", with_query(path, query))

    def pages(self, path: str, *, limit: int | None = None, **query: Any) -> list[Any]:
        """The items of a list, all pages of it or the first `limit`."""
        items: list[Any] = []
        cursor = None
        while True:
            wanted = PAGE_ITEMS if limit is None else min(PAGE_ITEMS, limit - len(items))
            page = self.get(path, limit=wanted, cursor=cursor, **query)
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None or (limit is not None and len(items) >= limit):
                return items

    def create(self, path: str, body: Any) -> Any:
        """The body of a POST that creates something: a lost answer is asked for again, not made twice."""
        return self.call("POST", path, body, key=secrets.token_hex(16))


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """The path with those parameters that have a value; a list has one for each of its items."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def segment(text: str) -> str:
    """A name as one segment of a path.

    Raises:
        Misused: it is empty, and the path would name something else.
    """
    if not text:
        raise Misused("'' names nothing", "a name or a uuid is needed; is a variable of a script empty?")
    return quote(text, safe="")


def find_key(namespace: str, key_file: Path | None, environ: Mapping[str, str]) -> str:
    """The key of `namespace`: from the file named, `FLEET_KEY`, `FLEET_KEY_FILE`, or the admin's own file."""
    source = key_source(namespace, key_file, environ)
    if isinstance(source, Path):
        return _read_key(source)
    if source:
        return environ[source].strip()
    of_admin = f"the admin's key is in the service's ADMIN_KEY_FILE ({NEAR_KEY} after `./dev run`)"
    made = f"the admin makes one: fleet key create {namespace} NAME"
    raise Misused(
        f"no key for the namespace {namespace}",
        "give one with --key-file FILE, FLEET_KEY=… or FLEET_KEY_FILE=FILE; "
        f"{of_admin if namespace == SYSTEM else made}",
    )


def key_source(namespace: str, key_file: Path | None, environ: Mapping[str, str]) -> Path | str:
    """Where the key of `namespace` comes from: a file, a variable, or, when there is none, an empty text."""
    if key_file is not None:
        return key_file
    if environ.get("FLEET_KEY"):
        return "FLEET_KEY"
    if environ.get("FLEET_KEY_FILE"):
        return Path(environ["FLEET_KEY_FILE"])
    near = (NEAR_KEY, INSTALLED_KEY) if namespace == SYSTEM else ()
    return next((path for path in near if os.access(path, os.R_OK)), "")


def _read_key(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise Misused(f"the key file {path} cannot be read: {reason(error)}") from None
    if not key:
        raise Misused(f"the key file {path} is empty")
    return key


def _token_file(environ: Mapping[str, str], url: str, namespace: str, key: str) -> Path:
    base = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or ".") / ".cache")
    name = hashlib.sha256(f"{url}\0{namespace}\0{key}".encode()).hexdigest()[:32]
    return base / "fleet" / "tokens" / name


def _write_private(path: Path, text: str) -> None:
    """Keep it, whole and for nobody else; a cache that cannot be written is no reason to fail."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
        draft.replace(path)
