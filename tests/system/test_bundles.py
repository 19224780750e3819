"""Bundles in a real hall: from the upload over the approval to an answered call."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import requests

from tests.conftest import eventually, needs_program
from tests.support.bundles import bundle, manifest, node_bundle, server
from tests.support.hall import Hall, bring_up, call, token_of, wait_for_status
from tests.support.leaks import tables

CANARY = "canary-4711-canary"
STDIO_SERVER = Path(__file__).resolve().parents[1] / "support" / "servers" / "stdio_server.py"


def upload(hall: Hall, token: str, content: bytes, **fields: str) -> tuple[int, Any]:
    response = requests.post(
        f"{hall.url}/api/members/",
        headers={"Authorization": f"Bearer {token}"},
        files={"bundle": ("echo.mcpb", content)},
        data=fields,
        timeout=60,
    )
    return response.status_code, response.json() if "json" in response.headers["content-type"] else {}


def approve(hall: Hall, token: str, proposal: dict[str, Any]) -> None:
    response = requests.post(
        f"{hall.url}/api/proposals/{proposal['name']}/approve/",
        headers={"Authorization": f"Bearer {token}"},
        json={"digest": proposal["digest"]},
        timeout=20,
    )
    assert response.status_code == 202, response.text


def text_of(answer: Any) -> str:
    return str(answer.result["content"][0]["text"])


def test_servers_of_node_and_python_in_bundles_answer_after_the_approval(hall: Hall, tmp_path: Path) -> None:
    needs_program("node")
    bring_up(hall)
    token = token_of(hall)
    status, answer = upload(hall, token, node_bundle())
    assert (status, answer["detail"]) == (400, "greeting: needs a value")
    status, answer = upload(hall, token, node_bundle(), values=json.dumps({"greeting": "hello", "key": CANARY}))
    assert status == 201, answer
    (proposal,) = answer["proposals"]
    assert not hall.members_dir.exists() or list(hall.members_dir.iterdir()) == []
    approve(hall, token, proposal)
    wait_for_status(hall, "echo", "connected", within=30)
    assert text_of(call("echo", "greet")) == f"From the bundle: hello key of {len(CANARY)}"

    path = tmp_path / "python.mcpb"
    document = manifest(name="snake", server=server("python", command="python", args=["${__dirname}/main.py"]))
    path.write_bytes(bundle(document, {"main.py": STDIO_SERVER.read_bytes()}))
    process = hall.manage("add_member", str(path), "--json")
    assert process.returncode == 0, process.stderr
    approve(hall, token, json.loads(process.stdout)["proposals"][0])
    wait_for_status(hall, "snake", "connected", within=30)
    assert call("snake", "echo", {"text": "hi"}).status == "succeeded"
    texts = [path.read_text() for path in hall.members_dir.rglob("guild-member.json")]
    assert [text for text in [tables(), hall.output(), json.dumps(answer), *texts] if CANARY in text] == []


def test_a_member_that_begins_with_the_template_answers(hall: Hall) -> None:
    bring_up(hall)
    token = token_of(hall)
    response = requests.post(
        f"{hall.url}/api/members/",
        headers={"Authorization": f"Bearer {token}"},
        json={"template": "greeter"},
        timeout=20,
    )
    approve(hall, token, response.json()["proposals"][0])
    wait_for_status(hall, "greeter", "connected", within=30)
    assert text_of(call("greeter", "hello", {"name": "Ada"})) == "Hello, Ada!"


def test_a_runtime_that_is_killed_while_it_unpacks_begins_again(hall: Hall) -> None:
    needs_program("node")
    bring_up(hall)
    token = token_of(hall)
    many = {f"data/{number}": b"x" for number in range(5000)}
    _, answer = upload(hall, token, node_bundle(many), values='{"greeting": "hello"}')
    approve(hall, token, answer["proposals"][0])

    def is_half() -> bool:
        data = [*hall.members_dir.glob(".*.draft/bundle/data")]
        return bool(data) and len(os.listdir(data[0])) > 10

    eventually(is_half, within=20, what="the bundle is being unpacked")
    os.kill(hall.worker_pid, signal.SIGKILL)
    assert not (hall.members_dir / "echo").exists()
    wait_for_status(hall, "echo", "connected", within=60)
    assert [path.name for path in hall.members_dir.iterdir()] == ["echo"]
    assert len(os.listdir(hall.members_dir / "echo/bundle/data")) == 5000


def test_what_is_too_large_is_refused_with_a_sentence(hall: Hall) -> None:
    bring_up(hall)
    token = token_of(hall)
    headers = {"Authorization": f"Bearer {token}"}
    for size, sentence in ((51_000_000, "larger than 50,000,000 bytes"), (53_000_000, "more than 52,000,000 bytes")):
        files = {"bundle": ("echo.mcpb", b"\0" * size)}
        response = requests.post(f"{hall.url}/api/members/", headers=headers, files=files, timeout=60)
        assert sentence in response.text
        assert response.status_code in (400, 413)
    assert list(hall.data_dir.glob("tmp*")) == []
