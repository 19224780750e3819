"""The Docker daemon of a trial: the daemon of this machine, or our own if there is none and we are root.

Our own daemon comes from Debian's packages. It has its files in one folder, and changes neither the firewall nor the
routes of the machine. Containers reach each other, and builds use the machine's network. Its base images are made from
Debian's packages and have the names of the official ones, so that no registry of images is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.hall import ROOT, wait_until

REQUIRED_PROGRAMS = ("docker", "dockerd", "debootstrap")
PACKAGES = "docker.io docker-compose debootstrap"
STAND_INS = Path(__file__).with_name("stand_ins.sh")
PATHS = "/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT_IMAGE = "guild-hall-stand-ins"
# The lines that each stand-in adds to the root image, by the part of its name before the colon.
ADDED = {
    "python": f'ENV PATH={PATHS} PIP_CERT=/etc/ssl/certs/ca-certificates.crt\nCMD ["python"]',
    "redis": 'ENTRYPOINT ["start-redis"]\nCMD ["redis-server"]',
    "postgres": 'ENV PATH=/usr/lib/postgresql/17/bin:$PATH\nENTRYPOINT ["start-postgres"]\nSTOPSIGNAL SIGINT',
    # Its commands find the cookie of the server in the home folder.
    "rabbitmq": f"ENV PATH=/usr/lib/rabbitmq/bin:{PATHS} HOME=/var/lib/rabbitmq\n"
    'ENTRYPOINT ["start-rabbitmq"]\nCMD ["rabbitmq-server"]',
    "nginx": 'STOPSIGNAL SIGQUIT\nCMD ["nginx", "-g", "daemon off;"]',
}
COMPOSE_FILES = ("docker-compose.yml", "docker-compose.nodes.yml")


class Docker:
    """Commands to one daemon. `is_own`: whether it is our own, which ends with the trial."""

    def __init__(self, host: str = "") -> None:
        self.is_own = bool(host)
        self.environment = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
        has_plugin = self._succeeds("docker", "compose", "version")
        self.compose = ["docker", "compose"] if has_plugin else ["docker-compose"]
        if self.is_own and not self._succeeds("docker", "buildx", "version"):
            self.environment |= {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}

    def __call__(self, *argv: str, seconds: float = 60, **options: Any) -> str:
        """The output of a command. Raises SystemExit with the output, and TimeoutExpired."""
        return self.run(["docker", *argv], seconds, **options)

    def run(self, argv: Sequence[str], seconds: float, cwd: Path | None = None, **environment: str) -> str:
        result = subprocess.run(
            argv,
            cwd=cwd,
            env={**self.environment, **environment},
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise SystemExit(
                f"{' '.join(argv)} ended with {result.returncode}:\n{result.stdout[-2000:]}{result.stderr[-4000:]}"
            )
        return result.stdout

    def inspect(self, name: str) -> dict[str, Any]:
        [entry] = json.loads(self("inspect", name))
        return dict(entry)

    @property
    def is_available(self) -> bool:
        return self._succeeds("docker", "version", "--format", "{{.Server.Version}}")

    def _succeeds(self, *argv: str) -> bool:
        result = subprocess.run(argv, env=self.environment, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        return result.returncode == 0


@contextlib.contextmanager
def docker(folder: Path) -> Iterator[Docker]:
    """`folder`: for the files of our own daemon. They stay there for the next trial, stand-ins included."""
    if shutil.which("docker") and (engine := Docker()).is_available:
        yield engine
        return
    missing = [program for program in REQUIRED_PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0 or sys.platform != "linux":
        raise SystemExit(
            "No Docker daemon responds here. Start one, or as root on Linux have the trial start Debian's: "
            f"apt-get install --no-install-recommends {PACKAGES}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"Another trial is under way in {folder}.") from None
        with daemon(folder) as engine:
            yield engine


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[Docker]:
    engine = Docker(f"unix://{folder}/socket")
    argv = ["dockerd", "--host", f"unix://{folder}/socket", "--data-root", f"{folder}/data"]
    argv += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", "--bridge=none", "--iptables=false"]
    argv += ["--ip-forward=false", "--ip-masq=false"]
    with (folder / "daemon.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: engine.is_available or process.poll() is not None, 60, "the Docker daemon responds")
        if process.poll() is not None:
            raise SystemExit(f"The Docker daemon did not start: {folder}/daemon.log says why.")
        yield engine
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        for mount in (folder / "exec" / "netns").glob("*"):
            subprocess.run(["umount", mount], check=False, capture_output=True)


def base_images() -> list[str]:
    """The base images of the Dockerfile and the compose files."""
    names = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for compose_file in COMPOSE_FILES:
        names += re.findall(r"^ +image: (\S+:\S+)", (ROOT / compose_file).read_text(), re.MULTILINE)
    return list(dict.fromkeys(names))


def make_stand_ins(engine: Docker, folder: Path) -> list[str]:
    """Make stand-ins for the base images that our own daemon does not have. Returns their names."""
    images = engine("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    missing = [name for name in base_images() if name not in images]
    if missing:
        with (folder / "stand-ins.log").open("w") as log:
            subprocess.run(["nice", "sh", str(STAND_INS), str(folder)], stdout=log, stderr=log, check=True)
        archive = folder / "root.tar"
        subprocess.run(["nice", "tar", "-C", str(folder / "root"), "-cf", str(archive), "."], check=True)
        engine("import", str(archive), ROOT_IMAGE, seconds=300)
        archive.unlink()
        shutil.rmtree(folder / "root")
        for name in missing:
            context = folder / "stand-in"
            context.mkdir(exist_ok=True)
            (context / "Dockerfile").write_text(f"FROM {ROOT_IMAGE}\n{ADDED[name.partition(':')[0]]}\n")
            engine("build", f"--tag={name}", str(context))
    return missing
