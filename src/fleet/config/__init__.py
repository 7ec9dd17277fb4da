"""Configuration of one machine and its processes, and the door to the cluster-wide keys.

Promise: settings that exist are typed and within bounds, and each says where it came from. Everything wrong is
reported together, naming file, line, key, value and what would be accepted.
"""

from fleet.config.keys import KEYS, Key, Scope
from fleet.config.settings import DEFAULT_PATH, ENVIRONMENT_PREFIX, SettingReport, Settings, load_settings
from fleet.model.cluster_config import (
    CLUSTER_KEYS,
    ClusterConfig,
    ClusterKey,
    ClusterValue,
    format_cluster_value,
    parse_cluster_value,
)
from fleet.model.config_value import ConfigError, ConfigProblem

__all__ = [
    "CLUSTER_KEYS",
    "DEFAULT_PATH",
    "ENVIRONMENT_PREFIX",
    "KEYS",
    "ClusterConfig",
    "ClusterKey",
    "ClusterValue",
    "ConfigError",
    "ConfigProblem",
    "Key",
    "Scope",
    "SettingReport",
    "Settings",
    "format_cluster_value",
    "load_settings",
    "parse_cluster_value",
]
