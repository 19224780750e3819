"""Who may import whom (docs/architecture.md, Layers), read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

LAYERS = (
    {"jsonrpc", "errors", "protocol", "remote", "guard", "bridge", "logs", "console", "agent_setup"},
    {
        *("database", "changes", "manifest", "ports", "process", "client", "transport", "schemas", "limits"),
        *("agent", "agent_host", "listeners", "http_server", "schema_work", "quick_checks"),
    },
    {"control", "access", "invocations", "sessions", "statistics", "discovery", "lease", "waiting", "tools"},
    {
        *("worker", "tasks", "dispatcher", "supervisor", "lifecycle", "availability", "gateway"),
        "session_runner",
    },
)
# Beside itself a module imports only what is drawn.
BESIDE = {
    "jsonrpc": {"errors"},
    "client": {"transport"},
    "remote": {"errors"},
    "http_server": {"listeners"},
    "quick_checks": {"schema_work"},
    "schemas": {"quick_checks", "schema_work"},
    "agent": {"process"},
    "control": {"access", "invocations", "sessions", "statistics", "discovery", "lease", "waiting"},
    "sessions": {"access", "invocations", "lease"},
    "waiting": {"invocations"},
    "invocations": {"access", "lease", "statistics"},
    "statistics": {"lease"},
    "worker": {"tasks", "dispatcher", "supervisor", "lifecycle", "gateway", "session_runner"},
    "gateway": {"availability", "lifecycle"},
    "availability": {"lifecycle"},
    "tasks": {"dispatcher"},
    "dispatcher": {"supervisor", "lifecycle", "availability"},
    "supervisor": {"lifecycle"},
}
DJANGO_FREE = LAYERS[0] | {
    *("manifest", "ports", "process", "client", "transport", "schemas", "limits", "agent", "agent_host"),
    "listeners",
    "http_server",
    "schema_work",
    "quick_checks",
}
STANDARD_LIBRARY_ONLY = LAYERS[0]
# What web and commands use: wishes and calls through `control`, and beside it values and texts.
OPEN_TO_INTERFACES = {
    "mcp_runtime.access",
    "mcp_runtime.control",
    "mcp_runtime.console",
    "mcp_runtime.database.give_connection_back",
    "mcp_runtime.errors",
    "mcp_runtime.invocations.Caller",
    "mcp_runtime.jsonrpc",
    "mcp_runtime.protocol",
    "mcp_runtime.limits",
    "mcp_runtime.listeners",
    "mcp_runtime.logs",
    "mcp_runtime.manifest",
    "mcp_runtime.remote",
    "mcp_runtime.schemas.mask",
    "mcp_runtime.statistics.Point",
    "mcp_runtime.statistics.Series",
}
RUNTIME_SIDE = LAYERS[3] | {"process", "client", "transport", "ports", "agent", "agent_host"}

RUNTIME = ROOT / "mcp_runtime"
# A package is a module of several files.
MODULES = {
    path.stem: sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for path in RUNTIME.iterdir()
    if path.stem != "__init__" and (path.suffix == ".py" or (path / "__init__.py").exists())
}
INTERFACES = [
    path
    for path in sorted((ROOT / "roster").rglob("*.py"))
    if "migrations" not in path.parts and path.name not in ("models.py", "apps.py")
]


def imports_of(path: Path) -> Iterator[str]:
    """Every name that is imported anywhere in the file, functions included: `package.module`, `package.module.name`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_of(*paths: Path) -> set[str]:
    return {name.split(".")[0] for path in paths for name in imports_of(path)}


def used_modules(*paths: Path) -> set[str]:
    """The modules of mcp_runtime that the files import."""
    return {name.split(".")[1] for path in paths for name in imports_of(path) if name.startswith("mcp_runtime.")}


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def layer_of(module: str) -> int:
    return next(number for number, modules in enumerate(LAYERS) if module in modules)


def test_every_module_has_its_layer_and_one_alone() -> None:
    assert sorted(module for layer in LAYERS for module in layer) == sorted(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_from_below_and_beside_only_what_is_drawn(module: str) -> None:
    allowed = set().union(*LAYERS[: layer_of(module)]) | BESIDE.get(module, set())
    # `worker` imports itself under its own name when it is the program.
    assert used_modules(*MODULES[module]) - allowed - {module} == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_of_the_runtime_knows_of_the_web_no_more_than_its_rows(module: str) -> None:
    assert {
        name for path in MODULES[module] for name in imports_of(path) if name.startswith(("roster", "guildhall"))
    } <= {
        f"roster.models.{name}"
        for name in (
            *("AgentEvent", "AgentMessage", "AgentSession", "ApiToken", "CallSum", "CallTotal"),
            *("GuildMember", "Hall"),
            *("Invocation", "PortAllocation", "StatusChange", "TokenClient", "Tool"),
        )
    }


@pytest.mark.parametrize("module", sorted(DJANGO_FREE))
def test_below_the_rows_nothing_imports_django(module: str) -> None:
    assert packages_of(*MODULES[module]).isdisjoint({"django", "celery", "rest_framework", "roster"})


@pytest.mark.parametrize("module", sorted(STANDARD_LIBRARY_ONLY))
def test_the_lowest_layer_is_standard_library_only(module: str) -> None:
    assert packages_of(*MODULES[module]) <= set(sys.stdlib_module_names) | {"mcp_runtime"}


@pytest.mark.parametrize("module", ["guard", "bridge", "agent_host"])
def test_what_must_not_fail_stands_alone(module: str) -> None:
    assert used_modules(*MODULES[module]) == set()


@pytest.mark.parametrize("name", ["models.py", "apps.py"])
def test_rows_know_nothing_of_the_runtime(name: str) -> None:
    assert used_modules(ROOT / "roster" / name) == set()


@pytest.mark.parametrize("path", INTERFACES, ids=short)
def test_interfaces_use_control_and_values(path: Path) -> None:
    ours = {name for name in imports_of(path) if name.split(".")[0] == "mcp_runtime"}
    assert {name for name in ours if not {name, name.rpartition(".")[0]} & OPEN_TO_INTERFACES} == set()
    assert used_modules(path).isdisjoint(RUNTIME_SIDE)


@pytest.mark.parametrize("package", ["mcp_runtime", "roster"])
def test_nobody_imports_the_settings_package(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert "guildhall" not in packages_of(path), path


@pytest.mark.parametrize("path", sorted((ROOT / "guild-members").rglob("*.py")), ids=short)
def test_members_import_nothing_of_ours(path: Path) -> None:
    assert packages_of(path).isdisjoint({"mcp_runtime", "roster", "guildhall", "django"})


# What is loaded, not only what is written ------------------------------------------------------------------------


def loaded(program: str) -> set[str]:
    """The modules of a fresh interpreter after `program`."""
    code = f"{program}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_lower_layers_load_without_django() -> None:
    modules = loaded("import " + ", ".join(f"mcp_runtime.{module}" for module in sorted(DJANGO_FREE)))
    assert not {module for module in modules if module.split(".")[0] in ("django", "celery", "roster")}


def test_the_guard_loads_nothing_but_the_standard_library() -> None:
    plain, guard = loaded(""), loaded("import mcp_runtime.guard")
    added = {module.split(".")[0] for module in guard - plain}
    assert added <= set(sys.stdlib_module_names) | {"mcp_runtime"}


def test_the_web_loads_nothing_of_the_runtimes_side() -> None:
    modules = loaded(
        "import django, os; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'guildhall.settings'); django.setup()\n"
        "import guildhall.wsgi\n"
        "from django.urls import get_resolver; get_resolver().url_patterns"
    )
    assert "roster.api.views" in modules
    assert modules.isdisjoint(f"mcp_runtime.{module}" for module in RUNTIME_SIDE)
