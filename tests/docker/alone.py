"""The image by itself, as the Dockerfile's first lines say: `manage.py up` as process 1, on SQLite."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.hall import wait_until
from tests.docker.stack import Stack

if TYPE_CHECKING:
    from tests.docker.__main__ import Report

HEALTHY_SECONDS = 60.0
STOP_SECONDS = 9.0  # Docker kills after ten


def run(hall: Stack, report: Report) -> None:
    """Under the ports of the stack, which is down."""
    with container(hall) as name:
        time.sleep(1.0)  # it imports, or migrates
        seconds, code = stopped(hall, name)
        report.check(
            "docker stop while it starts", seconds < STOP_SECONDS and code != 137, f"{seconds:.1f} s, exit code {code}"
        )

        hall.docker("start", name)
        wait_until(lambda: health(hall, name) == "healthy", HEALTHY_SECONDS, "the image by itself is healthy")
        hall.token = hall.docker("exec", name, "cat", "/data/local-token").strip()
        hall.wait_answers()
        hall.kill([int(hall.docker.inspect(name)["State"]["Pid"])])
        wait_until(lambda: not hall.docker.inspect(name)["State"]["Running"], 10, "the container is dead")
        hall.docker("start", name)
        began = time.monotonic()
        hall.wait_answers()
        report.check(
            "docker run: killed, started again",
            True,
            f"the old token is answered after {time.monotonic() - began:.1f} s",
        )
        seconds, code = stopped(hall, name)
        report.check("docker stop", seconds < STOP_SECONDS and code == 0, f"{seconds:.1f} s, exit code {code}")


@contextlib.contextmanager
def container(hall: Stack) -> Iterator[str]:
    name = f"{hall.project}-alone"
    ports = [f"--publish=127.0.0.1:{ours}:{its}" for ours, its in ((hall.port, 8000), (hall.gateway_port, 8100))]
    # The default network is absent from a daemon of our own.
    network = f"{name}-network"
    hall.docker("network", "create", network)
    try:
        hall.docker(
            "run", "--detach", f"--name={name}", f"--network={network}", *ports, f"--volume={name}:/data", hall.image
        )
        yield name
    finally:
        hall.docker("rm", "--force", "--volumes", name)
        hall.docker("volume", "rm", "--force", name)
        hall.docker("network", "rm", network)


def health(hall: Stack, name: str) -> str:
    return str(hall.docker.inspect(name)["State"]["Health"]["Status"])


def stopped(hall: Stack, name: str) -> tuple[float, int]:
    began = time.monotonic()
    hall.docker("stop", name)
    return time.monotonic() - began, int(hall.docker.inspect(name)["State"]["ExitCode"])
