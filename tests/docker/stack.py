"""The shipped docker-compose.yml as a project of its own: a checkout, free ports, two members that keep ledgers."""

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
from pathlib import Path
from typing import Any

import psutil

from bench.hall import ROOT, free_port, wait_until
from tests.attack.client import Client
from tests.docker.engine import Docker
from tests.storm.ledger import Effect, read_effects

MEMBER = ROOT / "tests" / "storm" / "members" / "member.py"
MEMBERS = {
    "quick": "http",
    "slow": "slow",
}  # and its kind: the calls of a slow one are under way when something is killed
OURS = ("prepare", "web", "runtime")  # services of the image that is built
STAYING = ("web", "runtime", "redis", "postgres")  # services that stay up
USER = 1000  # of the image, who must be able to write into the members' folders
ANSWER_SECONDS = 45.0
HEALTHY_SECONDS = 180.0  # the runtime is looked at every 30 s, and on a busy machine some looks end too late
# Signals a process of the machine from a container, so that the trial needs no more rights than Docker gives.
KILL = "import os, sys, time; at = time.monotonic(); [os.kill(int(pid), 9) for pid in sys.argv[1:]]; print(at)"


class Stack:
    """`folder`: has the checkout and what the trial adds to its compose file."""

    def __init__(self, docker: Docker, folder: Path) -> None:
        self.docker, self.folder = docker, folder
        self.source = folder / "hall"
        self.project = f"guild-hall-trial-{os.getpid()}"
        self.port, self.gateway_port = free_port(), free_port()
        self.token = ""
        self.source.mkdir()
        (self.source / ".env").write_text(f"POSTGRES_PASSWORD={secrets.token_hex(16)}\n")

    # The checkout -----------------------------------------------------------------------------------------------------

    def check_out(self, revision: str = "") -> None:
        """What a user has who fetched `revision`, or this working tree; with a name for its image."""
        self._name = revision[:12] or "new"
        for path in self.source.iterdir():
            if path.name not in (".env", "guild-members"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if revision:
            archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", self.source], input=archive.stdout, check=True)
        else:
            listed = subprocess.run(
                ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            for name in filter(None, listed.stdout.split("\0")):
                with contextlib.suppress(FileNotFoundError):  # deleted, and not committed yet
                    (self.source / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, self.source / name)
        self._add_members()
        build = {"build": {"network": "host"}} if self.docker.is_own else {}
        services = {service: {"image": self.image, **build} for service in OURS}
        (self.folder / "trial.yml").write_text(json.dumps({"services": services}))

    def _add_members(self) -> None:
        for name, kind in MEMBERS.items():
            place = self.source / "guild-members" / name
            place.mkdir(exist_ok=True)
            shutil.copy(MEMBER, place / "member.py")
            manifest = {"name": name, "version": "1.0.0", "transport": "http", "command": "python3", "timeout": 10}
            manifest |= {"args": ["member.py", kind, f"{name}.ledger", "${PORT}"], "max_concurrency": 16}
            (place / "guild-member.json").write_text(json.dumps(manifest))
        if os.geteuid() == 0:
            for path in (self.source / "guild-members").rglob("*"):
                os.chown(path, USER, USER)

    @property
    def image(self) -> str:
        return f"{self.project}:{self._name}"

    def effects(self) -> dict[str, list[Effect]]:
        """What members wrote down, by key."""
        found: dict[str, list[Effect]] = {}
        for name in MEMBERS:
            found |= read_effects(self.source / "guild-members" / name)
        return found

    # Compose ----------------------------------------------------------------------------------------------------------

    def compose(self, *argv: str, seconds: float = 120) -> str:
        files = ["-f", "docker-compose.yml", "-f", "../trial.yml"]
        ports = {"GUILD_HALL_PORT": str(self.port), "GUILD_HALL_GATEWAY_PORT": str(self.gateway_port)}
        argv = (*self.docker.compose, "-p", self.project, *files, *argv)
        return self.docker.run(argv, seconds, cwd=self.source, **ports)

    def up(self) -> None:
        self.compose("up", "-d", seconds=300)

    def wait_well(self) -> None:
        """Every service healthy, and a call of each source answered."""
        wait_until(self.is_healthy, HEALTHY_SECONDS, "every service is healthy")
        self.wait_answers()

    def wait_answers(self) -> None:
        for source in ("rest", "gateway"):
            wait_until(
                lambda source=source: self.answers(source), ANSWER_SECONDS, f"a call is answered, source {source!r}"
            )

    def container(self, service: str) -> str:
        """Its id, of a stopped one too; or nothing."""
        labels = (f"project={self.project}", f"service={service}")
        filters = [f"--filter=label=com.docker.compose.{label}" for label in labels]
        return self.docker("ps", "-aq", *filters).strip()

    def state(self, service: str) -> dict[str, Any]:
        """What Docker says of it; of one that is gone, nothing."""
        container = self.container(service)
        return dict(self.docker.inspect(container)["State"]) if container else {}

    def health(self) -> dict[str, str]:
        return {service: self.state(service).get("Health", {}).get("Status", "none") for service in STAYING}

    def is_healthy(self) -> bool:
        return set(self.health().values()) == {"healthy"}

    def processes(self, service: str) -> list[psutil.Process]:
        """Of a container, as the machine sees them."""
        lines = self.docker("top", self.container(service), "-eo", "pid").splitlines()[1:]
        found = []
        for line in lines:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(line)))
        return found

    def kill(self, pids: list[int]) -> float:
        """SIGKILL as of a crash: Docker does not think that somebody wanted it. Returns when, in monotonic seconds."""
        argv = ["run", "--rm", "--pid=host", "--network=none", "--user=0", self.image, "python", "-c", KILL]
        return float(self.docker(*argv, *map(str, pids)))

    def main_pid(self, service: str) -> int:
        return int(self.state(service)["Pid"])

    # Asking -----------------------------------------------------------------------------------------------------------

    def make_token(self) -> None:
        said = self.compose(
            "exec", "-T", "web", "python", "manage.py", "create_token", "admin", "--calls-per-minute", "0"
        )
        self.token = said.split()[-1]

    def client(self, source: str, seconds: float = 40.0) -> Client:
        return Client(self.port if source == "rest" else self.gateway_port, self.token, seconds=seconds)

    def answers(self, source: str) -> bool:
        """Whether a call of a tool succeeds there now."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError), self.client(source, 5.0) as client:
            if source != "rest":
                return client.call("example__echo", {"text": "well"}, modern=True).text == "well"
            path = "/api/members/example/tools/echo/invoke/"
            reply = client.rest("POST", path, {"arguments": {"text": "well"}}, Prefer="wait=4")
            return reply.status == 200 and json.loads(reply.body)["status"] == "succeeded"
        return False

    def asked(self, path: str) -> dict[str, Any]:
        """What REST answers. Raises ValueError when it does not."""
        with self.client("rest", 10.0) as client:
            reply = client.rest("GET", path)
        if reply.status != 200:
            raise ValueError(f"{path} is answered with {reply.status}")
        return dict(json.loads(reply.body))

    # The end ----------------------------------------------------------------------------------------------------------

    def stop(self) -> tuple[float, Mapping[str, int]]:
        """How long it took, and each container's exit code."""
        began = time.monotonic()
        self.compose("stop")
        seconds = time.monotonic() - began
        return seconds, {service: int(self.state(service)["ExitCode"]) for service in STAYING}

    def remains(self) -> list[str]:
        """Containers, networks and volumes that still carry the project's name."""
        label = f"label=com.docker.compose.project={self.project}"
        kinds = {"container": ["ps", "-aq"], "network": ["network", "ls", "-q"], "volume": ["volume", "ls", "-q"]}
        return [
            f"{kind} {one}" for kind, argv in kinds.items() for one in self.docker(*argv, "--filter", label).split()
        ]

    def remove(self) -> None:
        """All of it, volumes and images too, however it stands."""
        self.compose("down", "-v", "--remove-orphans")
        for image in set(self.docker("images", "--format", "{{.Repository}}:{{.Tag}}", self.project).split()):
            self.docker("rmi", "--force", image)


@contextlib.contextmanager
def stack(docker: Docker, folder: Path) -> Iterator[Stack]:
    """Removed at the end, with all that it made."""
    made = Stack(docker, folder)
    try:
        yield made
    finally:
        if (folder / "trial.yml").exists():
            made.remove()
