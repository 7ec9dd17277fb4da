"""What `fleet capacity` tells people: how many more fit, and what binds, in words."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.cli.commands import placement
from fleet.cli.output import Form, Output
from fleet.placement.room import DIMENSIONS

NODE = {"node": "n1", "fits": 3, "binds": "cpus", "reason": None}


def told(capsys: pytest.CaptureFixture[str], *, fits: int | None = None, **figures: Any) -> list[str]:
    charged = {"payer": "claim", "fits": fits, "binds": None if fits is None else "memory_mb"}
    found = {"fits": 3, "on_nodes": 3, "nodes": 1, "nodes_with_room": 1, "items": [NODE], "next_cursor": None}
    placement._show_capacity(Output(Form.HUMAN), "1x512x1", {**found, "charged_to": charged, **figures})
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_what_binds_is_told_in_words(dimension: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"cpus": "vCPUs bind", "memory_mb": "memory binds", "disk_gb": "disk binds"}
    expected |= {"instances": "slots bind", "gpus": "GPUs bind"}

    assert told(capsys, binds=dimension)[1] == f"{expected[dimension]} on most nodes"


def test_a_stage_keeps_nodes_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, binds="scheduling_state", fits=None)[1] == "scheduling_state keeps most nodes out"


def test_a_payer_that_bears_fewer_than_the_nodes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, binds="claim memory_mb", fits=2)

    assert lines[1] == "3 on the nodes, but the namespace's claim bears 2: memory binds"
