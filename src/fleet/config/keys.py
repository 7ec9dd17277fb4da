"""The table of every configuration key: scope, type, bounds, default and meaning. Nothing else lists the keys.

A default of None means "not set": the process that cannot do without the value says so when it starts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fleet.model.arch import ARCHES, parse_arch
from fleet.model.cluster_config import CLUSTER_KEYS, RESERVED_DISK_GB, RESERVED_RAM_GB, RESERVED_THREADS
from fleet.model.config_value import ConfigValue, Parser, flag, one_of, whole_between
from fleet.model.labels import LABEL, LABEL_SYNTAX, LABELS_MAX, is_label
from fleet.model.node import BACKENDS

SECRET_CHARACTERS_MIN: Final = 32
TEXT_CHARACTERS_MAX: Final = 4096
INSTANCES_MAX: Final = 1_000_000
PORT_MAX: Final = 65_535

_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}", re.ASCII)
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{0,255})(?::(?P<port>\d{1,5}))?", re.ASCII)


class Scope(StrEnum):
    """Where a key is read: a node's file, any process's file, the API's, the database, the control node's file."""

    NODE = "node"
    PROCESS = "process"
    API = "api"
    CLUSTER = "cluster"
    CONTROL_FILE = "control_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One configuration key; a `secret` is never shown, in no error and no listing."""

    name: str
    scope: Scope
    parser: Parser
    default: str | None
    meaning: str
    secret: bool = False


def normalised_arch(machine: str) -> str:
    """The product's word for a machine type as the kernel spells it; an unknown one stays as it is, in lower case."""
    try:
        return parse_arch(machine)
    except ValueError:
        return machine.strip().lower()


def _matching(pattern: re.Pattern[str], accepted: str, *, empty: bool = False) -> Parser:
    def read(text: str) -> str:
        if not (pattern.fullmatch(text) or (empty and not text)):
            raise ValueError("does not have the right form")
        return text

    return Parser(accepted, read)


def _text() -> Parser:
    def read(text: str) -> str:
        if len(text) > TEXT_CHARACTERS_MAX or not text.isprintable():
            raise ValueError("is too long or holds control characters")
        return text

    return Parser(f"at most {TEXT_CHARACTERS_MAX} printable characters", read)


def _absolute_path(*, empty: bool = False) -> Parser:
    def read(text: str) -> str:
        if empty and not text:
            return text
        if not text.startswith("/") or len(text) > TEXT_CHARACTERS_MAX or not text.isprintable():
            raise ValueError("is not an absolute path")
        return text

    return Parser("an absolute path" + ("; empty for none" if empty else ""), read)


def _arch() -> Parser:
    def read(text: str) -> str:
        arch = normalised_arch(text)
        if arch not in ARCHES:
            raise ValueError("is not a known architecture")
        return arch

    return Parser("amd64 (x86_64) or arm64 (aarch64)", read)


def _labels() -> Parser:
    def read(text: str) -> Mapping[str, str]:
        labels: dict[str, str] = {}
        for pair in text.split(",") if text else ():
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not equals or not is_label(key) or not is_label(value):
                raise ValueError(f"has a bad pair {pair.strip()[:140]!r}")
            if key in labels:
                raise ValueError(f"names the label {key!r} twice")
            labels[key] = value
        if len(labels) > LABELS_MAX:
            raise ValueError("has too many labels")
        return MappingProxyType(labels)

    return Parser(f"up to {LABELS_MAX} pairs k=v,k=v; keys and values are {LABEL_SYNTAX}", read)


def _max_instances() -> Parser:
    slots = whole_between(0, INSTANCES_MAX)

    def read(text: str) -> ConfigValue:
        return None if text.lower() in {"", "unlimited"} else slots.read(text)

    return Parser(f"{slots.accepted}; empty or unlimited for no bound", read)


def _url(schemes: tuple[str, ...]) -> Parser:
    def read(text: str) -> str:
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in schemes:
            raise ValueError("does not begin with a known scheme")
        # A database in a file may lie in a folder whose name has spaces.
        blank = " " if scheme == "sqlite" and rest == rest.strip() else ""
        if not rest or any(
            (character.isspace() and character != blank) or not character.isprintable() for character in rest
        ):
            raise ValueError("has nothing after the scheme, or white space in it")
        if scheme not in {"sqlite", "unix"} and not _addresses(rest, first_at=scheme.startswith("mysql")):
            raise ValueError("has no usable host or port (in a password write @ as %40, / as %2F, : as %3A)")
        return text

    return Parser("a URL that begins with " + ", ".join(f"{scheme}://" for scheme in schemes), read)


def _addresses(rest: str, *, first_at: bool) -> bool:
    """Whether every address of a URL can be read. `first_at`: credentials end at the first `@`, else at the host's."""
    if first_at:
        authority = re.split(r"[/?#]", rest.partition("@")[2] if "@" in rest else rest, maxsplit=1)[0]
    else:
        authority = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    found = [_ADDRESS.fullmatch(address) for address in authority.split(",")]
    return all(each is not None and 1 <= int(each["port"] or 1) <= PORT_MAX for each in found)


def _networks() -> Parser:
    def read(text: str) -> tuple[str, ...]:
        parts = [part.strip() for part in text.split(",")] if text else []
        try:
            return tuple(str(ipaddress.ip_network(part)) for part in parts)
        except ValueError:
            raise ValueError("holds what is no address and no network") from None

    return Parser("addresses and networks such as 10.0.0.7, 10.1.0.0/16; empty for none", read)


def _secret() -> Parser:
    def read(text: str) -> str:
        if len(text) < SECRET_CHARACTERS_MIN or len(text) > TEXT_CHARACTERS_MAX:
            raise ValueError("has the wrong length")
        return text

    return Parser(f"at least {SECRET_CHARACTERS_MIN} characters, not guessable", read)


def _node(name: str, default: str | None, parser: Parser, meaning: str) -> Key:
    return Key(name=name, scope=Scope.NODE, parser=parser, default=default, meaning=meaning)


_HINT = "; counts at the node's first registration only"
_NODE_KEYS: Final = (
    _node(
        "NODE_NAME",
        None,
        _matching(_NODE_NAME, "letters, digits, '.', '_' and '-', at most 255"),
        "this node's name; not set: the machine's own name",
    ),
    _node("NODE_RAM_RESERVATION_GB", "2.0", RESERVED_RAM_GB, "memory in GiB held back for the operating system"),
    _node("NODE_CPU_RESERVATION_THREADS", "2", RESERVED_THREADS, "hardware threads held back for the operating system"),
    _node(
        "NODE_DISK_RESERVATION_GB",
        "20.0",
        RESERVED_DISK_GB,
        "disk in GiB kept free on the file systems of instances and blobs, on each",
    ),
    _node("NODE_MAX_INSTANCES", "", _max_instances(), "how many instances the node may hold; empty: no bound" + _HINT),
    _node("NODE_LABELS", "", _labels(), "labels an operator declares, k=v,k=v" + _HINT),
    _node(
        "NODE_REGION",
        "",
        _matching(LABEL, "1 to 63 letters, digits, '.', '_' and '-'; empty for none", empty=True),
        "the region the node belongs to" + _HINT,
    ),
    _node("NODE_ARCH", None, _arch(), "architecture; not set: this machine's" + _HINT),
    _node("NODE_BACKEND", "libvirt", one_of(*BACKENDS), "what makes instances on the node" + _HINT),
    _node("NODE_IS_HYPERVISOR", "true", flag(), "whether the node takes instances at all"),
    _node("NODE_SLEEPY_POOL", "false", flag(), "whether the node is kept for sleepy instances" + _HINT),
    _node(
        "NODE_GPU_KIND",
        "",
        _matching(re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,62}", re.ASCII), "at most 63 characters", empty=True),
        "kind of the node's GPUs where the cards do not name theirs" + _HINT,
    ),
    _node(
        "GPU_INVENTORY_FILE",
        "",
        _absolute_path(empty=True),
        "file that declares the node's GPUs, which then hold against what the driver tells; empty: the driver alone",
    ),
    _node("INSTANCES_PATH", "/var/lib/sf/instances", _absolute_path(), "where instances' disks lie"),
    _node("BLOBS_PATH", "/var/lib/sf/blobs", _absolute_path(), "where images and blobs lie"),
    _node("LIBVIRT_URI", "qemu:///system", _text(), "the libvirt connection"),
)
_PROCESS_KEYS: Final = (
    Key(
        name="DATABASE_URL",
        scope=Scope.PROCESS,
        parser=_url(("mysql+pymysql", "sqlite")),
        default=None,
        secret=True,
        meaning="the ledger's database; of several servers (host:port,host:port) the first that takes writes is used",
    ),
    Key(
        name="REDIS_URL",
        scope=Scope.PROCESS,
        parser=_url(("redis", "rediss", "unix", "redis+sentinel")),
        default=None,
        secret=True,
        meaning="the queue's server",
    ),
    Key(
        name="LOG_LEVEL",
        scope=Scope.PROCESS,
        parser=one_of("debug", "info", "warning", "error", "critical"),
        default="info",
        meaning="the least severe event that is logged",
    ),
    Key(
        name="LOG_FORMAT",
        scope=Scope.PROCESS,
        parser=one_of("json", "console"),
        default="json",
        meaning="json for programs, console for people",
    ),
)
_API_KEYS: Final = (
    Key(
        name="API_HOST",
        scope=Scope.API,
        parser=_matching(_HOST, "an address or a host name"),
        default="127.0.0.1",
        meaning="address the API listens on",
    ),
    Key(
        name="API_PORT",
        scope=Scope.API,
        parser=whole_between(1, PORT_MAX),
        default="13000",
        meaning="port the API listens on",
    ),
    Key(
        name="API_WORKERS",
        scope=Scope.API,
        parser=whole_between(1, 256),
        default="2",
        meaning="processes that serve the API, each with its own scheduler",
    ),
    Key(
        name="API_TRUSTED_PROXIES",
        scope=Scope.API,
        parser=_networks(),
        default="",
        meaning="proxies whose X-Forwarded-For is believed about who calls; empty: no proxy's",
    ),
    Key(
        name="AUTH_SECRET",
        scope=Scope.API,
        parser=_secret(),
        default=None,
        secret=True,
        meaning="signs the tokens; the same on all API machines",
    ),
    Key(
        name="METRICS_TOKEN",
        scope=Scope.API,
        parser=_secret(),
        default=None,
        secret=True,
        meaning="what a scrape of /metrics must send as its bearer token; unset: nothing",
    ),
    Key(
        name="ADMIN_KEY_FILE",
        scope=Scope.API,
        parser=_absolute_path(),
        default="/var/lib/sf/admin.key",
        meaning="file with the key of the namespace system; made on the first start, mode 0600",
    ),
)
_CONTROL_KEYS: Final = (
    Key(
        name="SPAWN_COMMAND",
        scope=Scope.CONTROL_FILE,
        parser=_text(),
        default="",
        meaning="the provider's command that makes a new node; not used yet",
    ),
)
_CLUSTER_KEYS: Final = tuple(
    Key(name=key.name, scope=Scope.CLUSTER, parser=key.parser, default=key.default, meaning=key.meaning)
    for key in CLUSTER_KEYS.values()
)

KEYS: Final[Mapping[str, Key]] = MappingProxyType(
    {key.name: key for key in (*_NODE_KEYS, *_PROCESS_KEYS, *_API_KEYS, *_CONTROL_KEYS, *_CLUSTER_KEYS)}
)
