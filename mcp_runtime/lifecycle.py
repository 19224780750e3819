"""Start, stop and refresh one member. The only writer of a member's status.

    DISCONNECTED -> STARTING -> CONNECTED -> STOPPING -> DISCONNECTED          (`stop` is legal in STARTING too)
    STARTING, CONNECTED -> ERROR -> STARTING | DISCONNECTED

Each arrow is one compare-and-set under the lease, and one StatusChange row in the same transaction.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from django.db import Error, IntegrityError, connection, connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime import bridge, logs, ports, process, remote, tools
from mcp_runtime.client import (
    PROMPTS_CHANGED,
    REQUEST_TIMEOUT,
    RESOURCES_CHANGED,
    TOOLS_CHANGED,
    InitializeResult,
    JsonRpcClient,
    ToolList,
)
from mcp_runtime.database import give_connection_back, persistently
from mcp_runtime.errors import (
    ClientError,
    ConnectError,
    ExitedEarlyError,
    HttpStatusError,
    McpRuntimeError,
    NoFreePortError,
    RequestCancelledError,
    RequestTimeoutError,
    StartTimeoutError,
    UrlError,
    describe_exit,
)
from mcp_runtime.jsonrpc import storable
from mcp_runtime.lease import held_by
from mcp_runtime.manifest import Manifest
from mcp_runtime.process import MemberLog, MemberProcess, NoProcess
from mcp_runtime.transport import Exchange
from roster.models import GuildMember, PortAllocation, StatusChange, Tool

logger = logging.getLogger("guildhall.runtime")

Status = GuildMember.Status

# Processes started in search of a free port: a server that exits with 2 for another reason must not try ten thousand.
MAX_PORT_TRIES = 10
PORT_TAKEN_EXIT_CODE = 2  # the plugin contract
PORT_TAKEN_WORDS = ("eaddrinuse", "address already in use", "address in use")
PROBE_INTERVAL = 0.01
PROBE_INTERVAL_LATER = 0.05

MAX_RESTARTS = 5
STABLE_SECONDS = 60.0
PROGRESS_AFTER = 0.8  # seconds of a start; with the turn that looks, readers see it after about one
PROGRESS_INTERVAL = 0.9  # between two writes: turns may follow each other much quicker than the usual second
PROGRESS_LENGTH = 200  # of GuildMember.progress
LONGEST_DELAY = 30.0
# A refused or reset connection is often the first sign of an exit, which explains more: wait for it this long.
EXIT_GRACE = 0.2
LISTEN_SECONDS = 3600.0
LISTEN_PAUSE = 30.0  # between the beginnings of two
LISTEN_AGAIN = 1.0
REFRESH_PAUSE = 5.0  # between two lists that the member asks for itself
LEASE_LOST = "the runtime lost its lease meanwhile"


def restart_delay(failures: int) -> timedelta:
    """How long after the nth failure in a row the next try is due: 1, 2, 4, 8, 16, at most 30 s; none after none."""
    return timedelta(seconds=min(2.0 ** min(failures - 1, 10), LONGEST_DELAY) if failures else 0.0)


class StoppedWhileStartingError(McpRuntimeError):
    """Somebody asked for a stop while the member was starting."""


@dataclass(eq=False)
class LiveMember:
    """A member's process, or the server elsewhere (then `port` is 0), and the client that talks to it."""

    member_id: int
    name: str
    port: int
    client: JsonRpcClient
    process: MemberProcess | NoProcess
    endpoint: str
    talk: Exchange = field(default_factory=Exchange)  # what the hall itself asks it: the handshake, its tools
    listening: Exchange = field(default_factory=Exchange)  # to what it says unasked
    calls: int = 0  # that run in it now; the dispatcher counts
    relayed: int = 0  # of the gateway; its loop counts
    big_answers: threading.Lock = field(default_factory=threading.Lock)  # are written one after the other
    connected_at: float | None = None
    progress: str = ""  # as it stands on the row
    exposure: list[str] = field(default_factory=list)  # warnings of where it listens
    stop_asked: threading.Event = field(default_factory=threading.Event)

    @property
    def was_stable(self) -> bool:
        """Connected long enough that its next failure is the first one again."""
        return self.connected_at is not None and time.monotonic() - self.connected_at >= STABLE_SECONDS

    @property
    def is_remote(self) -> bool:
        return isinstance(self.process, NoProcess)

    def how_it_ended(self, when: str) -> str:
        """Of a process that is over, for the caller of a call that was in it, or was to be."""
        if self.stop_asked.is_set():
            return f"the member was stopped {when}"
        return f"the member exited {when}, with {describe_exit(self.process.exit_code or 0)}"


class Lifecycle:
    """The verbs, for the runtime that holds `lease_id`. `on_change(member_id)` is called after every status change."""

    def __init__(
        self,
        *,
        lease_id: uuid.UUID,
        hall_id: uuid.UUID,
        members_dir: Path,
        data_dir: Path,
        port_range: tuple[int, int],
        max_result_bytes: int,
        plain_http_hosts: Collection[str] = (),
        private: Collection[Path] = (),
        on_change: Callable[[int], None] = lambda _: None,
        on_lists_changed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._lease_id = lease_id
        self._hall_mark = f"{hall_id}/"
        # Each process has a mark of its own: a look for what one left must never find its successor.
        self._own_mark = f"{hall_id}/{lease_id}/"
        self._spawns = itertools.count(1)
        self._members_dir = members_dir
        self._data_dir = data_dir
        self._port_range = port_range
        self._max_result_bytes = max_result_bytes
        self._plain_http_hosts = plain_http_hosts
        self._private = (data_dir, *private)
        self._on_change = on_change
        self._on_lists_changed = on_lists_changed
        self._live: dict[int, LiveMember] = {}
        self._aborted: set[int] = set()
        self._progress_noted_at = 0.0
        self._last_tail: dict[int, str] = {}  # of a start that failed, until that is written down
        self._tools_changed: set[int] = set()  # members that said so, and are not listed anew yet
        self._listed_anew_at: dict[int, float] = {}

    # Who is there -------------------------------------------------------------------------------------------------

    def connected(self, member_id: int) -> LiveMember | None:
        """The member, if it may be called now."""
        live = self._live.get(member_id)
        return live if live and live.connected_at and not live.stop_asked.is_set() else None

    def live_members(self) -> list[LiveMember]:
        return list(self._live.values())

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        """The member's row, as long as the lease is ours: every write to it goes through here."""
        return GuildMember.objects.filter(held_by(self._lease_id), pk=member_id)

    # Rows at the beginning ----------------------------------------------------------------------------------------

    def reset_rows(self) -> None:
        """What an earlier runtime left: kill its processes, free its ports, and say that nobody is connected."""
        orphans = process.kill_marked(self._hall_mark)
        if orphans:
            logger.warning("ended %d processes that an earlier runtime left behind", orphans)
        with transaction.atomic():
            PortAllocation.objects.all().delete()
            for member in GuildMember.objects.exclude(status=Status.DISCONNECTED, next_restart_at=None):
                self._move(
                    member.pk,
                    [member.status],
                    Status.DISCONNECTED,
                    cause="runtime start",
                    pid=None,
                    restarts=0,
                    next_restart_at=None,
                    warnings=[],
                )

    # Start --------------------------------------------------------------------------------------------------------

    def start(self, member_id: int, *, automatic: bool = False) -> None:
        """DISCONNECTED | ERROR -> STARTING -> CONNECTED | ERROR. Returns when it is one of the two, or was aborted."""
        member = GuildMember.objects.get(pk=member_id)
        facts: dict[str, Any] = {"next_restart_at": None, "warnings": []}
        facts |= {"restarts_total": member.restarts_total + 1} if automatic else {}
        cause = "restart" if automatic else "start"
        if not self._move(member_id, [Status.DISCONNECTED, Status.ERROR], Status.STARTING, cause=cause, **facts):
            return
        try:
            member.refresh_from_db()  # the folder may have changed until the very move
            self._bring_up(member, Manifest.from_json(member.manifest))
        except StoppedWhileStartingError:
            self.stop(member_id)
        except McpRuntimeError as error:
            self._start_failed(member, error)
        except Exception as error:
            logger.exception("member %r could not be started", member.name)
            self._start_failed(member, McpRuntimeError(f"the hall failed while starting it: {error!r}"))
        finally:
            self._aborted.discard(member_id)
            self._last_tail.pop(member_id, None)

    def abort_start(self, member_id: int) -> None:
        """A stop while `start` is under way in another thread: that thread ends the process and moves the status on."""
        self._aborted.add(member_id)
        live = self._live.get(member_id)
        if live is not None:
            live.stop_asked.set()
            live.process.stop()
            live.talk.abort()  # with a server elsewhere, which does not end

    def note_progress(self) -> None:
        """What members that take longer to start wrote last, onto their rows; the supervisor calls it each turn."""
        now = time.monotonic()
        if now < self._progress_noted_at + PROGRESS_INTERVAL:
            return
        self._progress_noted_at = now
        for live in self.live_members():
            if live.connected_at is None and now > live.process.spawned_at + PROGRESS_AFTER:
                said = live.process.last_line()[:PROGRESS_LENGTH]
                if said != live.progress:
                    self.own_row(live.member_id).filter(status=Status.STARTING).update(progress=said)
                    live.progress = said

    def _bring_up(self, member: GuildMember, manifest: Manifest) -> None:
        if manifest.url:
            self._reach(member, manifest)
            return
        tried: set[int] = set()
        while True:
            port = self._allocate_port(member, tried)
            tried.add(port)
            live = self._spawn(member, manifest, port)
            give_connection_back()
            try:
                self._connect(live, manifest)
            except ExitedEarlyError as error:
                self._forget(live)
                if not _port_was_taken(manifest, error, live.process.tail()) or len(tried) >= MAX_PORT_TRIES:
                    raise
                logger.info("member %r found port %d taken; trying the next", member.name, port)
            except Exception:
                give_connection_back()
                live.process.stop()
                self._forget(live)
                raise
            else:
                return

    def _reach(self, member: GuildMember, manifest: Manifest) -> None:
        """Begin a conversation with a server that runs elsewhere: no port, no process, one try."""
        if fault := remote.plain_http_fault(manifest.url, self._plain_http_hosts):
            raise UrlError(fault)
        client = JsonRpcClient(
            manifest.url,
            connections=manifest.max_concurrency + 2,
            max_bytes=self._max_result_bytes,
            headers=remote.resolve(
                manifest.headers, remote.Sources(self._members_dir / member.directory, self._private)
            ),
            on_notification=partial(self._notified, member.pk),
        )
        live = LiveMember(member.pk, member.name, 0, client, NoProcess(), remote.shown_url(manifest.url))
        self._live[member.pk] = live
        give_connection_back()
        try:
            self._connect(live, manifest)
        except Exception:
            give_connection_back()
            self._forget(live)
            raise

    def _allocate_port(self, member: GuildMember, tried: set[int]) -> int:
        """The next free port, claimed by its row (REQ-MCP-HTTP-5 to 8). Raises NoFreePortError."""
        first, last = self._port_range
        claimed = set(PortAllocation.objects.exclude(member=member).values_list("port", flat=True))
        for port in ports.candidates(first, last, member.last_port):
            if port in tried or port in claimed or not ports.is_free(port):
                continue
            try:
                with transaction.atomic():
                    if not self.own_row(member.pk).exists():
                        raise McpRuntimeError(LEASE_LOST)
                    PortAllocation.objects.update_or_create(
                        member=member, defaults={"port": port, "allocated_at": timezone.now()}
                    )
            except IntegrityError:
                continue  # another member of this hall was quicker
            return port
        raise NoFreePortError(first, last)

    def _spawn(self, member: GuildMember, manifest: Manifest, port: int) -> LiveMember:
        argv = manifest.argv(port)
        if manifest.transport == "stdio":
            argv = bridge.command_line(port, argv, self._max_result_bytes)
        mark = f"{self._own_mark}{next(self._spawns)}/{member.name}"
        environment = process.child_environment(manifest.environment(port), mark)
        member_process = MemberProcess.spawn(
            argv,
            directory=self._members_dir / member.directory,
            environment=environment,
            log=MemberLog(member.name, logs.path_of(self._data_dir, member.name)),
            on_exit=self._exited,
        )
        client = JsonRpcClient(
            f"http://127.0.0.1:{port}/mcp",
            connections=manifest.max_concurrency + 2,
            max_bytes=self._max_result_bytes,
            on_notification=partial(self._notified, member.pk),
        )
        live = LiveMember(member.pk, member.name, port, client, member_process, f"http://localhost:{port}/mcp")
        self._live[member.pk] = live
        return live

    def _connect(self, live: LiveMember, manifest: Manifest) -> None:
        told = self._shake_hands(live, manifest.start_timeout, manifest.protocol_version)
        addresses = self._listening_addresses(live)
        found = self._while_alive(live, lambda: live.client.list_tools(REQUEST_TIMEOUT, live.talk))
        rows = tools.rows_of(live.member_id, found.tools)
        live.exposure = _exposure_warnings(addresses, live.port)
        warnings = [*found.warnings, *live.exposure]
        connected = persistently(lambda: self._write_connected(live, told, rows, warnings))
        if not connected:
            raise McpRuntimeError(LEASE_LOST)
        live.connected_at = time.monotonic()
        logger.info("member %r is connected: %s, %d tools", live.name, live.endpoint, len(found.tools))
        for warning in warnings:
            logger.warning("member %r: %s", live.name, warning)
        if live.stop_asked.is_set():
            raise StoppedWhileStartingError(live.name)
        if live.process.exited.is_set():
            self._crashed(live)  # between the answer and the row: nobody else has noticed
        elif told.announces_changes or (live.client.session.id and manifest.transport != "stdio"):
            # In a session it may also ask something outside a call. The bridge of a stdio member answers that itself.
            listen = partial(self._listen, live, announces_changes=told.announces_changes)
            threading.Thread(target=listen, name=f"listen-{live.name}", daemon=True).start()
        self._on_change(live.member_id)

    def _shake_hands(self, live: LiveMember, timeout: float, version: str) -> InitializeResult:
        """initialize, tried while the socket is not open, until `timeout` seconds after the spawn (REQ-MCP-HTTP-14)."""
        if isinstance(live.process, NoProcess):
            return self._shake_hands_afar(live, timeout, version)
        deadline = live.process.spawned_at + timeout
        last = "nothing listened on its port"
        while (left := deadline - time.monotonic()) > 0:
            self._require_alive(live)
            if ports.answers(live.port):
                try:
                    return live.client.connect(left, live.talk, version=version)
                except ConnectError as error:
                    last = str(error)  # the socket is open, the server behind it not ready
                except ClientError as error:
                    self._require_alive(live)
                    if time.monotonic() >= deadline:
                        raise StartTimeoutError(timeout, str(error)) from error
                    raise
            waited = time.monotonic() - live.process.spawned_at
            live.process.exited.wait(PROBE_INTERVAL if waited < 1 else PROBE_INTERVAL_LATER)
        self._require_alive(live)
        raise StartTimeoutError(timeout, last)

    def _shake_hands_afar(self, live: LiveMember, timeout: float, version: str) -> InitializeResult:
        """initialize, once: a server elsewhere listens, or the next try comes with the restart policy."""
        self._require_alive(live)
        try:
            return live.client.connect(timeout, live.talk, version=version)
        except RequestTimeoutError as error:
            raise StartTimeoutError(timeout) from error
        except ClientError:
            self._require_alive(live)
            raise

    def _listening_addresses(self, live: LiveMember) -> set[str]:
        """Where the member listens. If it does not, a stranger took its port and answered, and it is about to exit."""
        if isinstance(live.process, NoProcess):
            return set()
        addresses = ports.listening_addresses(live.process.pid, live.port)
        if not addresses:
            live.process.exited.wait(EXIT_GRACE)
            self._require_alive(live)
        return addresses

    def _while_alive(self, live: LiveMember, ask: Callable[[], ToolList]) -> ToolList:
        try:
            return ask()
        except ClientError as error:
            self._require_alive(live)
            raise McpRuntimeError(f"tools/list failed: {error}") from error

    def _require_alive(self, live: LiveMember) -> None:
        if live.member_id in self._aborted:
            raise StoppedWhileStartingError(live.name)
        if live.process.exited.is_set():
            raise ExitedEarlyError(live.process.exit_code or 0)

    def _write_connected(self, live: LiveMember, told: InitializeResult, rows: list[Tool], warnings: list[str]) -> bool:
        with transaction.atomic():
            # STARTING -> CONNECTED
            moved = self._move(
                live.member_id,
                [Status.STARTING],
                Status.CONNECTED,
                cause="handshake",
                last_error="",
                warnings=warnings,
                pid=live.process.pid,
                last_port=live.port or None,
                started_at=timezone.now(),
                protocol_version=told.protocol_version,
                server_info=told.server_info,
                capabilities=told.capabilities,
                instructions=told.instructions,
            )
            if moved:
                tools.write(live.member_id, rows)
            return moved

    def _start_failed(self, member: GuildMember, error: McpRuntimeError) -> None:
        live = self._live.get(member.pk)
        tail = self._last_tail.get(member.pk, "") if live is None else live.process.tail()
        code = error.exit_code if isinstance(error, ExitedEarlyError) else None
        url = member.manifest.get("url")
        what = f"reached at {remote.shown_url(url)}" if url else "started"
        message = f"member {member.name!r} could not be {what}: {error}"
        may_retry = not isinstance(error, UrlError)
        self._to_error(
            member.pk, [Status.STARTING], "start failed", message, tail=tail, exit_code=code, may_retry=may_retry
        )

    # An end nobody asked for --------------------------------------------------------------------------------------

    def _exited(self, ended: MemberProcess) -> None:
        """Called when the process is gone. While it was starting, or stopping, somebody else is waiting for that."""
        for live in self.live_members():
            if live.process is not ended:
                continue
            if live.connected_at is None:
                live.talk.abort()  # a stranger on its port may hold it, and say nothing
            elif not live.stop_asked.is_set():
                try:
                    self._crashed(live)
                finally:
                    connections.close_all()  # the thread ends here

    def _crashed(self, live: LiveMember) -> None:
        code = live.process.exit_code or 0
        message = f"member {live.name!r} exited without being asked, with {describe_exit(code)}"
        self._live_is_over(live)
        # CONNECTED -> ERROR (REQ-MCP-HTTP-16, 17)
        self._to_error(
            live.member_id,
            [Status.CONNECTED],
            "exit",
            message,
            tail=live.process.tail(),
            exit_code=code,
            was_stable=live.was_stable,
        )
        process.kill_marked(live.process.mark)

    def connection_failed(self, live: LiveMember, error: ConnectError) -> None:
        """A connected member refused or reset a connection: ERROR at once, the process ended (REQ-MCP-HTTP-41)."""
        if (
            live.process.exited.wait(EXIT_GRACE)
            or live.stop_asked.is_set()
            or self._live.get(live.member_id) is not live
        ):
            return  # its exit, or its stop, is the cause, and is written down as that
        live.stop_asked.set()
        live.process.kill()
        process.kill_marked(live.process.mark)
        self._live_is_over(live)
        where = f"at {live.endpoint}" if live.is_remote else f"on port {live.port}"
        message = f"member {live.name!r} does not answer {where}: {error}"
        # CONNECTED -> ERROR
        tail, stable = live.process.tail(), live.was_stable
        self._to_error(live.member_id, [Status.CONNECTED], "connection", message, tail=tail, was_stable=stable)

    def lost_track(self, member_id: int) -> None:
        """The row claims a process that is not there: that is a failure like another, and counts as one."""
        live = self._live.get(member_id)
        if live is not None:
            self._live_is_over(live)
        name = GuildMember.objects.values_list("name", flat=True).get(pk=member_id)
        message = f"member {name!r}: its process is gone, and the hall missed when and why"
        # STARTING, CONNECTED -> ERROR
        self._to_error(member_id, [Status.STARTING, Status.CONNECTED], "lost track", message)
        if GuildMember.objects.filter(pk=member_id, status=Status.STOPPING).exists():
            self.stop(member_id)

    def _to_error(
        self,
        member_id: int,
        sources: Iterable[str],
        cause: str,
        message: str,
        *,
        tail: str = "",
        exit_code: int | None = None,
        was_stable: bool = False,
        may_retry: bool = True,
    ) -> None:
        message = storable(message)  # a member's own words may be in it
        shown = f"{message}{GuildMember.TAIL_MARK}{tail}" if tail else message

        def write() -> bool:
            with transaction.atomic():
                member = GuildMember.objects.get(pk=member_id)
                failures = 1 if was_stable else member.restarts + 1
                # A server elsewhere costs nothing to ask again, and nobody tells when it is back.
                has_tries = failures <= MAX_RESTARTS or bool(member.manifest.get("url"))
                again = may_retry and member.manifest.get("restart") != "never" and has_tries
                self._free_port(member_id)
                return self._move(
                    member_id,
                    sources,
                    Status.ERROR,
                    cause=cause,
                    message=message,
                    log_tail=tail,
                    last_error=shown,
                    pid=None,
                    exit_code=exit_code,
                    restarts=failures,
                    next_restart_at=timezone.now() + restart_delay(failures) if again else None,
                )

        if persistently(write):
            logger.error("%s", message)
            self._on_change(member_id)

    # Stop ---------------------------------------------------------------------------------------------------------

    def stop(
        self, member_id: int, *, cause: str = "stop", timeout: float = process.STOP_TIMEOUT, sweep: bool = True
    ) -> None:
        """STARTING | CONNECTED -> STOPPING -> DISCONNECTED, or ERROR -> DISCONNECTED; then the process is gone.

        `sweep` looks through all processes for what left the member's group: not for each of hundreds at once.
        """
        live = self._live.get(member_id)
        if live is not None:
            live.stop_asked.set()
            live.listening.abort()  # servers that end politely wait for their streams to end
            live.process.terminate()  # first of all: the database may be away, and say so late
            if live.is_remote:
                live.talk.abort()
        try:
            self._move(member_id, [Status.STARTING, Status.CONNECTED], Status.STOPPING, cause=cause)
        except Error as error:
            logger.warning("cannot write that member %d is stopping (%s)", member_id, str(error).strip())
            connection.close()
        if live is not None:
            give_connection_back()
            live.process.wait_or_kill(timeout)
            if sweep:
                process.kill_marked(live.process.mark)
            self._live_is_over(live)
        code = live.process.exit_code if live else None

        def write() -> bool:
            with transaction.atomic():
                self._free_port(member_id)
                facts: dict[str, Any] = {"pid": None, "next_restart_at": None, "restarts": 0, "warnings": []}
                facts |= {"exit_code": code} if live else {}
                sources = [Status.STOPPING, Status.ERROR, Status.CONNECTED, Status.STARTING]
                return self._move(member_id, sources, Status.DISCONNECTED, cause=cause, **facts)

        persistently(write)
        self._on_change(member_id)

    def kill_everything(self) -> None:
        """Whatever this runtime started, at once: for one that lost its lease, and the last look of a stop."""
        process.kill_marked(self._own_mark)

    # Refresh ------------------------------------------------------------------------------------------------------

    def refresh(self, member_id: int) -> None:
        """List the tools of a connected member anew; a failure is its ERROR (REQ-MCP-HTTP-39)."""
        live = self.connected(member_id)
        if live is None:
            return
        live.talk = Exchange()
        try:
            found = live.client.list_tools(REQUEST_TIMEOUT, live.talk)
        except RequestCancelledError:
            return
        except ClientError as error:
            if live.process.exited.wait(EXIT_GRACE) or live.stop_asked.is_set():
                return
            if (live.calls or live.relayed) and isinstance(error, RequestTimeoutError):
                # One that serves one at a time is busy, not broken: ended, it would take its calls with it.
                logger.warning(
                    "member %r did not list its tools while %d calls ran in it", live.name, live.calls + live.relayed
                )
                return
            live.stop_asked.set()
            live.process.stop()
            self._live_is_over(live)
            message = f"member {live.name!r}: tools/list failed: {error}"
            # CONNECTED -> ERROR
            tail, stable = live.process.tail(), live.was_stable
            self._to_error(member_id, [Status.CONNECTED], "tools/list", message, tail=tail, was_stable=stable)
        else:
            rows = tools.rows_of(member_id, found.tools)
            warnings = [*found.warnings, *live.exposure]
            persistently(lambda: self._write_refreshed(member_id, rows, warnings))
            self._on_change(member_id)

    def abort_refresh(self, member_id: int) -> None:
        """A stop while `refresh` is under way in another thread: a member that says nothing must not delay it."""
        live = self._live.get(member_id)
        if live is not None:
            live.talk.abort()

    def _notified(self, member_id: int, method: str, params: dict[str, Any]) -> None:
        if method == TOOLS_CHANGED:
            self._tools_changed.add(member_id)
        elif method in (PROMPTS_CHANGED, RESOURCES_CHANGED):
            self._on_lists_changed(member_id)

    def wish_refreshes(self) -> None:
        """Members that said their tools changed get a wish to refresh; every few seconds, however often they say it."""
        now = time.monotonic()
        for member_id in list(self._tools_changed):
            if member_id not in self._live:
                self._tools_changed.discard(member_id)  # its next start lists them
            elif now >= self._listed_anew_at.get(member_id, 0.0) + REFRESH_PAUSE:
                # First: what it says from now on counts again. One that is starting, or listed just now, waits.
                self._tools_changed.discard(member_id)
                row = self.own_row(member_id).filter(status=Status.CONNECTED, refresh_requested_at=None)
                if row.update(refresh_requested_at=timezone.now()):
                    self._listed_anew_at[member_id] = now
                else:
                    self._tools_changed.add(member_id)

    def _listen(self, live: LiveMember, *, announces_changes: bool = True) -> None:
        """In a thread of its own: hear what the member says unasked, as long as it is connected."""
        while self.connected(live.member_id) is live:
            opened = time.monotonic()
            try:
                live.client.listen(live.listening, LISTEN_SECONDS)
            except HttpStatusError as error:
                if error.status in (404, 405, 501):
                    return  # it has no such stream
            except ClientError:
                pass
            # Soon after one that lasted: what the member asks has to be answered.
            pause = max(LISTEN_PAUSE - (time.monotonic() - opened), min(LISTEN_AGAIN, LISTEN_PAUSE))
            if live.process.exited.wait(pause) or live.stop_asked.is_set():
                return
            if announces_changes:
                self._tools_changed.add(live.member_id)  # it may have said so while nobody listened
                self._on_lists_changed(live.member_id)

    def _write_refreshed(self, member_id: int, rows: list[Tool], warnings: list[str]) -> None:
        with transaction.atomic():
            if self.own_row(member_id).filter(status=Status.CONNECTED).update(warnings=warnings):
                tools.write(member_id, rows)

    # Common -------------------------------------------------------------------------------------------------------

    def _forget(self, live: LiveMember) -> None:
        self._last_tail[live.member_id] = live.process.tail()
        self._live_is_over(live)
        process.kill_marked(live.process.mark)

    def _live_is_over(self, live: LiveMember) -> None:
        if self._live.get(live.member_id) is live:
            del self._live[live.member_id]
        live.listening.abort()
        live.client.close()

    def _free_port(self, member_id: int) -> None:
        PortAllocation.objects.filter(held_by(self._lease_id), member_id=member_id).delete()

    def _move(
        self,
        member_id: int,
        sources: Iterable[str],
        new: Status,
        *,
        cause: str,
        message: str = "",
        exit_code: int | None = None,
        log_tail: str = "",
        **facts: Any,
    ) -> bool:
        """The one place a member's status changes: compare-and-set under the lease, and the change written down."""
        now = timezone.now()
        if exit_code is not None:
            facts["exit_code"] = exit_code
        with transaction.atomic():
            for old in sources:
                row = self.own_row(member_id).filter(status=old)
                if row.update(status=new, status_changed_at=now, progress="", **facts):
                    StatusChange.objects.create(
                        member_id=member_id,
                        old=old,
                        new=new,
                        cause=cause,
                        message=message,
                        exit_code=facts.get("exit_code"),
                        log_tail=log_tail,
                        created_at=now,
                    )
                    return True
        return False


def _port_was_taken(manifest: Manifest, error: ExitedEarlyError, tail: str) -> bool:
    if manifest.transport == "stdio":  # the server itself knows of no port, and its exit code 2 means something else
        return error.exit_code == PORT_TAKEN_EXIT_CODE and bridge.PORT_TAKEN in tail
    words = tail.lower()
    return error.exit_code == PORT_TAKEN_EXIT_CODE or (
        error.exit_code != 0 and any(word in words for word in PORT_TAKEN_WORDS)
    )


def _exposure_warnings(addresses: set[str], port: int) -> list[str]:
    """REQ-MCP-HTTP-30: a member that others on the network can reach is told on."""
    open_to = sorted(address for address in addresses if not ports.is_loopback(address))
    return (
        [f"listens on {', '.join(open_to)} port {port}; bind 127.0.0.1 so that nobody else can reach it"]
        if open_to
        else []
    )


def earliest_start(member: GuildMember) -> datetime:
    """When a call may start a member in ERROR that no restart is due for: calls never defeat the back-off."""
    return member.status_changed_at + restart_delay(member.restarts)
