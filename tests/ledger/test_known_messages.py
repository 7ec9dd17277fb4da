"""Every message that operators know, with its keys, brought about by what really happens; and the page that lists them.

One run does everything once: placings that fail at each stage, refusals by the guard, claims, releases, drift, and a
database that does not answer. Whatever it leaves on timelines, in decisions and in the log is compared with the table.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import fakeredis
import pytest

from fleet import bootstrap
from fleet.config import load_settings
from fleet.ledger import admission, events, ground_truth, operations, release, samples
from fleet.ledger import decisions as stored_decisions
from fleet.ledger.database import Database
from fleet.ledger.events import Filter
from fleet.model.admission import Admitted
from fleet.model.errors import DatabaseUnavailable
from fleet.model.request import PlacementRequest
from fleet.model.resources import Amounts
from fleet.queue.jobs import WakeUps
from fleet.services import claims, decisions, event_reference, timeline
from fleet.services.authentication import Caller
from fleet.services.context import Context
from fleet.services.create import Created
from fleet.services.delete import delete_instance
from fleet.services.event_reference import FIGURES, KNOWN, LOG, ROW, TOLD, Message
from fleet.services.leadership import Leadership
from fleet.services.place import Placing, place
from fleet.services.reconciler import Reconciler
from fleet.services.settle import settle_create, settle_delete
from tests.ledger import fleet_of, past
from tests.ledger.fleet_of import ask
from tests.ledger.placing import context, create, created, node, overtaken

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
AWAY = DatabaseUnavailable("the ledger's database did not answer")


@dataclass
class Seen:
    """What was left: each as (kind, what it is on, level, message, payload)."""

    found: list[tuple[str, str, str, str, Mapping[str, Any]]] = field(default_factory=list)

    def add(self, kind: str, on: str, level: str, message: str, payload: Mapping[str, Any]) -> None:
        self.found.append((kind, on, level, message, json.loads(json.dumps(dict(payload), default=float))))

    def problem(self, known: Message) -> str:
        """What is missing of a message: all of it, or the keys that it never had together."""
        payloads = [
            payload
            for kind, on, level, message, payload in self.found
            if (kind, level) == (known.kind, known.level) and known.matches(message) and on in known.on.split(", ")
        ]
        if not payloads:
            return f"{known.text}: never came about as {known.kind} of level {known.level} on {known.on}"
        lacking = min((sorted(set(known.keys) - payload.keys()) for payload in payloads), key=len)
        return f"{known.text}: without {lacking}" if lacking else ""

    def nested(self, key: str) -> list[Mapping[str, Any]]:
        """The figures that stand under a key of any payload, or were a stage's reason to drop a node."""
        found: list[Mapping[str, Any]] = []
        for *_, message, payload in self.found:
            if message == f"schedule at stage {key}":
                found += (payload.get("dropped") or {}).values()
            found += _under(payload, key)
        return found


def _under(value: Any, key: str) -> list[Mapping[str, Any]]:
    if isinstance(value, list):
        return [found for item in value for found in _under(item, key)]
    if not isinstance(value, dict):
        return []
    here = value.get(key)
    entries = list(here.values()) if isinstance(here, dict) else here if isinstance(here, list) else []
    return [entry for entry in entries if isinstance(entry, dict)] + [
        found for item in value.values() for found in _under(item, key)
    ]


def refused(db: Database, ctx: Context, **body: Any) -> None:
    outcome = create(ctx, body)
    assert not isinstance(outcome, Created), body


def settled(db: Database, made: Created) -> None:
    leased = operations.lease(db, made.operation_id, "worker", 60)
    assert leased is not None
    assert settle_create(db, leased)


def stages(db: Database, ctx: Context) -> None:
    """Nodes that each stage drops, one request that meets all of them, and others that only one kind meets."""
    gib: dict[str, Any] = {"memory_mb": 2**16}
    node(db, ctx, "good", cpus=16, **gib)
    node(db, ctx, "no-cpus", cpus=1, **gib)
    node(db, ctx, "no-memory", cpus=16, memory_max=2**16, memory_available=64)
    node(db, ctx, "overcommitted", cpus=16, **gib, memory_total_instance_actual=2**16)
    committed = node(db, ctx, "committed", cpus=16, memory_mb=4096)
    fleet_of.admitted(db, ask(committed, cpus=1, memory_mb=4000))
    node(db, ctx, "no-disk", cpus=16, **gib, disk_free_gb=1)
    node(db, ctx, "queue", cpus=16, **gib, queue_waiting=30)
    node(db, ctx, "busy", cpus=16, **gib, disk_busy_ms_per_second=2000)
    ctx.snapshots.view(fresh_since=ctx.elapsed())
    made = created(ctx, cpus=2, memory_mb=1024, disk_gb=5, tags={"web": ""})
    settled(db, made)
    ctx.snapshots.view(fresh_since=ctx.elapsed())
    created(ctx, memory_mb=1024, affinity={"prefer_with_tag": ["web"], "require_without_tag": ["quiet"]})
    refused(db, ctx, affinity={"require_with_tag": ["nobody"]})
    refused(db, ctx, affinity={"require_without_tag": ["web"]}, placement={"node": made.node})
    refused(db, ctx, cpus=500)
    created(ctx, affinity={"web": 5, "loud": -1})
    fleet_of.register(db, "bare")
    ctx.snapshots.view(fresh_since=ctx.elapsed())
    refused(db, ctx, placement={"node": "bare"})
    refused(db, ctx, placement={"node": "nowhere"})


def transient_load(db: Database, ctx: Context) -> None:
    """The only node with a friend is too busy, and is taken all the same."""
    labels = {"placement": {"labels": {"only": "friends"}}}
    for name in ("friend", "stranger"):
        fleet_of.register(db, name, labels={"only": "friends"})
        node(db, ctx, name, cpus=16)
    made = created(ctx, tags={"friend": ""}, placement={"node": "friend"})
    fleet_of.publish(
        db,
        "friend",
        cpus=16,
        memory_mb=2**18,
        disk_gb=1000,
        cpu_max_per_instance=1000,
        config=ctx.configuration(),
        disk_busy_ms_per_second=2000,
    )
    # Another process: this one keeps samples for some seconds.
    other = bootstrap.with_parts(load_settings(None, {}), db, lambda _wake: None, {})
    found = created(other, {"affinity": {"prefer_with_tag": ["friend"]}, **labels})
    assert (found.node, made.node) == ("friend", "friend")


def guards(db: Database, ctx: Context) -> None:
    """Refused by the guard on every node; and by its demand clause alone."""
    lonely = {"placement": {"labels": {"only": "guards"}}}
    fleet_of.register(db, "guarded", labels={"only": "guards"})
    full = node(db, ctx, "guarded", cpus=4)
    late = "UPDATE scheduler_node_capacity SET expected_demand = 100 WHERE node_id = :node_id"
    created(overtaken(ctx, lambda: fleet_of.execute(db, late, node_id=full)), lonely)
    fleet_of.execute(db, late.replace("100", "0"), node_id=full)
    promised = "UPDATE cluster_capacity SET claimed_cpus = claimed_cpus + :cpus"
    fleet_of.execute(db, promised, cpus=1_000_000)
    refused(db, ctx, **lonely)
    fleet_of.execute(db, promised, cpus=-1_000_000)


def unguarded(db: Database) -> None:
    bare = fleet_of.register(db, "unsized")
    assert isinstance(fleet_of.admit(db, ask(bare, admit_unsized=True)), Admitted)
    seen = ground_truth.Sighting(
        instance_uuid=fleet_of.ask(bare).instance_uuid,
        namespace=fleet_of.NAMESPACE,
        node_id=fleet_of.node(db, "overfull", cpus=1),
        amounts=Amounts(50, 1, 0, 1),
    )
    ground_truth.record(db, seen)


def claimed(db: Database, ctx: Context) -> None:
    admin, amounts = Caller(namespace="system", key="admin"), Amounts(1, 1, 0, 0)
    made = claims.create(db, admin, fleet_of.NAMESPACE, amounts, 3600, uuid=ctx.new_uuid(), retry_key=None)
    created(ctx, cpus=2)
    claims.delete(db, admin, fleet_of.NAMESPACE, made.uuid)


def released(db: Database, ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    made = created(ctx)
    settled(db, made)
    deleting = delete_instance(ctx, made.uuid, None).operation_id
    assert deleting is not None
    leased = operations.lease(db, deleting, "worker", 60)
    assert leased is not None
    with monkeypatch.context() as patched:
        patched.setattr(release, "release", _away)
        with pytest.raises(DatabaseUnavailable):
            settle_delete(db, leased)
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET used_memory_mb = 0")
    assert settle_delete(db, leased)


def _away(*_any: object, **_more: object) -> NoReturn:
    raise AWAY


def unanswered(db: Database, ctx: Context) -> None:
    class Away:
        view = staticmethod(_away)

    request = PlacementRequest(cpus=1, memory_mb=64, namespace=fleet_of.NAMESPACE)

    def placing(admit: Any) -> Placing:
        return Placing(
            request=request,
            instance_uuid=ctx.new_uuid(),
            namespace=fleet_of.NAMESPACE,
            new_rows=lambda *_: None,
            admit=admit,
        )

    with pytest.raises(DatabaseUnavailable):
        place(ctx, placing(_away))
    with pytest.raises(DatabaseUnavailable):
        place(replace(ctx, snapshots=Away()), placing(admission.admit))  # type: ignore[arg-type]


def sampled(db: Database, ctx: Context) -> None:
    with past.ago(db, 1000):
        samples.publish(db, [samples.SampleIn("bare", {}, failed={"memory": "no /proc/meminfo"})], ctx.configuration())
    assert samples.mark_missing(db, 120)


def reconciled(db: Database, ctx: Context) -> None:
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET used_cpus = used_cpus + 2")
    leadership = Leadership(db, "leader")
    assert Reconciler(db, WakeUps(fakeredis.FakeStrictRedis()), ctx.configuration, leadership).run_pass("test")


def everything(db: Database, ctx: Context, lines: io.StringIO) -> Seen:
    """What the run left on timelines, in decisions and in the log."""
    seen = Seen()
    for row in events.search(db, Filter(), limit=1000).events:
        seen.add(ROW, row.object_type, row.level, row.message, row.payload)
    for uuid in [row["uuid"] for row in fleet_of.rows(db, "SELECT uuid FROM instances")]:
        for one in timeline.of_instance(ctx, uuid, limit=1000, newest_first=False).events:
            seen.add(ROW if one.part == 0 else TOLD, "instance", one.event.level, one.event.message, one.event.payload)
    for summary in stored_decisions.listing(ctx.database, limit=1000, outcome="refused"):
        for event in timeline.of_decision(ctx, decisions.get(ctx, summary.id, None)).events:
            seen.add(TOLD, "instance", event.level, event.message, event.payload)
    for text in lines.getvalue().splitlines():
        line = json.loads(text)
        on = "reconciler" if line["logger"] == "fleet.services.reconciler" else line.get("object_type", "")
        seen.add(LOG, on, line["level"], line["event"], line)
    return seen


def test_every_message_that_operators_know_comes_about_with_its_keys(
    db: Database,
    monkeypatch: pytest.MonkeyPatch,
    log: io.StringIO,
) -> None:
    ctx = context(db)
    parts: list[Callable[[], None]] = [
        lambda: stages(db, ctx),
        lambda: transient_load(db, ctx),
        lambda: guards(db, ctx),
        lambda: unguarded(db),
        lambda: claimed(db, ctx),
        lambda: unanswered(db, ctx),
        lambda: released(db, ctx, monkeypatch),
        lambda: reconciled(db, ctx),
        lambda: sampled(db, ctx),
    ]
    for part in parts:
        part()
        ctx.snapshots.view(fresh_since=ctx.elapsed())
    seen = everything(db, ctx, log)

    problems = [problem for known in KNOWN if (problem := seen.problem(known))]
    assert not problems, "\n".join(problems)
    assert [known.text for known in KNOWN if known.kind == ROW and not _logged(seen, known)] == []
    lacking = [
        (figures.of, keys)
        for figures in FIGURES
        for keys in figures.keys
        if not any(set(keys) <= entry.keys() for entry in seen.nested(figures.of))
    ]
    assert lacking == []


def _logged(seen: Seen, known: Message) -> bool:
    return any(kind == LOG and known.matches(message) for kind, _, _, message, _ in seen.found)


def test_the_page_says_what_the_table_says() -> None:
    assert PAGE.read_text() == event_reference.render()
