"""The image alone, as the first lines of the Dockerfile say: `manage.py up` as process 1, on SQLite."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from bench.hall import wait_until
from tests.docker.report import Report
from tests.docker.stack import Stack

HEALTHY_SECONDS = 60.0
STOP_SECONDS = 9.0  # Docker kills after ten


def run(hall: Stack, report: Report) -> None:
    """Run the checks, on the ports of the stack, which is down."""
    with container(hall) as name:
        time.sleep(1.0)  # it imports modules, or migrates
        seconds, code = stop_container(hall, name)
        report.check(
            "docker stop while it starts", seconds < STOP_SECONDS and code != 137, f"{seconds:.1f} s, exit code {code}"
        )

        hall.docker("start", name)
        wait_until(lambda: health(hall, name) == "healthy", HEALTHY_SECONDS, "the image alone is healthy")
        hall.token = hall.docker("exec", name, "cat", "/data/local-token").strip()
        hall.wait_for_calls()
        hall.kill([int(hall.docker.inspect(name)["State"]["Pid"])])
        wait_until(lambda: not hall.docker.inspect(name)["State"]["Running"], 10, "the container is dead")
        hall.docker("start", name)
        start = time.monotonic()
        hall.wait_for_calls()
        report.check(
            "docker run: killed, started again",
            True,
            f"the old token is accepted after {time.monotonic() - start:.1f} s",
        )
        seconds, code = stop_container(hall, name)
        report.check("docker stop", seconds < STOP_SECONDS and code == 0, f"{seconds:.1f} s, exit code {code}")


@contextlib.contextmanager
def container(hall: Stack) -> Iterator[str]:
    name = f"{hall.project}-alone"
    ports = [
        f"--publish=127.0.0.1:{host_port}:{container_port}"
        for host_port, container_port in ((hall.port, 8000), (hall.gateway_port, 8100))
    ]
    # Our own daemon has no default network.
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


def stop_container(hall: Stack, name: str) -> tuple[float, int]:
    start = time.monotonic()
    hall.docker("stop", name)
    return time.monotonic() - start, int(hall.docker.inspect(name)["State"]["ExitCode"])
