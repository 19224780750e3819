"""The web's processes: what they say when they cannot start, and that none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
import requests

from tests.conftest import ROOT, eventually
from tests.support.hall import PATIENCE, WEB, Hall, lives, wait_for_web


def web(hall: Hall, workers: int) -> subprocess.Popen[bytes]:
    (hall.data_dir / "static").mkdir(parents=True, exist_ok=True)
    process = hall.popen(WEB, GUILD_HALL_WEB_WORKERS=str(workers))
    wait_for_web(hall)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_web_process_outlives_its_parent(hall: Hall, number: signal.Signals) -> None:
    parent = web(hall, 2)
    workers = psutil.Process(parent.pid).children()
    assert len(workers) == 2
    parent.send_signal(number)
    assert parent.wait(PATIENCE) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    eventually(lambda: not any(map(lives, workers)), within=5, what="the workers end")
    assert "Traceback" not in hall.output()


def test_a_web_process_that_was_killed_comes_back_on_the_same_socket(hall: Hall) -> None:
    parent = web(hall, 2)
    before = psutil.Process(parent.pid).children()
    for worker in before:
        worker.kill()
    assert requests.get(f"{hall.url}/healthz", timeout=PATIENCE).ok  # waits in the backlog, and is not refused
    eventually(lambda: len(psutil.Process(parent.pid).children()) == 2)
    assert hall.output().count("a web process ended with signal SIGKILL; starting it again") == 2


def test_the_garbage_collector_passes_over_the_hall_once_it_is_imported() -> None:
    """It would hold the interpreter for 40 ms each time."""
    script = "import django; django.setup(); import gc, sys; from guildhall import web; web.settle(); "
    script += "print('roster.api.members' in sys.modules, gc.get_freeze_count())"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "guildhall.settings"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    is_imported, count = done.stdout.split()
    assert (is_imported, int(count) > 50_000) == ("True", True), done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_address_that_is_taken_is_said_in_one_line(hall: Hall, workers: str) -> None:
    web(hall, 2)
    environment = hall.environment(GUILD_HALL_WEB_WORKERS=workers)
    done = subprocess.run(WEB, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr == f"The web cannot listen on 127.0.0.1:{hall.web_port}: Address already in use.\n"


def test_every_address_of_the_machine_is_both_kinds(hall: Hall) -> None:
    (hall.data_dir / "static").mkdir(parents=True, exist_ok=True)
    hall.popen(WEB, GUILD_HALL_HOST="::", GUILD_HALL_ALLOWED_HOSTS="127.0.0.1,localhost,[::1]")
    wait_for_web(hall)  # at 127.0.0.1


def test_a_child_of_somebody_else_does_not_end_the_web(hall: Hall) -> None:
    """In a container the web may be process 1, which inherits whatever lost its parent."""
    (hall.data_dir / "static").mkdir(parents=True, exist_ok=True)
    inherit = "import ctypes, os, runpy, time; ctypes.CDLL(None).prctl(36, 1)\n"  # PR_SET_CHILD_SUBREAPER
    may_end = hall.data_dir / "may-end"
    wait = f"while not os.path.exists({str(may_end)!r}): time.sleep(0.05)"
    inherit += f"if os.fork() == 0:\n    if os.fork() == 0:\n        {wait}\n    os._exit(0)\nos.wait()\n"
    parent = hall.popen(
        [sys.executable, "-c", f"{inherit}runpy.run_module('guildhall.web', run_name='__main__')"],
        GUILD_HALL_WEB_WORKERS="2",
    )
    wait_for_web(hall)
    eventually(lambda: len(psutil.Process(parent.pid).children()) == 3, what="both workers and the stranger")
    may_end.touch()
    eventually(lambda: len(psutil.Process(parent.pid).children()) == 2, what="the stranger is reaped")
    assert parent.poll() is None
    assert requests.get(f"{hall.url}/healthz", timeout=PATIENCE).ok
