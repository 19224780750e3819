"""The Docker daemon of a trial: the one that answers here, or one of our own, where none does and we are root.

Our own is that of Debian's packages. It keeps what it has in one folder, and changes neither the machine's firewall nor
its routes: containers reach each other, and builds use the machine's network. Its base images are made of Debian's
packages and stand in for the official ones, under their names, so that no registry of images is needed.
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

NEEDED = ("docker", "dockerd", "debootstrap")
PACKAGES = "docker.io docker-compose debootstrap"
STAND_INS = Path(__file__).with_name("stand_ins.sh")
PATHS = "/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT_IMAGE = "guild-hall-stand-ins"
# What each stand-in adds to that, by the part of its name before the colon.
ADDED = {
    "python": f'ENV PATH={PATHS} PIP_CERT=/etc/ssl/certs/ca-certificates.crt\nCMD ["python"]',
    "redis": 'ENTRYPOINT ["start-redis"]\nCMD ["redis-server"]',
    "postgres": 'ENV PATH=/usr/lib/postgresql/17/bin:$PATH\nENTRYPOINT ["start-postgres"]\nSTOPSIGNAL SIGINT',
}


class Docker:
    """Commands to one daemon. `is_own`: nobody else uses it, and it ends with the trial."""

    def __init__(self, host: str = "") -> None:
        self.is_own = bool(host)
        self.environment = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
        has_plugin = self._succeeds("docker", "compose", "version")
        self.compose = ["docker", "compose"] if has_plugin else ["docker-compose"]
        if self.is_own and not self._succeeds("docker", "buildx", "version"):
            self.environment |= {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}

    def __call__(self, *argv: str, seconds: float = 60, **options: Any) -> str:
        """What it prints. Raises SystemExit, with what it said, and TimeoutExpired."""
        return self.run(["docker", *argv], seconds, **options)

    def run(self, argv: Sequence[str], seconds: float, cwd: Path | None = None, **environment: str) -> str:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env={**self.environment, **environment},
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(
                f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return done.stdout

    def inspect(self, name: str) -> dict[str, Any]:
        [found] = json.loads(self("inspect", name))
        return dict(found)

    @property
    def answers(self) -> bool:
        return self._succeeds("docker", "version", "--format", "{{.Server.Version}}")

    def _succeeds(self, *argv: str) -> bool:
        done = subprocess.run(argv, env=self.environment, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        return done.returncode == 0


@contextlib.contextmanager
def docker(folder: Path) -> Iterator[Docker]:
    """`folder`: for the files of a daemon of our own, which stay there for the next trial, the stand-ins among them."""
    if shutil.which("docker") and (there := Docker()).answers:
        yield there
        return
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing or os.geteuid() != 0 or sys.platform != "linux":
        raise SystemExit(
            "No Docker daemon answers here. Start one, or as root on Linux have the trial start Debian's: "
            f"apt-get install --no-install-recommends {PACKAGES}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"Another trial is under way in {folder}.") from None
        with daemon(folder) as own:
            yield own


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[Docker]:
    own = Docker(f"unix://{folder}/socket")
    argv = ["dockerd", "--host", f"unix://{folder}/socket", "--data-root", f"{folder}/data"]
    argv += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", "--bridge=none", "--iptables=false"]
    argv += ["--ip-forward=false", "--ip-masq=false"]
    with (folder / "daemon.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: own.answers or process.poll() is not None, 60, "the Docker daemon answers")
        if process.poll() is not None:
            raise SystemExit(f"The Docker daemon did not start: {folder}/daemon.log says why.")
        yield own
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        for left in (folder / "exec" / "netns").glob("*"):
            subprocess.run(["umount", left], check=False, capture_output=True)


def base_images() -> list[str]:
    """The images that Dockerfile and docker-compose.yml begin with."""
    built = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    named = re.findall(r"^ +image: (\S+:\S+)", (ROOT / "docker-compose.yml").read_text(), re.MULTILINE)
    return [*built, *named]


def make_stand_ins(own: Docker, folder: Path) -> list[str]:
    """In place of those base images that this daemon, our own, does not have; their names."""
    have = own("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    missing = [name for name in base_images() if name not in have]
    if missing:
        with (folder / "stand-ins.log").open("w") as log:
            subprocess.run(["nice", "sh", str(STAND_INS), str(folder)], stdout=log, stderr=log, check=True)
        archive = folder / "root.tar"
        subprocess.run(["nice", "tar", "-C", str(folder / "root"), "-cf", str(archive), "."], check=True)
        own("import", str(archive), ROOT_IMAGE, seconds=300)
        archive.unlink()
        shutil.rmtree(folder / "root")
        for name in missing:
            context = folder / "stand-in"
            context.mkdir(exist_ok=True)
            (context / "Dockerfile").write_text(f"FROM {ROOT_IMAGE}\n{ADDED[name.partition(':')[0]]}\n")
            own("build", f"--tag={name}", str(context))
    return missing
