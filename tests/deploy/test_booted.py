"""The playbook and the units on a machine with a running systemd, with daemons that stand in for the product's."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import stand_in
from tests.deploy.booted import Machine, boot, wait_until
from tests.deploy.roots import PLAYBOOKS, Run, playbook, unpack

# The first test's bound holds the making of the root file system too, where the cache has none yet.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

# Bounds for a hang: a busy machine takes its time, and each of these ends as soon as it is so.
SECONDS_MAX = 120
RESTART_SECONDS = 5  # RestartSec of the units
DAEMONS = ("sf-api", "sf-reconciler", "sf-resources", "sf-worker")
CONFIG_ONLY = """
- name: A rollout that is cut off after it wrote the configuration
  hosts: all
  gather_subset: ["!all", "!min", hardware]
  roles: [sf]
"""


class Site:
    """One machine with every daemon, and the rollout to it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self._folder = folder
        self._wheel = stand_in.build(folder)
        self._values: dict[str, object] = {}
        # Whether the last rollout went well.
        self.settled = False

    def roll_out(self, **values: object) -> Run:
        return self._play(PLAYBOOKS / "site.yml", values)

    def _play(self, book: Path, values: dict[str, object]) -> Run:
        host = {
            "ansible_connection": "enter",
            "ansible_enter": self.machine.enter,
            "sf_fleet_wheel": str(self._wheel),
            "sf_database_url": "sqlite:////var/lib/sf/fleet.db",
            "sf_redis_url": "redis://127.0.0.1:6379/0",
            "sf_auth_secret": "0123456789abcdef" * 2,
            "sf_instances_path": "/srv/instances",
            "sf_node_disk_reservation_gb": 20,
        }
        children = {group: {"hosts": {"one": host | values}} for group in ("control", "hypervisors")}
        inventory = self._folder / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"all": {"children": children}}))
        self.settled = False
        self._values = values
        done = playbook(book, inventory)
        self.settled = done.returncode == 0
        return done

    def again(self) -> Run:
        """The last rollout once more."""
        return self.roll_out(**self._values)

    def cut_off(self, **values: object) -> Run:
        book = self._folder / "config_only.yml"
        book.write_text(CONFIG_ONLY)
        return self._play(book, values)

    def report(self, daemon: str) -> dict[str, Any]:
        found = json.loads((self.machine.root / f"var/lib/sf/{daemon}.json").read_text())
        assert isinstance(found, dict)
        return found

    def pids(self) -> dict[str, str]:
        return {daemon: self.machine.unit(daemon, "MainPID") for daemon in DAEMONS}

    def states(self) -> dict[str, str]:
        return {daemon: self.machine.unit(daemon, "ActiveState") for daemon in DAEMONS}


@pytest.fixture(scope="module")
def site(workplace: Path, packed_root: Path) -> Iterator[Site]:
    root = workplace / "booted" / "one"
    unpack(packed_root, root)
    with boot(root) as machine:
        yield Site(machine, root.parent)


@pytest.fixture
def deployed(site: Site) -> Site:
    """The machine after a rollout that went well, whatever an earlier test left."""
    if not site.settled:
        done = site.roll_out()
        assert done.returncode == 0, done.output[-4000:]
    return site


def test_a_restart_that_never_ran_is_made_up_for_by_the_next_run(deployed: Site) -> None:
    """B55: the rollout ended between writing the file and the restart; the next one finds no file to change."""
    before = deployed.pids()
    cut_off = deployed.cut_off(sf_node_disk_reservation_gb=44)
    assert cut_off.returncode == 0, cut_off.output[-4000:]
    assert deployed.pids() == before
    done = deployed.roll_out(sf_node_disk_reservation_gb=44)

    assert done.returncode == 0, done.output[-4000:]
    assert not before.items() & deployed.pids().items()
    assert all("NODE_DISK_RESERVATION_GB=44.0\n" in deployed.report(daemon)["config"] for daemon in DAEMONS)


def restarts(site: Site, daemon: str) -> int:
    """How often systemd itself started it again; 0 while it does not say."""
    said = site.machine.unit(daemon, "NRestarts")
    return int(said) if said.isdigit() else 0


def test_a_daemon_whose_database_is_down_is_tried_until_it_is_back(deployed: Site) -> None:
    """B36: it neither stays dead nor storms, and nobody has to look after it."""
    flag = deployed.machine.root / "var/lib/sf/database-down"
    flag.touch()
    began = time.monotonic()
    deployed.machine.run("systemctl", "restart", "--no-block", *DAEMONS)
    wait_until(lambda: restarts(deployed, "sf-api") >= 3, SECONDS_MAX, "three attempts")
    attempts = deployed.machine.run("journalctl", "--unit=sf-api", "--grep=no database", "--output=cat", "--quiet")
    passed = time.monotonic() - began
    flag.unlink()
    wait_until(lambda: set(deployed.states().values()) == {"active"}, SECONDS_MAX, "all daemons are back")

    assert 1 <= attempts.count("no database") <= 1 + passed / RESTART_SECONDS


def test_a_daemon_that_hangs_is_restarted_by_the_watchdog(deployed: Site) -> None:
    # The unit's own patience is a minute; the test has less.
    added = deployed.machine.root / "etc/systemd/system/sf-api.service.d/99-impatient.conf"
    added.write_text("[Service]\nWatchdogSec=10\n")
    deployed.machine.run("systemctl", "daemon-reload")
    deployed.machine.run("systemctl", "restart", "sf-api")
    wait_until(lambda: deployed.states()["sf-api"] == "active", SECONDS_MAX, "it is up")
    before = deployed.pids()["sf-api"]
    said = deployed.machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGUSR1", "sf-api")
    assert said == ""
    wait_until(
        lambda: deployed.pids()["sf-api"] not in {"0", before} and deployed.states()["sf-api"] == "active",
        SECONDS_MAX,
        "another process",
    )
    added.unlink()
    deployed.machine.run("systemctl", "daemon-reload")

    assert deployed.machine.unit("sf-api", "NRestarts") != "0"


def test_the_target_stops_and_starts_all_of_them(deployed: Site) -> None:
    deployed.machine.run("systemctl", "stop", "sf.target")
    wait_until(lambda: set(deployed.states().values()) == {"inactive"}, SECONDS_MAX, "all daemons are down")
    deployed.machine.run("systemctl", "start", "sf.target")
    wait_until(lambda: set(deployed.states().values()) == {"active"}, SECONDS_MAX, "all daemons are up")

    assert "0" not in deployed.pids().values()


@pytest.mark.parametrize("daemon", DAEMONS)
def test_the_sandbox_holds_and_leaves_what_the_daemon_needs(deployed: Site, daemon: str) -> None:
    report = deployed.report(daemon)
    writes = report["writes"]
    needed = {"/var/lib/sf", "/srv/instances", "/tmp"}

    assert report["user"] != 0
    assert (report["capabilities"], report["no_new_privileges"], report["seccomp"]) == (0, "1", "2")
    assert report["measures"] == "done"
    assert {place for place, said in writes.items() if said == "done"} == needed
    assert report["raw_socket"] == "Address family not supported by protocol"
    assert report["mount"] == "Operation not permitted"
    assert not list((deployed.machine.root / "tmp").glob(f".{daemon}"))


def test_a_later_task_that_fails_does_not_keep_a_daemon_from_its_new_values(deployed: Site) -> None:
    """B55: what was notified runs although the worker's unit, which comes later, cannot be installed."""
    added = deployed.machine.root / "etc/systemd/system/sf-worker.service.d"
    shutil.rmtree(added)
    added.touch()
    done = deployed.roll_out(sf_node_disk_reservation_gb=55)
    added.unlink()

    assert done.returncode != 0
    assert "NODE_DISK_RESERVATION_GB=55.0\n" in deployed.report("sf-resources")["config"]


def test_every_daemon_is_up_and_a_second_run_changes_and_restarts_nothing(deployed: Site) -> None:
    before = deployed.pids()
    second = deployed.again()

    assert second.returncode == 0, second.output[-4000:]
    assert second.counts("one")["changed"] == 0
    assert deployed.states() == dict.fromkeys(DAEMONS, "active")
    assert deployed.pids() == before
    assert "0" not in before.values()


def test_a_configuration_that_a_daemon_refuses_never_takes_the_place_of_a_good_one(deployed: Site) -> None:
    before = deployed.pids()
    config = deployed.machine.root / "etc/sf/config"
    good = config.read_text()
    done = deployed.roll_out(sf_node_region="broken")

    assert done.returncode != 0
    assert "NODE_REGION: 'broken' is no region" in done.output
    assert config.read_text() == good
    assert deployed.pids() == before
