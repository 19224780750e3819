"""The commonest faults of real servers, made again: what the command line, REST and the rows say about them."""

from __future__ import annotations

import json
import shutil

import pytest
import requests

from roster.models import GuildMember
from tests.conftest import eventually
from tests.support.faults import local, remote
from tests.support.hall import Hall, token_of, wait_for_status, wait_for_web
from tests.support.member_process import free_port

# By fault: a part of the cause, and the beginning of the advice.
FAULTS = {
    "banner_on_stdout": ("It writes to stdout what is no message of MCP (1 line)", "Over stdio, stdout is only for"),
    "prompt_on_stdout": ("It writes to stdout what is no message of MCP", "It waits for input of a person"),
    "port_ignored": ("it listens on port <free> instead.", "Let it take its port from the hall: put `${PORT}`"),
    "stdio_server_over_http": ("Ended with exit code 0", "It ended, but a server runs until it is stopped."),
    "python_module_not_found": ("exit code 1", "Install the Python module mcp_server_notes if you trust it: `python3"),
    "python_syntax_error": ("exit code 1", "Fix line 3 of server.py: `python3 -m py_compile server.py` checks it."),
    "python_key_missing": ("exit code 1", "Set WEATHER_API_KEY in env of python-key-missing/guild-member.json."),
    "no_shebang": ("has no first line that names its interpreter", "Write it as the first line of ./server.py"),
    "command_not_found": ("Command not found: 'bun'.", "Install bun, or give its full path as command in"),
    "remote_refused": ("/mcp: connection refused.", "Start the server there, or correct host and port of url in"),
}
NODE_FAULTS = {
    "node_module_not_found": ("exit code 1", "Install the package express if you trust it: `npm install express`"),
    "node_syntax_error": ("exit code 1", "Fix line 2 of server.js: `node --check server.js` checks it."),
}


def faults() -> dict[str, tuple[str, str]]:
    return FAULTS | (NODE_FAULTS if shutil.which("node") else {})


def folder_name(fault: str) -> str:
    return fault.replace("_", "-")


@pytest.fixture
def unwanted_port() -> int:
    """The port on which a server listens that ignores its own."""
    return free_port()


@pytest.fixture
def faulty_hall(hall: Hall, unwanted_port: int) -> Hall:
    """A hall with a member for each fault, all in error."""
    for name in faults():
        {**local.ALL, **remote.ALL}[name].write(folder_name(name), hall.members_dir, free=unwanted_port)
    hall.up()
    for name in faults():
        wait_for_status(hall, folder_name(name), "error", within=60)
    return hall


def test_each_fault_has_its_cause_and_its_advice_on_the_command_line_and_over_rest(
    faulty_hall: Hall, unwanted_port: int
) -> None:
    wait_for_web(faulty_hall)
    headers = {"Authorization": f"Bearer {token_of(faulty_hall)}"}
    by_rest: dict[str, dict[str, str]] = {}
    by_command: dict[str, dict[str, str]] = {}

    def all_have_a_diagnosis() -> bool:
        """A member is `starting` while the hall tries again. Then it has no diagnosis."""
        body = requests.get(f"{faulty_hall.url}/api/members/", headers=headers, timeout=20).json()
        by_rest.update({member["name"]: member["diagnosis"] for member in body["members"] if member["diagnosis"]})
        listed = json.loads(faulty_hall.manage("roster", "--json").stdout)
        by_command.update({member["name"]: member["diagnosis"] for member in listed if member["diagnosis"]})
        return len(by_rest) == len(by_command) == len(faults())

    eventually(all_have_a_diagnosis, within=60)
    for fault, (cause, remedy) in faults().items():
        for diagnosis in (by_rest[folder_name(fault)], by_command[folder_name(fault)]):
            assert cause.replace("<free>", str(unwanted_port)) in diagnosis["cause"]
            assert diagnosis["remedy"].startswith(remedy), diagnosis
    text = "command-not-found: What to do: Install bun, or give its full path"
    eventually(lambda: text in faulty_hall.manage("roster").stdout, within=60)


def test_an_unreachable_url_makes_no_noise(hall: Hall) -> None:
    remote.ALL["remote_refused"].write("far", hall.members_dir)
    hall.start()
    eventually(lambda: GuildMember.objects.filter(name="far", restarts__gte=3).exists(), within=30)
    member = GuildMember.objects.get(name="far")
    first_try = ["starting", "error"]
    assert list(member.status_changes.order_by("id").values_list("new", flat=True)) == first_try
    assert member.status_changes.get(new="error").repeats >= 2
    assert hall.output().count("member 'far' could not be reached at") == 1
