"""The released files: image, compose file, requirements, Makefile. No Docker is needed. tests/system runs them."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands
from packaging.requirements import Requirement

from tests.conftest import ROOT

PRODUCT = ("manage.py", "guildhall", "mcp_runtime", "roster")


# docker-compose.yml -----------------------------------------------------------------------------------------------

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HALL = {name: service for name, service in SERVICES.items() if service["image"] == "guild-hall"}


def environment(name: str) -> dict[str, str]:
    """The environment of a service if only the variables without a default are set, each to `sesame`."""

    def value(match: re.Match[str]) -> str:
        return match[2] if match[1] == ":-" else "sesame"

    return {
        key: re.sub(r"\$\{[A-Z_]+(:-|:\?)([^}]*)\}", value, text)
        for key, text in SERVICES[name].get("environment", {}).items()
    }


def mounts(name: str) -> dict[str, str]:
    """The mounts of a service by their path in the container."""
    return {mount.split(":")[1]: mount for mount in SERVICES[name].get("volumes", [])}


def product_text() -> str:
    return "".join(path.read_text() for path in product_files())


def product_files() -> Iterator[Path]:
    for path in PRODUCT:
        yield from [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("*.py"))


def test_compose_has_web_one_runtime_redis_and_postgres() -> None:
    assert set(SERVICES) == {"prepare", "web", "runtime", "redis", "postgres"}
    assert set(HALL) == {"prepare", "web", "runtime"}
    assert "deploy" not in SERVICES["runtime"]
    assert "scale" not in SERVICES["runtime"]


@pytest.mark.parametrize("name", ["web", "runtime", "redis", "postgres"])
def test_long_running_services_restart_and_have_a_health_check(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    health_check = SERVICES[name].get("healthcheck", {}).get("test")
    assert health_check or (name == "web" and "HEALTHCHECK" in instructions())


@pytest.mark.parametrize("name", SERVICES)
def test_the_log_of_a_container_has_a_size_limit(name: str) -> None:
    logging = SERVICES[name]["logging"]
    assert (logging["driver"], set(logging["options"])) == ("json-file", {"max-size", "max-file"})


def test_services_wait_for_their_dependencies() -> None:
    for name, service in SERVICES.items():
        for dependency, options in service.get("depends_on", {}).items():
            assert dependency in SERVICES, name
            if options["condition"] == "service_healthy":
                assert "test" in SERVICES[dependency]["healthcheck"]
    for name in ("web", "runtime"):
        assert SERVICES[name]["depends_on"]["prepare"] == {"condition": "service_completed_successfully"}
        assert SERVICES[name]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert SERVICES["prepare"]["restart"] == "no"


def test_data_database_and_members_are_mounted() -> None:
    volumes = {mount.split(":")[0] for name in SERVICES for mount in mounts(name).values() if mount[0] not in "./"}
    assert volumes == set(COMPOSE["volumes"])
    assert "/var/lib/postgresql/data" in mounts("postgres")
    for name in HALL:
        assert mounts(name)["/data"] == "data:/data"
    # Members may write into their own folders. The web only reads them.
    assert mounts("runtime")["/app/guild-members"] == "./guild-members:/app/guild-members"
    assert mounts("web")["/app/guild-members"].endswith(":ro")


def test_published_ports_are_local() -> None:
    ports_by_service = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(ports_by_service) == {"web", "runtime"}
    assert all(port.startswith("127.0.0.1:") for ports in ports_by_service.values() for port in ports)


def test_the_web_can_ask_the_gateway_of_the_runtime() -> None:
    assert environment("runtime")["GUILD_HALL_NODE_URL"] == "http://runtime:8200"
    assert environment("web")["GUILD_HALL_PLAIN_HTTP_HOSTS"].split(",")[0] == "runtime"


def test_no_password_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for variable, default in re.findall(r"\$\{(\w*PASSWORD)(:.[^}]*)\}", text):
        assert default == ":-" or default.startswith(":?"), variable
    assert "sesame@postgres" in environment("web")["DATABASE_URL"]
    assert environment("postgres")["POSTGRES_PASSWORD"] == "sesame"
    assert environment("prepare")["GUILD_HALL_ADMIN_PASSWORD"] == ""


def test_the_hall_reads_every_variable_of_the_compose_file() -> None:
    text = product_text()
    variables = {variable for name in HALL for variable in environment(name)}
    variables |= {line.split("=")[0] for line in instructions()["ENV"].split() if line.startswith("GUILD_HALL")}
    assert [variable for variable in sorted(variables) if f'"{variable}"' not in text] == []
    compose_variables = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert {name for name in compose_variables if f'"{name}"' not in text} == {"POSTGRES_PASSWORD"}


@pytest.mark.parametrize("name", HALL)
def test_the_settings_accept_the_environment_of_the_compose_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_environment = dict(part.split("=", 1) for part in instructions()["ENV"].split())
    for key, value in {**image_environment, **environment(name), "GUILD_HALL_DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    settings = runpy.run_path(str(ROOT / "guildhall" / "settings.py"))
    database = settings["DATABASES"]["default"]
    assert (database["HOST"], database["USER"]) == ("postgres", environment("postgres")["POSTGRES_USER"])
    assert (database["NAME"], database["PASSWORD"]) == (environment("postgres")["POSTGRES_DB"], "sesame")
    assert settings["BROKER_URL"] == "redis://redis:6379/0"
    assert settings["GUILD_HALL_WEB_WORKERS"] == (2 if name == "web" else 1)
    assert "0.0.0.0" not in settings["ALLOWED_HOSTS"]


def commands() -> Iterator[list[str]]:
    for service in HALL.values():
        yield service["command"]
        health_check = service.get("healthcheck", {}).get("test", [])
        yield from [health_check[1:]] if health_check else []
    yield ast.literal_eval(instructions()["CMD"])


def test_every_command_exists() -> None:
    commands_of_manage = set()
    for argv in commands():
        assert argv[0] == "python"
        if argv[1] == "manage.py":
            assert argv[2] in get_commands(), argv
            commands_of_manage.add(argv[2])
            help_text = subprocess.run(
                [sys.executable, "manage.py", argv[2], "--help"], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
            assert [option for option in argv[3:] if option not in help_text] == []
        else:
            assert argv[1:] == ["-m", "guildhall.web"]
    assert commands_of_manage == {"prepare", "runtime", "up"}


# Dockerfile -------------------------------------------------------------------------------------------------------


def instructions() -> dict[str, str]:
    """The last instruction of each kind, with continued lines joined and without comments."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    joined_lines = "\n".join(lines).replace("\\\n", " ").splitlines()
    return {line.split(" ", 1)[0]: line.split(" ", 1)[1].strip() for line in joined_lines}


def copied_sources() -> set[str]:
    lines = re.findall(r"^COPY (?:--\S+ )?(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return {source for line in lines for source in line.split()}


def test_the_image_does_not_run_as_root_and_has_a_supported_python() -> None:
    uid, _, gid = instructions()["USER"].partition(":")
    assert (int(uid), int(gid)) > (0, 0)
    text = (ROOT / "Dockerfile").read_text()
    assert text.rindex("\nRUN ") < text.rindex("\nUSER ")
    image = re.fullmatch(r"python:3\.(\d+)-slim", instructions()["FROM"])
    assert image
    assert int(image[1]) >= 11


def test_the_image_contains_only_the_product() -> None:
    assert copied_sources() == {*PRODUCT, "guild-members", "requirements.txt", "requirements-oidc.txt"}
    assert all((ROOT / source).exists() for source in copied_sources())
    ignore_lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore_lines[0] == "*"
    assert {line[1:] for line in ignore_lines if line.startswith("!")} == copied_sources()


def test_the_health_check_uses_an_existing_address(client: Any) -> None:
    path = re.search(r"http://127\.0\.0\.1:8000(/\w+)", instructions()["HEALTHCHECK"])
    assert path
    assert client.get(path[1]).status_code == 200


# Requirements -----------------------------------------------------------------------------------------------------


def requirements(name: str) -> dict[str, Requirement]:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    parsed_lines = [Requirement(line) for line in lines if line and not line.startswith("-r ")]
    return {canonical(requirement.name): requirement for requirement in parsed_lines}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class WithoutTyping(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imported_modules(paths: Iterator[Path]) -> dict[str, set[str]]:
    """Top-level modules from other packages, with the files that import them."""
    own_packages = {"guildhall", "roster", "mcp_runtime", "tests", "bench"}
    importers: dict[str, set[str]] = {}
    for path in paths:
        text = path.read_text()
        tree = ast.parse(text)
        for node in ast.walk(WithoutTyping().visit(tree) if "TYPE_CHECKING" in text else tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for module in {name.split(".")[0] for name in names} - own_packages - sys.stdlib_module_names:
                importers.setdefault(module, set()).add(str(path.relative_to(ROOT)))
    return importers


def not_required(modules: dict[str, set[str]], required: set[str]) -> dict[str, set[str]]:
    distributions = metadata.packages_distributions()
    return {
        module: importers
        for module, importers in modules.items()
        if not {canonical(name) for name in distributions.get(module, [])} & required
    }


def test_every_package_that_the_product_imports_is_required() -> None:
    modules = imported_modules(product_files())
    # Optional, and only in the one program that runs an agent.
    assert modules.pop("claude_agent_sdk") == {"mcp_runtime/agents/host.py"}
    assert "claude-agent-sdk" in requirements("requirements-agent.txt")
    # Optional, and only with single sign-on.
    own = {"roster/single_sign_on/backend.py", "roster/single_sign_on/views.py"}
    assert modules.pop("mozilla_django_oidc") == own
    assert modules.pop("jwt") == {"mcp_runtime/oauth/signed_tokens.py"}
    assert set(requirements("requirements-oidc.txt")) == {"mozilla-django-oidc", "pyjwt"}
    assert not_required(modules, set(requirements("requirements.txt"))) == {}


def test_every_package_that_tests_and_bench_import_is_required() -> None:
    names = ("requirements.txt", "requirements-oidc.txt", "requirements-dev.txt")
    required = {requirement for name in names for requirement in requirements(name)}
    paths = [path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    # npm contains Python files, and the peers of the benchmark have whole environments.
    modules = imported_modules(path for path in paths if not {"node_modules", ".peers"} & set(path.parts))
    # Optional, and only in the process that fuzzes, because it has no wheel for some platforms.
    assert modules.pop("atheris") == {"tests/attack/fuzz.py"}
    assert "atheris" in requirements("requirements-fuzz.txt")
    # An extra of psycopg's requirement.
    assert "pool" in requirements("requirements.txt")["psycopg"].extras
    assert not_required(modules, {*required, "psycopg-pool"}) == {}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-oidc.txt", "requirements-dev.txt"])
def test_installed_versions_fulfil_the_requirements(name: str) -> None:
    for requirement in requirements(name).values():
        assert requirement.specifier.contains(metadata.version(requirement.name), prereleases=True), requirement


def test_requirements_have_an_upper_version_limit() -> None:
    """A new major version is tried before users get it."""
    names = ("requirements.txt", "requirements-agent.txt", "requirements-oidc.txt")
    for requirement in [requirement for name in names for requirement in requirements(name).values()]:
        assert {specifier.operator for specifier in requirement.specifier} & {"~=", "<", "=="}, requirement


# Makefile ---------------------------------------------------------------------------------------------------------

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

# A Python that writes its commands to a log. `django` is installed if the file `works` exists.
FAKE_PYTHON = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
case "$*" in
  *ensurepip*) exit 0 ;;
  *version_info*) exit 0 ;;
  --version) echo Python 3.11.99 ;;
  *"import django"*) test -e works && echo works ;;
  "-m venv"*) echo "venv" >> log; mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/pyvenv.cfg ;;
  *"pip "*) echo "pip $*" | sed 's/.*install -r/install/' >> log; test ! -e broken && touch works ;;
  "-m guildhall.entry_point .venv/bin/guildhall") ;;
  "manage.py up") echo "up" >> log ;;
  *) echo "what? $*" >> log ;;
esac
"""


class BareMachine:
    """The Makefile of a checkout with a PATH that contains only shell tools and the Pythons of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "usr-bin"
        self._bin.mkdir()
        for name in ("Makefile", "requirements.txt", "requirements-dev.txt"):
            shutil.copy(ROOT / name, folder)
        for tool in ("sh", "make", "test", "touch", "rm", "basename", "dirname", "mkdir", "cp", "sed", "echo"):
            if tool_path := shutil.which(tool):
                (self._bin / tool).symlink_to(tool_path)

    def python(self, name: str, script: str) -> None:
        path = self._bin / name
        path.write_text(script)
        path.chmod(0o755)

    def make(self, *argv: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self._bin)}
        return subprocess.run(
            [str(self._bin / "make"), *argv],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def log(self) -> list[str]:
        """The commands of the Pythons since the last read."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> BareMachine:
    return BareMachine(tmp_path)


@needs_make
def test_make_run_installs_only_once(machine: BareMachine) -> None:
    machine.python("python3", FAKE_PYTHON)
    assert machine.make("run").returncode == 0
    assert machine.log() == ["venv", "install requirements.txt", "up"]
    assert machine.make().returncode == 0
    assert machine.log() == ["up"]


@needs_make
def test_make_run_installs_again_when_the_requirements_changed(machine: BareMachine) -> None:
    machine.python("python3", FAKE_PYTHON)
    machine.make("run")
    machine.log()
    newer_time = (machine.folder / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(machine.folder / "requirements.txt", (newer_time, newer_time))
    machine.make("run")
    assert machine.log() == ["install requirements.txt", "up"]


@needs_make
def test_an_interrupted_installation_is_repeated_at_the_next_run(machine: BareMachine) -> None:
    machine.python("python3", FAKE_PYTHON)
    (machine.folder / "broken").touch()
    assert machine.make("run").returncode != 0
    assert machine.log() == ["venv", "install requirements.txt"]
    (machine.folder / "broken").unlink()
    assert machine.make("run").returncode == 0
    assert machine.log() == ["venv", "install requirements.txt", "up"]


@needs_make
def test_an_environment_whose_python_was_replaced_is_created_again(machine: BareMachine) -> None:
    machine.python("python3", FAKE_PYTHON)
    machine.make("run")
    machine.log()
    (machine.folder / "works").unlink()
    machine.make("run")
    assert machine.log() == ["venv", "install requirements.txt", "up"]


@needs_make
def test_the_error_about_a_python_without_venv_names_the_package(machine: BareMachine) -> None:
    machine.python("python3", FAKE_PYTHON.replace("*ensurepip*) exit 0", "*ensurepip*) exit 1"))
    process = machine.make("run")
    assert process.returncode != 0
    assert "Python 3.11.99 lacks venv" in process.stdout
    assert "apt-get install python3-venv" in process.stdout


@needs_make
def test_a_newer_python_is_used_instead_of_one_that_is_too_old(machine: BareMachine) -> None:
    old_python = '#!/bin/sh\ntest "$1" = --version && echo Python 3.10.13\nexit 1\n'
    machine.python("python3", old_python)
    process = machine.make("run")
    assert process.returncode != 0
    assert "needs Python 3.11 or newer" in process.stdout
    assert "Python 3.10.13" in process.stdout
    machine.python("python3.12", FAKE_PYTHON)
    assert machine.make("run").returncode == 0
    assert machine.log()[-1] == "up"


@needs_make
def test_the_error_about_a_missing_python_names_the_package(machine: BareMachine) -> None:
    process = machine.make("run")
    assert process.returncode != 0
    assert "no python3" in process.stdout
    assert "apt-get install python3 python3-venv" in process.stdout
