"""Which module may import which (docs/architecture-rooms.md), read from the sources."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# The rooms, lowest first, each with the rooms from which it may import.
ROOMS = {
    "bridge": set(),
    "sandbox": set(),
    "protocol": set(),
    "system": set(),
    "contracts": set(),
    "nodes": set(),
    "rows": {"protocol", "sandbox", "system"},
    "secrets": {"protocol", "rows", "system"},
    "schemas": {"secrets"},
    "security": {"protocol", "rows"},
    "client": {"protocol", "system", "secrets"},
    "oauth": {"protocol", "client"},
    "http1": {"protocol", "secrets", "security", "client"},
    "members": {
        "bridge",
        "sandbox",
        "protocol",
        "system",
        "schemas",
        "contracts",
        "nodes",
        "rows",
        "secrets",
        "client",
        "oauth",
    },
    "sources": {"protocol", "secrets", "client", "members"},
    "calls": {"protocol", "schemas", "security", "rows", "client", "members"},
    "agents": {"protocol", "system", "schemas", "secrets", "security", "rows", "members", "calls"},
    "gateway": {"protocol", "schemas", "contracts", "security", "rows", "client", "oauth", "http1", "members", "calls"},
    "control": {
        "protocol",
        "sandbox",
        "schemas",
        "contracts",
        "nodes",
        "secrets",
        "security",
        "rows",
        "client",
        "http1",
        "oauth",
        "members",
        "calls",
        "sources",
        "agents",
    },
    "runtime": {
        "protocol",
        "sandbox",
        "system",
        "nodes",
        "rows",
        "secrets",
        "http1",
        "members",
        "calls",
        "agents",
        "gateway",
        "control",
    },
}
# Rooms that do not import Django, and such modules of other rooms.
WITHOUT_DJANGO = {
    *(
        "bridge",
        "sandbox",
        "protocol",
        "system",
        "schemas",
        "contracts",
        "nodes",
        "client",
        "http1",
        "sources",
        "oauth",
    ),
    *(
        "mcp_runtime.secrets.key_file",
        "mcp_runtime.secrets.references",
        "mcp_runtime.security.limits",
        "mcp_runtime.members.archives",
        "mcp_runtime.members.folders",
        "mcp_runtime.members.last_words",
        "mcp_runtime.members.logs",
        "mcp_runtime.members.search_tools",
        "mcp_runtime.members.manifest.declaration",
        "mcp_runtime.members.manifest.files",
        "mcp_runtime.members.manifest.changes",
        "mcp_runtime.members.manifest.parser",
        "mcp_runtime.members.manifest.schema",
        "mcp_runtime.members.output",
        "mcp_runtime.members.ports",
    ),
    *(f"mcp_runtime.members.packages.{name}" for name in ("folders", "lines", "manager", "npm", "pypi", "steps")),
    *(
        "mcp_runtime.members.process",
        "mcp_runtime.members.sandboxes",
        "mcp_runtime.members.silence",
        "mcp_runtime.members.start_limits",
        "mcp_runtime.members.unpacking",
        "mcp_runtime.agents.process",
    ),
    *(
        "mcp_runtime.agents.host",
        "mcp_runtime.agents.setup",
        "mcp_runtime.runtime.fence",
        "mcp_runtime.runtime.guard",
        "mcp_runtime.runtime.pid_namespace",
        "mcp_runtime.runtime.processes",
        "mcp_runtime.runtime.warm",
    ),
}
STANDARD_LIBRARY_ONLY = {
    *(
        "bridge",
        "sandbox",
        "protocol",
        "nodes",
        "mcp_runtime.system.birthmark",
        "mcp_runtime.system.console",
        "mcp_runtime.system.control_groups",
        "mcp_runtime.system.loops",
        "mcp_runtime.system.parent",
        "mcp_runtime.system.running_halls",
        "mcp_runtime.system.title",
        "mcp_runtime.client.remote",
        "mcp_runtime.secrets.references",
    ),
    *(
        "mcp_runtime.members.last_words",
        "mcp_runtime.members.logs",
        "mcp_runtime.members.silence",
        "mcp_runtime.agents.setup",
        "mcp_runtime.runtime.fence",
        "mcp_runtime.runtime.guard",
        "mcp_runtime.runtime.processes",
        "mcp_runtime.runtime.warm",
    ),
    "mcp_runtime.runtime.pid_namespace",
}
# What web and commands use. The desired state and calls go through `control`. The rest is values and texts.
OPEN_TO_INTERFACES = {
    "mcp_runtime.security.access",
    "mcp_runtime.security.principals",
    "mcp_runtime.system.birthmark",
    "mcp_runtime.system.running_halls",
    "mcp_runtime.bridge.complaints",
    "mcp_runtime.members.manifest.commands",
    "mcp_runtime.control.bundles",
    "mcp_runtime.control.call_search",
    "mcp_runtime.control.calls",
    "mcp_runtime.control.contracts",
    "mcp_runtime.control.edits",
    "mcp_runtime.control.extra_uses",
    "mcp_runtime.control.extras",
    "mcp_runtime.control.watches",
    "mcp_runtime.control.logs",
    "mcp_runtime.control.members",
    "mcp_runtime.control.nodes",
    "mcp_runtime.control.packages",
    "mcp_runtime.control.sandboxes",
    "mcp_runtime.control.notify",
    "mcp_runtime.control.grants",
    "mcp_runtime.control.proposals",
    "mcp_runtime.control.registry",
    "mcp_runtime.control.identity_provider",
    "mcp_runtime.control.id_tokens",
    "mcp_runtime.control.secrets",
    "mcp_runtime.control.sign_ins",
    "mcp_runtime.control.sign_in_clients",
    "mcp_runtime.control.ways_in",
    "mcp_runtime.control.agents",
    "mcp_runtime.control.tokens",
    "mcp_runtime.control.tool_sets",
    "mcp_runtime.control.trash",
    "mcp_runtime.control.versions",
    "mcp_runtime.system.console",
    "mcp_runtime.rows.database.damage",
    "mcp_runtime.rows.database.give_connection_back",
    "mcp_runtime.rows.database.hang_up",
    "mcp_runtime.rows.database.unpooled",
    "mcp_runtime.rows.compiled_queries",
    "mcp_runtime.rows.migrations",
    "mcp_runtime.protocol.errors",
    "mcp_runtime.runtime.processes",
    "mcp_runtime.runtime.warm",
    "mcp_runtime.calls.transitions.Requester",
    "mcp_runtime.protocol.jsonrpc",
    "mcp_runtime.protocol.mcp",
    "mcp_runtime.security.limits",
    "mcp_runtime.security.origins",
    "mcp_runtime.security.resources",
    "mcp_runtime.http1.listeners",
    "mcp_runtime.members.search_tools",
    "mcp_runtime.members.last_words",
    "mcp_runtime.members.logs",
    "mcp_runtime.runtime.pid_namespace",
    "mcp_runtime.members.manifest.files",
    "mcp_runtime.members.manifest.changes",
    "mcp_runtime.members.manifest.declaration.FIELDS",
    "mcp_runtime.members.manifest.parser",
    "mcp_runtime.client.remote",
    "mcp_runtime.secrets.references",
    "mcp_runtime.schemas.secrets.mask",
    "mcp_runtime.sources.server_json.Field",
    "mcp_runtime.sources.server_json.Filled",
    "mcp_runtime.sources.server_json.Way",
    "mcp_runtime.calls.statistics.Point",
    "mcp_runtime.calls.statistics.Series",
}
# What the web and commands never load.
ONLY_IN_THE_RUNTIME = {
    *(
        "gateway",
        "mcp_runtime.client.client",
        "mcp_runtime.client.exchanges",
        "mcp_runtime.client.transport",
        "mcp_runtime.client.handshake",
        "mcp_runtime.client.tool_list",
        "mcp_runtime.client.streams",
        "mcp_runtime.client.incoming",
        "mcp_runtime.runtime.worker",
        "mcp_runtime.runtime.runtime",
        "mcp_runtime.runtime.parts",
        "mcp_runtime.runtime.stopping",
        "mcp_runtime.runtime.fence",
        "mcp_runtime.runtime.heartbeat",
        "mcp_runtime.runtime.housekeeping",
        "mcp_runtime.runtime.tasks",
    ),
    *(
        "mcp_runtime.calls.dispatcher",
        "mcp_runtime.calls.queue_watch",
        "mcp_runtime.calls.slots",
        "mcp_runtime.calls.waiting_for_members",
        "mcp_runtime.calls.running",
        "mcp_runtime.calls.outcomes",
        "mcp_runtime.members.supervisor",
        "mcp_runtime.members.lifecycle",
        "mcp_runtime.members.live",
        "mcp_runtime.members.status",
        "mcp_runtime.members.starting",
        "mcp_runtime.members.readiness",
        "mcp_runtime.members.announcements",
        "mcp_runtime.members.restarts",
        "mcp_runtime.members.usage",
    ),
    *(
        "mcp_runtime.members.availability",
        "mcp_runtime.members.signs_of_life",
        "mcp_runtime.agents.runner",
        "mcp_runtime.agents.transcript",
        "mcp_runtime.members.ports",
    ),
    *(
        "mcp_runtime.members.start_limits",
        "mcp_runtime.members.sandboxes",
        "mcp_runtime.members.process",
        "mcp_runtime.members.packages.installer",
        "mcp_runtime.members.packages.steps",
        "mcp_runtime.agents.process",
        "mcp_runtime.agents.host",
    ),
}

RUNTIME = ROOT / "mcp_runtime"
PROGRAMS = {"bridge", "sandbox"}  # rooms that are separate programs


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    module_of(path): path for path in sorted(RUNTIME.rglob("*.py")) if path.parent != RUNTIME or path.stem != "__init__"
}


def room_of(module: str) -> str:
    return module.split(".")[1]


def modules_named(names: set[str]) -> list[str]:
    """The modules with these names. The name of a room means all of its modules."""
    return [module for module in MODULES if module in names or room_of(module) in names]


INTERFACES = [
    path
    for path in sorted((ROOT / "roster").rglob("*.py"))
    if not {"migrations", "models"} & {*path.relative_to(ROOT).parts} and path.name != "apps.py"
]


@functools.cache
def imports_of(path: Path) -> frozenset[str]:
    """Every name that the file imports, also in functions, as `package.module` or `package.module.name`."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def packages_of(*paths: Path) -> set[str]:
    return {name.split(".")[0] for path in paths for name in imports_of(path)}


def used_modules(path: Path) -> set[str]:
    """The modules of mcp_runtime that the file imports. A missing module x is `mcp_runtime.x`."""
    modules = set()
    for name in imports_of(path):
        if name.startswith("mcp_runtime."):
            while name not in MODULES and name.count(".") > 1:
                name = name.rpartition(".")[0]
            modules.add(name)
    return modules


def relative_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_module_belongs_to_a_room() -> None:
    assert {room_of(module) for module in MODULES} == set(ROOMS)


def test_a_room_uses_only_rooms_below_it() -> None:
    order = list(ROOMS)
    for room, allowed_rooms in ROOMS.items():
        assert allowed_rooms <= set(order[: order.index(room)]), room


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_allowed_rooms(module: str) -> None:
    room = room_of(module)
    assert {room_of(used_module) for used_module in used_modules(MODULES[module])} - ROOMS[room] - {room} == set()


def test_there_are_no_circular_imports() -> None:
    """Imports in functions and imports for types count too. CycleError names the modules."""
    packages = ("guildhall", "mcp_runtime", "roster")
    paths = {module_of(path): path for package in packages for path in sorted((ROOT / package).rglob("*.py"))}
    edges = {
        module: {name if name in paths else name.rpartition(".")[0] for name in imports_of(path)}
        & set(paths) - {module}
        for module, path in paths.items()
    }
    graphlib.TopologicalSorter(edges).prepare()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_modules_of_the_runtime_import_only_models_from_the_web(module: str) -> None:
    assert {name for name in imports_of(MODULES[module]) if name.startswith(("roster", "guildhall"))} <= {
        f"roster.models.{name}"
        for name in (
            *("AuditEntry", "AuditOverflow", "Invitation", "act_as_runtime"),
            *("AccessToken", "Actor", "ClientRegistration", "Grant", "Identity"),
            *("AgentEvent", "AgentMessage", "Agent", "Token", "CallRollup", "CallTotal"),
            *(
                "ClientSession",
                "Contract",
                "ContractVersion",
                "DisabledExtra",
                "GuildMember",
                "Hall",
                "MemberExtras",
                "Node",
                "Role",
                "MemberProposal",
                "Bundle",
                "BundlePart",
            ),
            *(
                "Call",
                "PortAllocation",
                "Secret",
                "SecretUse",
                "StatusChange",
                "TokenBucket",
                "TokenClient",
                "TokenLimit",
                "TokenShare",
                "Tool",
            ),
            *(
                "MemberSignIn",
                "MemberSignInAttempt",
                "SignIn",
                "SignInAttempt",
                "UserSignIn",
                "UserSignInAttempt",
                "PackageLock",
                "ToolSet",
                "ToolSetEntry",
                "ToolSetGroup",
                "TrashedMember",
                "ManifestEdit",
                "VersionLookUp",
            ),
        )
    }


def test_only_the_web_imports_the_library_for_oauth() -> None:
    paths = [*MODULES.values(), *(path for path in INTERFACES if "sign_in" not in path.parts)]
    assert [path for path in paths if packages_of(path) & {"oauth2_provider", "oauthlib", "jwcrypto"}] == []


@pytest.mark.parametrize("module", modules_named(WITHOUT_DJANGO))
def test_modules_without_django_do_not_import_it(module: str) -> None:
    assert packages_of(MODULES[module]).isdisjoint({"django", "celery", "rest_framework", "roster"})


@pytest.mark.parametrize("module", modules_named(STANDARD_LIBRARY_ONLY))
def test_modules_of_plain_values_import_only_the_standard_library(module: str) -> None:
    assert packages_of(MODULES[module]) <= set(sys.stdlib_module_names) | {"mcp_runtime"}


@pytest.mark.parametrize("module", modules_named({"mcp_runtime.runtime.guard", "mcp_runtime.agents.host", *PROGRAMS}))
def test_guard_agent_host_bridge_and_sandbox_import_no_other_rooms(module: str) -> None:
    assert {room_of(used_module) for used_module in used_modules(MODULES[module])} <= PROGRAMS & {room_of(module)}


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "roster" / "models").glob("*.py")), ROOT / "roster" / "apps.py"], ids=relative_path
)
def test_models_import_only_the_errors_and_the_mask_of_the_runtime(path: Path) -> None:
    assert used_modules(path) <= {"mcp_runtime.protocol.errors", "mcp_runtime.secrets.references"}


@pytest.mark.parametrize("path", INTERFACES, ids=relative_path)
def test_interfaces_import_only_control_and_values(path: Path) -> None:
    imports = {name for name in imports_of(path) if name.split(".")[0] == "mcp_runtime"}
    assert {name for name in imports if not {name, name.rpartition(".")[0]} & OPEN_TO_INTERFACES} == set()
    assert used_modules(path).isdisjoint(modules_named(ONLY_IN_THE_RUNTIME))


@pytest.mark.parametrize("package", ["mcp_runtime", "roster"])
def test_no_module_imports_the_settings_package(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert "guildhall" not in packages_of(path), path


@pytest.mark.parametrize("path", sorted((ROOT / "guild-members").rglob("*.py")), ids=relative_path)
def test_members_import_nothing_of_the_hall(path: Path) -> None:
    assert packages_of(path).isdisjoint({"mcp_runtime", "roster", "guildhall", "django"})


# Loaded modules --------------------------------------------------------------------------------------------------


def load_modules(program: str) -> set[str]:
    """The modules of a fresh interpreter after `program`."""
    code = f"{program}\nimport sys; print('\\n'.join(sys.modules))"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert process.returncode == 0, process.stderr
    return set(process.stdout.split())


def test_the_lower_layers_load_without_django() -> None:
    modules = load_modules("import " + ", ".join(modules_named(WITHOUT_DJANGO)))
    assert not {module for module in modules if module.split(".")[0] in ("django", "celery", "roster")}


@pytest.mark.parametrize("program", ["guard", "processes"])
def test_guard_and_processes_load_only_the_standard_library(program: str) -> None:
    packages = {
        module.split(".")[0] for module in load_modules(f"import mcp_runtime.runtime.{program}") - load_modules("")
    }
    assert packages <= set(sys.stdlib_module_names) | {"mcp_runtime"}


def test_the_web_loads_no_module_of_the_runtime() -> None:
    modules = load_modules(
        "import django, os; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'guildhall.settings'); django.setup()\n"
        "import guildhall.wsgi\n"
        "from django.urls import get_resolver; get_resolver().url_patterns"
    )
    assert "roster.api.members" in modules
    assert modules.isdisjoint(modules_named(ONLY_IN_THE_RUNTIME))


def test_modules_of_the_gateway_import_only_modules_that_are_listed_below_them() -> None:
    folder = ROOT / "mcp_runtime" / "gateway"
    lines = re.findall(
        r"^    ([\w, ]+?)  ", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "", re.M
    )
    order = [name for line in lines for name in line.split(", ")]
    modules = {path.stem for path in folder.iterdir() if not path.name.startswith("_")}
    assert sorted(order) == sorted(modules)
    violations = []
    for path in sorted(folder.rglob("*.py")):
        module = path.relative_to(folder).parts[0].removesuffix(".py")
        for name in imported_names(path):
            imported_module = name.removeprefix("mcp_runtime.gateway.").partition(".")[0]
            if (
                name.startswith("mcp_runtime.gateway.")
                and module != "__init__"
                and order.index(imported_module) < order.index(module)
            ):
                violations.append(f"{path.relative_to(folder)} imports {imported_module}")
    assert violations == []


def imported_names(path: Path) -> Iterator[str]:
    """The full names that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
