"""sf-resources: measures its node and publishes what it finds. One process a node; simulated nodes may share one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fleet.config import Settings
from fleet.ledger.database import Database
from fleet.measure import (
    MachineGpus,
    Paths,
    Reservations,
    SimulatedFleet,
    ThisMachine,
    read_gpu_file,
    read_nodes,
    this_driver,
)
from fleet.model.config_value import ConfigError, ConfigProblem
from fleet.model.gpu_report import backend_problem
from fleet.services.configuration import Configuration
from fleet.services.daemon import BROKEN, DONE, Daemon, Life
from fleet.services.drivers import drivers_of, simulated_drivers
from fleet.services.resources import Measurer, RealNode, Resources, SimulatedNodes


def options(parser: argparse.ArgumentParser) -> None:
    """Whom this process measures; without an option this machine."""
    parser.add_argument("--simulated", type=Path, metavar="FILE", help="publish the samples of these simulated nodes")


def check(settings: Settings, given: argparse.Namespace) -> None:
    """Refuse what no driver serves, and a description of simulated nodes or of GPUs that cannot be read."""
    _measurer(settings, given)


def serve(settings: Settings, life: Life) -> int:
    """Publish until told to stop."""
    database = Database(settings.database_url)
    measurer = _measurer(settings, life.options)
    resources = Resources(database, Configuration(database, time.monotonic), measurer)
    if not life.wait_for_database(database):
        return DONE
    if life.once:
        published = resources.publish(measurer.names())
        sys.stdout.write(json.dumps({"published": published, "of": len(measurer.names())}) + "\n")
        return DONE if published == len(measurer.names()) else BROKEN
    life.notifier.ready()
    resources.run(life.stop, life.notifier.alive)
    return DONE


def _measurer(settings: Settings, given: argparse.Namespace) -> Measurer:
    if given.simulated:
        nodes = read_nodes(given.simulated)
        drivers = simulated_drivers(settings, nodes)
        return SimulatedNodes(SimulatedFleet(nodes, lambda node: drivers(node.name)), drivers)
    return RealNode(
        settings.node_name,
        ThisMachine(),
        drivers_of(settings)(settings.node_name),
        paths=Paths(instances=settings.instances_path, blobs=settings.blobs_path),
        reservations=Reservations(
            ram_gb=settings.node_ram_reservation_gb,
            cpu_threads=settings.node_cpu_reservation_threads,
            disk_gb=settings.node_disk_reservation_gb,
        ),
        is_hypervisor=settings.node_is_hypervisor,
        gpus=_gpus(settings),
    )


def _gpus(settings: Settings) -> MachineGpus | None:
    """This machine's GPUs; None where its backend hands none over. A declared inventory that is wrong is refused."""
    problem = backend_problem(settings.node_backend)
    if not settings.gpu_inventory_file:
        return None if problem else MachineGpus(this_driver())
    if problem:
        where = settings.origin("GPU_INVENTORY_FILE")
        raise ConfigError([ConfigProblem(key="GPU_INVENTORY_FILE", where=where, reason=problem)])
    file = Path(settings.gpu_inventory_file)
    read_gpu_file(file)
    return MachineGpus(this_driver(), file=file)


DAEMON = Daemon(
    name="sf-resources",
    summary="Measures this machine (or simulated nodes) and publishes the samples.",
    needs=("DATABASE_URL",),
    serve=serve,
    options=options,
    check=check,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon."""
    return DAEMON.main(arguments, os.environ)


if __name__ == "__main__":
    raise SystemExit(main())
