"""What is done to the containers, each by itself, while clients call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from bench.hall import wait_until
from tests.docker.stack import MEMBERS, STAYING, Stack


@dataclass(frozen=True)
class Fault:
    """`fire` returns when it had struck, in monotonic seconds.

    `seconds`: until calls of every source succeed, at most. `ends_members`: no process of a member may outlive it.
    `is_mended`: by Docker, by the restart policy; else by `compose up`.
    """

    name: str
    fire: Callable[[Stack], float]
    seconds: float
    ends_members: bool = True
    is_mended: bool = True


def killed(*services: str) -> Callable[[Stack], float]:
    """SIGKILL for process 1 of those containers, and with it for all that is in them."""
    return lambda stack: stack.kill([stack.main_pid(service) for service in services])


def worker_killed(stack: Stack) -> float:
    [worker] = [one for one in stack.processes("runtime") if "mcp_runtime.runtime.worker" in one.cmdline()]
    return stack.kill([worker.pid])


def killed_by_docker(stack: Stack) -> float:
    """Docker takes it for somebody's request, and leaves it dead."""
    stack.docker("kill", stack.container("runtime"))
    return time.monotonic()


def removed(stack: Stack) -> float:
    """The next one is another container, and cannot see that this one is dead: it waits for the end of the lease."""
    stack.docker("rm", "--force", stack.container("runtime"))
    return time.monotonic()


def restarted(stack: Stack) -> float:
    stack.compose("restart", "runtime")
    return time.monotonic()


# The lease of a runtime that was killed, or did not end in time, may have to run out first: up to 10 s.
BACK_SECONDS = 20.0
FAULTS = [
    Fault("runtime killed", killed("runtime"), BACK_SECONDS),
    Fault("worker killed", worker_killed, BACK_SECONDS),
    Fault("web killed", killed("web"), 15.0, ends_members=False),
    Fault("redis killed", killed("redis"), 15.0, ends_members=False),
    Fault("postgres killed", killed("postgres"), 30.0, ends_members=False),
    Fault("all killed at once", killed(*STAYING), 45.0),
    Fault("runtime restarted", restarted, BACK_SECONDS),
    Fault("docker kill runtime, compose up", killed_by_docker, 30.0, is_mended=False),
    Fault("docker rm -f runtime, compose up", removed, 30.0, is_mended=False),
]
DEAD_SECONDS = 2.0


def strike(stack: Stack, fault: Fault) -> tuple[float, list[str]]:
    """When it struck, and which processes of the runtime's container lived two seconds later, in words."""
    before = stack.processes("runtime")
    if len(before) < 2 + len(MEMBERS):  # guard, worker
        raise SystemExit(f"the runtime's container has too few processes to leave any behind: {before}")
    names = {one: " ".join(one.cmdline()) for one in before}
    at = fault.fire(stack)
    left = []
    if fault.ends_members:
        time.sleep(max(at + DEAD_SECONDS - time.monotonic(), 0))
        left = [f"{one.pid} {name}" for one, name in names.items() if is_alive(one)]
    if not fault.is_mended:
        wait_until(lambda: not stack.state("runtime").get("Running"), 10, "Docker leaves the runtime dead")
        stack.up()
    return at, left


def is_alive(process: psutil.Process) -> bool:
    """psutil compares the start time too: a pid that somebody else has now does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
