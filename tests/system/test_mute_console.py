"""The hall on a console that nobody reads: a full pipe, or a terminal after Ctrl-S."""

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
from tests.support.hall import PATIENCE, Hall, command_of, family, lives, member, wait_for_status

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a pipe is filled through /proc"),
    pytest.mark.timeout(300),
]


def fill(pipe: int) -> None:
    """To the last byte, through an opening of our own: whoever else writes there would wait."""
    opened = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        for size in (4096, 1):
            try:
                while True:
                    os.write(opened, b"x" * size)
            except BlockingIOError:
                continue
    finally:
        os.close(opened)


def start_up(hall: Hall, console: int) -> subprocess.Popen[bytes]:
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
    """What comes until nothing has come for `quiet` seconds."""
    chunks = []
    while select.select([reader], [], [], quiet)[0]:
        chunks.append(os.read(reader, 65_536))
    return b"".join(chunks).decode(errors="replace").lstrip("x")


def wait_of(process: psutil.Process) -> str:
    """The function of the kernel in which it waits."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/wchan").read_text()
    return "nothing, for it has ended"


def where_they_wait(up: subprocess.Popen[bytes], reader: int) -> str:
    """What the console shows at last, and for each process a line: its exit code or stack. It ends them."""
    alive = family(up) if up.poll() is None else []
    waits = [wait_of(one) for one in alive]
    lines = [f"the console: {read_all(reader)!r}", f"exit code of up: {up.poll()}"]
    for one, wait in reversed([*zip(alive, waits, strict=True)]):  # children first, for they end with their parents
        line = f"{one.pid} {command_of(one)} in {wait}: "
        with contextlib.suppress(psutil.Error):
            one.send_signal(signal.SIGABRT)  # of which faulthandler tells, on the console
        main_thread = read_all(reader).rpartition("(most recent call first):")[2]
        calls = re.findall(r'([^/"]+)", line (\d+) in (\w+)', main_thread)
        lines.append(line + " < ".join(f"{file}:{number} {name}" for file, number, name in calls[:9]))
    return "\n".join(lines)


def test_the_hall_starts_and_ends_and_its_first_lines_are_there_once_somebody_reads(hall: Hall) -> None:
    hall.add("one")
    hall.data_dir.mkdir(mode=0o755)
    hall.data_dir.chmod(0o755)  # of which the settings have to say something, before all else
    reader, writer = os.pipe()
    try:
        fill(writer)
        up = start_up(hall, writer)
        os.set_blocking(reader, False)
        text = ""

        def shows(words: str) -> bool:
            nonlocal text
            with contextlib.suppress(BlockingIOError):
                text += os.read(reader, 65_536).decode().lstrip("x")
            return words in text

        try:
            wait_for_status(hall, "one", "connected", within=PATIENCE)  # the first account is made as well
        except pytest.fail.Exception as error:
            pytest.fail(f"{error}\n{where_they_wait(up, reader)}", pytrace=False)
        eventually(lambda: shows("member 'one' is connected"), within=PATIENCE)
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


def test_a_start_that_fails_ends_though_nobody_reads_why(hall: Hall) -> None:
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", hall.web_port)):
        try:
            fill(writer)
            assert start_up(hall, writer).wait(PATIENCE) == 1
        finally:
            os.close(writer)
            os.close(reader)


def test_parts_come_back_members_are_heard_and_the_hall_ends(hall: Hall) -> None:
    names = ("one", "two")
    for name in names:
        hall.add(name)
    reader, writer = os.pipe()
    try:
        up = start_up(hall, writer)
        for name in names:
            wait_for_status(hall, name, "connected", within=PATIENCE)
        fill(writer)
        before = {name: member(name).pid for name in names}
        victims = [
            part
            for part in family(up)
            if command_of(part).endswith(("mcp_runtime/runtime/guard.py", "mcp_runtime.runtime.worker"))
        ]
        for victim in victims:
            victim.suspend()
        for victim in victims:
            victim.kill()

        for name in names:
            eventually(lambda name=name: member(name).pid not in (None, before[name]), within=PATIENCE, what=name)
            wait_for_status(hall, name, "connected", within=PATIENCE)
            log = next(hall.data_dir.rglob(f"{name}*.log"))
            eventually(lambda log=log: log.read_text().count("hello from the member") == 2, what=f"{name} is heard")
        processes = family(up)
        up.terminate()
        assert up.wait(PATIENCE) == 0
        assert not any(map(lives, processes))
    finally:
        os.close(writer)
        os.close(reader)
