"""The live configuration: a strategy that was set and is not installed any more is told, by name and once."""

from __future__ import annotations

from structlog.testing import capture_logs

from fleet.ledger import cluster_config
from fleet.ledger.database import Database
from fleet.services.configuration import Configuration, strategy_problem


def test_a_strategy_that_is_not_installed_any_more_is_told_once(db: Database) -> None:
    clock = [0.0]
    configuration = Configuration(db, lambda: clock[0])
    assert strategy_problem(configuration()) is None
    # What `fleet ctl set-config` wrote while the package was there.
    cluster_config.store(db, "PLACEMENT_STRATEGY", "by-rack")

    with capture_logs() as said:
        for _ in range(3):
            clock[0] += 60
            found = configuration()

    problem = strategy_problem(found)
    assert problem is not None
    assert problem.startswith("the strategy 'by-rack' of PLACEMENT_STRATEGY is not installed in the process")
    assert [(entry["event"], entry["problem"]) for entry in said] == [("config.strategy_unknown", problem)]
