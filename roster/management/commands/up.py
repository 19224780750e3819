from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection, connections
from django.urls import get_resolver

from mcp_runtime.control.members import await_heartbeat
from mcp_runtime.control.nodes import require_same_key
from mcp_runtime.http1 import listeners
from mcp_runtime.protocol.errors import AddressTakenError, SecretKeyError
from mcp_runtime.runtime import pid_namespace, processes, warm
from mcp_runtime.system import console, running_halls
from roster import addresses
from roster.management.hall_command import tables_of_database
from roster.models import Hall


class Command(BaseCommand):
    help = "Start the whole hall: database, first account, runtime and web, in one log stream. Ctrl-C ends all of it."

    requires_system_checks = ()  # they import the web: see below

    def handle(self, *args: Any, **options: Any) -> None:
        self._console = console.Writer(self.stdout)
        if settings.GUILD_HALL_PID_NAMESPACE:
            become(pid_namespace.command_line([sys.executable, *sys.orig_argv[1:]]))
        require_free_address("web", settings.GUILD_HALL_HOST, settings.GUILD_HALL_PORT, "GUILD_HALL_PORT")
        require_free_address(
            "gateway", settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT, "GUILD_HALL_GATEWAY_PORT"
        )
        self._say_addresses()
        web = self._prepare()
        try:
            require_same_key()
        except SecretKeyError as error:
            raise CommandError(str(error)) from error
        if holder := await_heartbeat(self._say):
            raise CommandError(f"This node is up already: its runtime is {holder}. One node has one runtime.")
        close_connections()
        try:
            sockets = listeners.bind(settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT)
        except AddressTakenError as error:
            raise CommandError(str(error)) from error
        pids = {}
        if web:
            web.serve()
            pids = {"web": web.pid, "runtime": warm.fork_guard(sockets)}
            if not pids["runtime"]:
                sys.exit(import_module(warm.WORKER).main())
        running_halls.announce(settings.GUILD_HALL_DATA_DIR, settings.BASE_DIR)
        descriptors = [sock.detach() for sock in sockets]
        become(processes.command_line(processes.State(pids, descriptors, console.unwritten())))

    def _prepare(self) -> warm.Web | None:
        """Prepare the hall in a fork that becomes the web. None if the web cannot be a fork, and is started later."""
        if sys.platform != "linux":
            self._check_and_prepare(self._say)
            return None
        web = warm.fork_web(load_views, self._check_and_prepare)
        warm.load_worker()
        web.wait_until_prepared(self._say)
        return web

    def _check_and_prepare(self, say: Callable[[str], None]) -> None:
        make_members_dir(say)
        self.check()
        call_command("prepare", say=say)

    def _say(self, text: str) -> None:
        """Print at once, before the next output of other processes."""
        self._console.write(console.line("hall", text))
        self._console.flush()

    def _say_addresses(self) -> None:
        web = addresses.own_address(settings.GUILD_HALL_PORT)
        gateway = f"{addresses.own_address(settings.GUILD_HALL_GATEWAY_PORT)}/mcp"
        self._say(f"Roster and admin: {web}/   API: {web}/api/docs/   Gateway: {gateway}   Ctrl-C ends all of it")


def make_members_dir(say: Callable[[str], None]) -> None:
    """Create the folder at the first start only. Later it may be on an unmounted disk. A new, empty folder would remove
    all members.
    """
    folder = settings.GUILD_HALL_MEMBERS_DIR
    if folder.exists() or not _is_first_start():
        return
    mask = os.umask(settings.USER_UMASK)  # the folder belongs to the user, not to the hall
    with contextlib.suppress(OSError):  # the checks say what is wrong with it
        folder.mkdir(parents=True)
        say(f"Made the members folder {folder}. A first member: guildhall new_member NAME")
    os.umask(mask)


def _is_first_start() -> bool:
    """Whether the database is not there, or has no hall yet. Raises CommandError."""
    if connection.vendor == "sqlite":
        return not Path(connection.settings_dict["NAME"]).exists()
    return Hall._meta.db_table not in tables_of_database()


def load_views() -> None:
    get_resolver().url_patterns  # noqa: B018 - imports them


def become(argv: list[str]) -> NoReturn:
    """Replace this process by a small program of the hall, which unblocks SIGTERM once it can handle it.

    Until then the signal stays pending. The kernel drops a signal for process 1 that has no handler.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    sys.stdout.flush()
    os.environ["PYTHONPATH"] = processes.python_path()
    os.execv(argv[0], argv)  # noqa: S606 - no shell is wanted


def require_free_address(part: str, host: str, port: int, setting: str) -> None:
    """Raises CommandError if `part` cannot listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = f"GUILD_HALL_HOST and {setting} choose where."
            if error.errno == errno.EADDRINUSE:
                hint = f"Is Guild Hall running already? {setting} chooses another port."
            raise CommandError(f"The {part} cannot listen on {host}:{port}: {error.strerror}. {hint}") from error


def close_connections() -> None:
    """Close the connections of this process. From here on only its children use the database."""
    for database in connections.all():
        database.close()
        if database.vendor == "postgresql":
            database.close_pool()  # type: ignore[attr-defined]
