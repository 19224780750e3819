"""The hall on a console that nobody reads: a full pipe, or a terminal after Ctrl-S."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, eventually
from tests.support.hall import PATIENCE, Hall, command_of, family, lives, member, wait_for_status

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a pipe is filled through /proc"),
    pytest.mark.timeout(120),
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
        env=hall.environment(),
        stdout=console,
        stderr=console,
        start_new_session=True,
    )
    hall.processes.append(up)
    return up


def test_the_hall_starts_and_ends_and_its_first_lines_are_there_once_somebody_reads(hall: Hall) -> None:
    hall.add("one")
    hall.data_dir.mkdir(mode=0o755)
    hall.data_dir.chmod(0o755)  # of which the settings have to say something, before all else
    reader, writer = os.pipe()
    try:
        fill(writer)
        up = start_up(hall, writer)
        wait_for_status(hall, "one", "connected", within=2 * PATIENCE)  # the first account is made as well
        os.set_blocking(reader, False)
        said = ""

        def has_said(what: str) -> bool:
            nonlocal said
            with contextlib.suppress(BlockingIOError):
                said += os.read(reader, 65_536).decode().lstrip("x")
            return what in said

        eventually(lambda: has_said("member 'one' is connected"), within=PATIENCE)
        first_lines = ["could read the data folder", "Roster and admin: ", "log in as  admin  with the password"]
        assert said.count("could read the data folder") == 1
        assert all(any(words in line for line in said.splitlines()) for words in first_lines), said
        assert said.index(first_lines[1]) < said.index(first_lines[2])
        fill(writer)
        up.terminate()
        assert up.wait(PATIENCE) == 0
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
            if command_of(part).endswith(("mcp_runtime.runtime.guard", "mcp_runtime.runtime.worker"))
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
