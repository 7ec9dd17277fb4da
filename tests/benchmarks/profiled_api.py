"""`sf-api` as one process under cProfile: `profiled_api.py OUTPUT.pstats [arguments of sf-api]`.

One process, because a profile of two that wait for each other says little; so its creates a second are no figure.
"""

from __future__ import annotations

import cProfile
import os
import sys


def main() -> None:
    """Profile until SIGTERM has ended the server, then write."""
    output = sys.argv.pop(1)
    os.environ["FLEET_API_WORKERS"] = "1"
    from daemons.api import main as serve

    profile = cProfile.Profile()
    try:
        profile.runcall(serve)
    finally:
        profile.dump_stats(output)


if __name__ == "__main__":
    main()
