"""Settings of one process: defaults, then the file, then the environment, each value typed and checked.

Precedence: `FLEET_<KEY>` in the environment beats the file, the file beats the default. Cluster-wide keys do not
belong here; one that is found in the file or the environment has no effect and is warned about.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fleet.config.keys import KEYS, Key, Scope, normalised_arch
from fleet.config.shell_file import Entry, read_shell_file
from fleet.model.cluster_config import PREFIX
from fleet.model.config_value import ConfigError, ConfigProblem, nearest_name, read_value

DEFAULT_PATH: Final = Path("/etc/sf/config")
ENVIRONMENT_PREFIX: Final = "FLEET_"
PATH_VARIABLE: Final = "FLEET_CONFIG"
HIDDEN: Final = "(hidden)"
NOT_SET: Final = "(not set)"

# Other FLEET_ variables exist (the command line's own), so only a near miss of a key is worth a warning there.
_ENVIRONMENT_LIKENESS_MIN: Final = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingReport:
    """One line of `fleet config show`; `value` never holds a secret."""

    key: str
    scope: Scope
    value: str
    origin: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every key a machine's file may set, typed; each field is its key's name in lower case.

    Texts that are not set are empty: ask `require` before use. `warnings` are for the process to log.
    """

    node_name: str
    node_ram_reservation_gb: Decimal
    node_cpu_reservation_threads: int
    node_disk_reservation_gb: Decimal
    node_max_instances: int | None
    node_labels: Mapping[str, str]
    node_region: str
    node_arch: str
    node_backend: str
    node_is_hypervisor: bool
    node_sleepy_pool: bool
    node_gpu_kind: str
    gpu_inventory_file: str
    instances_path: str
    blobs_path: str
    libvirt_uri: str
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    log_level: str
    log_format: str
    api_host: str
    api_port: int
    api_workers: int
    api_trusted_proxies: tuple[str, ...]
    auth_secret: str = field(repr=False)
    metrics_token: str = field(repr=False)
    admin_key_file: str
    spawn_command: str
    path: Path
    warnings: tuple[ConfigProblem, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)

    def origin(self, key: str) -> str:
        """Where the key's value came from: `default`, `file:line` or `environment FLEET_…`."""
        return self.origins[key]

    def require(self, *keys: str) -> None:
        """Raise ConfigError naming every key of `keys` that is not set."""
        missing = [key for key in keys if getattr(self, key.lower()) in {"", None}]
        if missing:
            raise ConfigError(
                ConfigProblem(
                    key=key,
                    where=str(self.path),
                    reason=f"not set, and this process needs it ({KEYS[key].meaning}); "
                    f"set it in the file or as {ENVIRONMENT_PREFIX}{key}; accepted: {KEYS[key].parser.accepted}",
                )
                for key in missing
            )

    def describe(self) -> list[SettingReport]:
        """Every key of this machine's file with its value as it may be shown, its origin and its meaning."""
        return [
            SettingReport(
                key=key.name,
                scope=key.scope,
                value=_displayed(key, getattr(self, key.name.lower())),
                origin=self.origin(key.name),
                meaning=key.meaning,
            )
            for key in KEYS.values()
            if key.scope is not Scope.CLUSTER
        ]


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the file (`path`, else `FLEET_CONFIG`, else /etc/sf/config) and the environment.

    A file that does not exist leaves the defaults, with a warning when it was asked for by name. Raises ConfigError
    with all problems of all sources together.
    """
    named = path or (Path(environ[PATH_VARIABLE]) if environ.get(PATH_VARIABLE) else None)
    chosen_path = named or DEFAULT_PATH
    read = read_shell_file(chosen_path)
    entries, problems = read if read is not None else ([], [])
    warnings: list[ConfigProblem] = []
    if read is None and named is not None:
        warnings.append(ConfigProblem(key="file", where=str(named), reason="does not exist; the defaults hold"))

    values, origins = _defaults()
    assigned = _unique([*entries], problems)
    overrides = [
        Entry(name.removeprefix(ENVIRONMENT_PREFIX), text, f"environment {name}")
        for name, text in sorted(environ.items())
        if name.startswith(ENVIRONMENT_PREFIX) and name != PATH_VARIABLE
    ]
    for entry in [*assigned, *overrides]:
        key = KEYS.get(entry.key)
        if key is None or key.scope is Scope.CLUSTER:
            warnings += _ignored(entry, key)
            continue
        try:
            values[key.name] = read_value(key.parser, key.name, entry.text, where=entry.where, secret=key.secret)
            origins[key.name] = entry.where
        except ConfigError as refused:
            problems += refused.problems
    if problems:
        raise ConfigError(problems)
    typed: dict[str, Any] = {name.lower(): value for name, value in values.items()}
    return Settings(**typed, path=chosen_path, warnings=tuple(warnings), origins=MappingProxyType(origins))


def _defaults() -> tuple[dict[str, object], dict[str, str]]:
    """The table's defaults; name and architecture that are not set are the machine's own."""
    own = {"NODE_NAME": platform.node(), "NODE_ARCH": normalised_arch(platform.machine())}
    keys = [key for key in KEYS.values() if key.scope is not Scope.CLUSTER]
    values: dict[str, object] = {
        key.name: own.get(key.name, "") if key.default is None else read_value(key.parser, key.name, key.default)
        for key in keys
    }
    return values, {key.name: "this machine" if key.name in own else "default" for key in keys}


def _unique(entries: list[Entry], problems: list[ConfigProblem]) -> list[Entry]:
    """The entries by bare name; a key that stands twice (with or without the prefix) is a problem, not a choice."""
    first: dict[str, Entry] = {}
    for entry in entries:
        bare = entry.key.removeprefix(PREFIX)
        if bare in first:
            reason = f"set twice, first at {first[bare].where}; keep one of the two lines"
            problems.append(ConfigProblem(key=bare, where=entry.where, reason=reason))
            continue
        first[bare] = Entry(bare, entry.text, entry.where)
    return list(first.values())


def _ignored(entry: Entry, key: Key | None) -> list[ConfigProblem]:
    """Why an entry has no effect, as a warning; nothing for environment variables that are not meant as keys."""
    if key is not None:
        reason = f"cluster-wide, kept in the database: no effect here; use `fleet ctl set-config {key.name} VALUE`"
        return [ConfigProblem(key=entry.key, where=entry.where, reason=reason)]
    from_environment = entry.where.startswith("environment ")
    likeness = _ENVIRONMENT_LIKENESS_MIN if from_environment else 0.6
    near = nearest_name(entry.key, KEYS, likeness_min=likeness)
    if from_environment and near is None:
        return []
    hint = f"; did you mean {near}?" if near else "; no known key is like it"
    return [ConfigProblem(key=entry.key, where=entry.where, reason=f"unknown key, no effect{hint}")]


def _displayed(key: Key, value: object) -> str:
    if value is None or value == "":
        return NOT_SET
    if key.secret:
        return HIDDEN
    if isinstance(value, Mapping):
        return ",".join(f"{name}={text}" for name, text in value.items()) or NOT_SET
    if isinstance(value, tuple):
        return ",".join(value) or NOT_SET
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
