"""The configuration of a server in the format of each client: the file that it reads, a command, or a link.

Each client has its own names for the same values. Claude Desktop starts only programs, so there the package
`mcp-remote` connects to the address. Codex refuses an inline `bearer_token`, but has `http_headers`.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

SERVER_NAME = "guild-hall"
PLACEHOLDER = "gh_PUT_A_TOKEN_HERE"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Entry:
    """One server in the configuration. `token` is None if the server needs none."""

    name: str
    url: str
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def as_json(self, *, with_type: bool = False, url_key: str = "url") -> dict[str, Any]:
        kind = {"type": "http"} if with_type else {}
        return {**kind, url_key: self.url, **({"headers": self.headers} if self.token else {})}


@dataclass(frozen=True)
class Client:
    """A client: where the text of its configuration belongs, how to write it, and the link that adds one entry, if any.

    `verb` says what to do with the text at `place`, in which file names and commands are between backquotes.
    """

    name: str
    place: str
    write: Callable[[Sequence[Entry]], str]
    link: Callable[[Entry], str] | None = None
    verb: str = "Add this configuration to"

    @property
    def plain_place(self) -> str:
        """For terminals and programs, which show backquotes as they are."""
        return self.place.replace("`", "")


def _json(key: str, *, with_type: bool = False, url_key: str = "url") -> Callable[[Sequence[Entry]], str]:
    def write(entries: Sequence[Entry]) -> str:
        servers = {entry.name: entry.as_json(with_type=with_type, url_key=url_key) for entry in entries}
        return json.dumps({key: servers}, indent=2)

    return write


def _toml(entries: Sequence[Entry]) -> str:
    """Write strings as JSON, because a JSON string is also a TOML string. Members' names are bare keys."""
    tables = []
    for entry in entries:
        lines = [f"[mcp_servers.{entry.name}]", f"url = {json.dumps(entry.url)}"]
        if entry.token:
            headers = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in entry.headers.items())
            lines.append(f"http_headers = {{ {headers} }}")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _programs(entries: Sequence[Entry]) -> str:
    return json.dumps({"mcpServers": {entry.name: _program(entry) for entry in entries}}, indent=2)


def _program(entry: Entry) -> dict[str, Any]:
    address = urlsplit(entry.url)
    plain = ["--allow-http"] if address.scheme == "http" and address.hostname not in LOCAL_HOSTS else []
    # On Windows, Claude Desktop divides arguments at spaces. So the value of the header is in a variable.
    header = ["--header", "Authorization:${AUTHORIZATION}"] if entry.token else []
    program = {"command": "npx", "args": ["-y", "mcp-remote", entry.url, *plain, *header]}
    return {**program, "env": {"AUTHORIZATION": entry.headers["Authorization"]}} if entry.token else program


def _commands(entries: Sequence[Entry]) -> str:
    """For each entry the command of Claude Code. Headers come last, because their option takes all words after it."""
    lines = []
    for entry in entries:
        headers = [word for item in entry.headers.items() for word in ("--header", ": ".join(item))]
        lines.append(shlex.join(["claude", "mcp", "add", "--transport", "http", entry.name, entry.url, *headers]))
    return "\n".join(lines)


def _cursor_link(entry: Entry) -> str:
    config = base64.b64encode(json.dumps(entry.as_json()).encode()).decode()
    return f"cursor://anysphere.cursor-deeplink/mcp/install?name={quote(entry.name)}&config={quote(config, safe='')}"


def _vscode_link(entry: Entry) -> str:
    return f"vscode:mcp/install?{quote(json.dumps({'name': entry.name, **entry.as_json(with_type=True)}), safe='')}"


CLIENTS = {
    "claude-desktop": Client(
        "Claude Desktop", "`claude_desktop_config.json`, which Settings > Developer opens. It needs Node.js", _programs
    ),
    "claude-code": Client("Claude Code", "`.mcp.json` in the project's folder", _json("mcpServers", with_type=True)),
    "claude-command": Client("Claude Code, as a command", "a terminal", _commands, verb="Run this in"),
    "cursor": Client(
        "Cursor",
        "`.cursor/mcp.json` in the project's folder, or `~/.cursor/mcp.json`",
        _json("mcpServers"),
        _cursor_link,
    ),
    "vscode": Client(
        "VS Code", "`.vscode/mcp.json` in the project's folder", _json("servers", with_type=True), _vscode_link
    ),
    "windsurf": Client("Windsurf", "`~/.codeium/windsurf/mcp_config.json`", _json("mcpServers", url_key="serverUrl")),
    "gemini": Client("Gemini CLI", "`~/.gemini/settings.json`", _json("mcpServers", url_key="httpUrl")),
    "codex": Client("Codex", "`~/.codex/config.toml`", _toml),
    "zed": Client("Zed", "`settings.json`, which the command `zed: open settings` opens", _json("context_servers")),
    "agent-sdk": Client(
        "Claude Agent SDK",
        "`ClaudeAgentOptions(mcp_servers=...)` in your program",
        _json("mcp_servers", with_type=True),
    ),
}
