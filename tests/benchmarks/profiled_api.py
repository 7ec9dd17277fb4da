"""`sf-api` as one process under cProfile, its threads included: `profiled_api.py OUTPUT.pstats [sf-api's arguments]`.

It counts the process's processor time, not the clock, so waiting for the database is nothing; with one client no thread
works while another waits. One process, because a profile of two that wait for each other says little. Profiling itself
costs twice the work: read shares, not times.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import threading
import time

_profiles: list[cProfile.Profile] = []


def _begin_thread(_frame: object, _event: str, _argument: object) -> None:
    """The first event of a new thread: from here on it has a profile of its own."""
    profile = cProfile.Profile(time.process_time)
    _profiles.append(profile)
    profile.enable()


def main() -> None:
    """Profile until SIGTERM has ended the server, then write one sum of all threads."""
    output = sys.argv.pop(1)
    os.environ["FLEET_API_WORKERS"] = "1"
    from daemons.api import main as serve

    threading.setprofile(_begin_thread)
    profile = cProfile.Profile(time.process_time)
    try:
        profile.runcall(serve)
    finally:
        total = pstats.Stats(profile)
        for one in _profiles:
            one.disable()
            total.add(one)
        total.dump_stats(output)


if __name__ == "__main__":
    main()
