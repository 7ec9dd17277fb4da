"""A process that forks while its `Database` is in use: `python -m tests.ledger.forking URL NODE_ID` prints `ok`."""

from __future__ import annotations

import os
import sys

from fleet.ledger.database import Database
from tests.ledger.test_sessions import work_mixed

CHILDREN, ROUNDS = 4, 6


def main(url: str, node_id: int) -> int:
    db = Database(url)
    work_mixed(db, node_id, 3)
    children = []
    for _ in range(CHILDREN):
        child = os.fork()
        if child == 0:
            os._exit(1 if work_mixed(db, node_id, ROUNDS) else 0)
        children.append(child)
    wrong = work_mixed(db, node_id, ROUNDS)
    ended = [os.waitpid(child, 0)[1] for child in children]
    print("ok" if not wrong and not any(ended) else f"{wrong} {ended}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
