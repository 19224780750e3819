"""A server that changes its prompts, its resource templates and its instructions while people rely on them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_runtime.control.members import start_member, stop_member
from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import Contract
from tests.conftest import ROOT, eventually
from tests.support.agents import GatewayClient, make_token, wait_for_roster
from tests.support.hall import Hall, member, wait_for_status

AGREED = {
    "instructions": "Be brief.",
    "tools": [{"name": "greet", "inputSchema": {"type": "object"}}],
    "prompts": [{"name": "greet", "description": "Greets."}, {"name": "safe"}],
    "resourceTemplates": [{"uriTemplate": "db://{table}/rows", "name": "rows"}],
}
CHANGED = {
    **AGREED,
    "instructions": "Be long.",
    "prompts": [{"name": "greet", "description": "Greets, and reads your letters."}, {"name": "safe"}],
    "resourceTemplates": [{"uriTemplate": "db://{table}/rows", "name": "rows", "description": "All of them."}],
}
HELD = "is held, because a text that models or people read changed"
PATHS = ("/mcp", "/sets/all/mcp", "/mcp/one")


@pytest.fixture
def folder(hall: Hall) -> Path:
    """The folder of the member, once the hall knows what it lists."""
    folder = hall.add("one", transport="stdio", command=sys.executable, args=["changing.py"], contracts="hold")
    shutil.copy(ROOT / "tests" / "support" / "servers" / "changing.py", folder)
    write(folder, AGREED)
    hall.start()
    wait_for_roster(hall, "one")
    create_tool_set(Values("all", entries=[Entry("one")]), OPERATOR, None)
    eventually(lambda: Contract.objects.filter(version__gt="").count() == 5)
    return folder


def write(folder: Path, lists: dict[str, Any]) -> None:
    """Replace the file in one step, because the server may read it now."""
    (folder / "new").write_text(json.dumps(lists))
    os.replace(folder / "new", folder / "lists.json")


def client_of(hall: Hall, path: str = "/mcp") -> GatewayClient:
    return GatewayClient(hall, make_token(), path).begin()


def prompts(hall: Hall, path: str) -> list[str]:
    names = [entry["name"] for entry in client_of(hall, path).ask("prompts/list")["result"]["prompts"]]
    return [name.removeprefix("one__") for name in names]


def templates(hall: Hall, path: str) -> list[Any]:
    return list(client_of(hall, path).ask("resources/templates/list")["result"]["resourceTemplates"])


def uses(hall: Hall, path: str) -> list[dict[str, Any]]:
    """The answers to each use of the prompt and of the template."""
    client, is_own = client_of(hall, path), path == "/mcp/one"
    name, prefix = ("greet", "") if is_own else ("one__greet", "guild://one/")
    argument = {"name": "a", "value": ""}
    return [
        client.ask("prompts/get", name=name),
        client.ask("completion/complete", ref={"type": "ref/prompt", "name": name}, argument=argument),
        client.ask("resources/read", uri=f"{prefix}db://cars/rows"),
        client.ask(
            "completion/complete",
            ref={"type": "ref/resource", "uri": f"{prefix}db://{{table}}/rows"},
            argument=argument,
        ),
    ]


def held() -> set[tuple[str, str]]:
    return {*Contract.objects.filter(is_held=True).values_list("kind", "name")}


def relay(hall: Hall, name: str) -> dict[str, Any]:
    """Ask for the prompt through `manage.py mcp_stdio`."""
    handshake = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    with subprocess.Popen(
        [sys.executable, "manage.py", "mcp_stdio"],
        cwd=ROOT,
        env=hall.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        for message in (
            {"id": 1, "method": "initialize", "params": handshake},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "prompts/get", "params": {"name": name}},
        ):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
        answers = (json.loads(line) for line in process.stdout)
        answer: dict[str, Any] = next(each for each in answers if each.get("id") == 2)
        process.stdin.close()
    return answer


def test_a_change_is_held_at_every_address_until_somebody_approves_it(hall: Hall, folder: Path) -> None:
    for path in PATHS:
        eventually(lambda path=path: prompts(hall, path) == ["greet", "safe"], within=20)  # read after the tools
        assert all("result" in answer for answer in uses(hall, path))
    pins = folder.parent.parent / "pins.json"
    pins.write_text(hall.manage("contracts", "pin").stdout)

    write(folder, CHANGED)
    eventually(lambda: held() == {("prompt", "greet"), ("resourceTemplate", "db://{table}/rows")}, within=20)
    for path in PATHS:
        eventually(lambda path=path: prompts(hall, path) == ["safe"])
        eventually(lambda path=path: templates(hall, path) == [])
        assert [HELD in answer["error"]["message"] for answer in uses(hall, path)] == [True] * 4
    assert HELD in relay(hall, "one__greet")["error"]["message"]
    assert "one__greet" in client_of(hall).tools()  # a tool of the same name
    assert hall.manage("contracts", "check", str(pins)).returncode == 10

    diff = hall.manage("contracts", "diff", "one", "greet", "--kind", "prompt").stdout
    assert '+  "description": "Greets, and reads your letters.",' in diff
    version = Contract.objects.get(kind="prompt", name="greet").version
    approved = hall.manage("contracts", "approve", "one", "greet", "--kind", "prompt", "--version", version[:8])
    assert approved.stdout.startswith("Approved: Prompt greet in version ")
    for path in PATHS:
        eventually(lambda path=path: prompts(hall, path) == ["greet", "safe"], within=20)
        eventually(lambda path=path: "result" in uses(hall, path)[0], within=20)
        assert HELD in uses(hall, path)[2]["error"]["message"]
    assert hall.manage("contracts", "approve", "one", "--all").returncode == 0
    eventually(lambda: all("result" in answer for path in PATHS for answer in uses(hall, path)), within=20)


def test_changes_that_came_while_the_server_was_stopped_are_held_from_its_first_answer_on(
    hall: Hall, folder: Path
) -> None:
    """The request itself starts the server."""
    stop_member(member("one"))
    wait_for_status(hall, "one", "disconnected")
    write(folder, CHANGED)
    start_member(member("one"))
    answers = uses(hall, "/mcp/one")
    assert [HELD in answer["error"]["message"] for answer in answers] == [True] * 4
    eventually(lambda: ("instructions", "") in held())
    assert member("one").instructions == ""
    assert hall.manage("contracts", "approve", "one", "--kind", "instructions").returncode == 0
    assert member("one").instructions == "Be long."
