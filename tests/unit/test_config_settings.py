"""A machine's own settings: file, environment, defaults, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from fleet.cli import app
from fleet.config import ConfigError, Settings, load_settings
from fleet.config.settings import DEFAULT_PATH, NOT_SET


def settings_of(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> Settings:
    file = tmp_path / "config"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, environ or {})


def problems_of(tmp_path: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, text, environ)
    return [str(problem) for problem in caught.value.problems]


def test_an_empty_file_leaves_the_documented_defaults(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "")

    assert settings.node_ram_reservation_gb == Decimal("2.0")
    assert settings.node_cpu_reservation_threads == 2
    assert settings.node_disk_reservation_gb == Decimal("20.0")
    assert settings.node_max_instances is None
    assert settings.node_name != ""
    assert settings.node_arch in {"amd64", "arm64"}
    assert settings.node_is_hypervisor is True
    assert settings.api_port == 13000
    assert (settings.database_url, settings.redis_url, settings.auth_secret) == ("", "", "")
    assert settings.origin("API_PORT") == "default"
    assert settings.warnings == ()


def test_a_shell_style_file_is_read(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        "# comment\n; comment too\n\n"
        "NODE_NAME=n1 # the first\n"
        "SHAKENFIST_NODE_RAM_RESERVATION_GB='6.5'\n"
        'NODE_LABELS="disk=nvme, rack=r-1"\r\n'
        "NODE_IS_HYPERVISOR=False\n"
        "  NODE_CPU_RESERVATION_THREADS=0\n"
        'LIBVIRT_URI="qemu:///system?a=\\"b\\"#c"\n'
        "NODE_ARCH=aarch64\n"
        "DATABASE_URL=mysql+pymysql://u:p#w$1@127.0.0.1/fleet\n",
    )

    assert settings.node_name == "n1"
    assert settings.node_ram_reservation_gb == Decimal("6.5")
    assert settings.node_labels == {"disk": "nvme", "rack": "r-1"}
    assert settings.node_is_hypervisor is False
    assert settings.node_cpu_reservation_threads == 0
    assert settings.libvirt_uri == 'qemu:///system?a="b"#c'
    assert settings.node_arch == "arm64"
    assert settings.database_url == "mysql+pymysql://u:p#w$1@127.0.0.1/fleet"
    assert settings.origin("NODE_RAM_RESERVATION_GB") == f"{tmp_path / 'config'}:5"


def test_the_environment_beats_the_file(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "API_PORT=14000\n", {"FLEET_API_PORT": "15000", "API_PORT": "16000"})

    assert settings.api_port == 15000
    assert settings.origin("API_PORT") == "environment FLEET_API_PORT"


def test_fleet_config_names_another_file(tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_text("API_PORT=14000\n", encoding="utf-8")

    assert load_settings(None, {"FLEET_CONFIG": str(file)}).api_port == 14000
    assert load_settings(None, {}).path == DEFAULT_PATH


def test_a_named_file_that_is_missing_leaves_defaults_and_a_warning(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "absent", {})

    assert settings.api_port == 13000
    assert "does not exist" in str(settings.warnings[0])


@pytest.mark.parametrize("word", ["false", "False", "FALSE", "no", "No", "0"])
def test_every_spelling_of_false_is_false(tmp_path: Path, word: str) -> None:
    assert settings_of(tmp_path, f"NODE_IS_HYPERVISOR={word}\n").node_is_hypervisor is False


def test_an_unknown_key_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "NODE_RAM_RESERVATON_GB=9\nFLOATING_NETWORK=x\n", {"FLEET_API_PROT": "1"})

    assert [str(warning) for warning in settings.warnings] == [
        f"{tmp_path}/config:1: NODE_RAM_RESERVATON_GB: unknown key, no effect; did you mean NODE_RAM_RESERVATION_GB?",
        f"{tmp_path}/config:2: FLOATING_NETWORK: unknown key, no effect; no known key is like it",
        "environment FLEET_API_PROT: API_PROT: unknown key, no effect; did you mean API_PORT?",
    ]
    assert settings.node_ram_reservation_gb == Decimal("2.0")


def test_variables_that_are_no_keys_do_not_warn(tmp_path: Path) -> None:
    assert (
        settings_of(tmp_path, "", {"FLEET_URL": "http://127.0.0.1", "FLEET_CONFIG": "/x", "HOME": "/"}).warnings == ()
    )


def test_a_cluster_wide_key_has_no_effect_and_says_so(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "CPU_OVERCOMMIT_RATIO=banana\n")

    assert "fleet ctl set-config CPU_OVERCOMMIT_RATIO VALUE" in str(settings.warnings[0])


def test_all_problems_are_reported_together_naming_file_line_key_and_value(tmp_path: Path) -> None:
    problems = problems_of(
        tmp_path,
        "NODE_NAME=n1\n"
        "NODE_RAM_RESERVATION_GB=1e400\n"
        "NODE_CPU_RESERVATION_THREADS=two\n"
        "API_PORT=99999999999999999999999999\n"
        "NODE_NAME=n2\n"
        "NODE_IS_HYPERVISOR=maybe\n"
        "NODE_LABELS=disk=nvme,rack\n"
        "NODE_BACKEND=xen\n",
        {"FLEET_API_WORKERS": "-1"},
    )

    file = tmp_path / "config"
    assert [problem.split(": ")[:2] for problem in problems] == [
        [f"{file}:5", "NODE_NAME"],
        [f"{file}:2", "NODE_RAM_RESERVATION_GB"],
        [f"{file}:3", "NODE_CPU_RESERVATION_THREADS"],
        [f"{file}:4", "API_PORT"],
        [f"{file}:6", "NODE_IS_HYPERVISOR"],
        [f"{file}:7", "NODE_LABELS"],
        [f"{file}:8", "NODE_BACKEND"],
        ["environment FLEET_API_WORKERS", "API_WORKERS"],
    ]
    assert f"set twice, first at {file}:1" in problems[0]
    assert "'1e400'" in problems[1]
    assert all("accepted: " in problem for problem in problems[1:])


def test_the_prefixed_and_the_bare_key_are_one_key(tmp_path: Path) -> None:
    assert "set twice" in problems_of(tmp_path, "NODE_NAME=a\nSHAKENFIST_NODE_NAME=b\n")[0]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("export NODE_NAME=a", "leave out the word export"),
        ("NODE_NAME = a", "no spaces around the equals sign"),
        ("NODE_NAME", "not an assignment"),
        ("NODE_NAME=a b", "needs quotes"),
        ("NODE_NAME='a", "not quoted as it should be"),
        ('NODE_NAME="a"b', "not quoted as it should be"),
        ("NODE_NAME=a\\", "needs quotes"),
        ("=a", "not an assignment"),
        ("NODE_NAME=a\x00", "control characters"),
    ],
)
def test_a_line_that_shell_and_systemd_would_read_differently_is_refused(tmp_path: Path, line: str, hint: str) -> None:
    problems = problems_of(tmp_path, f"# first\n{line}\n")

    assert len(problems) == 1
    assert f"{tmp_path}/config:2: " in problems[0]
    assert hint in problems[0]


def test_a_secret_is_never_repeated(tmp_path: Path) -> None:
    problems = problems_of(
        tmp_path, "DATABASE_URL=postgres://u:hush@x/db\nREDIS_URL=hush\nAUTH_SECRET=hush\nhush hush\n"
    )

    assert len(problems) == 4
    assert "hush" not in "\n".join(problems)


def test_secrets_are_hidden_where_settings_are_shown(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f"DATABASE_URL=sqlite:///hush.db\nAUTH_SECRET={'hush' * 10}\n")
    shown = {report.key: report.value for report in settings.describe()}

    assert "hush" not in repr(settings)
    assert (shown["DATABASE_URL"], shown["AUTH_SECRET"], shown["REDIS_URL"]) == ("(hidden)", "(hidden)", "(not set)")
    assert shown["NODE_RAM_RESERVATION_GB"] == "2.0"


@pytest.mark.parametrize("form", ["--json", "--simple", ""])
def test_a_long_value_is_shown_whole(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, text = "/srv/" + "instances/" * 20 + "back\\slash", tmp_path / "config"
    text.write_text(f"INSTANCES_PATH='{path}'\n")

    assert app.run([*([form] if form else []), "config", "show", "--file", str(text)]) == 0

    told = capsys.readouterr().out
    assert "…" not in told
    if form == "--json":
        told = {item["key"]: item["value"] for item in json.loads(told)["items"]}["INSTANCES_PATH"]
    assert path in told


def test_a_key_that_a_process_needs_is_asked_for_by_name(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "DATABASE_URL=sqlite:///x.db\n")

    settings.require("DATABASE_URL")
    with pytest.raises(ConfigError, match="REDIS_URL: not set"):
        settings.require("DATABASE_URL", "REDIS_URL")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"NODE_NAME=\xff\n", "not UTF-8"), (b"#" * (2**20 + 1), "larger than 1048576 bytes")],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "config"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=reason):
        load_settings(file, {})


def test_a_folder_in_the_files_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_settings(tmp_path, {})


@pytest.mark.parametrize("label", ["a", "A1", "a.b_c-d", "x" * 63])
def test_good_label_words(tmp_path: Path, label: str) -> None:
    assert settings_of(tmp_path, f"NODE_LABELS={label}={label}\n").node_labels == {label: label}


@pytest.mark.parametrize("pair", ["=a", "a=", "-a=b", "a=b-", "a=" + "x" * 64, "a=b=c", "a b=c", "a=b,a=c", "a=b,"])
def test_bad_labels_are_refused(tmp_path: Path, pair: str) -> None:
    assert "NODE_LABELS" in problems_of(tmp_path, f"NODE_LABELS='{pair}'\n")[0]


@pytest.mark.parametrize(("text", "bound"), [("", None), ("unlimited", None), ("0", 0), ("40", 40)])
def test_slots_without_a_number_are_unbounded(tmp_path: Path, text: str, bound: int | None) -> None:
    assert settings_of(tmp_path, f"NODE_MAX_INSTANCES={text}\n").node_max_instances == bound


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:6379/0", "rediss://h/0", "unix:///run/redis.sock", "redis+sentinel://h:26379/main"]
)
def test_the_queue_urls_of_the_contract_are_accepted(tmp_path: Path, url: str) -> None:
    assert settings_of(tmp_path, f"REDIS_URL={url}\n").redis_url == url


@pytest.mark.parametrize("url", ["sqlite:////srv/my fleet/fleet.db", "sqlite:///fleet.db"])
def test_a_database_file_may_lie_in_a_folder_with_spaces(tmp_path: Path, url: str) -> None:
    assert settings_of(tmp_path, f"DATABASE_URL='{url}'\n").database_url == url


@pytest.mark.parametrize("url", ["mysql+pymysql://sf@db 1/fleet", "sqlite:///a\tb.db"])
def test_white_space_that_is_a_slip_of_the_pen_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="white space"):
        settings_of(tmp_path, f"DATABASE_URL='{url}'\n")


@pytest.mark.parametrize(
    "url",
    [
        "DATABASE_URL=mysql+pymysql://sf:pw@db:3306/fleet",
        "DATABASE_URL=mysql+pymysql://sf:p/w?x#1@db/fleet",
        "DATABASE_URL=mysql+pymysql://sf@[::1]:3306/fleet",
        "DATABASE_URL=mysql+pymysql://sf@db1:3306,db2:3306/fleet",
        "DATABASE_URL=mysql+pymysql:///fleet?unix_socket=/run/mysqld/mysqld.sock",
        "REDIS_URL=redis://sf:p@w@queue:6379/0",
        "REDIS_URL=redis+sentinel://sf:pw@[::1]:26379,h2/main/0",
    ],
)
def test_a_url_with_an_address_is_accepted(tmp_path: Path, url: str) -> None:
    assert settings_of(tmp_path, f"{url}\n").describe()


@pytest.mark.parametrize(
    "url",
    [
        "DATABASE_URL=mysql+pymysql://sf:hush@db:99999/fleet",
        "DATABASE_URL=mysql+pymysql://sf:hush@db:0/fleet",
        "DATABASE_URL=mysql+pymysql://sf:hush@[::1/fleet",
        "DATABASE_URL=mysql+pymysql://sf:hush@hush@db/fleet",
        "REDIS_URL=redis://:hush@queue:port/0",
        "REDIS_URL=redis://:hush/hush@queue:6379/0",
        "REDIS_URL=redis+sentinel://h1:26379,h2:hush/main",
    ],
)
def test_a_url_without_a_usable_address_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    problems = problems_of(tmp_path, f"# first\n{url}\n")

    assert len(problems) == 1
    assert f"{tmp_path}/config:2: {url.partition('=')[0]}: " in problems[0]
    assert "no usable host or port" in problems[0]
    assert "hush" not in problems[0]


@pytest.mark.parametrize(
    ("text", "proxies"),
    [("", ()), ("10.0.0.7", ("10.0.0.7/32",)), ("10.1.0.0/16, ::1", ("10.1.0.0/16", "::1/128"))],
)
def test_trusted_proxies_are_addresses_and_networks(tmp_path: Path, text: str, proxies: tuple[str, ...]) -> None:
    settings = settings_of(tmp_path, f'API_TRUSTED_PROXIES="{text}"\n')

    assert settings.api_trusted_proxies == proxies
    (told,) = [report.value for report in settings.describe() if report.key == "API_TRUSTED_PROXIES"]
    assert told == (",".join(proxies) or NOT_SET)


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.7/16", "10.0.0.0/33", "10.0.0.7,", "*", "10.0.0.7 10.0.0.8"])
def test_what_is_no_address_and_no_network_is_no_proxy(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="API_TRUSTED_PROXIES"):
        settings_of(tmp_path, f'API_TRUSTED_PROXIES="{text}"\n')
