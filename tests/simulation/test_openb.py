"""The openb trace with GPU types, filled to 130 % of its GPUs, where its files are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.cli.simulate_inputs import Asked, read
from fleet.placement.stage import all_strategies
from fleet.simulation.run import simulate

OPENB = ("openb_node_list_all_node.csv", "openb_pod_list_gpuspec33.csv")

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", sorted(all_strategies()))
def test_gpus_are_filled_and_never_bound_twice(strategy: str) -> None:
    folder = Path(os.environ.get("FLEET_TRACES", "traces"))
    if not all((folder / name).exists() for name in OPENB):
        pytest.skip(
            f"the openb trace is not in {folder}; FLEET_TRACES names the folder that holds {' and '.join(OPENB)}"
        )
    ratios = {"CPU_OVERCOMMIT_RATIO": "1.0"}
    files = (folder / OPENB[0], folder / OPENB[1])
    inputs = read(Asked(node_shape="", mix="", trace=files, fill=130, fill_of="gpus", shares="card", settings=ratios))

    result = simulate(inputs.scenario(0), strategy)

    figures = result.figures
    assert result.conserved, figures
    assert figures["oversold"] == 0
    assert figures["gpus_total"] == 6212
    assert figures["refused"] > 0
    assert figures["gpus_unallocated_at_end"] < 0.2 * 6212
    assert figures["gpus_unallocated_at_first_refusal"] is not None
