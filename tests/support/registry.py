"""A registry of MCP servers on this machine, which answers as the generic registry API v0.1 says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

WEATHER: dict[str, Any] = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "io.github.anna/weather-mcp",
    "title": "Weather",
    "description": "Forecasts for cities",
    "version": "1.2.0",
    "packages": [
        {
            "registryType": "oci",
            "identifier": "containers.example.com/anna/weather:1.2.0",
            "transport": {"type": "stdio"},
        },
        {
            "registryType": "npm",
            "registryBaseUrl": "https://packages.example.com",
            "identifier": "@anna/weather",
            "version": "1.2.0",
            "fileSha256": "0" * 64,
            "runtimeHint": "npx",
            "transport": {"type": "stdio"},
            "runtimeArguments": [{"type": "named", "name": "-y"}],
            "packageArguments": [
                {"type": "positional", "value": "start"},
                {
                    "type": "named",
                    "name": "--units",
                    "description": "The units of temperatures.",
                    "default": "metric",
                    "choices": ["metric", "imperial"],
                },
                {
                    "type": "positional",
                    "valueHint": "folder",
                    "description": "A folder with forecasts.",
                    "format": "filepath",
                    "isRequired": True,
                    "isRepeated": True,
                },
                {"type": "named", "name": "--verbose", "format": "boolean"},
            ],
            "environmentVariables": [
                {"name": "WEATHER_API_KEY", "description": "Your key.", "isRequired": True, "isSecret": True},
                {"name": "CITY", "description": "Where you are.", "default": "Amsterdam Noord"},
                {"name": "PROXY_PASSWORD", "isSecret": True},
            ],
        },
    ],
    "remotes": [
        {"type": "sse", "url": "https://weather.example.com/sse"},
        {
            "type": "streamable-http",
            "url": "https://{tenant}.example.com/mcp",
            "variables": {"tenant": {"description": "Your tenant.", "isRequired": True}},
            "headers": [
                {
                    "name": "Authorization",
                    "value": "Bearer {token}",
                    "variables": {"token": {"description": "Your token.", "isRequired": True, "isSecret": True}},
                },
                {"name": "X-Region", "default": "eu", "choices": ["eu", "us"]},
            ],
        },
    ],
}
CLOCK: dict[str, Any] = {
    "name": "com.example/clock",
    "description": "The time",
    "version": "0.3.0",
    "packages": [
        {"registryType": "pypi", "identifier": "clock-server", "version": "0.3.0", "transport": {"type": "stdio"}}
    ],
}


class Registry:
    """Its servers by name, each with its versions, the newest first, and the requests that it got."""

    def __init__(self) -> None:
        self.servers: dict[str, list[dict[str, Any]]] = {
            WEATHER["name"]: [WEATHER, {**WEATHER, "version": "1.1.0"}],
            CLOCK["name"]: [CLOCK],
        }
        self.requests: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Other answers than the usual ones, by the path."""
        self.page = 100
        self.url = ""

    def answer(self, target: str) -> tuple[int, bytes]:
        self.requests.append(target)
        parts = urlsplit(target)
        if parts.path in self.answers:
            return self.answers[parts.path]
        words = [unquote(word) for word in parts.path.split("/")[1:]]
        if words == ["v0.1", "servers"]:
            return self._list({key: values[0] for key, values in parse_qs(parts.query).items()})
        found = self.servers.get(words[2], []) if words[:2] == ["v0.1", "servers"] and len(words) > 3 else []
        rows = [_row(each) for each in found]
        if len(words) == 5:
            rows = [row for row in rows[:1] if words[4] == "latest"] or [
                row for row in rows if row["server"]["version"] == words[4]
            ]
            return (200, _encode(rows[0])) if rows else _not_found()
        return (200, _encode({"servers": rows, "metadata": {"count": len(rows)}})) if rows else _not_found()

    def _list(self, query: dict[str, str]) -> tuple[int, bytes]:
        names = [name for name in sorted(self.servers) if query.get("search", "") in name]
        names = [name for name in names if name > query.get("cursor", "")]
        rows = [_row(self.servers[name][0]) for name in names[: self.page]]
        metadata: dict[str, Any] = {"count": len(rows)}
        if len(names) > self.page:
            metadata["nextCursor"] = names[self.page - 1]
        return 200, _encode({"servers": rows, "metadata": metadata})


def _row(server: dict[str, Any]) -> dict[str, Any]:
    return {"server": server, "_meta": {"io.modelcontextprotocol.registry/official": {"status": "active"}}}


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _not_found() -> tuple[int, bytes]:
    return 404, b'{"error": "Server not found"}'


@contextmanager
def serve() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", registry.url)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
