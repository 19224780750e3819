"""A registry of npm and an index of PyPI on this machine, with packages that a test makes."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

NODE_SERVER = """#!/usr/bin/env node
const answers = {
  initialize: {protocolVersion: '2025-06-18', capabilities: {tools: {}}, serverInfo: {name: 'js', version: '1'}},
  'tools/list': {tools: [{name: 'about', inputSchema: {type: 'object'}}]},
};
require('readline').createInterface({input: process.stdin}).on('line', line => {
  const message = JSON.parse(line);
  const about = {version: require('./package.json').version, args: process.argv.slice(2), path: process.env.PATH};
  const result = answers[message.method] || {content: [{type: 'text', text: JSON.stringify(about)}]};
  if (message.id !== undefined) console.log(JSON.stringify({jsonrpc: '2.0', id: message.id, result}));
});
"""
PYTHON_SERVER = """
import json, sys
from importlib.metadata import version

ANSWERS = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "py"}},
    "tools/list": {"tools": [{"name": "about", "inputSchema": {"type": "object"}}]},
}

def main():
    for line in sys.stdin:
        message = json.loads(line)
        about = {"version": version("pocket-mcp"), "args": sys.argv[1:]}
        result = ANSWERS.get(message["method"]) or {"content": [{"type": "text", "text": json.dumps(about)}]}
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


class PackageIndex:
    """Serves what was added. `requests` are the paths of all requests, oldest first."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.files: dict[str, bytes] = {}
        self._versions: dict[str, dict[str, Any]] = {}  # of npm packages
        self._wheels: dict[str, list[str]] = {}  # the files of PyPI packages
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                body = index.answer(unquote(self.path))
                self.send_response(200 if body is not None else 404)
                kind = "text/html" if self.path.startswith("/simple/") else "application/json"
                self.send_header("Content-Type", kind if "/-/" not in self.path else "application/octet-stream")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body or b"")

            do_HEAD = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> bytes | None:
        self.requests.append(path)
        if path in self.files:
            return self.files[path]
        if path.startswith("/simple/"):
            wheels = self._wheels.get(path.split("/")[2], [])
            links = [f'<a href="{name}#sha256={_sha256(self.files[name])}">{name[3:]}</a>' for name in wheels]
            return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode() if wheels else None
        versions = self._versions.get(path[1:])
        if versions is None:
            return None
        latest = list(versions)[-1]
        return json.dumps({"name": path[1:], "dist-tags": {"latest": latest}, "versions": versions}).encode()

    def add_npm(self, name: str, version: str, files: dict[str, str] | None = None, **manifest: Any) -> str:
        """Publish a package, and return the path of its tarball. Without files it is an MCP server."""
        values: dict[str, Any] = {"name": name, "version": version, **manifest}
        if files is None:
            values.setdefault("bin", {name: "server.js"})
        contents = {"package.json": json.dumps(values), **({"server.js": NODE_SERVER} if files is None else files)}
        path = f"/{name}/-/{version}.tgz"
        self.files[path] = _tarball(contents)
        hashed = base64.b64encode(hashlib.sha512(self.files[path]).digest()).decode()
        scripts = {"hasInstallScript": True} if "scripts" in manifest else {}
        dist = {"tarball": self.url + path, "integrity": f"sha512-{hashed}"}
        self._versions.setdefault(name, {})[version] = {**values, **scripts, "dist": dist}
        return path

    def add_wheel(self, name: str, version: str, requires: list[str] | None = None, program: str = "") -> str:
        """Publish a wheel, and return the path of its file. With a program it is an MCP server."""
        module, path = name.replace("-", "_"), f"/-/{name.replace('-', '_')}-{version}-py3-none-any.whl"
        info = f"{module}-{version}.dist-info"
        needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires or [])
        contents = {
            f"{module}.py": PYTHON_SERVER if program else "",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[console_scripts]\n{program} = {module}:main\n" if program else "",
        }
        contents[f"{info}/RECORD"] = "".join(f"{place},,\n" for place in [*contents, f"{info}/RECORD"])
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for place, text in contents.items():
                archive.writestr(place, text)
        self.files[path] = buffer.getvalue()
        self._wheels.setdefault(name, []).append(path)
        return path

    def add_source(self, name: str, version: str, program: str, code: str) -> str:
        """Publish an MCP server as source. `code` runs when it is built, in the folder of the source."""
        self.add_wheel(name, version, program=program)
        module, path = name.replace("-", "_"), f"/-/{name.replace('-', '_')}-{version}.tar.gz"
        wheel = self._wheels[name].pop()
        build = f"import base64, pathlib\n{code}\n\ndef build_wheel(folder, *_):\n"
        build += f"    content = base64.b64decode({base64.b64encode(self.files.pop(wheel)).decode()!r})\n"
        build += f"    (pathlib.Path(folder) / {wheel[3:]!r}).write_bytes(content)\n    return {wheel[3:]!r}\n"
        project = '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n'
        project += f'[project]\nname = "{name}"\nversion = "{version}"\n'
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        contents = {"pyproject.toml": project, "build.py": build, "PKG-INFO": metadata}
        self.files[path] = _tarball(contents, f"{module}-{version}")
        self._wheels[name].append(path)
        return path


def _tarball(contents: dict[str, str], folder: str = "package") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def package_index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    try:
        yield index
    finally:
        index.close()
