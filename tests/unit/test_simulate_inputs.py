"""What `fleet simulate` is given: shapes, mixes, nodes and traces; whatever is wrong is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fleet.cli import app
from fleet.cli.openb import read_tasks
from fleet.cli.outcome import Misused
from fleet.cli.simulate_inputs import Asked, parse_shape, read, read_mix, size_class
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.scenario import Shape
from fleet.simulation.tally import describe

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,32768,2,T4\nb,16000,65536,0,\n"
TASKS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    "late,1500,2048,1,1000,V100M16|V100M32|V100M32,5000,9000\n"
    "early,500,0,1,460,T4,1000,2000\n"
    "plain,4000,4096,0,0,,3000,\n"
)


@pytest.fixture
def trace(tmp_path: Path) -> tuple[Path, Path]:
    nodes, tasks = tmp_path / "nodes.csv", tmp_path / "tasks.csv"
    nodes.write_text(NODES)
    tasks.write_text(TASKS)
    return nodes, tasks


def asked(**other: object) -> Asked:
    return Asked(**({"node_shape": "16x65536x1000", "mix": "1x1024x10"} | other))  # type: ignore[arg-type]


def test_each_kind_of_a_task_is_kept_once_in_order(trace: tuple[Path, Path]) -> None:
    late, early, plain = read_tasks(trace[1])

    assert (late.gpus, late.gpu_kinds) == (1, ("V100M16", "V100M32"))
    assert (early.gpus, early.gpu_kinds) == (0, ())
    assert (plain.gpus, plain.gpu_kinds) == (0, ())


def test_a_share_of_a_card_is_a_whole_one_when_asked_for(trace: tuple[Path, Path]) -> None:
    _, early, plain = read_tasks(trace[1], card_for_a_share=True)

    assert (early.gpus, early.gpu_kinds) == (1, ("T4",))
    assert plain.gpus == 0


def test_a_trace_keeps_its_order_times_and_lifetimes(trace: tuple[Path, Path]) -> None:
    inputs = read(asked(trace=trace, speed=100))

    found = inputs.scenario(0).arrivals

    assert [(arrival.at_us // SECOND_US, arrival.lifetime_us) for arrival in found] == [
        (0, 10 * SECOND_US),
        (20, None),
        (40, 40 * SECOND_US),
    ]
    assert [machine.gpus for machine in inputs.machines] == [2, 0]
    assert found[2].shape == Shape("1 GPU", 2, 2048, 10, 1, ("V100M16", "V100M32"))
    assert inputs.scenario(1).arrivals == found


def test_at_a_rate_a_trace_keeps_its_order_only(trace: tuple[Path, Path]) -> None:
    found = read(asked(trace=trace, rate=2.0)).scenario(0).arrivals

    assert [arrival.at_us for arrival in found] == [0, SECOND_US // 2, SECOND_US]


def test_filling_by_gpus_ends_at_the_share_of_the_cards(trace: tuple[Path, Path]) -> None:
    found = read(asked(trace=trace, fill=200, fill_of="gpus")).scenario(3).arrivals

    assert sum(arrival.shape.gpus for arrival in found) == 4
    assert all(arrival.lifetime_us is None for arrival in found)


@pytest.mark.parametrize("text", ["4x8192x40", "16x65536x200+2", "16x65536x200+2:A100|H100"])
def test_a_shape_reads_back_as_it_is_shown(text: str) -> None:
    assert describe(parse_shape(text, "--mix")) == text


def test_a_mix_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(
        "shapes:\n- {name: db, cpus: 4, memory_mb: 8192, weight: 3}\n- {cpus: 1, memory_mb: 512, sleepy: true}\n"
    )

    (db, three), (other, one) = read_mix(str(path)).shapes

    assert (db.size_class, db.disk_gb, three) == ("db", 0, 3)
    assert (other.size_class, other.sleepy, one) == ("1x512x0", True, 1)


def test_described_nodes_bring_their_gpus(tmp_path: Path) -> None:
    cards = "{uuid: GPU-1, model: NVIDIA A100}, {uuid: GPU-2, model: NVIDIA A100}"
    found = read(asked(nodes=str(described_with(tmp_path, f"{{gpus: [{cards}]}}")))).machines
    counted = read(asked(nodes=str(described_with(tmp_path, "{gpu_kind: T4, gpu_count: 3}")))).machines
    fewer = read(asked(nodes=str(described_with(tmp_path, f"{{gpu_count: 1, gpus: [{cards}]}}")))).machines

    assert [(one.gpus, one.gpu_model) for one in (*found, *counted, *fewer)] == [
        (2, "NVIDIA A100"),
        (3, "T4"),
        (1, "NVIDIA A100"),
    ]


@pytest.mark.parametrize(
    ("inventory", "said"),
    [
        ("{mig_profiles: {1g.10gb: 7}}", "slices of GPUs"),
        ("{gpus: [{uuid: G1, model: A100}, {uuid: G2, model: T4}]}", r"several models \(A100, T4\)"),
    ],
)
def test_gpus_that_are_not_simulated_are_refused_by_node(tmp_path: Path, inventory: str, said: str) -> None:
    with pytest.raises(Misused, match=f"a has .*{said}"):
        read(asked(nodes=str(described_with(tmp_path, inventory))))


def described_with(folder: Path, inventory: str) -> Path:
    file = folder / "nodes.yaml"
    size = "cpu_threads: 4, memory_mb: 2048, disk_gb: 10"
    file.write_text(f"nodes: [{{name: a, {size}, gpu_inventory: {inventory}}}]")
    return file


def test_equal_nodes_hold_back_what_the_product_holds_back() -> None:
    machines = read(asked(nodes="4", node_shape="8x1024x100+2:T4", sleepy_nodes_percent=50)).machines

    assert [machine.sleepy_pool for machine in machines] == [True, True, False, False]
    assert (machines[0].reserved_cpus, machines[0].gpus, machines[0].gpu_model) == (2, 2, "T4")


def test_a_small_machine_keeps_at_most_half_of_its_memory_for_the_host(tmp_path: Path) -> None:
    described = tmp_path / "nodes.yaml"
    described.write_text(
        "nodes: [{name: a, cpu_threads: 4, memory_mb: 2048, disk_gb: 10}, "
        "{name: b, cpu_threads: 4, memory_mb: 8192, disk_gb: 10, disk_reservation_gb: 0.5}]\n"
    )

    drawn = read(asked(nodes="1", node_shape="4x2048x10")).machines
    small, large = read(asked(nodes=str(described))).machines

    assert [one.reserved_memory_mb for one in (*drawn, small, large)] == [1024, 1024, 2048]
    assert (small.reserved_disk_gb, large.reserved_disk_gb) == (20, 1)


def test_a_trace_has_size_classes_by_gpus_else_by_cpus() -> None:
    assert [size_class(*pair) for pair in ((1, 0), (5, 0), (64, 0), (65, 0), (8, 1), (8, 8))] == [
        *("1-4 CPUs", "5-16 CPUs", "17-64 CPUs", "65 CPUs and more", "1 GPU", "8 GPUs")
    ]


WRONG: Sequence[tuple[str, ...]] = (
    ("--strategies", "load-aware,bestfit"),
    ("--strategies", ","),
    ("--mix", "4x8192"),
    ("--mix", "0x8192x40"),
    ("--mix", "4x8192x40=0"),
    ("--mix", "nowhere.yaml"),
    ("--nodes", "0"),
    ("--nodes", "nowhere.csv"),
    ("--nodes", "nowhere.yaml"),
    ("--node-shape", "big"),
    ("--set", "CPU_OVERCOMMIT_RATIO"),
    ("--set", "CPU_OVERCOMMIT=3"),
    ("--cpu-ratio", "-1"),
    ("--fill-of", "memory"),
    ("--lifetimes", "short"),
    ("--fill", "50", "--fill-of", "gpus"),
    ("--trace", "nowhere.csv", "nowhere.csv"),
)


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_what_is_wrong_is_refused_by_name(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["simulate", "--seeds", "1", *words]) == 2
    told = capsys.readouterr().err
    assert words[-2].lstrip("-") in told or words[1] in told or "nowhere" in told


def test_a_key_of_no_such_name_is_told_which_there_are_and_which_of_them_are_node_local() -> None:
    with pytest.raises(Misused) as refused:
        read(asked(settings={"NOPE": "1"}))

    known, _, node_local = str(refused.value).partition("; and of the node-local ones ")
    assert "NODE_" not in known.replace("NODE_METRICS_MAX_AGE_SECONDS", "")
    assert node_local == "NODE_RAM_RESERVATION_GB, NODE_CPU_RESERVATION_THREADS, NODE_DISK_RESERVATION_GB"


def test_equal_nodes_hold_back_what_is_set_and_others_what_their_file_says(trace: tuple[Path, Path]) -> None:
    held_back = {"NODE_RAM_RESERVATION_GB": "8", "NODE_CPU_RESERVATION_THREADS": "4", "NODE_DISK_RESERVATION_GB": "50"}

    (machine,) = read(asked(nodes="1", settings=held_back)).machines

    assert (machine.reserved_memory_mb, machine.reserved_cpus, machine.reserved_disk_gb) == (8192, 4, 50)
    for given in ({"nodes": str(trace[0])}, {"trace": trace}):
        with pytest.raises(Misused, match=r"NODE_RAM_RESERVATION_GB.*only for equal nodes"):
            read(asked(**given, settings=held_back))


def test_every_fault_of_a_mix_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text('[{"cpus": true, "memory_mb": 512, "weigth": 2}, 7]')

    with pytest.raises(Misused) as refused:
        read_mix(str(path))

    for culprit in ("[0].weigth", "[0].cpus", "[1] is no mapping"):
        assert culprit in str(refused.value)


def test_a_good_run_ends_with_its_table_and_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no pictures")
    words = ("--seeds", "2", "--nodes", "3", "--duration", "20", "--strategies", "load-aware,best-fit")

    code = app.run(["simulate", *words, "--plot", str(tmp_path / "out")])

    assert code == 0
    told = capsys.readouterr().out
    assert "nothing oversold" in told
    assert "best-fit" in told
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"comparison.png", "over-time.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "out").iterdir())


def test_a_run_that_oversold_ends_with_exit_1_and_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fleet.simulation import ledger

    monkeypatch.setattr(ledger.Ledger, "judge", lambda *_, **__: None)
    words = ("--seeds", "1", "--nodes", "1", "--node-shape", "4x4096x100", "--mix", "1x1024x10", "--rate", "50")

    code = app.run(["simulate", *words, "--duration", "2", "--staleness", "9", "--strategies", "load-aware"])

    assert code == 1
    assert "load-aware, seed 0" in capsys.readouterr().out
