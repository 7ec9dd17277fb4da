"""The cluster's configuration over several API processes: what one is told, all of them go by within the time-out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.served import As, Served
from tests.servers import wait_until

pytestmark = pytest.mark.slow
TIMEOUT_SECONDS = 5
# What the machine may take on top: another test may have all of its cores.
SLACK_SECONDS = 30


@pytest.fixture
def both(tmp_path: Path, redis_url: str) -> Iterator[tuple[As, As]]:
    """Two services of one process each, on one database."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with Served(folders[0], url, redis_url, workers=1) as one:
        two = Served(folders[1], url, redis_url, workers=1)
        two.key_file = one.key_file
        two.config.write_text(two.config.read_text().replace(str(folders[1] / "admin.key"), str(one.key_file)))
        try:
            two.start()
            one.node("n")
            with one.admin() as here, two.admin() as there:
                yield here, there
        finally:
            two.stop()


def hard_max(caller: As) -> int:
    """What a process makes of the node's vCPUs: its own view of the configuration."""
    found: int = caller.get("/admin/resources").json()["per_node"]["n"]["cpu_hard_max"]
    return found


def test_a_change_is_live_in_every_process_within_the_cache_timeout(both: tuple[As, As]) -> None:
    here, there = both
    assert (hard_max(here), hard_max(there)) == (42, 42)

    here.put("/admin/config/CPU_OVERCOMMIT_RATIO", {"value": "2.0"})

    assert hard_max(here) == 28
    wait_until(lambda: hard_max(there) == 28, seconds=TIMEOUT_SECONDS + SLACK_SECONDS, what="the other one follows")
    there.delete("/admin/config/CPU_OVERCOMMIT_RATIO")
    assert hard_max(there) == 42
    wait_until(lambda: hard_max(here) == 42, seconds=TIMEOUT_SECONDS + SLACK_SECONDS, what="the first one follows")
