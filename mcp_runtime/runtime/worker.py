"""The runtime's worker: one Celery worker with a thread pool; supervisor, dispatcher and agents' sessions hang
on it as a bootstep (bootstep.py).

Started by the guard (`manage.py runtime`), never by hand. Exit code 75: another runtime owns the hall.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable
from typing import TypeVar

import django

from mcp_runtime.runtime.stopping import EX_SOFTWARE, EX_TEMPFAIL, guard_is_gone
from mcp_runtime.system.console import replace_standard_streams
from mcp_runtime.system.parent import signal_when_parent_dies

logger = logging.getLogger("guildhall.runtime")

T = TypeVar("T")

EX_UNAVAILABLE = 69  # sysexits.h
# Threads change hands this often (default 5 ms): a relay must not wait for somebody's computing.
SWITCH_INTERVAL = 0.0001


def end_with_parent() -> None:
    """SIGTERM to us when the guard dies (Linux). A parent that died before the call left us to init already."""
    signal_when_parent_dies(signal.SIGTERM)
    if guard_is_gone():
        sys.exit(EX_SOFTWARE)


def run() -> int:
    """Take the hall, build the worker, run it to its end; the exit code."""
    from django.db import OperationalError

    from mcp_runtime.protocol.errors import AddressTakenError, LeaseError
    from mcp_runtime.runtime.runtime import Runtime

    stop_requested = threading.Event()
    try:
        lease_id, sockets = take_the_hall(stop_requested)
    except LeaseError as error:
        logger.error("%s", error)
        return EX_TEMPFAIL
    except AddressTakenError as error:
        logger.error("%s", error)
        return EX_UNAVAILABLE
    except OperationalError:
        if not stop_requested.is_set():
            raise
        return 0
    runtime = Runtime(lease_id, sockets, stop_requested)
    runtime.start_members()
    try:
        from mcp_runtime.runtime import bootstep  # Celery takes 0.2 s of CPU to import, which members have meanwhile

        code = bootstep.serve(runtime)
    except BaseException as error:  # noqa: BLE001 - raised again by `end`
        return runtime.end(error)
    return runtime.end() or code


def take_the_hall(stop_requested: threading.Event) -> tuple[uuid.UUID, list[socket.socket]]:
    """The lease, and the gateway's sockets, bound. Waits for a database that cannot be used, until `stop_requested`.

    Raises LeaseError, AddressTakenError, and OperationalError.
    """
    from django.conf import settings

    from mcp_runtime.http1 import listeners
    from mcp_runtime.members import process, status
    from mcp_runtime.rows import lease
    from mcp_runtime.rows.database import patiently

    def patient(work: Callable[[], T]) -> T:
        return patiently(work, stop_requested.is_set)

    # Both before the worker is built: a bootstep that fails leaves those before it running. And the port first:
    # who cannot listen must not take the hall from a holder that may only be slow.
    patient(lambda: lease.await_heartbeat(logger.warning))
    hall = patient(lease.require_free)
    sockets = listeners.take_inherited() or listeners.bind(settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT)
    # As long as the row names the last holder: killed in between, we leave it to the next start.
    process.kill_left_behind(hall.hall_id, hall.lease_runtime)
    # Who is stopped with the lease in hand gives it back. Until now the signal ends us at once.
    signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())
    lease_id = uuid.uuid4()  # one for all tries: the answer to a commit may be lost
    return patient(lambda: lease.take(status.reset_rows, hall, lease_id)), sockets


def set_up_django() -> None:
    """Without what only the web needs: the imports take a third less CPU, and agents wait for them."""
    from django.apps import apps
    from django.conf import settings

    # `manage.py` ran the checks; here they would import every view.
    os.environ["CELERY_SKIP_CHECKS"] = "1"
    if apps.ready:  # in `manage.py up`, whose fork we are
        return
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app not in settings.APPS_OF_THE_WEB]
    django.setup()


def main() -> int:
    end_with_parent()
    replace_standard_streams()
    sys.setswitchinterval(SWITCH_INTERVAL)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "guildhall.settings")
    gc.disable()  # until all is imported, of which nothing is garbage
    set_up_django()
    from django.db import DatabaseError

    from mcp_runtime.rows.database import damage

    try:
        return run()
    except DatabaseError as error:
        if not (message := damage(error)):
            raise
        logger.error("%s", message)
        return EX_SOFTWARE
    finally:
        gc.freeze()  # as in manage.py: its end is quicker


if __name__ == "__main__":
    # Under its own name: bootsteps and tasks import this module again, and there must be one of it.
    from mcp_runtime.runtime import worker

    sys.exit(worker.main())
