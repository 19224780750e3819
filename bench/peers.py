"""Who is measured beside the hall: optional installs, each in a folder of its own under bench/.peers.

`make bench-peers` makes those that are not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from bench.hall import ROOT, family, free_port
from bench.loads import ECHO, Endpoint, wait_open

FOLDER = ROOT / "bench" / ".peers"
HOW = "make bench-peers"
STDIO_ECHO = [sys.executable, "-S", str(ECHO), "stdio"]


@dataclass(frozen=True)
class Peer:
    """Packages with their versions, from PyPI or npm."""

    name: str
    packages: tuple[str, ...]
    from_npm: bool = False

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def is_installed(self) -> bool:
        with contextlib.suppress(OSError):
            return self._stamp.read_text() == self._requirements
        return False

    def program(self, name: str) -> str:
        return str(self.folder / ("node_modules/.bin" if self.from_npm else "bin") / name)

    def install(self) -> None:
        """Raises OSError or CalledProcessError."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.from_npm:
            quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
            _run("npm", "install", "--prefix", str(self.folder), *quiet, *self.packages)
        else:
            _run(sys.executable, "-m", "venv", str(self.folder))
            _run(self.program("python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *self.packages)
        self._stamp.write_text(self._requirements)

    @property
    def _stamp(self) -> Path:
        return self.folder / ".installed"

    @property
    def _requirements(self) -> str:
        return " ".join(self.packages)


@dataclass(frozen=True)
class SystemPeer(Peer):
    """A program of the operating system. It is measured where it is installed."""

    @property
    def is_installed(self) -> bool:
        return bool(shutil.which(self.name))


@dataclass(frozen=True)
class OwnPeer(Peer):
    """A program of the bench itself."""

    @property
    def is_installed(self) -> bool:
        return True


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


FASTMCP = Peer("fastmcp", ("fastmcp==4.1.2",))
# It does not pin what it needs: with the newest of these two it fails on import, or when it starts.
MCPO = Peer("mcpo", ("mcpo==0.0.20", "mcp<2", "fastapi==0.115.14"))
MCP_PROXY = Peer("mcp-proxy", ("mcp-proxy@6.7.19",), from_npm=True)
MCP_HUB = Peer("mcp-hub", ("mcp-hub@4.2.1",), from_npm=True)
NGINX = SystemPeer("nginx", ())
OWN = OwnPeer("relay", ())
PEERS = (FASTMCP, MCPO, MCP_PROXY, MCP_HUB)


def install() -> None:
    """All that are not there yet; one that fails does not keep the others away."""
    for peer in PEERS:
        if peer.is_installed:
            print(f"{peer.name}: is there")
            continue
        try:
            peer.install()
            print(f"{peer.name}: installed into {peer.folder.relative_to(ROOT)}")
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{peer.name}: not installed ({error})")


# Started ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rival:
    """A way into a peer. `command` takes the port, the echo server's URL, and a folder to write to."""

    name: str
    peer: Peer
    command: Callable[[int, str, Path], list[str]]
    path: str
    style: str

    @property
    def serves_mcp(self) -> bool:
        return self.style == "mcp"

    @contextlib.contextmanager
    def open(self, upstream: str) -> Iterator[Endpoint]:
        """Started, and ended with all that it started."""
        port = free_port()
        with tempfile.TemporaryDirectory(prefix="guildhall-bench-") as folder, open(os.devnull, "wb") as nothing:
            argv = self.command(port, upstream, Path(folder))
            environment = {**os.environ, "HOME": folder, "XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": folder}
            process = psutil.Popen(argv, cwd=folder, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
            try:
                endpoint = Endpoint(f"http://127.0.0.1:{port}{self.path}", "echo", self.style, roots=(process,))
                wait_open(endpoint, self.name)
                yield endpoint
            finally:
                for each in reversed(family(process)):
                    with contextlib.suppress(psutil.Error):
                        each.kill()
                process.wait()


def _fastmcp(port: int, upstream: str, folder: Path) -> list[str]:
    return [FASTMCP.program("python"), str(ROOT / "bench" / "fastmcp_proxy.py"), str(port), upstream]


def _mcpo(port: int, upstream: str, folder: Path) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(port)]
    return [MCPO.program("mcpo"), *where, "--server-type", "streamable-http", "--", upstream]


def _mcpo_stdio(port: int, upstream: str, folder: Path) -> list[str]:
    return [MCPO.program("mcpo"), "--host", "127.0.0.1", "--port", str(port), "--", *STDIO_ECHO]


def _mcp_proxy(port: int, upstream: str, folder: Path) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(port), "--server", "stream"]
    return [MCP_PROXY.program("mcp-proxy"), *where, "--", *STDIO_ECHO]


def _mcp_hub(port: int, upstream: str, folder: Path) -> list[str]:
    return _mcp_hub_with(port, folder, {"url": upstream})


def _mcp_hub_stdio(port: int, upstream: str, folder: Path) -> list[str]:
    return _mcp_hub_with(port, folder, {"command": STDIO_ECHO[0], "args": STDIO_ECHO[1:]})


def _mcp_hub_with(port: int, folder: Path, server: dict[str, object]) -> list[str]:
    config = folder / "mcp-hub.json"
    config.write_text(json.dumps({"mcpServers": {"echo": server}}))
    return [MCP_HUB.program("mcp-hub"), "--port", str(port), "--config", str(config)]


def _nginx(port: int, upstream: str, folder: Path) -> list[str]:
    config = folder / "nginx.conf"
    config.write_text(
        f"""daemon off; worker_processes 1; pid {folder}/pid; error_log /dev/null;
        events {{ }}
        http {{
          access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
          fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
          upstream echo {{ server {urlsplit(upstream).netloc}; keepalive 32; }}
          server {{
            listen 127.0.0.1:{port};
            location / {{ proxy_pass http://echo; proxy_http_version 1.1; proxy_set_header Connection ""; }}
          }}
        }}"""
    )
    return [shutil.which("nginx") or "nginx", "-p", str(folder), "-c", str(config)]


def _relay(port: int, upstream: str, folder: Path) -> list[str]:
    return [sys.executable, str(ROOT / "bench" / "relay.py"), str(port), upstream]


HOP = Rival("nginx, a hop that does nothing", NGINX, _nginx, "/mcp", "mcp")
RELAY = Rival("a relay in Python: HTTP and JSON", OWN, _relay, "/mcp", "mcp")
RIVALS = (
    Rival("FastMCP proxy, shared client", FASTMCP, _fastmcp, "/mcp", "mcp"),
    Rival("mcp-proxy (npm), stdio behind", MCP_PROXY, _mcp_proxy, "/mcp", "mcp"),
    Rival("mcpo, HTTP behind", MCPO, _mcpo, "/echo", "rest"),
    Rival("mcpo, stdio behind", MCPO, _mcpo_stdio, "/echo", "rest"),
    Rival("mcp-hub REST, HTTP behind", MCP_HUB, _mcp_hub, "/api/servers/tools", "hub"),
    Rival("mcp-hub REST, stdio behind", MCP_HUB, _mcp_hub_stdio, "/api/servers/tools", "hub"),
)
