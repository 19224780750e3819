"""Starts a member and waits until it is ready.

A member with a process gets a port, and its process is spawned. For a remote server, the hall only connects to it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from django.db import IntegrityError
from django.utils import timezone

from mcp_runtime.bridge import command as bridge
from mcp_runtime.client import remote
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.members import logs, ports, process, sandboxes
from mcp_runtime.members.live import LiveMember, LiveMembers
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.output import MemberLog
from mcp_runtime.members.process import MemberProcess, NoProcess
from mcp_runtime.members.readiness import StoppedWhileStartingError, await_introduction
from mcp_runtime.members.sandboxes import Sandboxes
from mcp_runtime.members.start_limits import StartLimits
from mcp_runtime.members.status import Status, Statuses
from mcp_runtime.protocol.errors import ExitedEarlyError, McpRuntimeError, NoFreePortError, UrlError
from mcp_runtime.rows import lease
from mcp_runtime.rows.database import give_connection_back, short_transaction
from mcp_runtime.secrets import references
from mcp_runtime.secrets.values import MemberSecrets
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import GuildMember, PortAllocation

logger = logging.getLogger("guildhall.runtime")

# The number of ports that one start may try. The exit code 2 means that the port was taken. If a server exits with 2
# for another reason, a start without this limit would try all ports.
MAX_PORT_TRIES = 10
PORT_TAKEN_EXIT_CODE = 2  # see docs/writing-a-member.md
PORT_TAKEN_WORDS = ("eaddrinuse", "address already in use", "address in use")
SPAWN_GRACE = 0.3  # seconds that `kill_everything` waits for spawns in progress
# Progress is written from this many seconds after the spawn. The supervisor writes it in its next turn, so the row has
# it after about one second.
PROGRESS_AFTER = 0.8
PROGRESS_INTERVAL = 0.9  # seconds between two writes, because turns of the supervisor may be shorter
PROGRESS_LENGTH = 200  # of GuildMember.progress
Secrets = tuple[str, ...]
LEASE_LOST = "the runtime lost its lease during the start"


@dataclass(frozen=True)
class StartOptions:
    """The settings for all starts of one runtime.

    `private_paths` are files and folders of the hall. Manifests cannot refer to them, and a member in a sandbox cannot
    read them. `secret_files_dir` is the folder with files for members to which manifests can refer. A member in a
    sandbox cannot connect to `refused_ports`, which are ranges of TCP ports.
    """

    hall_id: uuid.UUID
    runtime: RuntimeId
    members_dir: Path
    data_dir: Path
    port_range: tuple[int, int]
    max_result_bytes: int
    plain_http_hosts: Collection[str] = ()
    private_paths: Collection[Path] = ()
    secret_files_dir: Path | None = None
    refused_ports: Collection[tuple[int, int]] = ()

    @property
    def unreadable_paths(self) -> tuple[Path, ...]:
        """What no member in a sandbox may read, beside the data folder. The hall reads its references for it."""
        folders = (self.members_dir, self.secret_files_dir)
        return (*filter(None, folders), *self.private_paths)


class Starter:
    """Starts members whose rows are STARTING. Each start runs in the thread that calls `start`.

    `on_connected(live_member, manifest)` is called when a member is connected. `on_exit(process)` is called when a
    process has ended. `on_notification(member_id, method, params)` is called for each notification outside of calls.
    """

    def __init__(
        self,
        options: StartOptions,
        members: LiveMembers,
        statuses: Statuses,
        *,
        on_connected: Callable[[LiveMember, Manifest], None],
        on_exit: Callable[[MemberProcess], None],
        on_notification: Callable[[int, str, dict[str, Any]], None],
    ) -> None:
        self._options = options
        self._members = members
        self._statuses = statuses
        self._on_connected = on_connected
        self._on_exit = on_exit
        self._on_notification = on_notification
        # Each spawn has its own environment tag. So a sweep for the processes of a failed start never finds those of
        # the next start.
        self._tag_prefix = process.tag_prefix(options.hall_id, options.runtime)
        self._sandboxes = Sandboxes(
            data_dir=options.data_dir,
            private_paths=options.unreadable_paths,
            refused_ports=(options.port_range, *options.refused_ports),
            on_answer=lambda machine: lease.note_sandbox_gaps(statuses.lease_id, machine.gaps),
        )
        self._spawn_numbers = itertools.count(1)
        self._spawn_condition = threading.Condition()
        self._spawns_in_progress = 0  # protected by _spawn_condition
        self._is_closed = False  # protected by _spawn_condition
        self._aborted_starts: set[int] = set()
        self._tails: dict[int, str] = {}  # last output of failed starts, until `forget_start`
        self._progress_written_at = 0.0

    def start(self, member: GuildMember, manifest: Manifest) -> None:
        """Start the member, and return when it is connected. Raises McpRuntimeError, and then no process remains."""
        if manifest.url:
            self._connect_remote_server(member, manifest)
            return
        tried_ports: set[int] = set()
        while True:
            port = self._allocate_port(member, tried_ports)
            tried_ports.add(port)
            live_member = self._spawn(member, manifest, port)
            give_connection_back()
            try:
                self._connect(live_member, manifest)
            except ExitedEarlyError as error:
                self._clean_up(live_member)
                if (
                    not _was_port_taken(manifest, error, live_member.process.tail())
                    or len(tried_ports) >= MAX_PORT_TRIES
                ):
                    raise
                logger.info("member %r found port %d taken; trying the next", member.name, port)
            except Exception:
                give_connection_back()
                live_member.process.stop()
                self._clean_up(live_member)
                raise
            else:
                return

    def tail(self, member_id: int) -> str:
        """Return the last output of the process, if the last start of the member failed."""
        return self._tails.get(member_id, "")

    def forget_start(self, member_id: int) -> None:
        """Forget the abort and the output of a start that has ended. Call it after the new status is in the row."""
        self._aborted_starts.discard(member_id)
        self._tails.pop(member_id, None)

    def abort(self, member_id: int) -> None:
        """Make a `start` in another thread, or a later one, stop and raise StoppedWhileStartingError."""
        self._aborted_starts.add(member_id)
        live_member = self._members.get(member_id)
        if live_member is not None:
            live_member.stop_requested.set()
            live_member.process.stop()
            live_member.hall_exchange.abort()  # for a remote server, which has no process

    def write_progress(self) -> None:
        """Write the last line of output to the row of each member whose start takes long.

        The supervisor calls this in each turn.
        """
        now = time.monotonic()
        if now < self._progress_written_at + PROGRESS_INTERVAL:
            return
        self._progress_written_at = now
        for live_member in self._members.all():
            if live_member.connected_at is None and now > live_member.process.spawned_at + PROGRESS_AFTER:
                line = live_member.process.last_line()[:PROGRESS_LENGTH]
                if line != live_member.progress:
                    self._statuses.own_row(live_member.member_id).filter(status=Status.STARTING).update(progress=line)
                    live_member.progress = line

    def kill_everything(self) -> None:
        """Kill all processes that this runtime started, and refuse further spawns.

        A runtime calls this when it lost its lease, and at the end when it stops. Without the refusal, a start in
        progress would spawn a process that nobody ends.
        """
        with self._spawn_condition:
            self._is_closed = True
            # The wait is short. If a spawn hangs because its disk hangs, the other processes are killed nevertheless.
            self._spawn_condition.wait_for(lambda: not self._spawns_in_progress, SPAWN_GRACE)
        process.kill_tagged(self._tag_prefix)

    # A remote server ---------------------------------------------------------------------------------------------

    def _connect_remote_server(self, member: GuildMember, manifest: Manifest) -> None:
        """Connect to a remote server. It needs no port and no process. This tries only once."""
        if fault := remote.plain_http_fault(manifest.url, self._options.plain_http_hosts):
            raise UrlError(fault)
        client = JsonRpcClient(
            manifest.url,
            connections=manifest.max_concurrency + 2,
            max_bytes=self._options.max_result_bytes,
            headers=references.resolve(manifest.headers, self._sources(member, manifest), "headers"),
            on_notification=partial(self._on_notification, member.pk),
        )
        live_member = LiveMember(member.pk, member.name, 0, client, NoProcess(), remote.display_url(manifest.url))
        self._register(live_member)
        give_connection_back()
        try:
            self._connect(live_member, manifest)
        except Exception:
            give_connection_back()
            self._clean_up(live_member)
            raise

    # A process ----------------------------------------------------------------------------------------------------

    def _allocate_port(self, member: GuildMember, tried_ports: set[int]) -> int:
        """Find a free port and insert the row that reserves it (REQ-MCP-HTTP-5 to 8). Raises NoFreePortError."""
        first, last = self._options.port_range
        lease_id = self._statuses.lease_id
        own_ports = PortAllocation.objects.filter(lease_id=lease_id)
        allocated_ports = set(own_ports.exclude(member=member).values_list("port", flat=True))
        for port in ports.candidates(first, last, member.last_port):
            if port in tried_ports or port in allocated_ports or not ports.is_free(port):
                continue
            try:
                with short_transaction():
                    if not self._statuses.own_row(member.pk).select_for_update(no_key=True).exists():
                        raise McpRuntimeError(LEASE_LOST)
                    PortAllocation.objects.bulk_create(
                        [PortAllocation(member=member, port=port, lease_id=lease_id, allocated_at=timezone.now())],
                        update_conflicts=True,
                        unique_fields=["member"],
                        update_fields=["port", "lease_id", "allocated_at"],
                    )
            except IntegrityError:
                continue  # another member of this runtime has just reserved the port
            return port
        raise NoFreePortError(first, last)

    def _spawn(self, member: GuildMember, manifest: Manifest, port: int) -> LiveMember:
        argv, variables, secrets = self._fill_in(member, manifest, port)
        is_stdio = manifest.transport == "stdio"
        folder = self._options.members_dir / member.directory
        # The bridge is outside of the sandbox, because it is a program of the hall and has the port.
        policy = self._sandboxes.policy(manifest, folder, 0 if is_stdio else port)
        tag = f"{self._tag_prefix}{next(self._spawn_numbers)}/{member.name}"
        environment = process.child_environment({**self._sandboxes.environment(manifest), **variables}, tag)
        descriptors: list[int] = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._count_spawn(member.name))
            if policy is not None:
                argv, descriptors = stack.enter_context(sandboxes.entrance(policy, argv, environment))
                environment = process.child_environment({}, tag)
            if is_stdio:
                argv = bridge.command_line(port, argv, self._options.max_result_bytes)
            member_process = MemberProcess.spawn(
                argv,
                directory=folder,
                environment=environment,
                log=MemberLog(member.name, logs.path_of(self._options.data_dir, member.name), secrets),
                on_exit=self._on_exit,
                descriptors=descriptors,
            )
        client = JsonRpcClient(
            f"http://127.0.0.1:{port}/mcp",
            connections=manifest.max_concurrency + 2,
            max_bytes=self._options.max_result_bytes,
            headers=references.Resolved(secrets=secrets),
            on_notification=partial(self._on_notification, member.pk),
        )
        limits = StartLimits.of(
            member_process.pid,
            member_process.spawned_at,
            start_timeout=manifest.start_timeout,
            fetches=manifest.fetches_server,
            has_port=manifest.transport == "http",
            is_first=member.restarts == 0,
        )
        live_member = LiveMember(
            member.pk,
            member.name,
            port,
            client,
            member_process,
            f"http://localhost:{port}/mcp",
            limits,
            max_processes=sandboxes.max_processes(manifest),
            max_memory=sandboxes.max_memory(manifest),
        )
        self._register(live_member)
        return live_member

    def _fill_in(
        self, member: GuildMember, manifest: Manifest, port: int
    ) -> tuple[list[str], Mapping[str, str], Secrets]:
        """The command line and the variables of the process, and the secrets in them. Raises SecretError."""
        sources = self._sources(member, manifest)
        command, *args = manifest.argv(port)
        filled_args = references.resolve({str(place): arg for place, arg in enumerate(args)}, sources, "args")
        variables = references.resolve(manifest.environment(port), sources, "env")
        secrets = (*filled_args.secrets, *variables.secrets)
        return [command, *filled_args.values.values()], variables.values, secrets

    def _sources(self, member: GuildMember, manifest: Manifest) -> references.Sources:
        """Where the references of the member are read from."""
        return references.Sources(
            self._options.members_dir / member.directory,
            private=(self._options.data_dir, *self._options.private_paths),
            files=self._options.secret_files_dir,
            secret=MemberSecrets(member, manifest.as_json()),
        )

    @contextlib.contextmanager
    def _count_spawn(self, name: str) -> Iterator[None]:
        """Count a spawn in progress, so that `kill_everything` can wait for its end.

        Raises StoppedWhileStartingError if `kill_everything` was called.
        """
        with self._spawn_condition:
            if self._is_closed:
                raise StoppedWhileStartingError(name)
            self._spawns_in_progress += 1
        try:
            yield
        finally:
            with self._spawn_condition:
                self._spawns_in_progress -= 1
                self._spawn_condition.notify_all()

    # Both ---------------------------------------------------------------------------------------------------------

    def _register(self, live_member: LiveMember) -> None:
        self._members.add(live_member)
        if live_member.member_id in self._aborted_starts:  # `abort` was called before the member was live
            live_member.stop_requested.set()

    def _connect(self, live_member: LiveMember, manifest: Manifest) -> None:
        introduction = await_introduction(live_member, manifest)
        if not self._statuses.to_connected(live_member, introduction):
            raise McpRuntimeError(LEASE_LOST)
        live_member.connected_at = time.monotonic()
        live_member.announces_changes = introduction.handshake.announces_changes
        logger.info(
            "member %r is connected: %s, %d tools", live_member.name, live_member.endpoint, len(introduction.tools)
        )
        for warning in introduction.warnings:
            logger.warning("member %r: %s", live_member.name, warning)
        if live_member.stop_requested.is_set():
            raise StoppedWhileStartingError(live_member.name)
        self._on_connected(live_member, manifest)

    def _clean_up(self, live_member: LiveMember) -> None:
        """Remove a live member whose start failed, and kill the processes that it left behind."""
        self._tails[live_member.member_id] = live_member.process.tail()
        self._members.remove(live_member)
        process.kill_tagged(live_member.process.tag)


def _was_port_taken(manifest: Manifest, error: ExitedEarlyError, tail: str) -> bool:
    if manifest.transport == "stdio":  # the bridge has the port, so exit code 2 of the server means something else
        return error.exit_code == PORT_TAKEN_EXIT_CODE and bridge.PORT_TAKEN in tail
    words = tail.lower()
    return error.exit_code == PORT_TAKEN_EXIT_CODE or (
        error.exit_code != 0 and any(word in words for word in PORT_TAKEN_WORDS)
    )
