"""Write probes: real writes, bounded waits, and the way back to health."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from fleet.measure import HealthGate, NodeHealth, ProbeResult, WriteProbe, probe_write

GOOD = ProbeResult(path="/i", good=True)
BAD = ProbeResult(path="/b", good=False, reason="No space left on device")


def test_a_writable_folder_is_good_and_left_as_it_was(tmp_path: Path) -> None:
    result = probe_write(str(tmp_path))

    assert (result.good, result.reason, result.path) == (True, "", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_bad_with_its_reason(tmp_path: Path) -> None:
    result = probe_write(str(tmp_path / "absent"))

    assert not result.good
    assert result.reason == f"No such file or directory ({tmp_path / 'absent'})"


def test_a_full_disk_is_bad_with_its_reason(tmp_path: Path) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    assert "No space left on device" in WriteProbe(str(tmp_path), write=full).run().reason


def test_a_blocked_file_system_is_bad_within_the_bound_and_probes_do_not_pile_up(tmp_path: Path) -> None:
    release = threading.Event()
    attempts: list[str] = []

    def blocked(path: str) -> None:
        attempts.append(path)
        release.wait(30)

    probe = WriteProbe(str(tmp_path), timeout_seconds=0.02, write=blocked)

    assert probe.run().reason == "no answer within 0.02 s"
    assert probe.run().reason == "an earlier probe is still blocked there"
    assert len(attempts) == 1

    release.set()
    thread = probe._blocked
    assert thread is not None
    thread.join(30)
    assert probe.run().good
    assert len(attempts) == 2


@pytest.mark.parametrize("rounds_before", [0, 3])
def test_one_bad_probe_fails_the_node_and_three_good_rounds_bring_it_back(rounds_before: int) -> None:
    gate = HealthGate()
    for _ in range(rounds_before):
        assert gate.observe([GOOD, GOOD]) is NodeHealth.GOOD

    assert gate.observe([GOOD, BAD]) is NodeHealth.FAILED
    assert [gate.observe([GOOD, GOOD]) for _ in range(3)] == [NodeHealth.FAILED, NodeHealth.FAILED, NodeHealth.GOOD]


def test_a_bad_round_starts_the_count_again() -> None:
    gate = HealthGate()
    rounds = [BAD, GOOD, GOOD, BAD, GOOD, GOOD, GOOD]

    assert [gate.observe([result]) for result in rounds][-2:] == [NodeHealth.FAILED, NodeHealth.GOOD]
