"""The Fuse document's vectors of GPUs, through a decision: four forms of matching, two rules for kinds.

And each of them at the ledger's door: what placement says fits is what an admission would get, unit by unit.
"""

from __future__ import annotations

from typing import Any

import pytest

from fleet.model.gpu_inventory import GpuAsk, choose
from fleet.placement.gpus import inventory_of
from tests.unit.placement.asking import decision_on, reason_on
from tests.unit.placement.hosts import a_host

pytestmark = pytest.mark.vectors

SMALL: dict[str, Any] = {"cpus": 1, "memory_mb": 256, "disk_gb": 10}
A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100-SXM5-80GB"
ONE_G, TWO_G = "1g.10gb", "2g.20gb"


def card(uuid: str, model: str = A100, **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "model": model, **more}


def fits(host: dict[str, Any], gpus: int, kind: str = "", profile: str = "") -> bool:
    """Whether the host takes the request; where it does not, the GPUs must be why, and no unit may be chosen."""
    decision = decision_on(a_host("h1", backend="qemu", **host), gpus=gpus, gpu_kind=kind, gpu_profile=profile, **SMALL)
    taken = decision.ranked == ("h1",)
    if gpus:
        chosen = choose(inventory_of(host), GpuAsk(gpus, kind, profile))
        assert (chosen is not None) == taken, "placement and admission disagree"
        assert not chosen or len(set(chosen)) == gpus
    if not taken:
        assert reason_on(decision, "h1")[0] == "gpu"
    return taken


SCALAR = {"gpu_count": 2, "gpu_kind": "a100"}


@pytest.mark.parametrize(
    ("gpus", "kind", "fit"),
    [(1, "", True), (2, "", True), (1, "a100", True), (1, "h100", False), (0, "h100", True), (4, "", False)],
)
def test_fuse_v11_a_counted_host_serves_its_count_and_its_kind(gpus: int, kind: str, fit: bool) -> None:
    assert fits(SCALAR, gpus, kind) is fit


def test_fuse_v12_what_is_allocated_is_not_free() -> None:
    assert not fits({**SCALAR, "gpu_count_used": 2}, 1)


def test_fuse_v15_the_kind_chooses_the_host() -> None:
    hosts = [a_host(f"{kind}-1", backend="qemu", gpu_count=2, gpu_kind=kind) for kind in ("h100", "a100")]

    assert decision_on(*hosts, gpus=1, gpu_kind="a100", **SMALL).ranked == ("a100-1",)


@pytest.mark.parametrize(("gpus", "fit"), [(2, False), (1, True)])
def test_fuse_v16_a_bound_card_is_not_free(gpus: int, fit: bool) -> None:
    assert fits({"gpus": [card("gpu-a", bound_to="i1"), card("gpu-b")]}, gpus) is fit


@pytest.mark.parametrize(
    ("gpus", "kind", "bound", "fit"),
    [
        *((1, "a100", None, True), (2, "a100", None, False), (1, "h100", None, True)),
        *((1, "v100", None, False), (1, "a100", "i1", False)),
    ],
)
def test_fuse_v17_each_card_is_matched_by_its_own_model(
    gpus: int,
    kind: str,
    bound: str | None,
    fit: bool,
) -> None:
    assert fits({"gpus": [card("gpu-a", bound_to=bound), card("gpu-h", H100)]}, gpus, kind) is fit


@pytest.mark.parametrize(
    ("gpus", "profile", "used", "fit"),
    [(2, ONE_G, 0, True), (1, ONE_G, 4, False), (1, TWO_G, 0, False), (1, "", 0, False)],
)
def test_fuse_v18_counted_slices_are_a_pool_of_their_own(
    gpus: int,
    profile: str,
    used: int,
    fit: bool,
) -> None:
    host = {"gpu_kind": "a100", "mig_profiles": {ONE_G: 4}, "mig_profiles_used": {ONE_G: used}}
    assert fits(host, gpus, "", profile) is fit


@pytest.mark.parametrize(
    ("gpus", "kind", "fit"), [(1, "a100", True), (1, "h100", False), (1, "", True), (5, "a100", False)]
)
def test_fuse_v19_counted_slices_need_a_capable_card_of_the_kind(gpus: int, kind: str, fit: bool) -> None:
    host = {"mig_profiles": {ONE_G: 4}, "gpus": [card("gpu-a", mig_capable=True)]}
    assert fits(host, gpus, kind, ONE_G) is fit


@pytest.mark.parametrize(("kind", "profile", "fit"), [("l40s", ONE_G, False), ("", ONE_G, False), ("l40s", "", True)])
def test_fuse_v20_a_card_without_mig_serves_whole_only(kind: str, profile: str, fit: bool) -> None:
    host = {"gpu_kind": "l40s", "mig_profiles": {ONE_G: 4}, "gpus": [card("gpu-l", "NVIDIA L40S")]}
    if kind and profile:
        # No request can ask for slices of a kind that has none; a host that advertises them serves none either.
        assert choose(inventory_of(host), GpuAsk(1, kind, profile)) is None
    else:
        assert fits(host, 1, kind, profile) is fit


@pytest.mark.parametrize(("kind", "fit"), [("a100", True), ("l40s", False)])
def test_fuse_v21_both_facts_must_hold_of_one_card(kind: str, fit: bool) -> None:
    cards = [card("gpu-a", mig_capable=True), card("gpu-l", "NVIDIA L40S")]
    host = {"gpu_kind": "l40s", "mig_profiles": {ONE_G: 4}, "gpus": cards}
    assert (choose(inventory_of(host), GpuAsk(1, kind, ONE_G)) is not None) is fit
    if fit:
        assert fits(host, 1, kind, ONE_G)


@pytest.mark.parametrize(
    ("kind", "profile", "fit"), [("a100", ONE_G, True), ("h100", ONE_G, False), ("a100", "", True)]
)
def test_fuse_v22_the_hosts_kind_stands_in_for_a_card_without_a_model(
    kind: str,
    profile: str,
    fit: bool,
) -> None:
    host = {"gpu_kind": "a100", "mig_profiles": {ONE_G: 4}, "gpus": [card("gpu-x", "", mig_capable=True)]}
    assert fits(host, 1, kind, profile) is fit


@pytest.mark.parametrize(
    ("host_kind", "kind", "fit"),
    [("a100", "a100", True), ("a100", "", True), ("a100", "h100", False), ("", "a100", True)],
)
def test_fuse_v23_without_cards_the_hosts_kind_decides_over_slices(
    host_kind: str,
    kind: str,
    fit: bool,
) -> None:
    assert fits({"gpu_kind": host_kind, "mig_profiles": {ONE_G: 4}}, 1, kind, ONE_G) is fit


def mig(uuid: str, profile: str = ONE_G, kind: str = "a100", **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "profile": profile, "kind": kind, **more}


@pytest.mark.parametrize(("gpus", "profile", "fit"), [(2, ONE_G, False), (1, ONE_G, True), (1, TWO_G, True)])
def test_fuse_v24_instances_are_counted_by_profile_and_binding(gpus: int, profile: str, fit: bool) -> None:
    host = {"mig_instances": [mig("m1", bound_to="i1"), mig("m2"), mig("m3", TWO_G)]}
    assert fits(host, gpus, "a100", profile) is fit


@pytest.mark.parametrize(("kind", "fit"), [("h100", False), ("", True)])
def test_fuse_v25_an_instance_has_its_own_kind(kind: str, fit: bool) -> None:
    assert fits({"mig_instances": [mig("m1")]}, 1, kind, ONE_G) is fit


def test_fuse_v26_more_instances_than_are_free_are_no_capacity() -> None:
    decision = decision_on(
        a_host("h1", backend="qemu", mig_instances=[mig("m1"), mig("m2")]),
        gpus=3,
        gpu_profile=ONE_G,
        **SMALL,
    )
    assert (decision.code, decision.stage) == ("out_of_capacity", "gpu")
    assert not fits({"mig_instances": [mig("m1"), mig("m2")]}, 3, "", ONE_G)
