"""Secrets of members. The process gets the value in its environment, and nobody else sees it."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import psutil

from tests.conftest import eventually
from tests.support.hall import Hall, bring_up, call, wait_for_status
from tests.support.leaks import command_lines, rest_texts, tables

CANARY = "canary-4711-canary"
NEXT_CANARY = "canary-0815-canary"
# It prints its secret, and ends with an error that quotes it.
TALKATIVE = """
import os, runpy, sys
print("configured with", os.environ["KEY"], flush=True)
if "fail" in sys.argv:
    raise SystemExit("cannot use " + os.environ["KEY"])
sys.argv = ["server.py", sys.argv[1]]
runpy.run_path("server.py", run_name="__main__")
"""


def add_keyed(hall: Hall, *modes: str, name: str = "keyed") -> Path:
    env = {"KEY": "${secret:key}", "PLAIN": "plain"}
    folder = hall.add(name, command=sys.executable, args=["talkative.py", "${PORT}", *modes], env=env)
    (folder / "talkative.py").write_text(TALKATIVE)
    return folder


def set_secret(hall: Hall, value: str, *argv: str) -> None:
    process = hall.manage("set_secret", "key", *argv, input=value)
    assert process.returncode == 0, process.stderr


def processes_with(text: str) -> set[int]:
    """The ids of the processes that have the text in their environment."""
    pids = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if text in str(process.environ()):
                pids.add(process.pid)
    return pids


def pids_of(hall: Hall, name: str) -> set[int]:
    return {process.pid for process in hall.tagged_processes(name)}


def test_a_member_gets_its_secret_and_nobody_else_sees_it(hall: Hall) -> None:
    add_keyed(hall)
    add_keyed(hall, "fail", name="failing")
    hall.add("near")
    bring_up(hall, "near")
    assert "the secret 'key' does not exist" in wait_for_status(hall, "keyed", "error").last_error
    set_secret(hall, CANARY, "--members", "keyed,failing")
    wait_for_status(hall, "keyed", "connected")
    eventually(lambda: "cannot use ***" in wait_for_status(hall, "failing", "error").last_error)

    assert processes_with(CANARY) & pids_of(hall, "keyed")
    eventually(lambda: processes_with(CANARY) <= pids_of(hall, "keyed") | pids_of(hall, "failing"))
    log = hall.manage("logs", "keyed").stdout
    assert "configured with ***" in log
    outputs = [hall.manage("roster", "--json").stdout, hall.manage("secrets", "--json").stdout, log]
    places = {
        "REST and commands": "\n".join([rest_texts(hall, "keyed"), rest_texts(hall, "failing"), *outputs]),
        "database": tables(),
        "console": hall.output(),
        "files": "\n".join(path.read_text("latin-1") for path in hall.data_dir.rglob("*") if path.is_file()),
        "command lines": "\n".join(command_lines()),
        "another member": call("near", "environment").result["content"][0]["text"],
    }
    for place, text in places.items():
        assert CANARY not in text, place
    assert "${secret:key}" in places["database"]


def test_a_member_that_changed_loses_its_secret_until_it_is_allowed_again(hall: Hall) -> None:
    folder = add_keyed(hall)
    hall.add("near")
    bring_up(hall, "near")
    set_secret(hall, CANARY, "--members", "keyed")
    first = wait_for_status(hall, "keyed", "connected").pid
    manifest = json.loads((folder / "guild-member.json").read_text())
    (folder / "guild-member.json").write_text(json.dumps({**manifest, "env": {**manifest["env"], "MORE": "x"}}))
    assert "has changed since it was allowed" in wait_for_status(hall, "keyed", "error").last_error
    eventually(lambda: not processes_with(CANARY))
    assert hall.manage("allow_secret", "key", "keyed").returncode == 0
    assert wait_for_status(hall, "keyed", "connected").pid != first


def test_a_new_value_and_a_new_key_are_used_from_the_next_start(hall: Hall) -> None:
    add_keyed(hall)
    hall.add("near")
    bring_up(hall, "near")
    set_secret(hall, CANARY, "--members", "keyed")
    wait_for_status(hall, "keyed", "connected")
    set_secret(hall, NEXT_CANARY)
    rotation = hall.manage("rotate_secrets_key")
    assert rotation.returncode == 0, rotation.stderr
    assert processes_with(CANARY)
    assert not processes_with(NEXT_CANARY)
    hall.manage("member", "restart", "keyed")
    eventually(lambda: processes_with(NEXT_CANARY) and not processes_with(CANARY), within=20)
    wait_for_status(hall, "keyed", "connected")
