"""The flags that describe an instance say of themselves what the service would refuse."""

from __future__ import annotations

import inspect
from typing import Any, Final, get_args

import pytest

from fleet.cli.commands.asking import LATER, Asked, _document
from fleet.cli.outcome import Misused
from fleet.model.errors import NotSupported
from fleet.model.request import InstanceRequest
from fleet.services.supported import refuse_unsupported

ASKED: Final[dict[str, dict[str, Any]]] = {
    "image": {"image": "i"},
    "node": {"placement": {"node": "n"}},
    "label": {"placement": {"labels": {"a": "b"}}},
    "tag": {"tags": {"a": ""}},
    "region": {"region": "r"},
    "arch": {"arch": "amd64"},
    "gpus": {"gpus": 1},
    "gpu_kind": {"gpu_kind": "k"},
    "gpu_profile": {"gpus": 1, "gpu_profile": "1g.10gb"},
    "affinity": {"affinity": {"prefer_with_tag": ["a"]}},
    "rules": {"placement_rules": [{"resource": "metal_server", "operator": "has", "tags": {"a": "b"}}]},
    "sleep_after": {"sleep_after_idle_seconds": 60},
    "wait_for_capacity": {"wait_for_capacity_seconds": 60},
}


def is_refused(more: dict[str, Any]) -> bool:
    try:
        refuse_unsupported(InstanceRequest.model_validate({"cpus": 1, "memory_mb": 1, **more}))
    except NotSupported:
        return True
    return False


@pytest.mark.parametrize("flag", ASKED)
def test_the_help_of_a_flag_says_that_it_is_not_supported_yet_when_it_is_refused(flag: str) -> None:
    hints = inspect.get_annotations(Asked, eval_str=True)
    option = next(item for item in get_args(hints[flag]) if hasattr(item, "help"))

    assert option.help.endswith(LATER) == is_refused(ASKED[flag])


@pytest.mark.parametrize("text", ['[{"tags": {"a": "b"}, "tags": {"c": "d"}}]', "[" * 100_000, '{"a": NaN}', "{"])
def test_rules_that_nobody_could_mean_are_misuse_of_the_flag(text: str) -> None:
    with pytest.raises(Misused, match="--rules: it is not JSON"):
        _document(text, "--rules")
