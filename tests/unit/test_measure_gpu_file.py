"""A declared inventory of GPUs: read strictly, with every fault told by file and path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.commands.node import _of_this_machine
from fleet.config import load_settings
from fleet.measure import GpuReading, declared_gpus, read_gpu_file
from fleet.model.config_value import ConfigError
from fleet.model.gpu_report import PROFILE_UNITS_MAX, PROFILES_MAX, UNITS_MAX, ReportedUnit, Unit
from fleet.services.nodes import NodeFields

DECLARED = """\
gpu_kind: A100
gpu_count: 2
mig_profiles: {1g.10GB: 7}
gpus:
  - {uuid: GPU-1, model: NVIDIA A100-SXM4-80GB, pci_bus_id: "0000:3b:00.0", memory_mb: 81920, driver_version: "570.86",
     cuda_version: "12.8", compute_cap: "8.0", mig_capable: true, mig_mode: true, iommu_group: 42}
  - {uuid: GPU-2, mig_capable: false, model: null}
mig_instances:
  - {uuid: MIG-1, profile: 1G.10gb, kind: "", parent_gpu_uuid: GPU-1}
"""


def a_file(folder: Path, text: str, name: str = "gpus.yml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_declared_inventory_is_read_whole(tmp_path: Path) -> None:
    declared = read_gpu_file(a_file(tmp_path, DECLARED))

    assert declared.registration() == {"gpu_kind": "A100", "gpu_count": 2, "mig_profiles": {"1g.10gb": 7}}
    assert declared.reading == GpuReading(
        gpus=(
            ReportedUnit(
                uuid="GPU-1",
                model="NVIDIA A100-SXM4-80GB",
                memory_mb=81920,
                mig_capable=True,
                mig_mode=True,
                details={
                    "pci_bus_id": "0000:3b:00.0",
                    "driver_version": "570.86",
                    "cuda_version": "12.8",
                    "compute_cap": "8.0",
                    "iommu_group": "42",
                },
            ),
            ReportedUnit(uuid="GPU-2"),
        ),
        mig_instances=(ReportedUnit(uuid="MIG-1", unit=Unit.SLICE, profile="1g.10gb", parent_gpu_uuid="GPU-1"),),
    )


def test_json_says_the_same_as_yaml(tmp_path: Path) -> None:
    form = {"gpus": [{"uuid": "GPU-1", "mig_capable": True}], "mig_instances": []}

    assert read_gpu_file(a_file(tmp_path, json.dumps(form), "gpus.json")) == declared_gpus(form)


@pytest.mark.parametrize("text", ["", "gpu_kind: T4", "gpu_count: 0\ngpus:\n"])
def test_a_file_that_lists_no_units_leaves_them_to_the_driver(tmp_path: Path, text: str) -> None:
    assert read_gpu_file(a_file(tmp_path, text)).reading is None


def test_a_file_that_lists_none_says_that_there_are_none(tmp_path: Path) -> None:
    assert read_gpu_file(a_file(tmp_path, "gpus: []")).reading == GpuReading()


BAD_ITEMS = """\
gpu_knid: A100
gpu_count: -1
mig_profiles: {9g.5gb: 1, 1g.5gb: 0, 1G.5gb: true}
gpus:
  - {model: A100}
  - {uuid: GPU-1, memory_mb: 1.5, compute_cap: 8.0, mig_mode: "yes", modell: x}
  - GPU-2
  - {uuid: "GPU 3"}
  - {uuid: GPU-4, mig_mode: true}
  - {uuid: GPU-5}
  - {uuid: GPU-5}
mig_instances:
  - {uuid: MIG-1}
  - {uuid: MIG-2, profile: huge}
  - {uuid: MIG-3, profile: 1g.5gb, parent_gpu_uuid: GPU-9}
  - {uuid: MIG-4, profile: 1g.5gb, parent_gpu_uuid: GPU-5}
  - {uuid: GPU-4, profile: 1g.5gb}
"""


def test_every_fault_of_a_file_is_told_together_with_file_and_path(tmp_path: Path) -> None:
    file = a_file(tmp_path, BAD_ITEMS)
    with pytest.raises(ConfigError) as caught:
        read_gpu_file(file)

    assert sorted(problem.key for problem in caught.value.problems) == sorted(
        [
            "gpu_knid",
            "gpu_count",
            "mig_profiles.9g.5gb",
            "mig_profiles.1g.5gb",
            "mig_profiles.1G.5gb",
            "gpus[0].uuid",
            "gpus[1].memory_mb",
            "gpus[1].compute_cap",
            "gpus[1].mig_mode",
            "gpus[1].modell",
            "gpus[2]",
            "gpus[3]",
            "gpus[4].mig_capable",
            "gpus[6].uuid",
            "mig_instances[0].profile",
            "mig_instances[1]",
            "mig_instances[2].parent_gpu_uuid",
            "gpus[6].mig_mode",
            "mig_instances[4].uuid",
        ]
    )
    assert {problem.where for problem in caught.value.problems} == {str(file)}
    assert "did you mean gpu_kind?" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[", "- 1", "7", "gpus: {}", "gpus: [{uuid: a}]\ngpus: []", "gpus: [{uuid: a, uuid: b}]", "[" * 5000]
)
def test_what_is_no_inventory_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read_gpu_file(a_file(tmp_path, text))


@pytest.mark.parametrize("text", ['{"gpus": [], "gpus": []}', "{", "NaN"])
def test_what_is_no_inventory_in_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read_gpu_file(a_file(tmp_path, text, "gpus.json"))


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="larger than"):
        read_gpu_file(a_file(tmp_path, "#" * (1024**2 + 1)))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_gpu_file(tmp_path / "nothing")


def test_a_first_registration_takes_kind_and_counts_from_the_file_and_the_kind_rather_from_the_configuration(
    tmp_path: Path,
) -> None:
    file = a_file(tmp_path, DECLARED)
    config = a_file(tmp_path, f"NODE_NAME=n1\nGPU_INVENTORY_FILE={file}\n", "config")
    body = _of_this_machine(load_settings(config, {}))
    named = _of_this_machine(load_settings(config, {"FLEET_NODE_GPU_KIND": "a100"}))

    assert (body["gpu_kind"], body["gpu_count"], body["mig_profiles"]) == ("A100", 2, {"1g.10gb": 7})
    assert named["gpu_kind"] == "a100"
    assert "gpu_count" not in _of_this_machine(load_settings(a_file(tmp_path, "NODE_NAME=n1\n", "plain"), {}))


@pytest.mark.parametrize(
    "text",
    [
        "gpu_kind: Ångström",
        f"gpu_kind: {'a' * 64}",
        f"gpu_count: {UNITS_MAX + 1}",
        f"mig_profiles: {{1g.5gb: {PROFILE_UNITS_MAX + 1}}}",
        "mig_profiles: {" + ", ".join(f"1g.{at}gb: 1" for at in range(PROFILES_MAX + 1)) + "}",
    ],
)
def test_what_no_registration_takes_is_refused_in_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read_gpu_file(a_file(tmp_path, text))


def test_the_largest_declaration_is_taken_by_a_registration(tmp_path: Path) -> None:
    profiles = ", ".join(f"1g.{at}gb: {PROFILE_UNITS_MAX}" for at in range(PROFILES_MAX))
    text = f"gpu_kind: {'a' * 63}\ngpu_count: {UNITS_MAX}\nmig_profiles: {{{profiles}}}"

    declared = read_gpu_file(a_file(tmp_path, text)).registration()

    assert NodeFields.model_validate(declared).given() == declared
