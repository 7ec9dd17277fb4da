"""A node's GPUs from driver and operator: whole inventories or none, in samples of real and simulated nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from fleet.hypervisor import simulated_hypervisor
from fleet.measure import (
    GpuReading,
    MachineGpus,
    Paths,
    Reservations,
    Sample,
    SimulatedFleet,
    ThisMachine,
    measure,
    nodes_from,
)
from fleet.measure.gpus import READ_SECONDS, contradictions, shortened
from fleet.model.config_value import ConfigError
from fleet.model.gpu_report import ReportedUnit


def a_file(folder: Path, text: str, name: str = "gpus.yml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


class Driver:
    """What a node's driver tells, one answer after the other; the last one stays."""

    def __init__(self, *answers: GpuReading | Exception | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self) -> GpuReading | None:
        self.asked += 1
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def cards(*names: str) -> GpuReading:
    return GpuReading(gpus=tuple(ReportedUnit(uuid=name) for name in names))


def test_a_node_asks_its_driver_at_most_once_in_a_while() -> None:
    driver, clock = Driver(cards("GPU-1"), cards("GPU-2")), Clock()
    node = MachineGpus(driver, monotonic=clock)

    assert [node.read(), node.units(), driver.asked] == [cards("GPU-1"), frozenset({("GPU-1", False)}), 1]
    clock.now += READ_SECONDS
    assert [node.units(), node.read(), driver.asked] == [frozenset({("GPU-2", False)}), cards("GPU-2"), 2]


def test_a_reading_that_fails_is_no_change_and_says_why() -> None:
    driver, clock = Driver(cards("GPU-1"), TimeoutError("no answer within 20 s"), cards("GPU-1")), Clock()
    node = MachineGpus(driver, monotonic=clock)
    before = node.units()
    clock.now += READ_SECONDS

    with pytest.raises(TimeoutError):
        node.read()
    assert node.units() == before
    clock.now += READ_SECONDS
    assert node.read() == cards("GPU-1")


def test_a_node_without_a_driver_knows_nothing_and_that_is_no_failure() -> None:
    node = MachineGpus(Driver(None), monotonic=Clock())

    assert (node.read(), node.units()) == (None, None)


def test_a_driver_that_was_there_and_is_gone_is_a_failure() -> None:
    """Else its cards would stay on offer for ever without a word."""
    clock = Clock()
    node = MachineGpus(Driver(cards("GPU-1", "GPU-2"), None), monotonic=clock)
    node.read()
    clock.now += READ_SECONDS

    with pytest.raises(LookupError, match="2 cards"):
        node.read()


def test_a_card_that_turns_into_slices_is_a_change() -> None:
    cut = GpuReading(gpus=(ReportedUnit(uuid="GPU-1", mig_capable=True, mig_mode=True),))
    clock = Clock()
    node = MachineGpus(Driver(cards("GPU-1"), cut), monotonic=clock)
    before = node.units()
    clock.now += READ_SECONDS

    assert node.units() != before


def test_what_is_declared_holds_and_each_difference_is_told(tmp_path: Path) -> None:
    file = a_file(tmp_path, "gpus:\n- {uuid: GPU-1, model: NVIDIA A100, memory_mb: 40960}\n- {uuid: GPU-2}\n")
    other = ReportedUnit(uuid="GPU-1", model="NVIDIA H100", mig_capable=True, mig_mode=True)
    node = MachineGpus(Driver(GpuReading(gpus=(other, ReportedUnit(uuid="GPU-3")))), file=file, sysfs=tmp_path)
    reading = node.read()

    assert reading is not None
    assert [one.uuid for one in reading.gpus] == ["GPU-1", "GPU-2"]
    assert reading.contradictions == (
        "card GPU-3 is there and not declared",
        "card GPU-1: model is declared as 'NVIDIA A100', the driver tells 'NVIDIA H100'",
        "card GPU-1: mig_capable is declared as False, the driver tells True",
        "card GPU-1: mig_mode is declared as False, the driver tells True",
        "card GPU-2 is declared and the driver does not tell it",
    )


def test_a_declared_card_that_belongs_to_an_instance_s_driver_is_no_contradiction(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (tmp_path / "drivers/vfio-pci").mkdir(parents=True)
    (device / "driver").symlink_to(tmp_path / "drivers/vfio-pci")
    declared = GpuReading(gpus=(ReportedUnit(uuid="GPU-1", details={"pci_bus_id": "0000:3B:00.0"}),))

    assert contradictions(declared, GpuReading(), tmp_path) == ()


def test_a_declared_inventory_needs_no_driver_and_outlives_a_failing_one(tmp_path: Path) -> None:
    file, clock = a_file(tmp_path, "gpus: [{uuid: GPU-1}]"), Clock()
    node = MachineGpus(Driver(None, OSError("fault 999")), file=file, monotonic=clock)

    assert node.read() == cards("GPU-1")
    clock.now += READ_SECONDS
    reading = node.read()
    assert reading is not None
    assert ([one.uuid for one in reading.gpus], reading.left_out) == (
        ["GPU-1"],
        ("not compared with the driver: fault 999",),
    )


def test_a_file_that_changes_is_read_again_and_one_that_is_wrong_tells_nothing(tmp_path: Path) -> None:
    file, clock = a_file(tmp_path, "gpus: [{uuid: GPU-1}]"), Clock()
    node = MachineGpus(Driver(None), file=file, monotonic=clock)
    assert node.read() == cards("GPU-1")
    a_file(tmp_path, "gpus: [{uuid: GPU-1}, {uuid: GPU-22}]")
    clock.now += READ_SECONDS
    assert node.read() == cards("GPU-1", "GPU-22")
    a_file(tmp_path, "gpus: {}")
    clock.now += READ_SECONDS
    with pytest.raises(ConfigError):
        node.read()
    file.unlink()
    clock.now += READ_SECONDS
    with pytest.raises(FileNotFoundError):
        node.read()


def test_a_long_list_of_faults_is_one_line_with_an_end() -> None:
    assert shortened([str(number) for number in range(20)]) == "0; 1; 2; 3; 4; 5; 6; 7; and 12 more"


def sampled(folder: Path, gpus: Callable[[], GpuReading | None] | None, *, is_hypervisor: bool = True) -> Sample:
    return measure(
        ThisMachine(),
        simulated_hypervisor(folder, "n1"),
        paths=Paths(instances=str(folder), blobs=str(folder)),
        reservations=Reservations(ram_gb=Decimal(0), cpu_threads=0, disk_gb=Decimal(0)),
        is_hypervisor=is_hypervisor,
        gpus=gpus,
    )


def test_a_sample_holds_the_inventory_and_names_what_was_left_out(tmp_path: Path) -> None:
    reading = replace(cards("GPU-1"), left_out=("card 1: lost",), contradictions=("one", "two"))
    sample = sampled(tmp_path, lambda: reading)

    assert sample.gpus == reading
    assert sample.failed["gpu_units"] == "card 1: lost"
    assert sample.metrics["gpu_contradictions"] == 2
    assert "gpus" not in sample.failed


def test_a_driver_that_fails_is_named_and_the_sample_is_published_without_gpus(tmp_path: Path) -> None:
    sample = sampled(tmp_path, Driver(TimeoutError("the driver gave no answer within 20 s")))

    assert sample.gpus is None
    assert sample.failed["gpus"] == "TimeoutError: the driver gave no answer within 20 s"
    assert sample.metrics["cpu_total_instance_vcpus"] == 0


def test_a_node_without_driver_or_instances_says_nothing_of_gpus(tmp_path: Path) -> None:
    idle = Driver(cards("GPU-1"))

    assert sampled(tmp_path, lambda: None).gpus is None
    assert sampled(tmp_path, None).gpus is None
    assert sampled(tmp_path, idle, is_hypervisor=False).gpus is None
    assert idle.asked == 0


SMALL: dict[str, Any] = {"name": "s1", "cpu_threads": 16, "memory_mb": 65536, "disk_gb": 1000}


def test_a_simulated_node_declares_gpus_and_publishes_them(tmp_path: Path) -> None:
    inventory = {"gpus": [{"uuid": "GPU-1", "model": "NVIDIA A100"}], "gpu_kind": "A100"}
    described = nodes_from([SMALL | {"gpu_inventory": inventory}, SMALL | {"name": "s2"}])
    fleet = SimulatedFleet(described, lambda node: simulated_hypervisor(tmp_path, node.name))

    assert fleet.sample("s1").gpus == GpuReading(gpus=(ReportedUnit(uuid="GPU-1", model="NVIDIA A100"),))
    assert fleet.sample("s2").gpus is None
    assert described[0].registration()["gpu_kind"] == "A100"


def test_gpus_of_simulated_nodes_are_read_as_strictly() -> None:
    with pytest.raises(ConfigError) as caught:
        nodes_from([SMALL | {"gpu_inventory": {"gpus": [{"uuid": ""}], "gpu_count": "2"}}], where="f")
    assert [str(problem).split(": ")[:2] for problem in caught.value.problems] == [
        ["f", "nodes[0].gpu_inventory.gpus[0]"],
        ["f", "nodes[0].gpu_inventory.gpu_count"],
    ]
    one = {"gpus": [{"uuid": "GPU-1"}]}
    with pytest.raises(ConfigError, match="GPU-1"):
        nodes_from([SMALL | {"gpu_inventory": one}, SMALL | {"name": "s2", "gpu_inventory": one}])
