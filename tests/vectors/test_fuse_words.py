"""Numbered vectors of the words of a request: labels, architectures, kinds of GPU, MIG profiles, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from fleet.cli.request_file import size_mib
from fleet.model.arch import effective_arch, parse_arch
from fleet.model.errors import InvalidRequest
from fleet.model.gpu import (
    device_kind_matches,
    mig_kind_matches,
    parse_profile,
    scalar_kind_matches,
    supports_mig,
)
from fleet.model.labels import is_label, parse_labels
from fleet.model.request import PlacementRequest, parse_placement_request

pytestmark = pytest.mark.vectors

A100: Final = "NVIDIA A100-SXM4-40GB"
H100: Final = "NVIDIA H100-SXM5-80GB"


def request(**asked: Any) -> PlacementRequest:
    return parse_placement_request({"cpus": 1, "memory_mb": 1, **asked})


@pytest.mark.parametrize(("asked", "matches"), [("", True), ("a100", True), ("h100", False), ("A100", False)])
def test_fuse_v11_a_count_of_cards_has_one_kind_compared_letter_by_letter(asked: str, matches: bool) -> None:
    assert scalar_kind_matches(asked, "a100") is matches


def test_fuse_v11_a_node_without_a_kind_serves_no_named_one() -> None:
    assert not scalar_kind_matches("a100", "")


@pytest.mark.parametrize(
    ("asked", "model", "matches"),
    [("a100", A100, True), ("h100", A100, False), ("a100", H100, False), ("H100", H100, True), ("v100", H100, False)],
)
def test_fuse_v17_a_card_is_matched_by_a_part_of_its_model(asked: str, model: str, matches: bool) -> None:
    assert device_kind_matches(asked, model, "") is matches


def test_fuse_v21_the_kind_of_a_node_never_speaks_for_a_card_that_has_a_model() -> None:
    assert not device_kind_matches("l40s", A100, "l40s")


@pytest.mark.parametrize(
    ("asked", "node_kind", "matches"),
    [("a100", "A100", True), ("h100", "a100", False), ("a100", "nvidia a100", False), ("a100", "", True)],
)
def test_fuse_v22_v23_the_kind_of_a_node_stands_in_for_a_card_without_a_model(
    asked: str, node_kind: str, matches: bool
) -> None:
    assert device_kind_matches(asked, "", node_kind) is matches


@pytest.mark.parametrize(("asked", "matches"), [("h100", False), ("", True), ("a100", True), ("A10", True)])
def test_fuse_v25_a_mig_instance_is_matched_by_its_own_kind(asked: str, matches: bool) -> None:
    assert mig_kind_matches(asked, "a100", None, None, "") is matches


def test_fuse_v25_without_a_kind_its_card_speaks_and_then_the_node() -> None:
    assert mig_kind_matches("a100", "", A100, True, "h100")
    assert not mig_kind_matches("h100", "", A100, True, "h100")
    assert mig_kind_matches("h100", "", None, None, "H100")
    assert mig_kind_matches("h100", "", None, None, "")
    assert not mig_kind_matches("h100", "", None, None, "a100")


def test_fuse_v24_a_card_that_is_known_and_cannot_be_cut_serves_no_instance() -> None:
    assert not mig_kind_matches("", "a100", A100, False, "")
    assert not mig_kind_matches("a100", "a100", A100, False, "")


def test_an_instance_whose_card_is_known_to_be_another_is_not_of_the_kind_that_it_says() -> None:
    assert mig_kind_matches("a100", "a100", A100, True, "h100")
    assert mig_kind_matches("a100", "a100", "", True, "h100")
    assert not mig_kind_matches("h100", "h100", A100, True, "h100")


def test_fuse_v31_a_node_without_an_architecture_is_amd64() -> None:
    assert (effective_arch(""), effective_arch("arm64")) == ("amd64", "arm64")
    assert request().arch == ""


def test_fuse_v32_architectures_and_profiles_are_stored_in_one_spelling() -> None:
    assert (parse_arch("aarch64"), parse_arch("X86_64"), parse_profile("1G.10GB")) == ("arm64", "amd64", "1g.10gb")
    with pytest.raises(ValueError, match="'sparc'"):
        parse_arch("sparc")
    with pytest.raises(InvalidRequest, match="bad value"):
        parse_labels({"disk": "bad value"})


V33: Final[tuple[tuple[Mapping[str, Any], str], ...]] = (
    ({"gpus": 1, "gpu_profile": "half"}, "gpu_profile"),
    ({"gpus": 0, "gpu_profile": "1g.10gb"}, "gpu_profile"),
    ({"gpus": 1, "gpu_kind": "v100", "gpu_profile": "1g.10gb"}, "gpu_profile"),
    ({"placement": {"labels": {"bad key": "x"}}}, "placement.labels[bad key]"),
)


@pytest.mark.parametrize(("asked", "field"), V33)
def test_fuse_v33_a_create_that_breaks_a_rule_is_refused_by_field(asked: Mapping[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request(**asked)

    assert [item["field"] for item in refused.value.extra["errors"]] == [field]


def test_fuse_v33_a_profile_is_answered_in_lower_case() -> None:
    assert request(gpus=1, gpu_profile="1G.10GB").gpu_profile == "1g.10gb"


@pytest.mark.parametrize("text", ["a", "A1", "a.b_c-d", "x" * 63])
def test_fuse_section_7_labels_that_are_accepted(text: str) -> None:
    assert is_label(text)
    assert parse_labels({text: text}) == {text: text}


@pytest.mark.parametrize(
    "text", ["", " ", "-lead", "trail-", "has space", "has/slash", "has=eq", "x" * 64, "a\n", "ä", "٣"]
)
def test_fuse_section_7_labels_that_are_refused(text: str) -> None:
    assert not is_label(text)
    for labels in ({text: "v"}, {"k": text}):
        with pytest.raises(InvalidRequest):
            parse_labels(labels)


@pytest.mark.parametrize(
    ("kind", "can"),
    [
        *(("", True), ("a100", True), ("h100", True), ("unknown", True)),
        *(("v100", False), ("NVIDIA V100-SXM2", False), ("t4", False), ("rtx4090", False), ("l40s", False)),
    ],
)
def test_fuse_section_7_kinds_that_can_be_cut(kind: str, can: bool) -> None:
    assert supports_mig(kind) is can


@pytest.mark.parametrize(("text", "mib"), [("2gb", 2048), ("1.5GiB", 1536), ("2 GB", 2048), ("2TB", 2_097_152)])
def test_fuse_section_7_sizes_that_are_accepted(text: str, mib: int) -> None:
    assert size_mib(text) == mib


@pytest.mark.parametrize("text", ["2048", "GB", "2PB", "2 gigabytes"])
def test_fuse_section_7_sizes_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        size_mib(text)
