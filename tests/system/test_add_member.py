"""A pasted configuration becomes a member of a real hall, and nothing of it runs before somebody approves it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.hall import Hall, bring_up, wait_for_status
from tests.support.leaks import tables

CANARY = "canary-4711-canary"
STDIO_SERVER = Path(__file__).resolve().parents[1] / "support" / "servers" / "stdio_server.py"


def test_an_approved_member_starts_with_its_secret_and_a_proposed_one_does_not(hall: Hall, tmp_path: Path) -> None:
    hall.add("near")
    bring_up(hall, "near")
    # The sandbox hides the files of the hall, so the program is an argument.
    marker = tmp_path / "marker"
    program = {"command": sys.executable, "args": ["-c", STDIO_SERVER.read_text()], "env": {"KEY": CANARY}}
    touching = {"command": "/usr/bin/touch", "args": [str(marker)]}
    source = json.dumps({"mcpServers": {"pasted": program, "waiting": touching}})

    process = hall.manage("add_member", "-", "--json", input=source)
    assert process.returncode == 0, process.stderr
    digests = {proposal["name"]: proposal["digest"] for proposal in json.loads(process.stdout)["proposals"]}
    assert digests.keys() == {"pasted", "waiting"}
    approval = hall.manage("add_member", "pasted", "--approve", "--digest", digests["pasted"])
    assert approval.returncode == 0, approval.stderr

    wait_for_status(hall, "pasted", "connected")
    assert not marker.exists()
    assert not (hall.members_dir / "waiting").exists()
    places = [tables(), hall.output(), process.stdout, approval.stdout]
    places += [path.read_text() for path in hall.members_dir.rglob("guild-member.json")]
    assert [place for place in places if CANARY in place] == []
