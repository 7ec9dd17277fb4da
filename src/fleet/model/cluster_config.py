"""Cluster-wide configuration: the keys, their types, bounds and defaults, as pure values.

Promise: a `ClusterConfig` that exists is valid. Whatever comes from a person, from the database or from a snapshot
file goes through `parse_cluster_value` or `ClusterConfig.from_mapping`, which refuse with one sentence for each
problem: the key, the value and what would be accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from types import MappingProxyType
from typing import Final, TypeAlias

from fleet.model.capacity import Ratios
from fleet.model.config_value import (
    UNLIMITED,
    ConfigError,
    ConfigProblem,
    ConfigValue,
    Parser,
    decimal_between,
    flag,
    nearest_name,
    one_of,
    or_unlimited,
    read_value,
    whole_between,
)

ClusterValue: TypeAlias = Decimal | int | bool | str | None

PREFIX: Final = "SHAKENFIST_"
STRATEGY_SYNTAX: Final = "1 to 63 lower-case letters, digits, '_' and '-', with a letter or digit at both ends"
_STRATEGY = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?", re.ASCII)


def is_strategy_name(text: str) -> bool:
    """Return whether a strategy may be called so; whether there is one, the registry of strategies knows."""
    return _STRATEGY.fullmatch(text) is not None


def _strategy_name() -> Parser:
    # Strategies may come from elsewhere by entry point, so only the form is judged here; whoever stores the value
    # asks the registry of strategies whether the name exists.
    def read(text: str) -> str:
        if not is_strategy_name(text):
            raise ValueError("is not a strategy's name")
        return text

    return Parser(f"the name of a strategy: {STRATEGY_SYNTAX}", read)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKey:
    """One cluster-wide key. `node_fallback` marks the node-local keys that only a snapshot may carry."""

    name: str
    parser: Parser
    default: str
    meaning: str
    node_fallback: bool = False


_RATIO = decimal_between(Decimal(0), Decimal(1000), above_low=True)
_DAY_SECONDS: Final = 86_400
RESERVED_RAM_GB: Final = decimal_between(Decimal(0), Decimal(1_000_000))
RESERVED_THREADS: Final = whole_between(0, 100_000)
RESERVED_DISK_GB: Final = decimal_between(Decimal(0), Decimal(10_000_000))


def _key(name: str, default: str, parser: Parser, meaning: str, *, node_fallback: bool = False) -> ClusterKey:
    return ClusterKey(name=name, default=default, parser=parser, meaning=meaning, node_fallback=node_fallback)


_ALL_KEYS: Final[tuple[ClusterKey, ...]] = (
    _key("CPU_OVERCOMMIT_RATIO", "3.0", or_unlimited(_RATIO), "vCPUs admitted for each schedulable thread"),
    _key("RAM_OVERCOMMIT_RATIO", "3.0", _RATIO, "instance memory admitted for each unit of physical memory"),
    _key("DISK_OVERCOMMIT_RATIO", "1.0", _RATIO, "instance disk admitted for each unit of usable disk"),
    _key(
        "SCHEDULER_TARGET_LOAD",
        "0.75",
        decimal_between(Decimal(-1000), Decimal(1000)),
        "load per schedulable thread that placement aims for; 0 or less turns the demand clause off",
    ),
    _key(
        "SCHEDULER_CACHE_TIMEOUT",
        "5",
        decimal_between(Decimal(0), Decimal(3600)),
        "seconds an API worker keeps its view of the nodes' samples",
    ),
    _key(
        "SCHEDULER_DEMAND_PER_VCPU",
        "0.6",
        decimal_between(Decimal(0), Decimal(1000)),
        "load expected of each vCPU of an instance placed just now",
    ),
    _key(
        "SCHEDULER_DEMAND_DECAY_SECONDS",
        "600",
        whole_between(1, _DAY_SECONDS),
        "seconds over which that expected load falls to nothing",
    ),
    _key("PLACEMENT_STRATEGY", "load-aware", _strategy_name(), "how the nodes that fit are ordered"),
    _key(
        "AFFINITY_MATCHING",
        "enforced",
        one_of("enforced", "preferred"),
        "whether an instance's placement rules exclude nodes or only order them",
    ),
    _key(
        "CLAIM_ENFORCEMENT",
        "advisory",
        one_of("advisory", "hard"),
        "whether a namespace may use more than its claim when the cluster has room",
    ),
    _key("ADMIT_UNSIZED_NODES", "false", flag(), "admit, unguarded, on a node that has no limits yet"),
    _key("DEDICATED_SLEEPY_NODES", "false", flag(), "keep sleepy instances on the nodes of the sleepy pool"),
    _key(
        "SLEEPY_OVERCOMMIT_FACTOR",
        "1.0",
        decimal_between(Decimal(1), Decimal(1000)),
        "by how much a sleepy instance's share is discounted when nodes are ordered",
    ),
    _key(
        "AUTO_SPAWN",
        "false",
        flag(),
        "ask for a new node when a whole pool is proven full; not supported yet: true is refused",
    ),
    _key(
        "INSTANCE_OVERHEAD_MB",
        "0",
        whole_between(0, 1_048_576),
        "memory in MiB added to every request for the process that runs the instance",
    ),
    _key(
        "NODE_METRICS_MAX_AGE_SECONDS",
        "120",
        # Beyond 900 s a node no longer counts in the cluster's totals, so it must not be placed on either.
        whole_between(1, 900),
        "age at which a node's sample is stale and nothing is placed there",
    ),
    _key(
        "RECONCILE_INTERVAL_SECONDS",
        "300",
        whole_between(1, _DAY_SECONDS),
        "seconds between two passes of the reconciler",
    ),
    _key(
        "CLEANER_DELAY_SECONDS",
        "3600",
        whole_between(0, 30 * _DAY_SECONDS),
        "seconds a domain that nothing explains is left alone, and a deleted namespace keeps its claims",
    ),
    _key("EVENTS_RETENTION_DAYS", "90", whole_between(1, 36_500), "days the audit events are kept"),
    _key("DECISIONS_RETENTION_DAYS", "30", whole_between(1, 36_500), "days the stored decisions are kept"),
    _key(
        "NODE_RAM_RESERVATION_GB",
        "2.0",
        RESERVED_RAM_GB,
        "memory in GiB held back for the operating system",
        node_fallback=True,
    ),
    _key(
        "NODE_CPU_RESERVATION_THREADS",
        "2",
        RESERVED_THREADS,
        "hardware threads held back for the operating system",
        node_fallback=True,
    ),
    _key(
        "NODE_DISK_RESERVATION_GB",
        "20.0",
        RESERVED_DISK_GB,
        "disk in GiB kept free on the instances and blobs file systems",
        node_fallback=True,
    ),
)

CLUSTER_KEYS: Final[Mapping[str, ClusterKey]] = MappingProxyType(
    {key.name: key for key in _ALL_KEYS if not key.node_fallback}
)
SNAPSHOT_KEYS: Final[Mapping[str, ClusterKey]] = MappingProxyType({key.name: key for key in _ALL_KEYS})
FALLBACK_NAMES: Final = tuple(key.name for key in _ALL_KEYS if key.node_fallback)

_NODE_FILE: Final = "is node-local: set it in that node's /etc/sf/config"
_PROCESS_FILE: Final = "belongs to a process: set it in /etc/sf/config of the machine the process runs on"
_CONTROL_FILE: Final = "is read from the control node's /etc/sf/config only, never over the API"
NODE_LOCAL_NAMES: Final = (
    "NODE_NAME",
    "NODE_RAM_RESERVATION_GB",
    "NODE_CPU_RESERVATION_THREADS",
    "NODE_DISK_RESERVATION_GB",
    "NODE_MAX_INSTANCES",
    "NODE_LABELS",
    "NODE_REGION",
    "NODE_ARCH",
    "NODE_BACKEND",
    "NODE_IS_HYPERVISOR",
    "NODE_SLEEPY_POOL",
    "NODE_GPU_KIND",
    "GPU_INVENTORY_FILE",
    "INSTANCES_PATH",
    "BLOBS_PATH",
    "LIBVIRT_URI",
)
PROCESS_NAMES: Final = (
    "DATABASE_URL",
    "REDIS_URL",
    "LOG_LEVEL",
    "LOG_FORMAT",
    "API_HOST",
    "API_PORT",
    "API_WORKERS",
    "API_TRUSTED_PROXIES",
    "AUTH_SECRET",
    "METRICS_TOKEN",
    "ADMIN_KEY_FILE",
)
CONTROL_FILE_NAMES: Final = ("SPAWN_COMMAND",)
KEYS_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(NODE_LOCAL_NAMES, _NODE_FILE)
    | dict.fromkeys(PROCESS_NAMES, _PROCESS_FILE)
    | dict.fromkeys(CONTROL_FILE_NAMES, _CONTROL_FILE)
)


def cluster_key(name: str) -> ClusterKey:
    """The cluster-wide key called `name` (with or without the prefix); refuses with where the key belongs."""
    bare = name.strip().upper().removeprefix(PREFIX)
    if bare in CLUSTER_KEYS:
        return CLUSTER_KEYS[bare]
    if bare in KEYS_ELSEWHERE:
        raise ConfigError([ConfigProblem(key=bare, reason=KEYS_ELSEWHERE[bare])])
    raise ConfigError([_unknown(bare, CLUSTER_KEYS)])


def parse_cluster_value(key: str, text: str) -> ClusterValue:
    """The typed value a cluster-wide key would get from `text`; ConfigError when it may not."""
    known = cluster_key(key)
    return _scalar(read_value(known.parser, known.name, text))


def format_cluster_value(value: ClusterValue) -> str:
    """The text that reads back as `value`; what is stored and shown."""
    if value is None:
        return UNLIMITED
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Every cluster-wide setting, typed; each field is its key's name in lower case."""

    cpu_overcommit_ratio: Decimal | None = Decimal("3.0")  # None: unlimited, the CPU only ranks
    ram_overcommit_ratio: Decimal = Decimal("3.0")
    disk_overcommit_ratio: Decimal = Decimal("1.0")
    scheduler_target_load: Decimal = Decimal("0.75")
    scheduler_cache_timeout: Decimal = Decimal(5)
    scheduler_demand_per_vcpu: Decimal = Decimal("0.6")
    scheduler_demand_decay_seconds: int = 600
    placement_strategy: str = "load-aware"
    affinity_matching: str = "enforced"
    claim_enforcement: str = "advisory"
    admit_unsized_nodes: bool = False
    dedicated_sleepy_nodes: bool = False
    sleepy_overcommit_factor: Decimal = Decimal("1.0")
    auto_spawn: bool = False
    instance_overhead_mb: int = 0
    node_metrics_max_age_seconds: int = 120
    reconcile_interval_seconds: int = 300
    cleaner_delay_seconds: int = 3600
    events_retention_days: int = 90
    decisions_retention_days: int = 30
    # Fallbacks for nodes whose samples do not carry their own reservations.
    node_ram_reservation_gb: Decimal = Decimal("2.0")
    node_cpu_reservation_threads: int = 2
    node_disk_reservation_gb: Decimal = Decimal("20.0")

    @property
    def ratios(self) -> Ratios:
        """The overcommit ratios, as the formulas take them."""
        return Ratios(self.cpu_overcommit_ratio, self.ram_overcommit_ratio, self.disk_overcommit_ratio)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], *, ignore_unknown: bool = False) -> ClusterConfig:
        """Read stored text or a snapshot's JSON values; absent keys take their defaults.

        Raises ConfigError with every problem. `ignore_unknown` is for a reader that is older than the writer of the
        database: a key it does not know cannot concern it.
        """
        chosen: dict[str, ClusterValue] = {}
        problems: list[ConfigProblem] = []
        for name, value in values.items():
            bare = name.removeprefix(PREFIX)
            key = SNAPSHOT_KEYS.get(bare)
            if key is None:
                problems += [] if ignore_unknown else [_unknown(name, CLUSTER_KEYS, FALLBACK_NAMES)]
                continue
            try:
                chosen[bare.lower()] = _scalar(read_value(key.parser, bare, _as_text(value)))
            except ConfigError as refused:
                problems += refused.problems
        if problems:
            raise ConfigError(problems)
        return cls(**chosen)  # type: ignore[arg-type]  # the parser of each key yields its field's type; a test holds it

    def to_mapping(self) -> dict[str, str]:
        """Key to text, in the table's order; `from_mapping` reads it back unchanged."""
        return {field.name.upper(): format_cluster_value(getattr(self, field.name)) for field in fields(self)}


def _unknown(name: str, known: Mapping[str, ClusterKey], node_local: Sequence[str] = ()) -> ConfigProblem:
    """Return what is wrong with a key of no such name; `node_local` are the others that may stand beside `known`."""
    near = nearest_name(name, [*known, *node_local])
    others = f"; and of the node-local ones {', '.join(node_local)}" if node_local else ""
    hint = f"; did you mean {near}?" if near else f"; known keys: {', '.join(sorted(known))}{others}"
    return ConfigProblem(key=name, reason=f"not a cluster-wide key{hint}")


def _as_text(value: object) -> str:
    """JSON's 120.0 means 120, JSON's true is not a number, and text is left as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, float | Decimal) or not math.isfinite(value):
        return str(value)
    number = Decimal(repr(value)) if isinstance(value, float) else value
    whole = number == number.to_integral_value()
    return f"{number.to_integral_value():f}" if whole else f"{number:f}"


def _scalar(value: ConfigValue) -> ClusterValue:
    assert not isinstance(value, tuple | Mapping), "cluster-wide keys hold single values only"
    return value
