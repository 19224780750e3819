"""The released docker-compose.nodes.yml and nginx.nodes.conf. `make docker ARGS=nodes` runs them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.unit.test_packaging import instructions, product_text

TEXT = (ROOT / "docker-compose.nodes.yml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_MACHINE: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
NODES = [name for name in SERVICES if name.startswith("node-")]
WEBS = [name for name in SERVICES if name.startswith("web-")]
HALL = ["prepare", *WEBS, *NODES]
NGINX = (ROOT / "nginx.nodes.conf").read_text()
PASSWORDS = {"POSTGRES_PASSWORD", "RABBITMQ_PASSWORD"}


def environment(name: str) -> dict[str, str]:
    """The environment of a service if only the variables without a default are set, each to `sesame`."""
    return {
        key: re.sub(r"\$\{[A-Z_]+(:-|:\?)([^}]*)\}", lambda match: match[2] if match[1] == ":-" else "sesame", text)
        for key, text in SERVICES[name].get("environment", {}).items()
    }


def mounts(name: str) -> dict[str, str]:
    return {mount.split(":")[1]: mount for mount in SERVICES[name].get("volumes", [])}


def test_it_has_three_nodes_two_webs_and_all_that_they_need() -> None:
    assert (len(NODES), len(WEBS)) == (3, 2)
    assert set(SERVICES) == {*HALL, "balancer", "rabbitmq", "postgres"}


@pytest.mark.parametrize("name", HALL)
def test_a_part_of_the_hall_is_set_up_as_on_one_machine(name: str) -> None:
    kind = "runtime" if name in NODES else name.partition("-")[0]
    for key in ("build", "image", "command", "restart", "logging", "security_opt", "cap_drop", "healthcheck"):
        assert SERVICES[name].get(key) == ONE_MACHINE[kind].get(key), key


def test_every_other_service_restarts_and_has_a_health_check_and_a_limited_log() -> None:
    for name in ("balancer", "rabbitmq", "postgres"):
        assert SERVICES[name]["restart"] == "unless-stopped"
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
        assert SERVICES[name]["logging"] == ONE_MACHINE["postgres"]["logging"]
    assert SERVICES["balancer"]["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("name", HALL)
def test_the_settings_accept_the_environment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image_environment = dict(part.split("=", 1) for part in instructions()["ENV"].split())
    values = {**image_environment, **environment(name), "GUILD_HALL_DATA_DIR": str(tmp_path)}
    if name in NODES:
        assert mounts(name)["/shared"].startswith("data:")
        assert values["GUILD_HALL_SECRET_KEY_FILE"] == "/shared/secret-key"
        (tmp_path / "secret-key").write_text("k" * 50)
        values["GUILD_HALL_SECRET_KEY_FILE"] = str(tmp_path / "secret-key")
    for key, value in values.items():
        monkeypatch.setenv(key, value)
    settings = runpy.run_path(str(ROOT / "guildhall" / "settings.py"))
    assert settings["DATABASES"]["default"]["PASSWORD"] == environment("postgres")["POSTGRES_PASSWORD"] == "sesame"
    assert settings["BROKER_URL"] == "amqp://guildhall:sesame@rabbitmq:5672//"
    assert environment("rabbitmq") == {"RABBITMQ_DEFAULT_USER": "guildhall", "RABBITMQ_DEFAULT_PASS": "sesame"}
    if name in NODES:
        assert settings["GUILD_HALL_NODE"] == name
        assert settings["GUILD_HALL_NODE_URL"] == f"http://{name}:8200"
    assert settings["GUILD_HALL_PLAIN_HTTP_HOSTS"] == NODES  # webs ask nodes too


def test_each_node_has_its_own_data_and_the_same_members_and_key() -> None:
    assert [mounts(name)["/data"] for name in NODES] == [f"{name}:/data" for name in NODES]
    for name in NODES:
        assert mounts(name)["/app/guild-members"] == "./guild-members:/app/guild-members"
        assert mounts(name)["/shared"].startswith("data:/shared:ro")
    for name in ("prepare", *WEBS):  # the key is in the data folder of `prepare`
        assert mounts(name)["/data"] == "data:/data"
    volumes = {mount.split(":")[0] for name in SERVICES for mount in mounts(name).values() if mount[0] not in "./"}
    assert volumes == set(COMPOSE["volumes"])


def test_only_the_balancer_is_published_and_only_to_this_machine() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["balancer"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["balancer"]["ports"])
    assert SERVICES["balancer"]["ports"] == [*ONE_MACHINE["web"]["ports"], *ONE_MACHINE["runtime"]["ports"]]


def test_no_password_has_a_default_and_the_hall_reads_every_other_variable() -> None:
    for variable, default in re.findall(r"\$\{(\w*PASSWORD)(:.[^}]*)\}", TEXT):
        assert default == ":-" or default.startswith(":?"), variable
    text = product_text()
    assert {name for name in set(re.findall(r"\$\{(\w+)", TEXT)) if f'"{name}"' not in text} == PASSWORDS
    assert set(re.findall(r'echo "(\w+)=', TEXT)) == PASSWORDS


def test_the_balancer_finds_the_webs_and_the_gateways_by_their_common_names() -> None:
    assert [SERVICES[name]["networks"]["default"]["aliases"] for name in WEBS] == [["webs"]] * len(WEBS)
    assert [SERVICES[name]["networks"]["default"]["aliases"] for name in NODES] == [["gateways"]] * len(NODES)
    for name, port in (("webs", 8000), ("gateways", 8100)):
        assert f"set ${name} {name};" in NGINX
        assert f"proxy_pass http://${name}:{port};" in NGINX
        assert f"listen {port} " in NGINX


def test_the_balancer_streams_and_repeats_no_call() -> None:
    directives = re.sub(r"#.*", "", NGINX)
    assert "proxy_buffering off;" in directives
    assert "proxy_http_version 1.1;" in directives
    assert "proxy_next_upstream error timeout;" in directives
    assert "non_idempotent" not in directives
    mount = next(mount for mount in SERVICES["balancer"]["volumes"])
    assert mount == "./nginx.nodes.conf:/etc/nginx/nginx.conf:ro"


def test_the_database_has_enough_connections_for_all_processes() -> None:
    [setting] = [word for word in SERVICES["postgres"]["command"] if word.startswith("max_connections=")]
    assert int(setting.partition("=")[2]) > 17 * len([*WEBS, *NODES]) + 20
