"""Placing on a real ledger: a process, the nodes it places on, its creates, and what overtakes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from fleet import bootstrap
from fleet.config import load_settings
from fleet.ledger import cluster_config, namespaces, nodes, operations
from fleet.ledger.database import Database
from fleet.model.request import InstanceRequest
from fleet.services.context import Context
from fleet.services.create import Created, create_instance
from fleet.services.place import Refusal
from fleet.services.redirect import redirect
from fleet.services.replacing import Chosen
from tests.ledger import fleet_of

PLAIN: Final = {"CPU_OVERCOMMIT_RATIO": "1.0", "RAM_OVERCOMMIT_RATIO": "1.0", "DISK_OVERCOMMIT_RATIO": "1.0"}
SMALL: Final[Mapping[str, Any]] = MappingProxyType({})
Outcome = Created | Refusal


def context(db: Database, **config: str) -> Context:
    """A process on this ledger whose ratios are 1 unless `config` says otherwise."""
    for key, value in {**PLAIN, **{name.upper(): value for name, value in config.items()}}.items():
        cluster_config.store(db, key, value)
    namespaces.ensure(db, fleet_of.NAMESPACE)
    return process(db)


def process(db: Database) -> Context:
    """A further process on a ledger that is configured already."""
    return bootstrap.with_parts(load_settings(None, {}), db, lambda _wake: None, {})


def node(db: Database, ctx: Context, name: str, labels: Mapping[str, str] | None = None, **figures: Any) -> int:
    """A node with more room than any test takes."""
    room = {"cpus": 1000, "cpu_max_per_instance": 1000, "cpu_load_1": 0.0, "memory_mb": 2**20, "disk_gb": 1000}
    node_id = fleet_of.node(db, name, config=ctx.configuration(), **{**room, **figures})
    if labels:
        nodes.update(db, name, {"labels": dict(labels)})
    return node_id


def create(ctx: Context, body: Mapping[str, Any] = SMALL, namespace: str = fleet_of.NAMESPACE, **more: Any) -> Outcome:
    """One create, small unless the body says otherwise."""
    request = InstanceRequest.model_validate({"cpus": 1, "memory_mb": 64, **body, **more})
    return create_instance(ctx, namespace, request)


def created(ctx: Context, body: Mapping[str, Any] = SMALL, namespace: str = fleet_of.NAMESPACE, **more: Any) -> Created:
    outcome = create(ctx, body, namespace, **more)
    assert isinstance(outcome, Created), outcome
    return outcome


def refused(outcome: Created | Chosen | Refusal) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome


def redirected(db: Database, ctx: Context, made: Created) -> str | None:
    """Its worker finds the node unfit, and gives the operation back."""
    leased = operations.lease(db, made.operation_id, "worker", 60)
    assert leased is not None
    return redirect(ctx, leased, "unfit")


def overtaken(ctx: Context, do: Callable[[], object]) -> Context:
    """The same process, overtaken once between its decision and its first try."""
    todo = [do]

    def fault(point: str) -> None:
        if point == "place_after_decide" and todo:
            todo.pop()()

    return replace(ctx, fault=fault)


def walk_of(db: Database, decision_id: str | None) -> list[dict[str, Any]]:
    """The tries that followed a decision, as they are stored."""
    (row,) = fleet_of.rows(db, "SELECT walk FROM decisions WHERE id = :id", id=decision_id)
    found: list[dict[str, Any]] = json.loads(row["walk"])
    return found
