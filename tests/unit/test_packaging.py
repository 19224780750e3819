"""What ships: image, compose file, requirements, Makefile. No Docker is asked; tests/system runs the shape."""

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
    """As compose gives it, with every ${VARIABLE} that has a default left unset, and `sesame` for the others."""

    def value(match: re.Match[str]) -> str:
        return match[2] if match[1] == ":-" else "sesame"

    return {
        key: re.sub(r"\$\{[A-Z_]+(:-|:\?)([^}]*)\}", value, text)
        for key, text in SERVICES[name].get("environment", {}).items()
    }


def mounts(name: str) -> dict[str, str]:
    """Where in the container, and what."""
    return {mount.split(":")[1]: mount for mount in SERVICES[name].get("volumes", [])}


def product_text() -> str:
    return "".join(path.read_text() for path in product_files())


def product_files() -> Iterator[Path]:
    for place in PRODUCT:
        yield from [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))


def test_the_production_shape_is_web_one_runtime_redis_and_postgres() -> None:
    assert set(SERVICES) == {"prepare", "web", "runtime", "redis", "postgres"}
    assert set(HALL) == {"prepare", "web", "runtime"}
    assert "deploy" not in SERVICES["runtime"]
    assert "scale" not in SERVICES["runtime"]


@pytest.mark.parametrize("name", ["web", "runtime", "redis", "postgres"])
def test_what_stays_up_is_restarted_and_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    check = SERVICES[name].get("healthcheck", {}).get("test")
    assert check or (name == "web" and "HEALTHCHECK" in instructions())


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_container_prints_does_not_fill_the_disk(name: str) -> None:
    logging = SERVICES[name]["logging"]
    assert (logging["driver"], set(logging["options"])) == ("json-file", {"max-size", "max-file"})


def test_services_wait_for_what_they_need() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES, name
            if how["condition"] == "service_healthy":
                assert "test" in SERVICES[needed]["healthcheck"]
    for name in ("web", "runtime"):
        assert SERVICES[name]["depends_on"]["prepare"] == {"condition": "service_completed_successfully"}
        assert SERVICES[name]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert SERVICES["prepare"]["restart"] == "no"


def test_data_and_database_outlive_their_containers_and_members_are_mounted() -> None:
    named = {mount.split(":")[0] for name in SERVICES for mount in mounts(name).values() if mount[0] not in "./"}
    assert named == set(COMPOSE["volumes"])
    assert "/var/lib/postgresql/data" in mounts("postgres")
    for name in HALL:
        assert mounts(name)["/data"] == "data:/data"
    # The members' own folders are theirs to write into; the web only looks.
    assert mounts("runtime")["/app/guild-members"] == "./guild-members:/app/guild-members"
    assert mounts("web")["/app/guild-members"].endswith(":ro")


def test_nothing_is_open_to_the_network_by_itself() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"web", "runtime"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_no_password_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for variable, default in re.findall(r"\$\{(\w*PASSWORD)(:.[^}]*)\}", text):
        assert default == ":-" or default.startswith(":?"), variable
    assert "sesame@postgres" in environment("web")["DATABASE_URL"]
    assert environment("postgres")["POSTGRES_PASSWORD"] == "sesame"
    assert environment("prepare")["GUILD_HALL_ADMIN_PASSWORD"] == ""


def test_every_variable_is_one_that_the_hall_reads() -> None:
    text = product_text()
    given = {variable for name in HALL for variable in environment(name)}
    given |= {line.split("=")[0] for line in instructions()["ENV"].split() if line.startswith("GUILD_HALL")}
    assert [variable for variable in sorted(given) if f'"{variable}"' not in text] == []
    in_compose = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert {name for name in in_compose if f'"{name}"' not in text} == {"POSTGRES_PASSWORD"}


@pytest.mark.parametrize("name", HALL)
def test_the_settings_accept_what_compose_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = dict(part.split("=", 1) for part in instructions()["ENV"].split())
    for key, value in {**image, **environment(name), "GUILD_HALL_DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    settings = runpy.run_path(str(ROOT / "guildhall" / "settings.py"))
    database = settings["DATABASES"]["default"]
    assert (database["HOST"], database["USER"]) == ("postgres", environment("postgres")["POSTGRES_USER"])
    assert (database["NAME"], database["PASSWORD"]) == (environment("postgres")["POSTGRES_DB"], "sesame")
    assert settings["REDIS_URL"] == "redis://redis:6379/0"
    assert settings["GUILD_HALL_WEB_WORKERS"] == (2 if name == "web" else 1)
    assert "0.0.0.0" not in settings["ALLOWED_HOSTS"]


def commands() -> Iterator[list[str]]:
    for service in HALL.values():
        yield service["command"]
        test = service.get("healthcheck", {}).get("test", [])
        yield from [test[1:]] if test else []
    yield ast.literal_eval(instructions()["CMD"])


def test_every_command_exists() -> None:
    seen = set()
    for argv in commands():
        assert argv[0] == "python"
        if argv[1] == "manage.py":
            assert argv[2] in get_commands(), argv
            seen.add(argv[2])
            help_text = subprocess.run(
                [sys.executable, "manage.py", argv[2], "--help"], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
            assert [option for option in argv[3:] if option not in help_text] == []
        else:
            assert argv[1:] == ["-m", "guildhall.web"]
    assert seen == {"prepare", "runtime", "up"}


# Dockerfile -------------------------------------------------------------------------------------------------------


def instructions() -> dict[str, str]:
    """The last one of each kind, lines that go on joined, comments left out."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return {line.split(" ", 1)[0]: line.split(" ", 1)[1].strip() for line in joined}


def copied() -> set[str]:
    lines = re.findall(r"^COPY (?:--\S+ )?(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return {source for line in lines for source in line.split()}


def test_the_image_is_no_root_on_a_python_that_is_new_enough_with_wheels_for_everything() -> None:
    uid, _, gid = instructions()["USER"].partition(":")
    assert (int(uid), int(gid)) > (0, 0)
    text = (ROOT / "Dockerfile").read_text()
    assert text.rindex("\nRUN ") < text.rindex("\nUSER ")
    image = re.fullmatch(r"python:3\.(\d+)-slim", instructions()["FROM"])
    assert image
    assert int(image[1]) >= 11


def test_the_image_holds_the_product_and_nothing_private() -> None:
    assert copied() == {*PRODUCT, "guild-members", "requirements.txt"}
    assert all((ROOT / source).exists() for source in copied())
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()


def test_the_health_check_asks_an_address_that_answers(client: Any) -> None:
    path = re.search(r"http://127\.0\.0\.1:8000(/\w+)", instructions()["HEALTHCHECK"])
    assert path
    assert client.get(path[1]).status_code == 200


# Requirements -----------------------------------------------------------------------------------------------------


def requirements(name: str) -> dict[str, Requirement]:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    parsed = [Requirement(line) for line in lines if line and not line.startswith("-r ")]
    return {canonical(requirement.name): requirement for requirement in parsed}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class WithoutTyping(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imported(paths: Iterator[Path]) -> dict[str, set[str]]:
    """Top-level modules that are neither the standard library's nor ours, and where they are imported."""
    own = {"guildhall", "roster", "mcp_runtime", "tests", "bench"}
    found: dict[str, set[str]] = {}
    for path in paths:
        for node in ast.walk(WithoutTyping().visit(ast.parse(path.read_text()))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for module in {name.split(".")[0] for name in names} - own - sys.stdlib_module_names:
                found.setdefault(module, set()).add(str(path.relative_to(ROOT)))
    return found


def not_required(modules: dict[str, set[str]], wanted: set[str]) -> dict[str, set[str]]:
    distributions = metadata.packages_distributions()
    return {
        module: where
        for module, where in modules.items()
        if not {canonical(name) for name in distributions.get(module, [])} & wanted
    }


def test_every_package_that_the_product_imports_is_required() -> None:
    modules = imported(product_files())
    # Optional, and only in the one program that runs an agent.
    assert modules.pop("claude_agent_sdk") == {"mcp_runtime/agents/host.py"}
    assert "claude-agent-sdk" in requirements("requirements-agent.txt")
    assert not_required(modules, set(requirements("requirements.txt"))) == {}


def test_every_package_that_tests_and_bench_import_is_required() -> None:
    wanted = {*requirements("requirements.txt"), *requirements("requirements-dev.txt")}
    paths = [path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    # npm comes with Python of its own, and those that are measured beside the hall with whole environments.
    modules = imported(path for path in paths if not {"node_modules", ".peers"} & set(path.parts))
    # Optional, and only in the process that fuzzes: there is no wheel of it for everybody.
    assert modules.pop("atheris") == {"tests/attack/fuzz.py"}
    assert "atheris" in requirements("requirements-fuzz.txt")
    # An extra of psycopg's requirement.
    assert "pool" in requirements("requirements.txt")["psycopg"].extras
    assert not_required(modules, {*wanted, "psycopg-pool"}) == {}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_requirements_are_what_is_installed(name: str) -> None:
    for requirement in requirements(name).values():
        assert requirement.specifier.contains(metadata.version(requirement.name), prereleases=True), requirement


def test_what_the_hall_runs_on_has_an_upper_bound() -> None:
    """A new major version is tried before strangers get it."""
    for requirement in [*requirements("requirements.txt").values(), *requirements("requirements-agent.txt").values()]:
        assert {specifier.operator for specifier in requirement.specifier} & {"~=", "<", "=="}, requirement


# Makefile ---------------------------------------------------------------------------------------------------------

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

# A Python that writes down what it is asked. `django` is there when the file `works` is.
FAKE_PYTHON = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
case "$*" in
  *ensurepip*) exit 0 ;;
  *version_info*) exit 0 ;;
  --version) echo Python 3.11.99 ;;
  *"import django"*) test -e works && echo works ;;
  "-m venv"*) echo "venv" >> log; mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/pyvenv.cfg ;;
  *"pip "*) echo "pip $*" | sed 's/.*install -r/install/' >> log; test ! -e broken && touch works ;;
  "manage.py up") echo "up" >> log ;;
  *) echo "what? $*" >> log ;;
esac
"""


class BareMachine:
    """A checkout's Makefile with a PATH that holds a shell's tools and the Pythons it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = folder / "usr-bin"
        self._bin.mkdir()
        for name in ("Makefile", "requirements.txt", "requirements-dev.txt"):
            shutil.copy(ROOT / name, folder)
        for tool in ("sh", "make", "test", "touch", "rm", "basename", "dirname", "mkdir", "cp", "sed", "echo"):
            if found := shutil.which(tool):
                (self._bin / tool).symlink_to(found)

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
        """What the Pythons were asked since the last look."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> BareMachine:
    return BareMachine(tmp_path)


@needs_make
def test_make_run_installs_once_and_then_needs_no_pip(machine: BareMachine) -> None:
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
    newer = (machine.folder / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(machine.folder / "requirements.txt", (newer, newer))
    machine.make("run")
    assert machine.log() == ["install requirements.txt", "up"]


@needs_make
def test_an_installation_that_was_interrupted_heals_at_the_next_run(machine: BareMachine) -> None:
    machine.python("python3", FAKE_PYTHON)
    (machine.folder / "broken").touch()
    assert machine.make("run").returncode != 0
    assert machine.log() == ["venv", "install requirements.txt"]
    (machine.folder / "broken").unlink()
    assert machine.make("run").returncode == 0
    assert machine.log() == ["venv", "install requirements.txt", "up"]


@needs_make
def test_an_environment_whose_python_was_replaced_is_made_anew(machine: BareMachine) -> None:
    machine.python("python3", FAKE_PYTHON)
    machine.make("run")
    machine.log()
    (machine.folder / "works").unlink()
    machine.make("run")
    assert machine.log() == ["venv", "install requirements.txt", "up"]


@needs_make
def test_a_python_without_venv_says_which_package_to_install(machine: BareMachine) -> None:
    machine.python("python3", FAKE_PYTHON.replace("*ensurepip*) exit 0", "*ensurepip*) exit 1"))
    done = machine.make("run")
    assert done.returncode != 0
    assert "Python 3.11.99 lacks venv" in done.stdout
    assert "apt-get install python3-venv" in done.stdout


@needs_make
def test_a_python_that_is_too_old_is_passed_over_for_a_newer_one(machine: BareMachine) -> None:
    old = '#!/bin/sh\ntest "$1" = --version && echo Python 3.10.13\nexit 1\n'
    machine.python("python3", old)
    done = machine.make("run")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stdout
    assert "Python 3.10.13" in done.stdout
    machine.python("python3.12", FAKE_PYTHON)
    assert machine.make("run").returncode == 0
    assert machine.log()[-1] == "up"


@needs_make
def test_without_any_python_it_says_what_to_install(machine: BareMachine) -> None:
    done = machine.make("run")
    assert done.returncode != 0
    assert "no python3" in done.stdout
    assert "apt-get install python3 python3-venv" in done.stdout
