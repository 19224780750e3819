"""The processes of the web: their errors at the start, their restarts and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
import requests

from tests.conftest import ROOT, eventually
from tests.support.hall import PATIENCE, WEB, Hall, is_live, wait_for_web


def start_web(hall: Hall, workers: int) -> subprocess.Popen[bytes]:
    (hall.data_dir / "static").mkdir(parents=True, exist_ok=True)
    process = hall.popen(WEB, GUILD_HALL_WEB_WORKERS=str(workers))
    wait_for_web(hall)
    return process


@pytest.mark.parametrize("sent_signal", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_web_process_outlives_its_parent(hall: Hall, sent_signal: signal.Signals) -> None:
    parent = start_web(hall, 2)
    workers = psutil.Process(parent.pid).children()
    assert len(workers) == 2
    parent.send_signal(sent_signal)
    assert parent.wait(PATIENCE) == (-signal.SIGKILL if sent_signal == signal.SIGKILL else 0)
    eventually(lambda: not any(map(is_live, workers)), within=5, what="the workers end")
    assert "Traceback" not in hall.output()


def test_a_killed_web_process_restarts_on_the_same_socket(hall: Hall) -> None:
    parent = start_web(hall, 2)
    workers = psutil.Process(parent.pid).children()
    for worker in workers:
        worker.kill()
    assert requests.get(
        f"{hall.url}/healthz", timeout=PATIENCE
    ).ok  # the request waits in the backlog and is not refused
    eventually(lambda: len(psutil.Process(parent.pid).children()) == 2)
    text = "a web process ended with signal SIGKILL; starting it again"
    eventually(lambda: hall.output().count(text) == 2, what="the console names both")


def test_the_garbage_collector_skips_the_imported_hall() -> None:
    """Otherwise each collection would stop the interpreter for 40 ms."""
    script = "import django; django.setup(); import gc, sys; from guildhall import web; web.settle(); "
    script += "print('roster.api.members' in sys.modules, gc.get_freeze_count())"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "guildhall.settings"}
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    is_imported, count = result.stdout.split()
    assert (is_imported, int(count) > 50_000) == ("True", True), result.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_taken_address_is_reported_in_one_line(hall: Hall, workers: str) -> None:
    start_web(hall, 2)
    environment = hall.environment(GUILD_HALL_WEB_WORKERS=workers)
    result = subprocess.run(WEB, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 1
    assert result.stderr == f"The web cannot listen on 127.0.0.1:{hall.web_port}: Address already in use.\n"


def test_the_ipv6_wildcard_address_accepts_ipv4_too(hall: Hall) -> None:
    (hall.data_dir / "static").mkdir(parents=True, exist_ok=True)
    hall.popen(WEB, GUILD_HALL_HOST="::", GUILD_HALL_ALLOWED_HOSTS="127.0.0.1,localhost,[::1]")
    wait_for_web(hall)  # its URL has 127.0.0.1


def test_an_inherited_child_process_does_not_end_the_web(hall: Hall) -> None:
    """In a container the web may be process 1, which inherits all orphans."""
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
