"""What an inventory may say: good values come out in one form, bad ones stop the rollout before it begins (B38)."""

import json
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.config.keys import KEYS, Scope
from fleet.config.settings import load_settings
from tests.deploy.roots import PLAYBOOKS, ansible_environment, playbook, tool

pytestmark = pytest.mark.slow

NEEDED = {"sf_database_url": "sqlite:////var/lib/sf/fleet.db", "sf_redis_url": "redis://127.0.0.1:6379/0"}
NUMBERS = ("sf_node_ram_reservation_gb", "sf_node_cpu_reservation_threads", "sf_node_disk_reservation_gb")

GOOD: list[tuple[str, Any, str]] = [
    *(("sf_node_ram_reservation_gb", value, "NODE_RAM_RESERVATION_GB=4.0") for value in (4, "4", 4.0, "4.0", "4.000")),
    *(("sf_node_cpu_reservation_threads", value, "NODE_CPU_RESERVATION_THREADS=4") for value in (4, "4", 4.0, "4.0")),
    *(("sf_node_disk_reservation_gb", value, "NODE_DISK_RESERVATION_GB=0.0") for value in (0, "0", 0.0)),
    ("sf_node_ram_reservation_gb", "2.5", "NODE_RAM_RESERVATION_GB=2.5"),
    *(
        ("sf_node_sleepy_pool", value, "NODE_SLEEPY_POOL=false")
        for value in (False, "no", "False", "false", 0, "0", "off")
    ),
    *(("sf_node_sleepy_pool", value, "NODE_SLEEPY_POOL=true") for value in (True, "yes", "True", "true", 1, "1", "on")),
    *(("sf_node_max_instances", value, f"NODE_MAX_INSTANCES='{value}'") for value in (40, "40", "unlimited")),
    ("sf_node_labels", {"rack": "a", "disk": "ssd"}, "NODE_LABELS='disk=ssd,rack=a'"),
    ("sf_node_gpu_kind", "A100", "NODE_GPU_KIND='A100'"),
    ("sf_gpu_inventory_file", "/etc/sf/cards.yml", "GPU_INVENTORY_FILE='/etc/sf/cards.yml'"),
    ("sf_gpu_inventory", {"gpus": [{"uuid": "GPU-1"}]}, "GPU_INVENTORY_FILE='/etc/sf/gpus.json'"),
    ("sf_gpu_inventory", {}, ""),
    ("sf_node_labels", "rack=a,disk=ssd", "NODE_LABELS='rack=a,disk=ssd'"),
    (
        "sf_database_url",
        'mysql+pymysql://fleet:a"b$c`d#e\\f@db/fleet',
        "DATABASE_URL='mysql+pymysql://fleet:a\"b$c`d#e\\f@db/fleet'",
    ),
]
NO_MAPPINGS: tuple[Any, ...] = ("lots", [], None, 4)
NO_PATHS: tuple[Any, ...] = ("cards.yml", "/etc/sf/cards.yml\nNODE_NAME=other", ["/a"])
NO_NUMBERS: tuple[Any, ...] = ("", "lots", -1, "-1", 1e9, "1e9", True, None, [], "4 GB", " 4", "4\n")
BAD: list[tuple[str, Any]] = [
    *((name, value) for name in NUMBERS for value in NO_NUMBERS),
    ("sf_node_cpu_reservation_threads", 2.5),
    ("sf_node_ram_reservation_gb", 2.1234),
    ("sf_node_ram_reservation_gb", float("nan")),
    ("sf_node_ram_reservation_gb", float("inf")),
    *(("sf_node_sleepy_pool", value) for value in ("", "maybe", 2, None, "ja")),
    ("sf_manage_services", "perhaps"),
    ("sf_node_region", "north\nNODE_NAME=other"),
    ("sf_node_region", "nor'th"),
    *(("sf_gpu_inventory_file", value) for value in NO_PATHS),
    *(("sf_gpu_inventory", value) for value in NO_MAPPINGS),
    ("sf_database_url", ""),
    ("sf_redis_url", None),
    *(("sf_auth_secret", value) for value in ("", "too short to sign with")),
    ("sf_node_labels", {"rack": "a\nNODE_NAME=other"}),
    ("sf_fleet_wheel", "/nowhere/sf_fleet-1.whl"),
]

RENDER = f"""
- name: Write the configuration of each host into a folder
  hosts: all
  gather_facts: false
  tasks:
    - name: Check the values
      ansible.builtin.import_role: {{name: sf, tasks_from: check}}
    - name: Give the formulas a machine to compute with
      ansible.builtin.set_fact: {{memtotal_mb: "{{{{ machine_memory_mb }}}}", cacheable: true}}
    - name: Write the file
      ansible.builtin.template:
        src: {PLAYBOOKS}/roles/sf/templates/config.j2
        dest: "{{{{ folder }}}}/{{{{ inventory_hostname }}}}"
        mode: "0600"
"""


def inventory(folder: Path, cases: list[dict[str, Any]], groups: list[str] | None = None, **connection: str) -> Path:
    hosts = {f"host-{number}": NEEDED | case | connection for number, case in enumerate(cases)}
    path = folder / "hosts.yml"
    children = {group: {"hosts": hosts} for group in groups or ["hypervisors"]}
    path.write_text(yaml.safe_dump({"all": {"children": children}}))
    return path


def render(
    folder: Path, wheel: Path, cases: list[dict[str, Any]], memory_mb: int = 16384, groups: list[str] | None = None
) -> list[Path]:
    """The configuration that each case gets."""
    (folder / "render.yml").write_text(RENDER)
    (folder / "out").mkdir()
    hosts = inventory(folder, cases, groups, ansible_connection="local")
    values = {"sf_fleet_wheel": str(wheel), "folder": str(folder / "out"), "machine_memory_mb": memory_mb}
    done = playbook(folder / "render.yml", hosts, "-e", json.dumps(values))
    assert done.returncode == 0, done.output[-4000:]
    return [folder / "out" / f"host-{number}" for number in range(len(cases))]


@pytest.fixture
def some_wheel(tmp_path: Path) -> Path:
    path = tmp_path / "sf_fleet-1.0-py3-none-any.whl"
    path.touch()
    return path


def test_good_values_come_out_in_one_form(tmp_path: Path, some_wheel: Path) -> None:
    """B38: 4, "4" and 4.0 are one value, and "False" is false."""
    rendered = render(tmp_path, some_wheel, [{name: value} for name, value, _ in GOOD])
    lines = [path.read_text().splitlines() for path in rendered]

    assert [line for _, _, line in GOOD] == [
        next((found for found in lines[number] if found.split("=")[0] == line.split("=")[0]), "")
        for number, (_, _, line) in enumerate(GOOD)
    ]


def test_the_daemons_accept_every_file_that_is_written(tmp_path: Path, some_wheel: Path) -> None:
    """The formulas by group and memory, and every good value, as the daemons read them."""
    rendered = render(tmp_path, some_wheel, [{name: value} for name, value, _ in GOOD])

    assert [load_settings(path, {}).warnings for path in rendered] == [()] * len(GOOD)


@pytest.mark.parametrize(
    ("memory_mb", "groups", "expected"),
    [
        (16384, ["hypervisors"], (Decimal("2.0"), 2, Decimal(20))),
        (20480, ["hypervisors"], (Decimal("2.0"), 2, Decimal(20))),
        (65536, ["hypervisors"], (Decimal("6.4"), 2, Decimal(20))),
        (65536, ["hypervisors", "network_nodes"], (Decimal("10.4"), 4, Decimal(20))),
        (16384, ["database_nodes"], (Decimal("6.0"), 4, Decimal(20))),
        (16384, ["network_nodes", "database_nodes"], (Decimal("6.0"), 4, Decimal(20))),
        (31744, ["control"], (Decimal("3.1"), 2, Decimal(20))),
    ],
)
def test_the_default_reservations(
    tmp_path: Path, some_wheel: Path, memory_mb: int, groups: list[str], expected: tuple[Decimal, int, Decimal]
) -> None:
    """RAM max(2, a tenth) and 4 more with a role for the cluster; threads 2, or 4 with a role; disk 20."""
    (rendered,) = render(tmp_path, some_wheel, [{}], memory_mb=memory_mb, groups=groups)
    settings = load_settings(rendered, {})
    found = (
        settings.node_ram_reservation_gb,
        settings.node_cpu_reservation_threads,
        settings.node_disk_reservation_gb,
    )

    assert found == expected


def test_a_bad_value_stops_the_rollout_before_any_host_is_touched(tmp_path: Path, some_wheel: Path) -> None:
    """B38: each is reported by host, variable and value, all of them in one go, and no host was spoken to."""
    touched = tmp_path / "touched"
    # The last host has nothing wrong and must stay untouched as well.
    cases = [{"sf_fleet_wheel": str(some_wheel)} | {name: value} for name, value in BAD]
    hosts = inventory(
        tmp_path,
        [*cases, {"sf_fleet_wheel": str(some_wheel)}],
        ansible_connection="enter",
        ansible_enter=f"touch {touched} --",
    )
    done = playbook(PLAYBOOKS / "site.yml", hosts)
    said = " ".join(done.output.split())
    unreported = [(name, value) for number, (name, value) in enumerate(BAD) if f"host-{number}: {name} " not in said]

    assert done.returncode != 0
    assert unreported == []
    assert f'host-0: {NUMBERS[0]} (NODE_RAM_RESERVATION_GB) is ""; accepted is a plain number with at most 3 d' in said
    assert not touched.exists()


def test_a_bad_value_from_the_command_line_is_no_better(tmp_path: Path, some_wheel: Path) -> None:
    touched = tmp_path / "touched"
    hosts = inventory(tmp_path, [{}], ansible_connection="enter", ansible_enter=f"touch {touched} --")
    done = playbook(
        PLAYBOOKS / "site.yml", hosts, "-e", f"sf_fleet_wheel={some_wheel}", "-e", "sf_node_disk_reservation_gb=lots"
    )

    assert done.returncode != 0
    assert "host-0: sf_node_disk_reservation_gb (NODE_DISK_RESERVATION_GB)" in done.output
    assert not touched.exists()


def test_a_secret_that_is_wrong_is_named_and_not_shown(tmp_path: Path, some_wheel: Path) -> None:
    hosts = inventory(
        tmp_path,
        [{"sf_database_url": "mysql://fleet:hunter'2@db/fleet"}],
        ansible_connection="enter",
        ansible_enter="false",
    )
    done = playbook(PLAYBOOKS / "site.yml", hosts, "-e", f"sf_fleet_wheel={some_wheel}")

    assert done.returncode != 0
    assert "sf_database_url (DATABASE_URL) is a value that is not shown" in done.output
    assert "hunter" not in done.output


def test_the_playbook_knows_the_same_keys_as_the_daemons() -> None:
    """A key that only one of them knows could not be rolled out, or would be ignored once it is."""
    known = yaml.safe_load((PLAYBOOKS / "roles/sf/vars/main.yml").read_text())["sf_keys"]
    expected = {key.name for key in KEYS.values() if key.scope is not Scope.CLUSTER}

    assert sorted(entry["key"] for entry in known) == sorted(expected)
    assert {entry["key"] for entry in known if entry.get("secret")} == {key.name for key in KEYS.values() if key.secret}


def test_the_example_inventory_is_complete() -> None:
    """What a new operator copies passes the check and names hosts in every group that the playbook knows."""
    done = subprocess.run(
        [tool("ansible-inventory"), "-i", str(PLAYBOOKS / "inventory/example"), "--list"],
        capture_output=True,
        text=True,
        env=ansible_environment(),
        timeout=60,
        check=True,
    )
    known = json.loads(done.stdout)

    assert {"control", "hypervisors", "network_nodes", "database_nodes"} <= known.keys()
    assert known["_meta"]["hostvars"]["node-3"]["sf_node_ram_reservation_gb"] == 16


def test_ansible_lint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [tool("ansible-lint"), "--offline", "--strict", "--nocolor", "."],
        cwd=PLAYBOOKS,
        env=ansible_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_playbook_parses() -> None:
    done = playbook(PLAYBOOKS / "site.yml", PLAYBOOKS / "inventory/example", "--syntax-check")

    assert done.returncode == 0, done.output
