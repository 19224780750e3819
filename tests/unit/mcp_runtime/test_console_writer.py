"""An unread console does not block the processes that write to it."""

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

WRITE_MANY_LINES = """
import logging, os, sys, django
django.setup()
for number in range(5000):
    logging.getLogger("guildhall.member.anna").info("line %d %s", number, "x" * 100)
open(sys.argv[1], "w").write("went on")
"""


class Pipe:
    """A console whose reader reads only when `read` is called."""

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
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_flush_writes_all_lines_in_order(pipe: Pipe) -> None:
    writer = console.Writer(pipe.stream)
    for number in range(100):
        writer.write(str(number))
    writer.flush(10)
    assert pipe.read().split() == [str(number) for number in range(100)]


def test_lines_that_a_full_console_cannot_take_are_dropped_and_counted(pipe: Pipe) -> None:
    writer = console.Writer(pipe.stream)
    line_count = 3 * console.WAITING
    for number in range(line_count):
        writer.write(f"{number} {'x' * 100}")
    writer.flush(0.1)
    numbers: list[int] = []

    def all_lines_are_counted() -> bool:
        """The writer continues when there is space again, and may report a number more than once."""
        lines = pipe.read().rpartition("\n")[0].splitlines()
        counts = [int(text.split()[-11]) for text in lines if "more lines" in text]
        numbers[:] = [int(text.split()[0]) for text in lines if "more lines" not in text]
        return len(numbers) + sum(counts) == line_count

    eventually(all_lines_are_counted)
    assert numbers == sorted(numbers)
    assert len(numbers) < line_count

    writer.write("later")
    eventually(lambda: pipe.read().endswith("\nlater\n"))


def test_a_closed_console_loses_lines_without_a_delay(pipe: Pipe) -> None:
    writer = console.Writer(pipe.stream)
    pipe.close_reader()
    writer.write("into the void")
    watch = Stopwatch()
    writer.flush(10)
    assert watch.seconds < 5  # flush does not wait


def test_a_forked_process_writes_with_its_own_thread(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom mcp_runtime.system.console import Writer\nwriter = Writer(sys.stdout)\n"
        "writer.write('before'); writer.flush(10)\n"
        "pid = os.fork()\nwriter.write('child' if not pid else 'parent'); writer.flush(10)\n"
        "if pid: os.waitpid(pid, 0)\n"
    )
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert sorted(process.stdout.split()) == ["before", "child", "parent"]


def test_unwritten_lines_of_a_full_console_are_available(pipe: Pipe) -> None:
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


def test_prints_warnings_and_tracebacks_reach_the_console_in_whole_lines(tmp_path: Path) -> None:
    script = (
        "import sys, warnings\nfrom mcp_runtime.system import console\nconsole.replace_standard_streams()\n"
        "print('a', 'b'); print('no end', end=''); sys.stdout.flush()\nwarnings.warn('careful')\n1 / 0\n"
    )
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert process.returncode == 1
    assert process.stdout == "a b\nno end\n"
    assert "UserWarning: careful\n" in process.stderr
    assert process.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_concurrent_threads_print_whole_lines(pipe: Pipe) -> None:
    stream = console.NonBlockingStream(pipe.stream)
    barrier = threading.Barrier(2)

    def write_in_parts(word: str) -> None:
        for part in (word, word, "\n"):
            barrier.wait(10)
            stream.write(part)

    threads = [threading.Thread(target=write_in_parts, args=(word,)) for word in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    stream.flush()
    assert sorted(pipe.read().split()) == ["aa", "bb"]


def test_a_process_with_an_unread_console_ends_with_its_exit_code(pipe: Pipe) -> None:
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


def test_without_a_thread_lines_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_start(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    stream = io.StringIO()
    writer = console.Writer(stream)
    monkeypatch.setattr(threading.Thread, "start", refuse_start)
    writer.write("one")
    writer.write("two")
    assert stream.getvalue() == "one\ntwo\n"


def test_the_console_handler_uses_its_formatter() -> None:
    stream = io.StringIO()
    handler = console.ConsoleHandler(stream)
    handler.setFormatter(console.LineFormatter())
    handler.handle(logging.LogRecord("guildhall.web", logging.WARNING, __file__, 1, "oh %s", ("no",), None))
    handler.flush()
    assert stream.getvalue().endswith(" web            | warning: oh no\n")


def test_a_process_of_the_hall_continues_and_ends_with_an_unread_console(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        marker = tmp_path / "marker"
        process = subprocess.Popen([sys.executable, "-c", WRITE_MANY_LINES, str(marker)], cwd=ROOT, stderr=writer)
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
def test_the_console_thread_blocks_the_stop_signals(pipe: Pipe) -> None:
    threads_before = set(threading.enumerate())
    console.Writer(pipe.stream).write("one")
    (thread,) = set(threading.enumerate()) - threads_before
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked_signals = int(re.findall(r"SigBlk:\s*([0-9a-f]+)", status)[0], 16)
    assert all(blocked_signals & 1 << (number - 1) for number in guard.STOP_SIGNALS)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
