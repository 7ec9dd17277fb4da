"""Become another program that ends when the process that started it ends, however that one died.

Promise: standard library only, nothing of ours imported, so it costs one bare interpreter start. It is a program of
its own (`python -I -S tether.py PARENT COMMAND …`) because running code between fork and exec is not safe in a
process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(parent: int, command: list[str]) -> None:
    """Ask the kernel for SIGTERM at the parent's death, then turn into `command`; both survive the exec."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606  # no shell is the point


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
