"""The runtime's worker: one Celery worker with a thread pool. A bootstep starts the parts of the runtime.

The guard (`manage.py runtime`) starts it. Never start it by hand. Exit code 75: another runtime owns the hall.
Exit code 78: the hall has another secret key, or its database is too old or too new for this version.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import django

from mcp_runtime.runtime import fence
from mcp_runtime.runtime.guard import guard_is_gone
from mcp_runtime.runtime.stopping import EX_SOFTWARE, EX_TEMPFAIL
from mcp_runtime.system.console import replace_standard_streams
from mcp_runtime.system.parent import signal_when_parent_dies

if TYPE_CHECKING:
    from mcp_runtime.http1.listeners import Sockets
    from roster.models import Node

logger = logging.getLogger("guildhall.runtime")

T = TypeVar("T")

EX_UNAVAILABLE, EX_CONFIG = 69, 78  # sysexits.h
# How often threads switch (default 5 ms), because a relay must not wait for a thread that computes.
SWITCH_INTERVAL = 0.0001
FENCE_PATIENCE, FENCE_LOOK = 2.0, 0.02


def end_with_parent() -> None:
    """Get SIGTERM when the guard dies (Linux). If it has died before, exit at once."""
    signal_when_parent_dies(signal.SIGTERM)
    if guard_is_gone():
        sys.exit(EX_SOFTWARE)


def run() -> int:
    """Take the hall, build the worker, and run it to its end. Returns the exit code."""
    from django.db import OperationalError

    from mcp_runtime.protocol.errors import AddressTakenError, LeaseError, MigrationError, SecretKeyError
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
    except (SecretKeyError, MigrationError) as error:
        logger.error("%s", error)
        return EX_CONFIG
    except OperationalError:
        if not stop_requested.is_set():
            raise
        return 0
    # They have classes that answer for callables. While such a class is being made, each question whether something is
    # callable fails in all threads, so a member would not start. The rest of Celery is imported while members start.
    import celery.utils.abstract  # noqa: F401
    import vine  # noqa: F401

    runtime = Runtime(lease_id, sockets, stop_requested)
    runtime.start_members()
    try:
        code = import_the_rest().serve(runtime)
    except BaseException as error:  # noqa: BLE001 - raised again by `end`
        return runtime.end(error)
    return runtime.end() or code


def import_the_rest() -> ModuleType:
    """Import what only Celery's worker needs, and return its module. It takes 0.2 s of CPU, while members start."""
    from mcp_runtime.members.tools import import_validation

    import_validation()  # before the tasks import it
    from mcp_runtime.runtime import bootstep, tasks  # noqa: F401 - Celery would import the tasks by their name

    return bootstep


def take_the_hall(stop_requested: threading.Event) -> tuple[uuid.UUID, Sockets]:
    """Take the lease and bind the gateway's sockets. Waits until the database can be used, or for `stop_requested`.

    Raises LeaseError, AddressTakenError, SecretKeyError, MigrationError, and OperationalError.
    """
    from django.conf import settings

    from mcp_runtime.http1 import listeners
    from mcp_runtime.members import process
    from mcp_runtime.rows import key_fingerprint, lease, migrations, ownership
    from mcp_runtime.rows.database import patiently
    from mcp_runtime.secrets import values

    def patient(work: Callable[[], T]) -> T:
        return patiently(work, stop_requested.is_set)

    patient(migrations.require_same)  # both before this start ends anything
    patient(key_fingerprint.require_same)
    patient(values.require_same_keys)
    # Both come before the worker is built, because a bootstep that fails leaves earlier ones running. The port comes
    # first, because a runtime that cannot listen must not take the hall from a holder that may only be slow.
    patient(lambda: lease.await_heartbeat(logger.warning))
    last_holder = patient(lease.require_free)
    host, port, url = settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT, settings.GUILD_HALL_NODE_URL
    listeners.require_usable(settings.GUILD_HALL_NODE_CERTIFICATE, settings.GUILD_HALL_NODE_CA)
    for_clients = listeners.take_inherited() or listeners.bind(host, port)
    sockets = listeners.Sockets(for_clients, listeners.bind_for_nodes(url) if url else [])
    # Do this while the row names the last holder. If this process is killed meanwhile, the next start repeats it.
    process.kill_left_behind(lease.hall().hall_id, last_holder.identity if last_holder else "")
    # From now on a stop must give the lease back. Until now the signal has ended the process at once.
    signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())
    lease_id = uuid.uuid4()  # one for all tries: the answer to a commit may be lost

    def reset(node: Node) -> None:
        key_fingerprint.note()
        ownership.take_over_own(node)

    def take() -> uuid.UUID:
        sent_at = fence.now()
        fence.note_renewal(sent_at)  # no member runs yet, so a wait for the database must not end this process
        fence_is_on = lease.has_other_nodes() and turn_fence_on()
        lease.take(reset, last_holder, lease_id, fence_is_on=fence_is_on)
        fence.note_renewal(sent_at)
        return lease_id

    return patient(take), sockets


def turn_fence_on() -> bool:
    """Turn on the fence, and wait a moment until the guard watches. Returns whether it does."""
    fence.turn_on()
    deadline = time.monotonic() + FENCE_PATIENCE
    while not fence.is_watched() and time.monotonic() < deadline:
        time.sleep(FENCE_LOOK)
        fence.turn_on()  # the guard may not have been ready
    return fence.is_watched()


def set_up_django() -> None:
    """Set up Django without apps of the web only. The imports then take a third less CPU, and agents wait for them."""
    from django.apps import apps
    from django.conf import settings

    # `manage.py` has run the checks. Here they would import every view.
    os.environ["CELERY_SKIP_CHECKS"] = "1"
    if apps.ready:  # this is a fork of `manage.py up`
        return
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app not in settings.APPS_OF_THE_WEB]
    django.setup()


def main() -> int:
    end_with_parent()
    fence.take_inherited()
    replace_standard_streams()
    sys.setswitchinterval(SWITCH_INTERVAL)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "guildhall.settings")
    gc.disable()  # until all is imported, because that creates no garbage
    set_up_django()
    from django.db import DatabaseError

    from mcp_runtime.rows.database import damage
    from roster.models import act_as_runtime

    act_as_runtime()
    try:
        return run()
    except DatabaseError as error:
        if not (message := damage(error)):
            raise
        logger.error("%s", message)
        return EX_SOFTWARE
    finally:
        gc.freeze()  # as in manage.py, for a faster exit


if __name__ == "__main__":
    # Import it by its name, because bootsteps and tasks import it too, and there must be only one.
    from mcp_runtime.runtime import worker

    sys.exit(worker.main())
