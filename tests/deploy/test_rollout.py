"""The playbook, run for real into throwaway root file systems: files, owners, modes, values, and nothing twice."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from fleet.measure import declared_gpus, read_gpu_file
from tests.deploy.roots import PLAYBOOKS, REPOSITORY, Run, playbook, unpack

# The first test's bound holds two rollouts to three machines, and on an empty cache the making of those.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

# control-1 carries a role for the whole cluster, node-1 takes all defaults, node-2 overrides them.
INVENTORY = {
    "control": {"hosts": {"control-1": {}}},
    "hypervisors": {"hosts": {"node-1": {}, "node-2": {}}},
    "database_nodes": {"hosts": {"control-1": {}}},
    "large": {
        "hosts": {"node-2": {}},
        "vars": {"sf_node_ram_reservation_gb": "48", "sf_node_cpu_reservation_threads": "12"},
    },
}
ALL = {
    "sf_manage_services": False,
    "sf_database_url": "mysql+pymysql://fleet:p#ss$word@db-1/fleet",
    "sf_redis_url": "redis://db-1:6379/0",
    "sf_node_backend": "simulated",
    "sf_auth_secret": "0123456789abcdef" * 4,
}
GPUS = {"gpus": [{"uuid": "GPU-1", "model": "NVIDIA A100", "compute_cap": "8.0", "memory_mb": 40960}]}
HOSTS = ("control-1", "node-1", "node-2")


@dataclass(frozen=True)
class Rollout:
    """Three machines after a first and a second run."""

    roots: dict[str, Path]
    first: Run
    second: Run

    def config(self, host: str) -> dict[str, str]:
        """A host's configuration as a shell reads it."""
        text = (self.roots[host] / "etc/sf/config").read_text()
        assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
        pairs = (line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
        return {key: value.strip("'") for key, value in pairs}


def write_inventory(folder: Path, roots: dict[str, Path]) -> Path:
    (folder / "group_vars").mkdir(parents=True)
    (folder / "host_vars").mkdir()
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": INVENTORY}}))
    (folder / "group_vars/all.yml").write_text(yaml.safe_dump(ALL))
    clean = "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8"
    for host, root in roots.items():
        values: dict[str, object] = {"ansible_connection": "enter", "ansible_enter": f"chroot {root} {clean}"}
        if host == "node-2":
            # host_vars win over group_vars.
            values |= {"sf_node_ram_reservation_gb": 64.5, "sf_node_labels": {"rack": "b", "disk": "ssd"}}
            values |= {"sf_instances_path": "/srv/instances"}
            values |= {"sf_node_gpu_kind": "A100", "sf_gpu_inventory": GPUS}
        (folder / f"host_vars/{host}.yml").write_text(yaml.safe_dump(values))
    return folder / "hosts.yml"


@pytest.fixture(scope="module")
def rollout(workplace: Path, packed_root: Path, wheel: Path, wheelhouse: Path) -> Iterator[Rollout]:
    roots = {host: workplace / "rollout" / host for host in HOSTS}
    for root in roots.values():
        unpack(packed_root, root)
        subprocess.run(["cp", "-r", str(wheelhouse), str(root / "var/tmp/wheelhouse")], check=True)
    inventory = write_inventory(workplace / "inventory", roots)
    arguments = ("-e", f"sf_fleet_wheel={wheel}", "-e", "sf_fleet_find_links=/var/tmp/wheelhouse")
    machines = tuple(roots.values())
    first = playbook(PLAYBOOKS / "site.yml", inventory, *arguments, roots=machines)
    second = playbook(PLAYBOOKS / "site.yml", inventory, *arguments, roots=machines)
    yield Rollout(roots, first, second)
    subprocess.run(["rm", "-rf", "--one-file-system", *map(str, machines)], check=True)


def inside(root: Path, *command: str) -> str:
    """What a command says inside a machine."""
    done = subprocess.run(["chroot", str(root), *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_first_run_succeeds_on_every_host(rollout: Rollout) -> None:
    assert rollout.first.returncode == 0, rollout.first.output[-6000:]
    assert {host: rollout.first.counts(host)["failed"] for host in HOSTS} == dict.fromkeys(HOSTS, 0)


def test_a_second_run_changes_nothing(rollout: Rollout) -> None:
    assert rollout.second.returncode == 0, rollout.second.output[-6000:]
    assert {host: rollout.second.counts(host)["changed"] for host in HOSTS} == dict.fromkeys(HOSTS, 0)


def test_the_reservations_follow_the_formulas_where_nobody_set_them(rollout: Rollout) -> None:
    """RAM max(2, a tenth) and 4 more with a role for the cluster; threads 2, or 4 with a role; disk 20."""
    memory_mb = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    plain_gb = max(2.0, memory_mb / 1024 * 0.1)
    expected = {
        "control-1": (f"{round(plain_gb + 4.0, 3)}", "4", "20.0"),
        "node-1": (f"{round(plain_gb, 3)}", "2", "20.0"),
    }
    keys = ("NODE_RAM_RESERVATION_GB", "NODE_CPU_RESERVATION_THREADS", "NODE_DISK_RESERVATION_GB")

    assert {host: tuple(rollout.config(host)[key] for key in keys) for host in expected} == expected


def test_host_vars_win_over_group_vars_and_both_over_the_formulas(rollout: Rollout) -> None:
    config = rollout.config("node-2")

    assert config["NODE_RAM_RESERVATION_GB"] == "64.5"
    assert config["NODE_CPU_RESERVATION_THREADS"] == "12"
    assert config["NODE_DISK_RESERVATION_GB"] == "20.0"


def test_each_host_gets_its_own_values_and_no_key_that_nobody_set(rollout: Rollout) -> None:
    assert rollout.config("node-2") == rollout.config("node-1") | {
        "NODE_NAME": "node-2",
        "NODE_RAM_RESERVATION_GB": "64.5",
        "NODE_CPU_RESERVATION_THREADS": "12",
        "NODE_LABELS": "disk=ssd,rack=b",
        "INSTANCES_PATH": "/srv/instances",
        "NODE_GPU_KIND": "A100",
        "GPU_INVENTORY_FILE": "/etc/sf/gpus.json",
    }
    assert rollout.config("control-1")["NODE_IS_HYPERVISOR"] == "false"
    assert rollout.config("control-1")["ADMIN_KEY_FILE"] == "/var/lib/sf/admin.key"
    assert "ADMIN_KEY_FILE" not in rollout.config("node-1")
    assert rollout.config("node-1")["DATABASE_URL"] == ALL["sf_database_url"]


def test_declared_gpus_are_written_as_the_daemon_reads_them(rollout: Rollout) -> None:
    file = rollout.roots["node-2"] / "etc/sf/gpus.json"

    assert json.loads(file.read_text()) == GPUS
    assert read_gpu_file(file) == declared_gpus(GPUS)
    assert inside(rollout.roots["node-2"], "stat", "-c", "%a %U:%G", "/etc/sf/gpus.json") == "640 root:sf"
    assert not (rollout.roots["node-1"] / "etc/sf/gpus.json").exists()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc/sf", "750 root:sf"),
        ("/etc/sf/config", "640 root:sf"),
        ("/opt/sf", "755 root:root"),
        ("/opt/sf/wheels", "755 root:root"),
        ("/var/lib/sf", "750 sf:sf"),
        ("/var/lib/sf/blobs", "750 sf:sf"),
        ("/etc/systemd/system/sf.target", "644 root:root"),
    ],
)
def test_owners_and_modes(rollout: Rollout, host: str, path: str, expected: str) -> None:
    assert inside(rollout.roots[host], "stat", "-c", "%a %U:%G", path) == expected


@pytest.mark.parametrize("host", HOSTS)
def test_the_daemons_user_has_no_login_and_cannot_change_what_it_runs(rollout: Rollout, host: str) -> None:
    root = rollout.roots[host]

    assert inside(root, "getent", "passwd", "sf").split(":")[5:] == ["/var/lib/sf", "/usr/sbin/nologin"]
    assert inside(root, "find", "/opt/sf/", "/etc/sf/", "-user", "sf") == ""
    assert inside(root, "find", "/opt/sf/", "/etc/sf/", "-perm", "/022", "!", "-type", "l") == ""


@pytest.mark.parametrize(
    ("host", "daemons"),
    [
        ("control-1", {"sf-api", "sf-reconciler", "sf-resources"}),
        ("node-1", {"sf-resources", "sf-worker"}),
    ],
)
def test_a_host_gets_the_daemons_of_its_groups_and_no_others(rollout: Rollout, host: str, daemons: set[str]) -> None:
    units = rollout.roots[host] / "etc/systemd/system"

    assert {unit.stem for unit in units.glob("sf-*.service")} == daemons
    assert {link.name for link in (units / "sf.target.wants").iterdir()} == {f"{name}.service" for name in daemons}
    assert (units / "multi-user.target.wants/sf.target").is_symlink()
    for name in daemons:
        assert (units / f"{name}.service").read_text() == (REPOSITORY / f"systemd/{name}.service").read_text()


def test_a_daemon_may_write_where_the_configuration_says(rollout: Rollout) -> None:
    added = rollout.roots["node-2"] / "etc/systemd/system/sf-resources.service.d/10-paths.conf"

    assert "ReadWritePaths=-/srv/instances\n" in added.read_text()


@pytest.mark.parametrize("host", HOSTS)
def test_systemd_accepts_the_units_as_installed(rollout: Rollout, host: str) -> None:
    """The commands they name are looked up in the machine: they came with the wheel."""
    root = rollout.roots[host]
    units = [unit.name for unit in (root / "etc/systemd/system").glob("sf*.*") if unit.is_file()]
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={root}", *units], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_installed_wheel_is_whole(rollout: Rollout) -> None:
    root = rollout.roots["node-1"]

    assert inside(root, "/opt/sf/venv/bin/pip", "check") == "No broken requirements found."
    assert "Usage" in inside(root, "/opt/sf/venv/bin/fleet", "--help")


def test_nothing_was_started_and_nothing_claims_to_run(rollout: Rollout) -> None:
    """Without services to manage no stamp may say that a daemon runs with this configuration."""
    assert {host: list((root / "etc/sf/deployed").iterdir()) for host, root in rollout.roots.items()} == {
        host: [] for host in HOSTS
    }
