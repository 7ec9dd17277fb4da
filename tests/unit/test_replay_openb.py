"""The trace format: what is read, what is refused, and the order of events."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from fleet.cli.openb import (
    BadTrace,
    EventKind,
    TraceNode,
    TraceTask,
    events_of,
    filling_arrivals,
    read_nodes,
    read_tasks,
    scarce,
    windows_of,
    without_gpus,
)
from fleet.cli.outcome import Misused

NODE_HEAD = "sn,cpu_milli,memory_mib,gpu,model\n"
TASK_HEAD = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def a_task(name: str, created: int = 0, deleted: int | None = None, cpus: int = 2) -> TraceTask:
    gone = None if deleted is None else Fraction(deleted)
    return TraceTask(name=name, cpus=cpus, memory_mb=4096, created_s=Fraction(created), deleted_s=gone)


def test_a_node_offers_whole_cpus_only(tmp_path: Path) -> None:
    nodes = read_nodes(written(tmp_path, NODE_HEAD + "n1,32500,262144,8,V100\n"))

    assert nodes == [TraceNode("n1", 32, 262144, 4000, 8, "V100")]


def test_a_task_asks_for_whole_cpus_and_for_some_memory(tmp_path: Path) -> None:
    tasks = read_tasks(written(tmp_path, TASK_HEAD + "t1,1001,0,0,0,,LS,Running,5,9,5\n"))

    assert tasks == [TraceTask("t1", 2, 1, Fraction(5), Fraction(9), 10, 0)]


def test_only_whole_gpus_count(tmp_path: Path) -> None:
    rows = "shared,1000,1,1,460,,LS,Running,0,,0\nwhole,1000,1,8,1000,,LS,Running,0,,0\n"

    tasks = read_tasks(written(tmp_path, TASK_HEAD + rows))

    assert [task.gpus for task in tasks] == [0, 8]
    assert [task.shares_card for task in tasks] == [True, False]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("t1,many,1,0,0,,LS,Running,0,,0", "line 2: column cpu_milli: 'many'"),
        ("t1,-1,1,0,0,,LS,Running,0,,0", "column cpu_milli: '-1'"),
        ("t1,1.5,1,0,0,,LS,Running,0,,0", "column cpu_milli: '1.5'"),
        ("t1,1000,,0,0,,LS,Running,0,,0", "column memory_mib: ''"),
        ("t1,1000,99999999999999,0,0,,LS,Running,0,,0", "column memory_mib"),
        ("t1,1000,1,0,0,,LS,Running,,,0", "column creation_time"),
        ("t1,1000,1,0,0,,LS,Running,-5,,0", "column creation_time: '-5'"),
        ("t1,1000,1,0,0,,LS,Running,0,later,0", "column deletion_time: 'later'"),
        (",1000,1,0,0,,LS,Running,0,,0", "column name"),
        ("t1,1000,1,2000000,1000,,LS,Running,0,,0", "column num_gpu: '2000000'"),
        ("t1,1000,1,1,1000,T4|\x07,LS,Running,0,,0", "column gpu_spec"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(tmp_path: Path, row: str, named: str) -> None:
    path = written(tmp_path, f"{TASK_HEAD}{row}\n")

    with pytest.raises(BadTrace) as refused:
        read_tasks(path)

    assert str(path) in str(refused.value)
    assert named in str(refused.value)


def test_a_name_stands_once(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"line 3: column sn: 'n1'"):
        read_nodes(written(tmp_path, NODE_HEAD + "n1,1000,1,0,\nn1,1000,1,0,\n"))


def test_every_fault_is_named_up_to_ten(tmp_path: Path) -> None:
    rows = "".join(f"n{number},0,1,0,\n" for number in range(14))

    with pytest.raises(BadTrace, match="and 4 more") as refused:
        read_nodes(written(tmp_path, NODE_HEAD + rows))

    assert str(refused.value).count("\n") == 10


@pytest.mark.parametrize(
    ("text", "named"), [("", "columns sn"), ("a,b\n1,2\n", "it has a, b"), (NODE_HEAD, "holds no")]
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(BadTrace, match=named):
        read_nodes(written(tmp_path, text))


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"nowhere\.csv"):
        read_nodes(tmp_path / "nowhere.csv")


def test_events_are_in_the_order_of_their_times_and_departures_come_first() -> None:
    tasks = [a_task("b", 10, 20), a_task("a", 0, 10), a_task("c", 20)]

    order = [(int(event.at_s), event.kind, event.task.name) for event in events_of(tasks)]

    assert order == [
        (0, EventKind.ARRIVAL, "a"),
        (10, EventKind.DEPARTURE, "a"),
        (10, EventKind.ARRIVAL, "b"),
        (20, EventKind.DEPARTURE, "b"),
        (20, EventKind.ARRIVAL, "c"),
    ]


@pytest.mark.parametrize("deleted", [3, 7])
def test_a_departure_never_comes_before_its_own_arrival(deleted: int) -> None:
    kinds = [event.kind for event in events_of([a_task("a", 7, deleted)])]

    assert kinds == [EventKind.ARRIVAL, EventKind.DEPARTURE]


def test_filling_stops_at_the_first_draw_that_reaches_the_share() -> None:
    nodes = [TraceNode("n1", 100, 1024)]

    events = filling_arrivals([a_task("a", cpus=7), a_task("b", cpus=3)], nodes, 130, seed=1)

    asked = [event.task.cpus for event in events]
    assert sum(asked) >= 130 > sum(asked[:-1])
    assert {event.kind for event in events} == {EventKind.ARRIVAL}


def a_gpu_task(name: str, gpus: int) -> TraceTask:
    return TraceTask(name=name, cpus=50, memory_mb=1, created_s=Fraction(0), deleted_s=None, gpus=gpus)


def test_filling_counts_gpus_where_it_is_told_to() -> None:
    nodes = [TraceNode("n1", 10, 1024, gpus=8), TraceNode("n2", 10, 1024)]

    events = filling_arrivals([a_gpu_task("a", 0), a_gpu_task("b", 3)], nodes, 130, seed=1, of="gpus")

    asked = [event.task.gpus for event in events]
    assert sum(asked) * 100 >= 8 * 130 > sum(asked[:-1]) * 100
    assert 0 in asked


@pytest.mark.parametrize(("there", "asked", "counted"), [(8, 3, "gpus"), (0, 3, "cpus"), (8, 0, "cpus")])
def test_gpus_are_what_is_scarce_where_there_are_any_and_tasks_ask_for_them(
    there: int, asked: int, counted: str
) -> None:
    nodes, tasks = [TraceNode("n1", 10, 1024, gpus=there)], [a_gpu_task("a", asked), a_gpu_task("b", 0)]

    assert scarce(nodes, tasks) == counted


@pytest.mark.parametrize(("there", "asked"), [(0, 3), (8, 0)])
def test_a_filling_that_would_never_end_is_refused(there: int, asked: int) -> None:
    with pytest.raises(Misused, match="--fill-of gpus"):
        filling_arrivals([a_gpu_task("a", asked)], [TraceNode("n1", 10, 1024, gpus=there)], 100, seed=1, of="gpus")


def test_without_gpus_nobody_has_or_asks_for_any_and_all_else_stays() -> None:
    nodes, events = [TraceNode("n1", 10, 1024, gpus=8, gpu_model="T4")], events_of([a_gpu_task("a", 3)])

    bare, plain = without_gpus(nodes, events)

    assert bare == [TraceNode("n1", 10, 1024)]
    assert [(event.kind, event.task.name, event.task.gpus) for event in plain] == [(EventKind.ARRIVAL, "a", 0)]


@pytest.mark.parametrize(
    ("row", "named"),
    [("n1,1000,1,1025,T4", "column gpu: '1025'"), (f"n1,1000,1,1,{'T' * 256}", "column model")],
)
def test_cards_that_no_node_can_have_are_refused(tmp_path: Path, row: str, named: str) -> None:
    with pytest.raises(BadTrace) as refused:
        read_nodes(written(tmp_path, f"{NODE_HEAD}{row}\n"))

    assert named in str(refused.value)


def test_the_seed_decides_the_draw() -> None:
    nodes, tasks = [TraceNode("n1", 100, 1024)], [a_task(str(number)) for number in range(50)]

    drawn = [[event.task.name for event in filling_arrivals(tasks, nodes, 100, seed)] for seed in (1, 1, 2)]

    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_windows_keep_every_event_in_order() -> None:
    events = events_of([a_task(str(number), number * 700, number * 700 + 50) for number in range(20)])

    windows = list(windows_of(events, 3600))

    assert [event for window in windows for event in window] == events
    assert all(len({int(event.at_s // 3600) for event in window}) == 1 for window in windows)
    assert all(windows)
