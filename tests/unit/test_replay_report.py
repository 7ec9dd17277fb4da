"""What a replay counts and reports: its own sums, its verdict, its files."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fleet.cli import report
from fleet.cli.books import NodeBooks, lost, oversold
from fleet.cli.caller import Answer
from fleet.cli.openb import TraceNode, TraceTask
from fleet.cli.replay_cards import oversold as oversold_cards
from fleet.cli.replay_samples import metrics_of, sample_of
from fleet.cli.replay_tally import Tally, UtilisationPoint, percentile

TASK = TraceTask(name="t", cpus=4, memory_mb=8192, created_s=Fraction(0), deleted_s=None)
REFUSAL = {
    "code": "out_of_capacity",
    "stage": "sufficient_idle_memory",
    "detail": "0 of 2 nodes fit: 2 sufficient_idle_memory",
    "counts": {"sufficient_idle_memory": {"no_headroom": 2}},
}


def placed(node: str = "n1", uuid: str = "u1", seconds: float = 0.01) -> Answer:
    return Answer(201, {"uuid": uuid, "node": node}, seconds, repeats=1)


def a_report(tally: Tally, **changes: Any) -> report.Report:
    inputs = {"nodes": 1, "database": "SQLite", "fill_percent": None}
    return report.Report(inputs=inputs, tally=tally, elapsed_s=2.0, settle_s=0.5, late_s=0.0, **changes)


def a_curve() -> list[UtilisationPoint]:
    total: dict[str, int | None] = {"cpus": 100, "memory_mb": 1000, "disk_gb": None}
    return [
        UtilisationPoint(
            trace_s=second * 86_400,
            elapsed_s=float(second),
            used={"cpus": 30 * second, "memory_mb": 100, "disk_gb": 5},
            total=total,
            placed=second,
            refused=0,
            departed=0,
        )
        for second in range(4)
    ]


def test_the_drivers_books_follow_arrivals_and_departures() -> None:
    tally = Tally()
    tally.note_placed(0, TASK, placed())
    tally.note_placed(1, TASK, placed(uuid="u2"))
    tally.note_departed(0)

    assert tuple(tally.usage("n1")) == (4, 8192, 10, 1)
    assert tuple(tally.usage("n2")) == (0, 0, 0, 0)
    assert tally.repeats == 2


def test_a_sample_shows_what_the_driver_placed() -> None:
    tally = Tally()
    tally.note_placed(0, TASK, placed())

    metrics = metrics_of(TraceNode("n1", 32, 65536), tally)

    assert metrics["memory_available"] == 65536 - 8192
    assert metrics["disk_free_gb"] == 4000 - 10
    assert metrics["cpu_total_instance_vcpus"] == 4
    assert metrics["instances_active"] == 1


def test_every_sample_tells_the_nodes_cards() -> None:
    sample = sample_of(TraceNode("n1", 32, 65536, gpus=2, gpu_model="T4"), Tally())

    assert sample["gpus"] == [{"uuid": "GPU-n1-0", "model": "T4"}, {"uuid": "GPU-n1-1", "model": "T4"}]
    assert "gpus" not in sample_of(TraceNode("n2", 32, 65536), Tally())


def test_refusals_are_counted_by_the_stage_that_decided() -> None:
    tally = Tally()
    for _ in range(3):
        tally.note_refused(Answer(507, REFUSAL, 0.01))
    tally.note_refused(Answer(507, {**REFUSAL, "stage": "capacity_guard", "failing_stage": "cluster"}, 0.01))

    document = a_report(tally).as_json()

    assert document["refused"] == 4
    assert document["refused_by_stage"] == [
        {"code": "out_of_capacity", "stage": "sufficient_idle_memory", "count": 3},
        {"code": "out_of_capacity", "stage": "cluster", "count": 1},
    ]
    assert document["nodes_dropped_by_reason"][0] == {
        "stage": "sufficient_idle_memory",
        "reason": "no_headroom",
        "count": 8,
    }


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, 0.0), ([3.0], 99, 3.0), ([1.0, 2.0, 3.0, 4.0], 50, 2.0), (list(map(float, range(1, 101))), 95, 95.0)],
)
def test_percentiles_are_values_that_were_measured(values: list[float], percent: int, expected: float) -> None:
    assert percentile(values, percent) == expected


def node(used: int, limit: int | None) -> NodeBooks:
    limits: dict[str, int | None] = {"cpus": limit, "memory_mb": None, "disk_gb": None}
    return NodeBooks("n1", "active", "enabled", {"cpus": used, "memory_mb": 0, "disk_gb": 0}, limits)


@pytest.mark.parametrize(
    ("used", "limit", "held", "count"),
    [(10, 10, 10, 0), (11, 10, 0, 1), (9, 10, 11, 1), (10**6, None, 10**6, 0)],
)
def test_oversold_by_the_ledgers_books_or_by_the_drivers(used: int, limit: int | None, held: int, count: int) -> None:
    found = oversold([node(used, limit)], {"n1": [held, 0, 0, 1]})

    assert len(found) == count


def a_node(*holders: str | None, used: int | None = None) -> dict[str, Any]:
    held = sum(who is not None for who in holders) if used is None else used
    cards = [{"uuid": f"GPU-{at}", "bound_to": who} for at, who in enumerate(holders)]
    return {"name": "n1", "gpu_count": len(holders), "gpu_count_used": held, "gpus": cards}


def holding(**cards: list[str]) -> dict[str, dict[str, Any]]:
    return {uuid: {"node": "n1", "state": "running", "gpu_uuids": held} for uuid, held in cards.items()}


@pytest.mark.parametrize(
    ("node", "known", "asked", "found"),
    [
        (a_node("a", None), holding(a=["GPU-0"]), {"a": 1}, []),
        (a_node("a"), holding(a=["GPU-0"], b=["GPU-0"]), {"a": 1, "b": 1}, ["GPU GPU-0 is bound twice"]),
        (a_node("a", used=2), holding(a=["GPU-0"]), {"a": 1}, ["n1 is oversold: 2 GPUs bound of 1"]),
        (
            a_node("a"),
            holding(a=["GPU-9"]),
            {"a": 1},
            ["GPU GPU-9 of instance a is told by no node", "GPU GPU-0 is bound to instance a, which holds others"],
        ),
        (a_node("a"), {"b": {"node": "elsewhere", "state": "running", "gpu_uuids": ["GPU-0"]}}, {"b": 3}, []),
        (a_node(None), {"b": {"node": "n1", "state": "error", "gpu_uuids": []}}, {"b": 3}, []),
        (a_node("a"), holding(a=["GPU-0"]), {"a": 2}, ["instance a asked for 2 GPUs and holds 1"]),
        (a_node("stranger"), holding(a=[]), {"a": 0}, []),
    ],
)
def test_cards_are_oversold_by_what_nodes_and_instances_say(
    node: dict[str, Any], known: dict[str, dict[str, Any]], asked: dict[str, int], found: list[str]
) -> None:
    told = oversold_cards([node], known, asked)

    assert [sentence.startswith(begin) for sentence, begin in zip(told, found, strict=True)] == [True] * len(found)


def test_a_card_of_two_nodes_is_told() -> None:
    assert oversold_cards([a_node(None), a_node(None)], {}, {}) == ["GPU GPU-0 is told by 2 nodes"]


def test_acknowledged_and_missing_is_lost() -> None:
    known = {"kept": {"state": "running"}, "broken": {"state": "error"}, "ghost": {"state": "running"}}

    found = lost(known, standing=["kept", "broken", "absent"], gone=["ghost", "away"])

    assert found == [
        "instance absent was acknowledged and is not there",
        "instance broken was placed and is error",
        "instance ghost was deleted and is running",
    ]


@pytest.mark.parametrize(
    "fault",
    [{"oversold": ["n1"]}, {"lost": ["u1"]}, {"stuck": ["o1"]}, {"differences": [{"row": 1}]}],
)
def test_one_broken_promise_makes_a_bad_run(fault: dict[str, Any]) -> None:
    assert a_report(Tally()).good
    assert not a_report(Tally(), **fault).good


def test_an_answer_that_means_nothing_makes_a_bad_run() -> None:
    tally = Tally()
    tally.note_problem("500")

    assert not a_report(tally).good


def test_the_files_hold_the_curve_and_the_figures(tmp_path: Path) -> None:
    tally = Tally()
    tally.note_placed(0, TASK, placed())
    for point in a_curve():
        tally.note_point(point)

    files = report.write(a_report(tally), tmp_path)

    document = json.loads((tmp_path / "report.json").read_text())
    with (tmp_path / "utilisation.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [Path(name).name for name in files] == ["report.json", "utilisation.csv", "utilisation.png"]
    assert (document["placed"], document["oversold"], document["differences"]) == (1, 0, [])
    assert document["utilisation_percent_peak"] == {"cpus": 90.0, "memory_mb": 10.0, "disk_gb": 0.0}
    assert [(row["used_cpus"], row["total_cpus"], row["total_disk_gb"]) for row in rows][-1] == ("90", "100", "")
    assert {row["used_gpus"] for row in rows} == {""}
    assert (tmp_path / "utilisation.png").read_bytes().startswith(b"\x89PNG")


def test_gpus_are_in_the_curve_the_figures_and_the_sentence(tmp_path: Path) -> None:
    tally = Tally()
    tally.note_other_kind(Answer(507, REFUSAL, 0.01))
    for point in a_curve():
        tally.note_point(replace(point, used={**point.used, "gpus": point.placed}, total={**point.total, "gpus": 4}))
    load = report.GpuLoad(sent=True, there=4, tasks=3, asked=5, sharing=2, a_share="none")
    made = a_report(tally, gpus=load)

    report.write(made, tmp_path)

    document = json.loads((tmp_path / "report.json").read_text())
    assert document["utilisation_percent_peak"]["gpus"] == 75.0
    assert document["gpus"] == {
        "sent": True,
        "there": 4,
        "tasks": 3,
        "asked": 5,
        "sharing": 2,
        "a_share": "none",
        "went_on_to_next_kind": 1,
    }
    with (tmp_path / "utilisation.csv").open() as handle:
        assert [row["used_gpus"] for row in csv.DictReader(handle)] == ["0", "1", "2", "3"]
    console = Console(record=True, width=160)
    report.show(made, console)
    text = console.export_text()
    assert "3 tasks ask for 5, the nodes have 4; 2 tasks ask for a share of one, which counts as none" in text
    assert "GPUs 75.0 %" in text


def test_the_report_for_people_names_what_is_wrong() -> None:
    tally = Tally()
    tally.note_refused(Answer(507, REFUSAL, 0.01))
    console = Console(record=True, width=140)

    tally.problems.append("answered 400: placement_rules[within] is [/b] no label")
    report.show(a_report(tally, oversold=["n1 is oversold: 11 cpus committed, the limit is 10"]), console)

    text = console.export_text()
    assert "unexpected: answered 400: placement_rules[within] is [/b] no label" in text
    assert "0 of 2 nodes fit: 2 sufficient_idle_memory" in text
    assert "n1 is oversold: 11 cpus" in text
