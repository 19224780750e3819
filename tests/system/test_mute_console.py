"""The hall with a console that nobody reads, such as a full pipe or a terminal after Ctrl-S."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, eventually
from tests.support.hall import PATIENCE, Hall, command_of, family, is_live, member, wait_for_status

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a pipe is filled through /proc"),
    pytest.mark.timeout(300),
]


def fill(pipe: int) -> None:
    """Fill the pipe to the last byte, through a descriptor of our own that does not block. Other writers would wait."""
    descriptor = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        for size in (4096, 1):
            try:
                while True:
                    os.write(descriptor, b"x" * size)
            except BlockingIOError:
                continue
    finally:
        os.close(descriptor)


def start_hall(hall: Hall, console: int) -> subprocess.Popen[bytes]:
    up = subprocess.Popen(
        [sys.executable, "manage.py", "up"],
        cwd=ROOT,
        env=hall.environment(PYTHONFAULTHANDLER="1"),
        stdout=console,
        stderr=console,
        start_new_session=True,
    )
    hall.processes.append(up)
    return up


def read_all(reader: int, quiet: float = 1.0) -> str:
    """The output until there is none for `quiet` seconds."""
    chunks = []
    while select.select([reader], [], [], quiet)[0]:
        chunks.append(os.read(reader, 65_536))
    return b"".join(chunks).decode(errors="replace").lstrip("x")


def kernel_function(process: psutil.Process) -> str:
    """The function of the kernel in which the process waits."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/wchan").read_text()
    return "nothing, for it has ended"


def end_and_describe(up: subprocess.Popen[bytes], reader: int) -> str:
    """End the processes. Returns the last output, and for each process a line with its exit code or stack."""
    processes = family(up) if up.poll() is None else []
    functions = [kernel_function(process) for process in processes]
    lines = [f"the console: {read_all(reader)!r}", f"exit code of up: {up.poll()}"]
    # Children first, because they end with their parents.
    for process, function in reversed([*zip(processes, functions, strict=True)]):
        line = f"{process.pid} {command_of(process)} in {function}: "
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGABRT)  # faulthandler then writes the stack to the console
        main_thread = read_all(reader).rpartition("(most recent call first):")[2]
        calls = re.findall(r'([^/"]+)", line (\d+) in (\w+)', main_thread)
        lines.append(line + " < ".join(f"{file}:{number} {name}" for file, number, name in calls[:9]))
    return "\n".join(lines)


def test_the_hall_starts_and_ends_with_a_full_pipe_and_loses_no_first_lines(hall: Hall) -> None:
    hall.add("one")
    hall.data_dir.mkdir(mode=0o755)
    hall.data_dir.chmod(0o755)  # the settings print a warning about this before all other output
    reader, writer = os.pipe()
    try:
        fill(writer)
        up = start_hall(hall, writer)
        os.set_blocking(reader, False)
        text = ""

        def has_printed(words: str) -> bool:
            nonlocal text
            with contextlib.suppress(BlockingIOError):
                text += os.read(reader, 65_536).decode().lstrip("x")
            return words in text

        try:
            wait_for_status(hall, "one", "connected", within=PATIENCE)  # the first account exists too by then
        except pytest.fail.Exception as error:
            pytest.fail(f"{error}\n{end_and_describe(up, reader)}", pytrace=False)
        eventually(lambda: has_printed("member 'one' is connected"), within=PATIENCE)
        first_lines = ["could read the data folder", "Roster and admin: ", "log in as  admin  with the password"]
        assert text.count("could read the data folder") == 1
        assert all(any(words in line for line in text.splitlines()) for words in first_lines), text
        assert text.index(first_lines[1]) < text.index(first_lines[2])
        fill(writer)
        up.terminate()
        assert up.wait(PATIENCE) == 0
    finally:
        os.close(writer)
        os.close(reader)


def test_a_failed_start_ends_although_nobody_reads_its_output(hall: Hall) -> None:
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", hall.web_port)):
        try:
            fill(writer)
            assert start_hall(hall, writer).wait(PATIENCE) == 1
        finally:
            os.close(writer)
            os.close(reader)


def test_killed_parts_restart_and_members_keep_their_logs_with_a_full_pipe(hall: Hall) -> None:
    names = ("one", "two")
    for name in names:
        hall.add(name)
    reader, writer = os.pipe()
    try:
        up = start_hall(hall, writer)
        for name in names:
            wait_for_status(hall, name, "connected", within=PATIENCE)
        fill(writer)
        old_pids = {name: member(name).pid for name in names}
        victims = [
            part
            for part in family(up)
            if command_of(part).endswith(("mcp_runtime/runtime/guard.py", "mcp_runtime.runtime.worker"))
        ]
        for victim in victims:
            victim.suspend()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):  # `up` has ended the worker of the killed guard
                victim.kill()

        for name in names:
            eventually(lambda name=name: member(name).pid not in (None, old_pids[name]), within=PATIENCE, what=name)
            wait_for_status(hall, name, "connected", within=PATIENCE)
            log = next(hall.data_dir.rglob(f"{name}*.log"))
            eventually(
                lambda log=log: log.read_text().count("hello from the member") == 2,
                what=f"the output of {name} is in its log",
            )
        processes = family(up)
        up.terminate()
        assert up.wait(PATIENCE) == 0
        assert not any(map(is_live, processes))
    finally:
        os.close(writer)
        os.close(reader)
