"""Loads (bench/load.py) on whatever has an endpoint, and the CPU that those behind it take meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from bench.hall import ROOT, cpu_seconds, family, free_port

ECHO, LOAD = ROOT / "bench" / "echo.py", ROOT / "bench" / "load.py"
# Definitions of tools, and queries for them.
CORPUS = ROOT / "tests" / "unit" / "mcp_runtime" / "gateway" / "search" / "retrieval" / "bfcl.json"
OPEN_SECONDS = 60.0


class LoadError(Exception):
    """A client of the load got a wrong answer, or none."""


@dataclass(frozen=True)
class Endpoint:
    """Where a tool can be called, and how. CPU counts of `roots` and their children but echo servers."""

    url: str
    tool: str
    style: str = "mcp"
    token: str = ""
    roots: tuple[psutil.Process, ...] = ()


@dataclass(frozen=True)
class Load:
    """What came of one; milliseconds. `cpu`: of those who serve, for a call; `client_cpu`: of the load itself."""

    calls: int
    per_second: float
    p50: float
    p95: float
    p99: float
    client_cpu: float
    cpu: float


@contextlib.contextmanager
def clients(
    endpoint: Endpoint, *, seconds: float = 0, number: int = 16, lean: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A load, as soon as each of its clients has been answered; it begins when a line is written. Raises LoadError."""
    argv = [
        sys.executable,
        str(LOAD),
        endpoint.url,
        endpoint.tool,
        "--style",
        endpoint.style,
        "--token",
        endpoint.token,
    ]
    argv += ["--clients", str(number), "--seconds", str(seconds), *(["--lean"] if lean else [])]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            _line_of(process)
            yield process
        finally:
            process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    if line := process.stdout.readline():
        return line
    raise LoadError(process.stderr.read().strip().rpartition("\n")[2] or "the load ended without a word")


def measure(endpoint: Endpoint, seconds: float, *, number: int = 16, lean: bool = False) -> Load:
    """Raises LoadError."""
    with clients(endpoint, seconds=seconds, number=number, lean=lean) as process:
        processes = [each for root in endpoint.roots for each in family(root) if each == root or not _is_echo(each)]
        before = cpu_seconds(processes)
        begin(process)
        report: dict[str, Any] = json.loads(_line_of(process))
        cpu = cpu_seconds(processes) - before
    return Load(**report, cpu=cpu / report["calls"] * 1000)


def wait_open(endpoint: Endpoint, subject: str) -> None:
    """Until it answers a call as it should. Raises LoadError with the last reason why it does not."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            with clients(endpoint, number=1, lean=True):
                return
        except LoadError as error:
            if time.monotonic() > deadline:
                raise LoadError(f"{subject} does not answer: {error}") from error


def _is_echo(process: psutil.Process) -> bool:
    try:
        return str(ECHO) in process.cmdline()
    except psutil.Error:
        return False


@contextlib.contextmanager
def echo_server(*modes: str) -> Iterator[Endpoint]:
    """One to be called directly."""
    port = free_port()
    process = psutil.Popen([sys.executable, str(ECHO), str(port), *modes])
    try:
        endpoint = Endpoint(f"http://127.0.0.1:{port}/mcp", "echo", roots=(process,))
        wait_open(endpoint, "the echo server")
        yield endpoint
    finally:
        process.kill()
        process.wait()
