"""Faults of the containers, one after the other, while clients call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from bench.hall import wait_until
from tests.docker.stack import ONE_MACHINE, Stack


@dataclass(frozen=True)
class Fault:
    """`fire` returns the time of the fault, in monotonic seconds.

    `seconds`: the maximal time until calls of every source succeed. `ends_members`: whether all processes of members
    must end. `is_restarted`: whether Docker's restart policy restarts the container. Otherwise `compose up` does it.
    """

    name: str
    fire: Callable[[Stack], float]
    seconds: float
    ends_members: bool = True
    is_restarted: bool = True


def kill_services(*services: str) -> Callable[[Stack], float]:
    """Kill process 1 of these containers, and with it all their processes."""
    return lambda stack: stack.kill([stack.main_pid(service) for service in services])


def kill_worker(stack: Stack) -> float:
    [worker] = [process for process in stack.processes("runtime") if "mcp_runtime.runtime.worker" in process.cmdline()]
    return stack.kill([worker.pid])


def kill_with_docker(stack: Stack) -> float:
    """Docker does not restart the container, because a user requested the kill."""
    stack.docker("kill", stack.container("runtime"))
    return time.monotonic()


def remove_container(stack: Stack) -> float:
    """The next container cannot see that this one has ended, so it waits for the end of the lease."""
    stack.docker("rm", "--force", stack.container("runtime"))
    return time.monotonic()


def restart_runtime(stack: Stack) -> float:
    stack.compose("restart", "runtime")
    return time.monotonic()


# The lease of a killed runtime may have to expire first, which takes up to 10 s.
BACK_SECONDS = 20.0
FAULTS = [
    Fault("runtime killed", kill_services("runtime"), BACK_SECONDS),
    Fault("worker killed", kill_worker, BACK_SECONDS),
    Fault("web killed", kill_services("web"), 15.0, ends_members=False),
    Fault("redis killed", kill_services("redis"), 15.0, ends_members=False),
    Fault("postgres killed", kill_services("postgres"), 30.0, ends_members=False),
    Fault("all killed at once", kill_services(*ONE_MACHINE.running_services), 45.0),
    Fault("runtime restarted", restart_runtime, BACK_SECONDS),
    Fault("docker kill runtime, compose up", kill_with_docker, 30.0, is_restarted=False),
    Fault("docker rm -f runtime, compose up", remove_container, 30.0, is_restarted=False),
]
DEAD_SECONDS = 2.0


def fire_fault(stack: Stack, fault: Fault) -> tuple[float, list[str]]:
    """Fire a fault. Returns its time, and the processes of the runtime's container that were live two seconds later."""
    processes = stack.processes("runtime")
    if len(processes) < 2 + len(stack.shape.members):  # guard, worker
        raise SystemExit(f"the runtime's container has too few processes to leave any behind: {processes}")
    names = {process: " ".join(process.cmdline()) for process in processes}
    struck_at = fault.fire(stack)
    remains = []
    if fault.ends_members:
        time.sleep(max(struck_at + DEAD_SECONDS - time.monotonic(), 0))
        remains = [f"{process.pid} {name}" for process, name in names.items() if is_alive(process)]
    if not fault.is_restarted:
        wait_until(lambda: not stack.state("runtime").get("Running"), 10, "Docker does not restart the runtime")
        stack.up()
    return struck_at, remains


def is_alive(process: psutil.Process) -> bool:
    """psutil compares the start time too, so a new process with the same pid does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
