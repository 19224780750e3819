"""How gunicorn serves the web: `python -m gunicorn --config python:guildhall.gunicorn`. Quiet, and many threads."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
from typing import Any

from django.conf import settings

from mcp_runtime.console import LineFormatter

PR_SET_PDEATHSIG = 1
_host = f"[{settings.GUILD_HALL_HOST}]" if ":" in settings.GUILD_HALL_HOST else settings.GUILD_HALL_HOST

wsgi_app = "guildhall.wsgi:application"
bind = f"{_host}:{settings.GUILD_HALL_PORT}"
worker_class = "gthread"
workers = settings.GUILD_HALL_WEB_WORKERS
threads = settings.GUILD_HALL_WEB_THREADS
graceful_timeout = 1  # a browser's idle connection holds a stop for all of it
timeout = 60
keepalive = 30
control_socket_disable = True


class WebLineFormatter(LineFormatter):
    """Whatever gunicorn's loggers are called, the web speaks."""

    def format(self, record: logging.LogRecord) -> str:
        record.name = "web"
        return super().format(record)


_quiet = {"handlers": ["console"], "level": "WARNING", "propagate": False}
logconfig_dict = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": WebLineFormatter}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"gunicorn.error": _quiet, "gunicorn.access": _quiet, "guildhall.web": {**_quiet, "level": "INFO"}},
}


def on_starting(server: Any) -> None:
    """Under `manage.py up`: SIGTERM to us when it dies, SIGKILL included (Linux)."""
    parent = os.environ.get("GUILD_HALL_END_WITH_PARENT")
    if parent and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit("the parent is gone already")


def when_ready(server: Any) -> None:
    logging.getLogger("guildhall.web").info("ready")


def on_exit(server: Any) -> None:
    gc.freeze()  # as in manage.py: its end is quicker


def worker_exit(server: Any, worker: Any) -> None:
    gc.freeze()
