"""How much of the processors went to processes that are not ours: how far a figure is to be trusted."""

from __future__ import annotations

import contextlib
import os
import time

import psutil


class Others:
    """Counts from its making on. Our own are this process, its children, and theirs."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = _busy() - _ours()

    def percent(self) -> float:
        """The share of all processors, in percent, since the start; a few percent of it are the kernel's own."""
        available = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return max(0.0, 100 * (_busy() - _ours() - self._before) / available) if available else 0.0


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "irq", 0) + getattr(times, "softirq", 0))


def _ours() -> float:
    """Also what ended children used, once they were waited for."""
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
