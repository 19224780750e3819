"""Snippets to copy do the same as the form. These tests run them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from roster import snippets
from roster.management.commands.invoke import Command
from roster.models import GuildMember, Tool

HARD_ARGUMENTS = {
    "quotes": 'it\'s "quoted" `date` $(id) $HOME \\ !x',
    "lines": "one\ntwo\r\n\ttabs\x1b[31m",
    "far": "é \u202egnp.exe 😀",
    "@file": "@/etc/passwd",
    "deep": [{"a": [None, True, False, 1.5, -3, 10**20]}],
    "'; id; '": "]]>",
    "": "",
}
HARD_NAMES = [
    "plain",
    "-leading",
    "it's",
    "a b",
    "$(id)",
    "`id`",
    "new\nline",
    "\x1b]0;evil\x07",
    "ü\u202ex",
    "a/b.c",
    "{1..3}[a-z]",
]


class Recorder(BaseHTTPRequestHandler):
    requests: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append({"path": self.path, "body": body, "headers": dict(self.headers)})
        response = b'{"status": "succeeded"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hall() -> Iterator[str]:
    Recorder.requests.clear()
    server = HTTPServer(("127.0.0.1", 0), Recorder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def tool(name: str = "echo") -> Tool:
    return Tool(member=GuildMember(name="example"), name=name)


def run(*argv: str) -> str:
    environment = {"GUILD_HALL_TOKEN": "gh_secret", "PATH": "/usr/bin:/bin", "HOME": "/nowhere"}
    process = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def bash_words(command: str, program: str) -> list[str]:
    """The words that bash hands to the program."""
    output = run("bash", "-c", f"{program}() {{ printf '%s\\0' \"$@\"; }}\n{command}")
    return output.split("\0")[:-1]


def test_python_calls_the_tool_with_these_arguments(hall: str) -> None:
    output = run(sys.executable, "-c", snippets.of_call(tool(), HARD_ARGUMENTS, hall)["Python"])

    (call,) = Recorder.requests
    assert call["body"] == {"arguments": HARD_ARGUMENTS}
    assert (call["path"], call["headers"]["Authorization"]) == (
        "/api/members/example/tools/echo/invoke/",
        "Bearer gh_secret",
    )
    assert "succeeded" in output


@pytest.mark.parametrize("name", HARD_NAMES)
def test_curl_gets_each_word_unchanged(name: str) -> None:
    command = snippets.of_call(tool(name), HARD_ARGUMENTS, "http://hall.example/")["curl"]

    words = bash_words(command, "curl")
    assert json.loads(words[words.index("--data-raw") + 1]) == {"arguments": HARD_ARGUMENTS}
    assert "Authorization: Bearer gh_secret" in words
    address = words[words.index("POST") + 1]
    assert address.startswith("http://hall.example/api/members/example/tools/")
    assert address.isascii()
    assert not set(address) & set(" '\"`$\n?#")


@pytest.mark.parametrize("name", HARD_NAMES)
def test_the_command_parses_the_command_line(name: str) -> None:
    line = snippets.of_call(tool(name), HARD_ARGUMENTS, "http://hall.example/")["Command line"]

    assert line.startswith(".venv/bin/guildhall ")
    words = bash_words(line.removeprefix(".venv/bin/"), "guildhall")
    assert words[:1] == ["invoke"]
    options = Command().create_parser("guildhall", "invoke").parse_args(words[1:])
    assert (options.member, options.tool, json.loads(options.arguments)) == ("example", name, HARD_ARGUMENTS)


@pytest.mark.parametrize("name", HARD_NAMES)
def test_every_snippet_is_printable_ascii(name: str) -> None:
    for text in snippets.of_call(tool(name), HARD_ARGUMENTS, "http://hall.example/").values():
        assert all(line.isascii() and line.isprintable() for line in text.splitlines()), text
