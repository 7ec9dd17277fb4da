"""Decide every golden case again and write the answers: `python -m tests.golden.rewrite`.

Read the difference before you commit it: a decision that an installed version stored must replay to what it was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fleet.model.request import parse_stored_request
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot

CASES = Path(__file__).parent / "decisions"


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The decision of a case, as JSON reads it back."""
    request = parse_stored_request(case["request"])
    decision = decide(request, Snapshot.from_json(case["snapshot"]), case["seed"], explain=case["explain"])
    read: dict[str, Any] = json.loads(json.dumps(decision.as_dict()))
    return read


def main() -> None:
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        path.write_text(json.dumps({**case, "decision": answer(case)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
