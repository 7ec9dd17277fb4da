"""The snapshot cache: each process's slightly stale view of the fleet, and the stored bases that decisions replay from.

Ledger counters are brought up to date before decisions, reading only rows that changed. Samples are refreshed every
`SCHEDULER_CACHE_TIMEOUT` seconds by a thread of its own, so that no request pays for it; everything is read again
every `RELOAD_SECONDS`. Who holds which GPU is read for decisions that ask for one. A decision gets a frozen view with
what to store beside it: the base, and what changed since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fleet.ledger import decisions
from fleet.ledger import snapshots as rows
from fleet.ledger.database import Database
from fleet.model.errors import FleetError
from fleet.model.node import NodeRecord
from fleet.placement.record import encode_base, encode_changes
from fleet.placement.snapshot import Snapshot
from fleet.services.configuration import Configuration
from fleet.services.cursor import Cursor
from fleet.telemetry import get_logger

RELOAD_SECONDS = 60.0
THOROUGH_SECONDS = 3.0
QUICK_SECONDS = 0.01
"""Counters read less than this ago serve the next decision too: under load, workers do not ask twice for one change."""

CHECKPOINT_ROWS = 256
"""A new base (or checkpoint) is stored when more rows than this changed since the last: records stay small."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """What one decision sees, and how to find it again. `neighbours`: those that its rules see, b"": none."""

    snapshot: Snapshot
    base_id: str
    changes: bytes
    neighbours: bytes = b""


@dataclass(slots=True)
class _Base:
    base_id: str
    full_id: str
    full_version: int
    version: int
    layout_version: int


class SnapshotCache:
    """Call `view()` for each decision."""

    def __init__(
        self, db: Database, configuration: Configuration, elapsed: Callable[[], float], new_uuid: Callable[[], str]
    ) -> None:
        """Read nothing yet."""
        self._db = db
        self._configuration = configuration
        self._elapsed = elapsed
        self._new_uuid = new_uuid
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        self._storing = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._base: _Base | None = None
        self._view: View | None = None
        self._view_of: tuple[str, int, int] = ("", 0, 0)
        self._cursor, self._gpu_cursor = Cursor(), Cursor()
        self._metrics_cursor = 0
        self._loaded_at = self._thorough_at = self._refreshed_at = self._quick_at = float("-inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def view(self, *, fresh_since: float | None = None, gpus: bool = False) -> View:
        """Return the view for one decision; `fresh_since` (a monotonic time) asks for a thorough read begun after it.

        `gpus`: who holds which is read too.

        Raises:
            DatabaseUnavailable: the ledger cannot be read; nothing is decided on counters of unknown age.
        """
        self._bring_up_to_date(fresh_since, gpus=gpus)
        found = self._view_now(spare=True)
        if found is not None:
            return found
        # One thread stores a base; where there is an older one that serves, the others go on with it meanwhile.
        with self._storing:
            return self._view_now() or self._store()

    def peek(self) -> Snapshot:
        """Return what a decision would see now, without storing a base: for explaining, saving and displaying.

        Raises:
            DatabaseUnavailable: the ledger cannot be read.
        """
        self._bring_up_to_date(self._elapsed(), gpus=True)
        with self._lock:
            snapshot = self._require()
            snapshot.configure(self._configuration())
            return Snapshot(snapshot.frame)

    def start(self) -> None:
        """Keep samples fresh in the background, until `stop`."""
        self._thread = threading.Thread(target=self._keep_fresh, name="snapshot-refresh", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the background refresh."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def refresh(self) -> None:
        """Read what was published since the last time, and the ledger's late comers."""
        if self._elapsed() - self._loaded_at >= RELOAD_SECONDS or self._snapshot is None:
            self._reload()
            return
        self._read_counters(thorough=True)
        if self._elapsed() - self._refreshed_at < float(self._configuration().scheduler_cache_timeout):
            return
        at = self._elapsed()
        found = rows.published_since(self._db, self._metrics_cursor)
        with self._lock:
            self._require().update_records(found.records)
            self._metrics_cursor = found.now_us
        self._refreshed_at = at

    def _keep_fresh(self) -> None:
        while not self._stop.wait(THOROUGH_SECONDS):
            try:
                self.refresh()
            except FleetError as error:
                log.warning("snapshot.refresh_failed", error=error.detail)
            except Exception:
                log.exception("snapshot.refresh_failed")

    def _too_old(self) -> bool:
        """Whether the background refresh fell behind so far that a request reads everything itself."""
        patience = 3 * float(self._configuration().scheduler_cache_timeout) + RELOAD_SECONDS
        return self._elapsed() - self._loaded_at > patience

    def _needs_reload(self) -> bool:
        return self._snapshot is None or self._too_old()

    def _reload(self, *, unless_done: bool = False) -> None:
        """Read everything, in pages; `unless_done`: not when another thread did while this one waited."""
        with self._reading:
            if unless_done and not self._needs_reload():
                return
            at = self._elapsed()
            self._take_pages(rows.everything(self._db))
            self._loaded_at = self._refreshed_at = self._thorough_at = at

    def _take_pages(self, pages: Iterator[rows.Records]) -> None:
        # A view is whole or not there: the first one is built aside, a known one is brought up to date in place.
        building = self._snapshot or Snapshot.from_records([], self._configuration(), 0)
        here: set[int] = set()
        for page in pages:
            here.update(record.node_id for record in page.records)
            with self._lock:
                building.update_records(page.records)
                building.now_us = max(building.now_us, page.now_us)
                self._metrics_cursor = page.now_us
        with self._lock:
            for node_id in [node for node in building.frame.roster.node_ids if node not in here]:
                building.remove(node_id)
            for cursor in (self._cursor, self._gpu_cursor):
                cursor.advance(self._metrics_cursor, thorough=True)
            if self._snapshot is None:
                self._snapshot, self._base = building, None

    def _read_quickly(self) -> None:
        if self._elapsed() - self._quick_at >= QUICK_SECONDS:
            self._read_counters(thorough=False)

    def _read_counters(self, *, thorough: bool) -> None:
        at = self._elapsed()
        found = rows.changed(self._db, self._cursor.since(thorough=thorough))
        with self._lock:
            snapshot = self._require()
            unknown = snapshot.update_counters(found.rows)
            self._cursor.advance(found.now_us, thorough=thorough)
            snapshot.now_us = max(snapshot.now_us, found.now_us)
            self._quick_at = max(self._quick_at, at)
            if thorough:
                self._thorough_at = at
        if unknown:
            self._take_records(rows.some(self._db, unknown))
        if thorough:
            # What operators declare: rules and selectors are judged by the labels that a node has now.
            declared = rows.declared_since(self._db, self._metrics_cursor)
            self._take_records(declared)

    def _take_records(self, records: Sequence[NodeRecord]) -> None:
        if records:
            with self._lock:
                self._require().update_records(records)

    def _require(self) -> Snapshot:
        assert self._snapshot is not None, "the snapshot is read before it is used"
        return self._snapshot

    def _read_gpus(self, *, thorough: bool) -> None:
        found = rows.gpus_changed(self._db, self._gpu_cursor.since(thorough=thorough))
        with self._lock:
            self._require().update_gpus(found.inventories)
            self._gpu_cursor.advance(found.now_us, thorough=thorough)

    def _bring_up_to_date(self, fresh_since: float | None, *, gpus: bool) -> None:
        if self._needs_reload():
            self._reload(unless_done=True)
        if fresh_since is not None and self._thorough_at < fresh_since:
            self._read_counters(thorough=True)
        else:
            self._read_quickly()
        if gpus:
            self._read_gpus(thorough=fresh_since is not None)

    def _view_now(self, *, spare: bool = False) -> View | None:
        """Return the present view onto the stored base; None when a new base has to be stored first.

        `spare`: a base that is due for replacement serves while another thread stores the next.
        """
        with self._lock:
            snapshot = self._require()
            snapshot.configure(self._configuration())
            base = self._base
            if base is None or base.layout_version != snapshot.layout_version:
                return None
            moved = len(snapshot.rows_changed_since(base.version)) + len(snapshot.gpus_changed_since(base.version))
            is_due = moved > CHECKPOINT_ROWS
            if is_due and not (spare and self._storing.locked()):
                return None
            seen = (base.base_id, snapshot.version, snapshot.now_us)
            if self._view is None or seen != self._view_of:
                # Decisions between two reads share one view; a read moves the time at least.
                changes = encode_changes(snapshot, base.version)
                self._view, self._view_of = View(Snapshot(snapshot.frame), base.base_id, changes), seen
            return self._view

    def _store(self) -> View:
        """Store a full base, or a checkpoint onto the last full one, and return a view onto it. Under `_storing`.

        Written down under the lock, stored outside of it: no decision waits for the database because of another's.
        """
        base_id = self._new_uuid()
        with self._lock:
            snapshot = self._require()
            onto = self._base
            if onto is not None and not _can_grow(onto, snapshot):
                onto = None
            body = encode_base(snapshot) if onto is None else encode_changes(snapshot, onto.full_version)
            version, layout_version = snapshot.mark(), snapshot.layout_version
            view = View(Snapshot(snapshot.frame), base_id, encode_changes(snapshot, version))
        decisions.insert_base(self._db, base_id, None if onto is None else onto.full_id, body)
        full_id, full_version = (base_id, version) if onto is None else (onto.full_id, onto.full_version)
        with self._lock:
            self._base = _Base(base_id, full_id, full_version, version, layout_version)
        return view


def _can_grow(base: _Base, snapshot: Snapshot) -> bool:
    """Whether a checkpoint onto the full base can say what changed since."""
    return base.layout_version == snapshot.layout_version and snapshot.marked(base.full_version) is not None
