#!/usr/bin/env python3
"""Check the whole of namespace capacity claims on a running cluster: `fleet claim exercise`, from the source tree.

    tools/exercise-namespace-claims.py                 # full run
    tools/exercise-namespace-claims.py --no-instances  # API paths only
    tools/exercise-namespace-claims.py --no-expiry     # skip the expiry wait

Which cluster, and as whom, is said as for every `fleet` command: `--url`, `--key-file`, `FLEET_URL`, `FLEET_KEY_FILE`.
Where fleet is not installed for this interpreter, the environment that `./dev` made beside this folder is used.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"
USAGE = 2


def main(arguments: list[str]) -> int:
    """Run the exercise; its exit code."""
    if importlib.util.find_spec("fleet") is not None and importlib.util.find_spec("typer") is not None:
        from fleet.cli.app import run  # noqa: PLC0415  # it may not be installed here

        return run(["claim", "exercise", *arguments])
    if PYTHON.exists() and Path(sys.prefix) != PYTHON.parents[1]:
        os.execv(PYTHON, [str(PYTHON), __file__, *arguments])  # noqa: S606  # no shell is the point
    sys.stderr.write("fleet is not installed for this interpreter; `./dev install` makes the environment it needs\n")
    return USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
