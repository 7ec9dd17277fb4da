"""sf-worker: carries the operations of its node out. One process a node; simulated nodes may share one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fleet import bootstrap
from fleet.config import Settings
from fleet.measure import read_nodes
from fleet.queue.connection import connect, eviction, ping
from fleet.queue.jobs import Inbox
from fleet.queue.worker import Worker, WorkerLimits, WorkerStuck
from fleet.services.daemon import BROKEN, DONE, Daemon, Life
from fleet.services.drivers import drivers_of, simulated_drivers
from fleet.services.heartbeat import LEASE_SECONDS, Heartbeat
from fleet.services.served_nodes import ServedNodes
from fleet.services.wake import record_eviction
from fleet.services.work import Workshop, carry_out

SLOTS_OF_A_NODE = 4
SLOTS_OF_MANY = 16
LEASE_SECONDS_MIN = 1.0
LEASE_SECONDS_MAX = 3600.0


def options(parser: argparse.ArgumentParser) -> None:
    """Which nodes this process serves; without an option this machine's own."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--nodes", metavar="A,B", help="serve the queues of these simulated nodes")
    which.add_argument("--all-simulated", action="store_true", help="serve all simulated nodes, later ones too")
    parser.add_argument(
        "--lease-seconds",
        type=_lease_seconds,
        default=LEASE_SECONDS,
        metavar="S",
        help="how long after this process's end its work is taken over (default %(default)g, at least 1)",
    )
    parser.add_argument("--simulated", type=Path, metavar="FILE", help="the simulated nodes' description, for faults")


def _lease_seconds(text: str) -> float:
    seconds = float(text)
    if not LEASE_SECONDS_MIN <= seconds <= LEASE_SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"must be {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g}, not {text}")
    return seconds


def check(settings: Settings, given: argparse.Namespace) -> None:
    """Refuse what no driver serves, and a description of simulated nodes that cannot be read."""
    described = read_nodes(given.simulated) if given.simulated else ()
    if not (given.nodes or given.all_simulated):
        drivers_of(settings, described)


def serve(settings: Settings, life: Life) -> int:
    """Work until told to stop."""
    many = bool(life.options.nodes or life.options.all_simulated)
    slots = SLOTS_OF_MANY if many else SLOTS_OF_A_NODE
    context = bootstrap.build(settings, life.environ, pool_size=slots + 4)
    client = connect(settings.redis_url, blocking=True)
    if not (life.wait_for_database(context.database) and life.wait_for("the queue's server", partial(ping, client))):
        return DONE
    record_eviction(context.database, eviction(client))
    described = read_nodes(life.options.simulated) if life.options.simulated else ()
    names = None if life.options.all_simulated else _names(settings, life.options)
    drivers = simulated_drivers(settings, described) if many else drivers_of(settings, described)
    with Heartbeat(context.database, seconds=life.options.lease_seconds) as heartbeat:
        shop = Workshop(context, drivers, heartbeat, life.holder)
        worker = Worker(
            Inbox(client),
            partial(carry_out, shop),
            node_ids=ServedNodes(context.database, names=names),
            stop=life.stop,
            alive=life.notifier.alive,
            limits=WorkerLimits(slots=slots),
        )
        if life.once:
            worker.burst()
            return DONE
        life.notifier.ready()
        try:
            worker.run()
        except WorkerStuck as stuck:
            sys.stderr.write(f"sf-worker: {stuck.detail}; ending, to be started anew\n")
            sys.stderr.flush()
            # A thread that hangs would hold the interpreter's orderly end for ever.
            os._exit(BROKEN)
        if worker.busy:
            # Left to their leases, which nobody extends any more; waiting for the threads has no bound.
            os._exit(DONE)
    return DONE


def _names(settings: Settings, given: argparse.Namespace) -> list[str]:
    if not given.nodes:
        return [settings.node_name]
    return [name.strip() for name in given.nodes.split(",") if name.strip()]


DAEMON = Daemon(
    name="sf-worker",
    summary="Carries out the operations of this machine's node (or of simulated ones).",
    needs=("DATABASE_URL", "REDIS_URL"),
    serve=serve,
    options=options,
    check=check,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon."""
    return DAEMON.main(arguments, os.environ)


if __name__ == "__main__":
    raise SystemExit(main())
