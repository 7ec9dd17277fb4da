"""`sf-api` as one process under cProfile, its threads included: `profiled_api.py OUTPUT.pstats [sf-api's arguments]`.

One process, because a profile of two that wait for each other says little; so its creates a second are no figure.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import threading

_profiles: list[cProfile.Profile] = []


def _begin_thread(_frame: object, _event: str, _argument: object) -> None:
    """The first event of a new thread: from here on it has a profile of its own."""
    profile = cProfile.Profile()
    _profiles.append(profile)
    profile.enable()


def main() -> None:
    """Profile until SIGTERM has ended the server, then write one sum of all threads."""
    output = sys.argv.pop(1)
    os.environ["FLEET_API_WORKERS"] = "1"
    from daemons.api import main as serve

    threading.setprofile(_begin_thread)
    profile = cProfile.Profile()
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
