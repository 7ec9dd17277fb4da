"""Vectors that the product's decisions overrule: each test proves the decision that stands in the vector's place."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.model import capacity
from tests.unit.placement.asking import decision_on
from tests.unit.placement.hosts import a_host

pytestmark = pytest.mark.vectors

GIB = 2**30
PRODUCT = Path(fleet.__file__).parent


def disk_limit(total: int, reservation: int, ratio: str, foreign: int = 0) -> int:
    return capacity.limit_disk_gb(total, Decimal(reservation), foreign, Decimal(ratio))


def test_shakenfist_v4_decided_that_the_disk_limit_follows_the_disk_and_not_what_is_free() -> None:
    """100 GB used and 748 free: the same 828 as the document, but as 848 in all less what is kept free."""
    free = 803_469_852_672 // GIB

    assert disk_limit(100 + free, 20, "1.0") == 828
    # What others than instances occupy is taken off, once.
    assert disk_limit(100 + free, 20, "1.0", foreign=40) == 788


@pytest.mark.parametrize(
    ("reservation", "ratio", "limit"), [(2, "4.0", 432), (20, "1", 90), (20, "5", 450), (20, "100", 9000)]
)
def test_shakenfist_v5_decided_that_the_whole_disk_is_overcommitted_not_the_free_part(
    reservation: int, ratio: str, limit: int
) -> None:
    """A limit that moved with every write to the disk would drift away from the ledger."""
    assert disk_limit(110, reservation, ratio) == limit


def test_atlas_v7_decided_that_a_pool_without_a_fresh_sample_is_not_full() -> None:
    decision = decision_on(a_host("h1", sample_age_seconds=121))

    assert (decision.code, decision.stage, decision.transient) == ("no_schedulable_nodes", "node_state", False)


def source_of_placing() -> str:
    """Everything but the migrations, which take turns by a name: they have no row yet to lock."""
    modules = [path for path in sorted(PRODUCT.rglob("*.py")) if path.name != "migrate.py"]
    return "\n".join(path.read_text() for path in modules)


def test_atlas_v21_decided_that_rows_are_locked_and_no_names() -> None:
    """A named lock belongs to a session and survives its transaction: a pooled connection would carry it along."""
    assert re.findall(r"GET_LOCK|RELEASE_LOCK|IS_FREE_LOCK", source_of_placing(), re.IGNORECASE) == []


def test_atlas_v23_decided_that_nobody_is_remembered_as_full() -> None:
    """The document keeps a mark of what found no room; a release in the next second would make it a lie."""
    full: Any = a_host("h1", used_memory_mb=4096)
    large: dict[str, Any] = {"cpus": 1, "memory_mb": 2048, "disk_gb": 10}
    refused = decision_on(full, **large)
    freed = decision_on(a_host("h1", used_memory_mb=2048), **large)

    assert (refused.code, refused.transient, freed.ranked) == ("out_of_capacity", True, ("h1",))
    assert re.findall(r"full_mark|marked_full|mark_full", source_of_placing()) == []
