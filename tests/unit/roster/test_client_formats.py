"""The configurations of clients. The reader of pasted configurations reads them, as the clients do."""

from __future__ import annotations

import base64
import json
import shlex
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from mcp_runtime.sources.reader import read
from roster.client_formats import CLIENTS, Client, Entry

GATEWAY = Entry("guild-hall", "https://hall.example/mcp?members=a,b", "gh_secret")
DIRECT = Entry("a", "http://localhost:20000/mcp")


@pytest.mark.parametrize(
    "key", [key for key in CLIENTS if key not in ("agent-sdk", "claude-desktop", "claude-command")]
)
def test_each_configuration_is_read_as_the_servers_that_it_was_written_for(key: str) -> None:
    gateway, direct = read(CLIENTS[key].write([GATEWAY, DIRECT])).drafts
    assert (gateway.name, gateway.manifest["url"]) == (GATEWAY.name, GATEWAY.url)
    assert list(gateway.manifest["headers"]) == ["Authorization"]
    assert list(gateway.secrets.values()) == ["gh_secret"]
    assert (direct.name, direct.manifest["url"], "headers" in direct.manifest) == (DIRECT.name, DIRECT.url, False)


def test_the_command_of_claude_code_is_read_as_its_server() -> None:
    (line,) = CLIENTS["claude-command"].write([GATEWAY]).splitlines()
    (draft,) = read(line).drafts
    assert (draft.name, draft.manifest["url"], list(draft.secrets.values())) == (
        GATEWAY.name,
        GATEWAY.url,
        ["gh_secret"],
    )


def test_a_command_has_one_word_for_each_value_in_a_shell() -> None:
    entry = Entry("guild-hall", "http://localhost/mcp?members=a&x=$(id)", "gh_'x'")
    words = shlex.split(CLIENTS["claude-command"].write([entry]))
    assert words[-4:] == [entry.name, entry.url, "--header", "Authorization: Bearer gh_'x'"]


def desktop(entry: Entry) -> dict[str, Any]:
    server: dict[str, Any] = json.loads(CLIENTS["claude-desktop"].write([entry]))["mcpServers"][entry.name]
    return server


def test_claude_desktop_starts_a_program_that_connects() -> None:
    assert desktop(GATEWAY) == {
        "command": "npx",
        "args": ["-y", "mcp-remote", GATEWAY.url, "--header", "Authorization:${AUTHORIZATION}"],
        "env": {"AUTHORIZATION": "Bearer gh_secret"},
    }
    assert desktop(DIRECT) == {"command": "npx", "args": ["-y", "mcp-remote", DIRECT.url]}


def test_claude_desktop_may_use_plain_http_to_another_host_only_if_it_is_said() -> None:
    assert "--allow-http" in desktop(Entry("a", "http://hall.example/mcp", "x"))["args"]
    assert "--allow-http" not in desktop(Entry("a", "http://127.0.0.1:1/mcp", "x"))["args"]


def test_the_link_of_cursor_has_the_server() -> None:
    link = CLIENTS["cursor"].link
    assert link is not None
    parts = urlsplit(link(GATEWAY))
    assert (parts.scheme, parts.netloc, parts.path) == ("cursor", "anysphere.cursor-deeplink", "/mcp/install")
    query = parse_qs(parts.query, strict_parsing=True)
    assert query["name"] == ["guild-hall"]
    assert json.loads(base64.b64decode(query["config"][0])) == {"url": GATEWAY.url, "headers": GATEWAY.headers}


def test_the_link_of_vs_code_has_the_server() -> None:
    link = CLIENTS["vscode"].link
    assert link is not None
    start, config = link(GATEWAY).split("?", 1)
    assert start == "vscode:mcp/install"
    assert json.loads(unquote(config)) == {
        "name": "guild-hall",
        "type": "http",
        "url": GATEWAY.url,
        "headers": GATEWAY.headers,
    }


@pytest.mark.parametrize("client", CLIENTS.values())
def test_only_file_names_and_commands_of_a_place_are_code(client: Client) -> None:
    sentence = "".join(client.place.split("`")[::2])
    assert not set(sentence) & set("/~{}()_")
    assert client.plain_place == client.place.replace("`", "")
