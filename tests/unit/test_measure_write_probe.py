"""Write probes: real writes and bounded waits."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from fleet.measure import WriteProbe

PATIENCE_SECONDS = 60.0
"""The bound where the probe is to answer: how long a disk or a thread takes here is not what is tested."""


def test_a_writable_folder_is_good_and_left_as_it_was(tmp_path: Path) -> None:
    result = WriteProbe(str(tmp_path), timeout_seconds=PATIENCE_SECONDS).run()

    assert (result.good, result.reason, result.path) == (True, "", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_bad_with_its_reason(tmp_path: Path) -> None:
    result = WriteProbe(str(tmp_path / "absent"), timeout_seconds=PATIENCE_SECONDS).run()

    assert not result.good
    assert result.reason == f"No such file or directory ({tmp_path / 'absent'})"


def test_a_full_disk_is_bad_with_its_reason(tmp_path: Path) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    result = WriteProbe(str(tmp_path), timeout_seconds=PATIENCE_SECONDS, write=full).run()

    assert "No space left on device" in result.reason


def test_a_blocked_file_system_is_bad_within_the_bound_and_probes_do_not_pile_up(tmp_path: Path) -> None:
    reached, release = threading.Event(), threading.Event()
    attempts: list[str] = []

    def blocked(path: str) -> None:
        attempts.append(path)
        reached.set()
        release.wait(2 * PATIENCE_SECONDS)

    probe = WriteProbe(str(tmp_path), timeout_seconds=0.02, write=blocked)

    assert probe.run().reason == "no answer within 0.02 s"
    assert probe.run().reason == "an earlier probe is still blocked there"
    assert reached.wait(PATIENCE_SECONDS)
    assert len(attempts) == 1

    release.set()
    thread = probe._blocked
    assert thread is not None
    thread.join(PATIENCE_SECONDS)
    probe._timeout_seconds = PATIENCE_SECONDS
    assert probe.run().good
    assert len(attempts) == 2
