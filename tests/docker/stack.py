"""A shipped compose file as a new project with a checkout, free ports, and members that keep ledgers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.hall import ROOT, free_port, wait_until
from tests.attack.client import Client
from tests.docker.engine import Docker
from tests.storm.ledger import Effect, read_effects

MEMBER = ROOT / "tests" / "storm" / "members" / "member.py"


@dataclass(frozen=True)
class Shape:
    """A shipped compose file, and the members that run in it.

    `built_services` have the image that is built. `running_services` stay up. `web` is the service for commands.
    `members` has the names and the kinds of the members. Calls of a slow one are running when a container is killed.
    `manifest` has more keys for each of them. `more_members` have no ledger, and a server in one file.
    """

    compose_file: str
    built_services: tuple[str, ...]
    running_services: tuple[str, ...]
    web: str
    members: Mapping[str, str]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    more_members: Mapping[str, Path] = field(default_factory=dict)

    @property
    def quick_members(self) -> list[str]:
        return [name for name, kind in self.members.items() if kind != "slow"]


ONE_MACHINE = Shape(
    compose_file="docker-compose.yml",
    built_services=("prepare", "web", "runtime"),
    running_services=("web", "runtime", "redis", "postgres"),
    web="web",
    members={"quick": "http", "slow": "slow"},
)
USER = 1000  # the user of the image, who must be able to write into the folders of members
ANSWER_SECONDS = 45.0
HEALTHY_SECONDS = 180.0  # the runtime is checked every 30 s, and on a busy machine some checks end too late
# Kills a process of the machine from a container, so that the trial needs only the rights of Docker.
KILL = "import os, sys, time; at = time.monotonic(); [os.kill(int(pid), 9) for pid in sys.argv[1:]]; print(at)"


class Stack:
    """`folder`: has the checkout, and an addition to its compose file."""

    def __init__(self, docker: Docker, folder: Path, shape: Shape = ONE_MACHINE) -> None:
        self.docker, self.folder, self.shape = docker, folder, shape
        self.source = folder / "hall"
        self.project = f"guild-hall-trial-{os.getpid()}"
        self.port, self.gateway_port = free_port(), free_port()
        self.token = ""
        self.source.mkdir()
        passwords = [f"{name}_PASSWORD={secrets.token_hex(16)}\n" for name in ("POSTGRES", "RABBITMQ")]
        (self.source / ".env").write_text("".join(passwords))

    # The checkout -----------------------------------------------------------------------------------------------------

    def check_out(self, revision: str = "") -> None:
        """Check out `revision`, or this working tree, and name its image."""
        self._name = revision[:12] or "new"
        for path in self.source.iterdir():
            if path.name not in (".env", "guild-members"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if revision:
            archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", self.source], input=archive.stdout, check=True)
        else:
            result = subprocess.run(
                ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            for name in filter(None, result.stdout.split("\0")):
                with contextlib.suppress(FileNotFoundError):  # the deletion is not committed yet
                    (self.source / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, self.source / name)
        self._add_members()
        build = {"build": {"network": "host"}} if self.docker.is_own else {}
        services = {service: {"image": self.image, **build} for service in self.shape.built_services}
        (self.folder / "trial.yml").write_text(json.dumps({"services": services}))

    def _add_members(self) -> None:
        for name, kind in self.shape.members.items():
            self._add_member(name, MEMBER, kind, f"{name}.ledger", "${PORT}")
        for name, server in self.shape.more_members.items():
            self._add_member(name, server, "${PORT}")
        if os.geteuid() == 0:
            for path in (self.source / "guild-members").rglob("*"):
                os.chown(path, USER, USER)

    def _add_member(self, name: str, server: Path, *args: str) -> None:
        """All servers have the same file name, so that one manifest fits all of them."""
        folder = self.source / "guild-members" / name
        folder.mkdir(exist_ok=True)
        shutil.copy(server, folder / "member.py")
        manifest = {"name": name, "version": "1.0.0", "transport": "http", "command": "python3", "timeout": 10}
        manifest |= {"args": ["member.py", *args], "max_concurrency": 16, **self.shape.manifest}
        (folder / "guild-member.json").write_text(json.dumps(manifest))

    @property
    def image(self) -> str:
        return f"{self.project}:{self._name}"

    def effects(self) -> dict[str, list[Effect]]:
        """The effects in the ledgers of members, by key."""
        effects: dict[str, list[Effect]] = {}
        for name in self.shape.members:
            effects |= read_effects(self.source / "guild-members" / name)
        return effects

    # Compose ----------------------------------------------------------------------------------------------------------

    def compose(self, *argv: str, seconds: float = 120) -> str:
        files = ["-f", self.shape.compose_file, "-f", "../trial.yml"]
        ports = {"GUILD_HALL_PORT": str(self.port), "GUILD_HALL_GATEWAY_PORT": str(self.gateway_port)}
        argv = (*self.docker.compose, "-p", self.project, *files, *argv)
        return self.docker.run(argv, seconds, cwd=self.source, **ports)

    def up(self) -> None:
        self.compose("up", "-d", seconds=300)

    def wait_until_healthy(self) -> None:
        """Wait until every service is healthy, and a call of each source succeeds."""
        wait_until(self.is_healthy, HEALTHY_SECONDS, "every service is healthy")
        self.wait_for_calls()

    def wait_for_calls(self) -> None:
        for source in ("rest", "gateway"):
            wait_until(
                lambda source=source: self.call_succeeds(source), ANSWER_SECONDS, f"a call succeeds, source {source!r}"
            )

    def container(self, service: str) -> str:
        """The id of the container, also of a stopped one. Empty if there is none."""
        labels = (f"project={self.project}", f"service={service}")
        filters = [f"--filter=label=com.docker.compose.{label}" for label in labels]
        return self.docker("ps", "-aq", *filters).strip()

    def state(self, service: str) -> dict[str, Any]:
        """The state of the container in Docker. Empty if there is none."""
        container = self.container(service)
        return dict(self.docker.inspect(container)["State"]) if container else {}

    def health(self) -> dict[str, str]:
        return {
            service: self.state(service).get("Health", {}).get("Status", "none")
            for service in self.shape.running_services
        }

    def is_healthy(self) -> bool:
        return set(self.health().values()) == {"healthy"}

    def processes(self, service: str) -> list[psutil.Process]:
        """The processes of a container, as the machine sees them."""
        lines = self.docker("top", self.container(service), "-eo", "pid").splitlines()[1:]
        processes = []
        for line in lines:
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(int(line)))
        return processes

    def kill(self, pids: list[int]) -> float:
        """Kill processes as in a crash, so that Docker restarts the container. Returns the monotonic time."""
        argv = ["run", "--rm", "--pid=host", "--network=none", "--user=0", self.image, "python", "-c", KILL]
        return float(self.docker(*argv, *map(str, pids)))

    def main_pid(self, service: str) -> int:
        return int(self.state(service)["Pid"])

    # Requests ---------------------------------------------------------------------------------------------------------

    def make_token(self) -> None:
        self.token = self.manage("create_token", "admin", "--calls-per-minute", "0").split()[-1]

    def manage(self, *argv: str) -> str:
        """The output of a command of the hall."""
        return self.compose("exec", "-T", self.shape.web, "python", "manage.py", *argv)

    def client(self, source: str, seconds: float = 40.0) -> Client:
        return Client(self.port if source == "rest" else self.gateway_port, self.token, seconds=seconds)

    def call_succeeds(self, source: str) -> bool:
        """Whether a call of a tool succeeds now."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError), self.client(source, 5.0) as client:
            if source != "rest":
                return client.call("example__echo", {"text": "well"}, modern=True).text == "well"
            path = "/api/members/example/tools/echo/invoke/"
            reply = client.rest("POST", path, {"arguments": {"text": "well"}}, Prefer="wait=4")
            return reply.status == 200 and json.loads(reply.body)["status"] == "succeeded"
        return False

    def get(self, path: str) -> dict[str, Any]:
        """The response of REST. Raises ValueError if the status is not 200."""
        with self.client("rest", 10.0) as client:
            reply = client.rest("GET", path)
        if reply.status != 200:
            raise ValueError(f"{path} got {reply.status}")
        return dict(json.loads(reply.body))

    # The end ----------------------------------------------------------------------------------------------------------

    def stop(self) -> tuple[float, Mapping[str, int]]:
        """The seconds of the stop, and the exit code of each container."""
        start = time.monotonic()
        self.compose("stop")
        seconds = time.monotonic() - start
        return seconds, {service: int(self.state(service)["ExitCode"]) for service in self.shape.running_services}

    def remains(self) -> list[str]:
        """Containers, networks and volumes of the project that still exist."""
        label = f"label=com.docker.compose.project={self.project}"
        kinds = {"container": ["ps", "-aq"], "network": ["network", "ls", "-q"], "volume": ["volume", "ls", "-q"]}
        return [
            f"{kind} {entry}" for kind, argv in kinds.items() for entry in self.docker(*argv, "--filter", label).split()
        ]

    def remove(self) -> None:
        """Remove everything of the project, volumes and images too."""
        self.compose("down", "-v", "--remove-orphans")
        for image in set(self.docker("images", "--format", "{{.Repository}}:{{.Tag}}", self.project).split()):
            self.docker("rmi", "--force", image)


@contextlib.contextmanager
def stack(docker: Docker, folder: Path, shape: Shape = ONE_MACHINE) -> Iterator[Stack]:
    """A stack, which is removed at the end with all that it made."""
    instance = Stack(docker, folder, shape)
    try:
        yield instance
    finally:
        if (folder / "trial.yml").exists():
            instance.remove()
