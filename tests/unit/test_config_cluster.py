"""Cluster-wide keys: typed, bounded, refused with a sentence."""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal

import pytest

from fleet.config import CLUSTER_KEYS, KEYS, ClusterConfig, ConfigError, Scope, parse_cluster_value
from fleet.model.cluster_config import KEYS_ELSEWHERE, SNAPSHOT_KEYS, format_cluster_value


def refusal(key: str, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_cluster_value(key, text)
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_the_table_and_the_dataclass_agree_on_names_defaults_and_types() -> None:
    parsed = ClusterConfig.from_mapping({key.name: key.default for key in SNAPSHOT_KEYS.values()})

    assert [field.name for field in fields(ClusterConfig)] == [name.lower() for name in SNAPSHOT_KEYS]
    assert parsed == ClusterConfig()
    assert [type(getattr(parsed, f.name)) for f in fields(parsed)] == [
        type(getattr(ClusterConfig(), f.name)) for f in fields(parsed)
    ]


def test_a_config_survives_its_text_form() -> None:
    config = ClusterConfig(cpu_overcommit_ratio=None, auto_spawn=True, scheduler_target_load=Decimal("-0.125"))

    assert ClusterConfig.from_mapping(config.to_mapping()) == config


def test_every_key_outside_the_database_is_known_as_such() -> None:
    assert set(KEYS_ELSEWHERE) == {key.name for key in KEYS.values() if key.scope is not Scope.CLUSTER}
    assert set(CLUSTER_KEYS) == {key.name for key in KEYS.values() if key.scope is Scope.CLUSTER}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("CPU_OVERCOMMIT_RATIO", "2.125", Decimal("2.125")),
        ("CPU_OVERCOMMIT_RATIO", "unlimited", None),
        ("CPU_OVERCOMMIT_RATIO", "1.5000", Decimal("1.5")),
        ("SHAKENFIST_RAM_OVERCOMMIT_RATIO", "1", Decimal(1)),
        ("SCHEDULER_TARGET_LOAD", "0", Decimal(0)),
        ("SCHEDULER_TARGET_LOAD", "-1", Decimal(-1)),
        ("ADMIT_UNSIZED_NODES", "False", False),
        ("ADMIT_UNSIZED_NODES", "YES", True),
        ("CLAIM_ENFORCEMENT", "Hard", "hard"),
        ("INSTANCE_OVERHEAD_MB", " 64 ", 64),
        ("PLACEMENT_STRATEGY", "spread-3", "spread-3"),
    ],
)
def test_a_good_value_is_typed(key: str, text: str, value: object) -> None:
    parsed = parse_cluster_value(key, text)

    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["NaN", "inf", "-inf", "1e400", "1E2", "true", "", "0x10", "1_000", "١", "0", "-1"])
@pytest.mark.parametrize("key", ["CPU_OVERCOMMIT_RATIO", "RAM_OVERCOMMIT_RATIO", "DISK_OVERCOMMIT_RATIO"])
def test_a_ratio_that_is_no_positive_decimal_is_refused(key: str, text: str) -> None:
    sentence = refusal(key, text)

    assert key in sentence
    assert repr(text) in sentence
    assert "a decimal number above 0" in sentence


@pytest.mark.parametrize(
    ("key", "text", "accepted"),
    [
        ("RAM_OVERCOMMIT_RATIO", "1.0001", "at most 3 decimal places"),
        ("RAM_OVERCOMMIT_RATIO", "unlimited", "a decimal number"),
        ("INSTANCE_OVERHEAD_MB", "1.5", "a whole number from 0"),
        ("INSTANCE_OVERHEAD_MB", "9" * 400, "a whole number from 0"),
        ("SCHEDULER_DEMAND_DECAY_SECONDS", "0", "a whole number from 1"),
        ("NODE_METRICS_MAX_AGE_SECONDS", "901", "a whole number from 1 to 900"),
        ("SLEEPY_OVERCOMMIT_FACTOR", "0.9", "from 1"),
        ("ADMIT_UNSIZED_NODES", "maybe", "yes, no, true, false, 1 or 0"),
        ("AFFINITY_MATCHING", "strict", "enforced, preferred"),
        ("PLACEMENT_STRATEGY", "Load Aware", "lower-case"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_accepted(key: str, text: str, accepted: str) -> None:
    sentence = refusal(key, text)

    assert sentence.startswith(f"{key}: ")
    assert accepted in sentence
    assert len(sentence) < 400


def test_a_node_local_key_is_refused_saying_where_it_belongs() -> None:
    assert "that node's /etc/sf/config" in refusal("NODE_RAM_RESERVATION_GB", "4")
    assert "control node's /etc/sf/config only" in refusal("SPAWN_COMMAND", "/bin/true")
    assert "belongs to a process" in refusal("DATABASE_URL", "sqlite:///x")


def test_an_unknown_key_names_the_nearest() -> None:
    assert "did you mean CPU_OVERCOMMIT_RATIO?" in refusal("CPU_OVERCOMIT_RATIO", "3")


def test_a_snapshot_may_hold_json_values_and_the_reservations() -> None:
    config = ClusterConfig.from_mapping(
        {
            "CPU_OVERCOMMIT_RATIO": 3.0,
            "RAM_OVERCOMMIT_RATIO": 1.15,
            "RECONCILE_INTERVAL_SECONDS": 60.0,
            "AUTO_SPAWN": True,
            "NODE_RAM_RESERVATION_GB": 4,
            "NODE_CPU_RESERVATION_THREADS": "1",
        }
    )

    assert config.cpu_overcommit_ratio == Decimal(3)
    assert config.ram_overcommit_ratio == Decimal("1.15")
    assert config.reconcile_interval_seconds == 60
    assert config.auto_spawn is True
    assert config.node_ram_reservation_gb == Decimal(4)
    assert config.node_cpu_reservation_threads == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, True, None, [3], Decimal("1E+400")])
def test_a_snapshot_ratio_that_is_no_number_in_range_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="RAM_OVERCOMMIT_RATIO"):
        ClusterConfig.from_mapping({"RAM_OVERCOMMIT_RATIO": value})


def test_all_problems_of_a_mapping_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.from_mapping({"RAM_OVERCOMMIT_RATIO": "0", "AUTO_SPAWN": "2", "NO_SUCH": "1"})

    assert [problem.key for problem in caught.value.problems] == ["RAM_OVERCOMMIT_RATIO", "AUTO_SPAWN", "NO_SUCH"]
    assert [error["field"] for error in caught.value.extra["errors"]] == [p.key for p in caught.value.problems]


def test_an_older_reader_can_pass_over_keys_it_does_not_know() -> None:
    assert ClusterConfig.from_mapping({"FROM_THE_FUTURE": "1"}, ignore_unknown=True) == ClusterConfig()


def test_values_are_formatted_as_they_are_typed() -> None:
    assert [format_cluster_value(value) for value in (None, True, Decimal("0.10"), 5, "hard")] == [
        "unlimited",
        "true",
        "0.10",
        "5",
        "hard",
    ]
