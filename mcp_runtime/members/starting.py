"""Starts a member and waits until it is ready.

A member with a process gets a port, and its process is spawned. For a remote server, the hall only connects to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError
from django.utils import timezone

from mcp_runtime.bridge import command as bridge
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.members import logs, ports, process, sandboxes
from mcp_runtime.members.live import LiveMember, LiveMembers
from mcp_runtime.members.manifest.commands import spawn_fault
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.output import MemberLog
from mcp_runtime.members.packages.installer import Installer, Program
from mcp_runtime.members.process import MemberProcess
from mcp_runtime.members.readiness import StoppedWhileStartingError, await_introduction
from mcp_runtime.members.sandboxes import Sandboxes
from mcp_runtime.members.spawns import Spawns
from mcp_runtime.members.start_limits import StartLimits
from mcp_runtime.members.start_options import StartOptions
from mcp_runtime.members.status import Status, Statuses
from mcp_runtime.protocol.errors import (
    ChallengeError,
    ExitedEarlyError,
    InstallError,
    McpRuntimeError,
    NoFreePortError,
    SpawnError,
)
from mcp_runtime.rows import lease
from mcp_runtime.rows.database import give_connection_back, short_transaction
from mcp_runtime.secrets import references
from roster.models import GuildMember, PortAllocation

if TYPE_CHECKING:  # a hall without members behind OAuth does not load them, so that it is smaller
    from mcp_runtime.members.access_tokens import AccessToken
    from mcp_runtime.members.remote_servers import RemoteServers

logger = logging.getLogger("guildhall.runtime")

# The number of ports that one start may try. The exit code 2 means that the port was taken. If a server exits with 2
# for another reason, a start without this limit would try all ports.
MAX_PORT_TRIES = 10
PORT_TAKEN_EXIT_CODE = 2  # see docs/writing-a-member.md
PORT_TAKEN_WORDS = ("eaddrinuse", "address already in use", "address in use")
# Progress is written from this many seconds after the spawn. The supervisor writes it in its next turn, so the row has
# it after about one second.
PROGRESS_AFTER = 0.8
PROGRESS_INTERVAL = 0.9  # seconds between two writes, because turns of the supervisor may be shorter
PROGRESS_LENGTH = 200  # of GuildMember.progress
Secrets = tuple[str, ...]
LEASE_LOST = "the runtime lost its lease during the start"


class Starter:
    """Starts members whose rows are STARTING. Each start runs in the thread that calls `start`.

    `on_connected(live_member, manifest)` is called when a member is connected. `on_exit(process)` is called when a
    process has ended. `on_notification(member_id, method, params)` is called for each notification outside of calls.
    `on_sign_in_over(member_id, token, reason)` is called when a person must sign in, because this token is over.
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
        on_sign_in_over: Callable[[int, AccessToken, str], None],
    ) -> None:
        self._options = options
        self._members = members
        self._statuses = statuses
        self._on_connected = on_connected
        self._on_exit = on_exit
        self._on_notification = on_notification
        self._on_sign_in_over = on_sign_in_over
        self._spawns = Spawns(process.tag_prefix(options.hall_id, options.runtime))
        self._sandboxes = Sandboxes(
            data_dir=options.data_dir,
            private_paths=options.unreadable_paths,
            refused_ports=(options.port_range, *options.refused_ports),
            on_answer=lambda machine: lease.note_sandbox_gaps(statuses.lease_id, machine.gaps),
        )
        self._installer = Installer(
            data_dir=options.data_dir,
            members_dir=options.members_dir,
            sandboxes=self._sandboxes,
            own_row=statuses.own_row,
            next_tag=self._spawns.next_tag,
            spawning=self._spawns.one,
            is_cancelled=lambda member_id: self._spawns.is_closed or member_id in self._aborted_starts,
        )
        self._aborted_starts: set[int] = set()
        self._tails: dict[int, str] = {}  # last output of failed starts, until `forget_start`
        self._progress_written_at = 0.0

    def start(self, member: GuildMember, manifest: Manifest) -> None:
        """Start the member, and return when it is connected. Raises McpRuntimeError, and then no process remains."""
        if manifest.url:
            self._connect_remote_server(member, manifest)
            return
        program = self._install(member, manifest)
        tried_ports: set[int] = set()
        while True:
            port = self._allocate_port(member, tried_ports)
            tried_ports.add(port)
            live_member = self._spawn(member, manifest, port, program)
            give_connection_back()
            try:
                self._connect(live_member, manifest)
            except ExitedEarlyError as error:
                self._clean_up(live_member)
                if (
                    not _was_port_taken(manifest, error, live_member.process.tail())
                    or len(tried_ports) >= MAX_PORT_TRIES
                ):
                    if fault := self._spawn_fault(member, manifest, program, error):
                        raise SpawnError(fault) from error
                    raise
                logger.info("member %r found port %d taken; trying the next", member.name, port)
            except Exception:
                give_connection_back()
                live_member.process.stop()
                self._clean_up(live_member)
                raise
            else:
                return

    def newest_version(self, member: GuildMember, manifest: Manifest) -> str:
        """The newest version of its package that can be installed. Raises McpRuntimeError."""
        return self._installer.newest(member, manifest).version

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
                    self._write_progress(live_member.member_id, line)
                    live_member.progress = line
        for member_id, text in self._installer.progress().items():
            self._write_progress(member_id, text[:PROGRESS_LENGTH])

    def _write_progress(self, member_id: int, text: str) -> None:
        self._statuses.own_row(member_id).filter(status=Status.STARTING).update(progress=text)

    def kill_everything(self) -> None:
        """Kill all processes that this runtime started, and refuse further spawns."""
        self._spawns.kill_everything()

    # A remote server ---------------------------------------------------------------------------------------------

    @cached_property
    def _remote_servers(self) -> RemoteServers:
        from mcp_runtime.members.remote_servers import RemoteServers

        return RemoteServers(self._options, self._on_notification, self._on_sign_in_over)

    def _connect_remote_server(self, member: GuildMember, manifest: Manifest) -> None:
        """Connect to a remote server. It needs no port and no process. This tries only once."""
        live_member = self._remote_servers.live_member(member, manifest)
        token = live_member.token
        self._register(live_member)
        give_connection_back()
        try:
            if token is not None:
                token.load()
            self._connect(live_member, manifest)
        except Exception as error:
            give_connection_back()
            self._clean_up(live_member)
            challenge = next((cause for cause in (error, error.__cause__) if isinstance(cause, ChallengeError)), None)
            if token is not None and challenge is not None and (need := token.needs(challenge)) is not None:
                raise need from error
            raise

    # A process ----------------------------------------------------------------------------------------------------

    def _install(self, member: GuildMember, manifest: Manifest) -> Program | None:
        """The installed program of the member. None if its command is run as it is. Raises McpRuntimeError."""
        try:
            return self._installer.program(member, manifest)
        except InstallError as error:
            self._tails[member.pk] = error.tail
            raise

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

    def _spawn(self, member: GuildMember, manifest: Manifest, port: int, program: Program | None) -> LiveMember:
        argv, variables, secrets = self._fill_in(member, manifest, port)
        if program is not None:
            argv = [str(program.path), *argv[1 + program.consumed :]]
            variables = _with_programs(variables, program)
        is_stdio = manifest.transport == "stdio"
        folder = self._options.members_dir / member.directory
        # The bridge is outside of the sandbox, because it is a program of the hall and has the port.
        installed = [program.folder] if program else []
        policy = self._sandboxes.policy(manifest, folder, 0 if is_stdio else port, read=installed)
        tag = self._spawns.next_tag(member.name)
        environment = process.child_environment({**self._sandboxes.environment(manifest), **variables}, tag)
        descriptors: list[int] = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._spawns.one(member.name))
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
            fetches=manifest.fetches_server and program is None,
            has_port=manifest.transport == "http",
            # The limit for a first start is for members that people write. Packages are often larger.
            is_first=member.restarts == 0 and program is None,
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

    def _spawn_fault(
        self, member: GuildMember, manifest: Manifest, program: Program | None, error: ExitedEarlyError
    ) -> str:
        """Why the bridge or the sandbox could not execute the command. Empty if the command itself has ended."""
        is_wrapped = manifest.transport == "stdio" or manifest.sandbox != "off"
        if not is_wrapped or error.exit_code not in (bridge.EXIT_NOT_FOUND, bridge.EXIT_NOT_EXECUTABLE):
            return ""
        command = str(program.path) if program else manifest.command
        path = manifest.env.get("PATH") or os.environ.get("PATH") or os.defpath
        return spawn_fault(command, self._options.members_dir / member.directory, path)

    def _fill_in(
        self, member: GuildMember, manifest: Manifest, port: int
    ) -> tuple[list[str], Mapping[str, str], Secrets]:
        """The command line and the variables of the process, and the secrets in them. Raises SecretError."""
        sources, folder = self._options.sources(member, manifest), self._options.members_dir / member.directory
        command, *args = manifest.argv(port, folder)
        filled_args = references.resolve({str(place): arg for place, arg in enumerate(args)}, sources, "args")
        variables = references.resolve(manifest.environment(port, folder), sources, "env")
        secrets = (*filled_args.secrets, *variables.secrets)
        return [command, *filled_args.values.values()], variables.values, secrets

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


def _with_programs(variables: Mapping[str, str], program: Program) -> Mapping[str, str]:
    """The variables with the programs of all packages first on the PATH, as npx and uvx do it."""
    path = variables.get("PATH") or os.environ.get("PATH") or os.defpath
    return {**variables, "PATH": os.pathsep.join([str(program.programs), path])}


def _was_port_taken(manifest: Manifest, error: ExitedEarlyError, tail: str) -> bool:
    if manifest.transport == "stdio":  # the bridge has the port, so exit code 2 of the server means something else
        return error.exit_code == PORT_TAKEN_EXIT_CODE and bridge.PORT_TAKEN in tail
    words = tail.lower()
    return error.exit_code == PORT_TAKEN_EXIT_CODE or (
        error.exit_code != 0 and any(word in words for word in PORT_TAKEN_WORDS)
    )
