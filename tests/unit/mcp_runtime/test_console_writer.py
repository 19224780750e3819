"""A console that nobody reads: who speaks goes on."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_runtime.runtime import guard
from mcp_runtime.system import console
from tests.conftest import ROOT, eventually
from tests.support.machine import Stopwatch

SPEAKER = """
import logging, os, sys, django
django.setup()
for number in range(5000):
    logging.getLogger("guildhall.member.anna").info("line %d %s", number, "x" * 100)
open(sys.argv[1], "w").write("went on")
"""


class Pipe:
    """A console whose reader reads nothing until it is asked to."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self.stream = os.fdopen(writer, "w")
        os.set_blocking(self._reader, False)
        self.text = ""

    def read(self) -> str:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reader, 1 << 16):
                self.text += chunk.decode()
        return self.text

    def close_reader(self) -> None:
        if self._reader >= 0:
            os.close(self._reader)
        self._reader = -1

    def close(self) -> None:
        self.close_reader()
        self.stream.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_what_is_said_is_written_in_order_when_it_is_flushed(pipe: Pipe) -> None:
    writer = console.Writer(pipe.stream)
    for number in range(100):
        writer.write(str(number))
    writer.flush(10)
    assert pipe.read().split() == [str(number) for number in range(100)]


def test_of_what_a_full_console_does_not_take_the_rest_is_dropped_and_counted(pipe: Pipe) -> None:
    writer = console.Writer(pipe.stream)
    said = 3 * console.WAITING
    for number in range(said):
        writer.write(f"{number} {'x' * 100}")
    writer.flush(0.1)
    kept: list[int] = []

    def is_all_told() -> bool:
        """Once there is room again the writer goes on, and may count more than once."""
        lines = pipe.read().rpartition("\n")[0].splitlines()
        counts = [int(text.split()[-11]) for text in lines if "more lines" in text]
        kept[:] = [int(text.split()[0]) for text in lines if "more lines" not in text]
        return len(kept) + sum(counts) == said

    eventually(is_all_told)
    assert kept == sorted(kept)
    assert len(kept) < said

    writer.write("later")
    eventually(lambda: pipe.read().endswith("\nlater\n"))


def test_a_console_that_is_gone_costs_nothing_but_the_lines(pipe: Pipe) -> None:
    writer = console.Writer(pipe.stream)
    pipe.close_reader()
    writer.write("into the void")
    watch = Stopwatch()
    writer.flush(10)
    assert watch.seconds < 5  # it waits for nothing


def test_a_fork_speaks_with_a_thread_of_its_own(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom mcp_runtime.system.console import Writer\nwriter = Writer(sys.stdout)\n"
        "writer.write('before'); writer.flush(10)\n"
        "pid = os.fork()\nwriter.write('child' if not pid else 'parent'); writer.flush(10)\n"
        "if pid: os.waitpid(pid, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert sorted(done.stdout.split()) == ["before", "child", "parent"]


def test_what_a_full_console_did_not_take_is_there_for_the_program_that_this_one_becomes(pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe.stream.fileno(), b"x")
    os.set_blocking(pipe.stream.fileno(), True)
    writer = console.Writer(pipe.stream)
    for text in ("one", "two", "three"):
        writer.write(text)
    descriptor = pipe.stream.fileno()
    unwritten = [text for number, text in console.unwritten() if number == descriptor]
    assert unwritten == ["one", "two", "three"]

    pipe.read()
    writer.flush(10)
    assert writer.unwritten() == []


def test_prints_warnings_and_a_traceback_reach_the_console_in_whole_lines(tmp_path: Path) -> None:
    script = (
        "import sys, warnings\nfrom mcp_runtime.system import console\nconsole.replace_standard_streams()\n"
        "print('a', 'b'); print('no end', end=''); sys.stdout.flush()\nwarnings.warn('careful')\n1 / 0\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stdout == "a b\nno end\n"
    assert "UserWarning: careful\n" in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_lines_that_threads_print_in_parts_at_the_same_time_are_whole(pipe: Pipe) -> None:
    stream = console.NonBlockingStream(pipe.stream)
    barrier = threading.Barrier(2)

    def speak(word: str) -> None:
        for part in (word, word, "\n"):
            barrier.wait(10)
            stream.write(part)

    threads = [threading.Thread(target=speak, args=(word,)) for word in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    stream.flush()
    assert sorted(pipe.read().split()) == ["aa", "bb"]


def test_a_process_whose_warnings_and_traceback_nobody_reads_ends_with_its_exit_code(pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe.stream.fileno(), b"x")
    os.set_blocking(pipe.stream.fileno(), True)
    script = (
        "import sys, warnings\nfrom mcp_runtime.system import console\nconsole.replace_standard_streams()\n"
        "print('one'); warnings.warn('careful'); sys.exit('this is wrong')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=pipe.stream, stderr=pipe.stream)
    try:
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()


def test_where_no_thread_can_be_had_it_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    stream = io.StringIO()
    writer = console.Writer(stream)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer.write("one")
    writer.write("two")
    assert stream.getvalue() == "one\ntwo\n"


def test_a_handler_keeps_the_form_of_its_records() -> None:
    stream = io.StringIO()
    handler = console.ConsoleHandler(stream)
    handler.setFormatter(console.LineFormatter())
    handler.handle(logging.LogRecord("guildhall.web", logging.WARNING, __file__, 1, "oh %s", ("no",), None))
    handler.flush()
    assert stream.getvalue().endswith(" web            | warning: oh no\n")


def test_a_process_of_the_hall_whose_console_is_not_read_goes_on_and_ends(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        marker = tmp_path / "marker"
        process = subprocess.Popen([sys.executable, "-c", SPEAKER, str(marker)], cwd=ROOT, stderr=writer)
        try:
            assert process.wait(20) == 0
            assert marker.read_text() == "went on"
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_thread_of_the_console_takes_no_signal_that_the_main_thread_blocks(pipe: Pipe) -> None:
    before = set(threading.enumerate())
    console.Writer(pipe.stream).write("one")
    (thread,) = set(threading.enumerate()) - before
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(re.findall(r"SigBlk:\s*([0-9a-f]+)", status)[0], 16)
    assert all(blocked & 1 << (number - 1) for number in guard.STOP_SIGNALS)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
