"""A real lifecycle with members that a test controls, and helpers that read their rows."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from django.db import connection
from django.db.models import QuerySet

from mcp_runtime.members import discovery
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.process import EXIT_THREADS, TAG_VARIABLE, exit_threads, kill_tagged
from mcp_runtime.members.start_options import StartOptions
from mcp_runtime.rows import lease, ownership
from mcp_runtime.system.loops import loop
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import GuildMember, PortAllocation, StatusChange, VersionLookUp
from tests.conftest import eventually
from tests.support.leases import give_lease_to_another_runtime
from tests.support.ports import free_range
from tests.support.scripted_server import Behaviour, Server

Status = GuildMember.Status
# A member whose behaviour depends on files in its folder, so that a test can change it at any time.
SERVER = """
import json, os, signal, socketserver, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

def mode(name):
    return Path(name).exists()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        while mode("hang-" + message["method"].replace("/", "-")):
            time.sleep(0.02)
        if message["method"] == "initialize":
            version = "1999-01-01" if mode("old") else "2025-06-18"
            self.answer(message, {"protocolVersion": version, "capabilities": {"tools": {}},
                                  "serverInfo": {"name": "test"}, "instructions": "Be kind."})
        elif message["method"] == "tools/list":
            tools = json.loads(Path("tools.json").read_text())
            self.answer(message, {"tools": tools} if isinstance(tools, list) else tools)
            if mode("exit-after-list"):
                self.wfile.flush()
                os._exit(9)
        else:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def answer(self, message, result):
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

if mode("exit"):
    print(Path("last_output").read_text() if mode("last_output") else "cannot go on", flush=True)
    sys.exit(int(Path("exit").read_text()))
if mode("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while mode("hang"):
    time.sleep(0.02)
while mode("compute") and time.process_time() < 1.5:
    pass
try:
    server = ThreadingHTTPServer(("0.0.0.0" if mode("everywhere") else "127.0.0.1", int(sys.argv[1])), Handler)
except OSError as error:
    print(error, flush=True)
    sys.exit(2)
print("listening", flush=True)
server.serve_forever()
"""
ECHO = {"name": "echo", "inputSchema": {"type": "object"}}
OWN_LEASE = uuid.UUID(int=7)  # of a RecordingLifecycle
DEAD = dataclasses.replace(RuntimeId.own(), started=1)  # our pid, but another start time


def wait_for_exit_callbacks() -> None:
    """Wait until the callbacks of all exits so far are done. Then all their threads are free at the same time."""
    free = threading.Barrier(EXIT_THREADS + 1)
    for _ in range(EXIT_THREADS):
        exit_threads.submit(free.wait, 20)
    free.wait(20)


class Stage:
    """A members folder, the lease, and a lifecycle for it."""

    def __init__(self, folder: Path) -> None:
        self.members_dir = folder / "members"
        self.members_dir.mkdir()
        self.data_dir = folder / "data"
        self.hall_id = lease.hall().hall_id
        self.port_range = free_range(6)
        self.changes: list[tuple[int, str]] = []
        self.lease_id = lease.take()
        self.lifecycle = self.make_lifecycle()

    def make_lifecycle(self, lease_id: uuid.UUID | None = None, **options: Any) -> Lifecycle:
        defaults = StartOptions(
            hall_id=self.hall_id,
            runtime=RuntimeId.own(),
            members_dir=self.members_dir,
            data_dir=self.data_dir,
            port_range=self.port_range,
            max_result_bytes=1_000_000,
        )
        return Lifecycle(
            lease_id=lease_id or self.lease_id,
            options=dataclasses.replace(defaults, **options),
            on_change=self.note_change,
        )

    def note_change(self, member_id: int) -> None:
        self.changes.append((member_id, GuildMember.objects.get(pk=member_id).status))

    def add(self, name: str = "anna", *modes: str, tools: Any = (ECHO,), **manifest: Any) -> GuildMember:
        folder = self.members_dir / name
        folder.mkdir()
        (folder / "server.py").write_text(SERVER)
        (folder / "tools.json").write_text(json.dumps(list(tools)))
        for mode in modes:
            mode_name, _, value = mode.partition("=")
            (folder / mode_name).write_text(value)
        self.write_manifest(name, **manifest)
        return self.member(name)

    def write_manifest(self, name: str, **manifest: Any) -> None:
        values = {"name": name, "version": "1", "transport": "http", "command": sys.executable}
        values |= {"args": ["server.py", "${PORT}"], **manifest}
        (self.members_dir / name / "guild-member.json").write_text(json.dumps(values))
        discovery.sync(self.members_dir)
        ownership.claim_new(self.lease_id)

    def set(self, mode: str, value: str = "", name: str = "anna") -> None:
        (self.members_dir / name / mode).write_text(value)

    def clear(self, mode: str, name: str = "anna") -> None:
        (self.members_dir / name / mode).unlink()

    def member(self, name: str = "anna") -> GuildMember:
        return GuildMember.objects.get(name=name)

    def up(self, *args: Any, **options: Any) -> GuildMember:
        """Add a member and connect it."""
        member = self.add(*args, **options)
        self.lifecycle.start(member.pk)
        member.refresh_from_db()
        assert member.status == Status.CONNECTED, member.last_error
        return member

    def live(self, member: GuildMember) -> Any:
        (live_member,) = [live for live in self.lifecycle.live_members() if live.member_id == member.pk]
        return live_member

    def processes(self) -> list[psutil.Process]:
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                tag = process.environ().get(TAG_VARIABLE, "")
                if tag.startswith(f"{self.hall_id}/") and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        return processes

    def lose_the_lease(self) -> None:
        give_lease_to_another_runtime()

    def end_processes(self) -> None:
        """Kill all processes of the stage, and wait until nobody writes about them any more."""
        kill_tagged(f"{self.hall_id}/")
        eventually(lambda: not psutil.Process().children(), what="all exits are known")
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop("member-exits")).result(10)
        wait_for_exit_callbacks()


def row(member: GuildMember) -> GuildMember:
    return GuildMember.objects.get(pk=member.pk)


def history(member: GuildMember) -> list[str]:
    return [f"{c.old} -> {c.new}: {c.cause}" for c in StatusChange.objects.filter(member=member).order_by("id")]


def last_change(member: GuildMember) -> StatusChange:
    return StatusChange.objects.filter(member=member).order_by("id")[StatusChange.objects.count() - 1]


def wait_for(member: GuildMember, status: Status) -> GuildMember:
    eventually(lambda: row(member).status == status, what=f"{status}; it is {row(member).status}")
    return row(member)


def in_thread(work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


class RemoteStage(Stage):
    """A stage with remote servers, which it does not start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.servers: list[Server] = []

    def serve(self, behaviours: dict[str, Behaviour] | None = None, port: int = 0) -> Server:
        self.servers.append(Server(behaviours or {}, port))
        return self.servers[-1]

    def add_remote(self, url: str, name: str = "anna", **manifest: Any) -> GuildMember:
        folder = self.members_dir / name
        folder.mkdir(exist_ok=True)
        values = {"name": name, "version": "1", "transport": "http", "url": url, **manifest}
        (folder / "guild-member.json").write_text(json.dumps(values))
        discovery.sync(self.members_dir)
        ownership.claim_new(self.lease_id)
        return self.member(name)

    def up_remote(self, server: Server, **manifest: Any) -> GuildMember:
        member = self.add_remote(server.url, **manifest)
        self.lifecycle.start(member.pk)
        assert row(member).status == Status.CONNECTED, row(member).last_error
        return row(member)


def in_error(stage: RemoteStage, member: GuildMember) -> GuildMember:
    """The row of a member in error. Checks that nothing remains of the start, and that the next try is scheduled."""
    failed_row = row(member)
    assert failed_row.status == Status.ERROR
    assert (failed_row.pid, failed_row.endpoint, PortAllocation.objects.count()) == (None, None, 0)
    assert stage.lifecycle.live_members() == []
    assert failed_row.next_restart_at is not None
    return failed_row


class RecordingLifecycle(Lifecycle):
    """A lifecycle that only records its calls. While `released` is cleared, they do not return."""

    def __init__(self) -> None:
        super().__init__(
            lease_id=OWN_LEASE,
            options=StartOptions(
                hall_id=uuid.uuid4(),
                runtime=RuntimeId.own(),
                members_dir=Path(),
                data_dir=Path(),
                port_range=(0, 0),
                max_result_bytes=0,
            ),
        )
        self.calls: list[tuple[Any, ...]] = []
        self.released = threading.Event()
        self.released.set()
        self.live: list[Any] = []
        self.effect: Callable[[str, int], None] = lambda verb, member_id: None
        self.error: Exception | None = None

    def _do(self, verb: str, member_id: int, *more: Any) -> None:
        self.calls.append((verb, GuildMember.objects.get(pk=member_id).name, *more))
        self.released.wait(20)
        self.effect(verb, member_id)
        if self.error:
            raise self.error

    def start(self, member_id: int, *, automatic: bool) -> None:
        self._do("start", member_id, *(["automatic"] if automatic else []))

    def stop(self, member_id: int, *, cause: str = "stop") -> None:
        self._do("stop", member_id, cause)

    def abort_start(self, member_id: int) -> None:
        self.calls.append(("abort_start", GuildMember.objects.get(pk=member_id).name))

    def refresh(self, member_id: int) -> None:
        self._do("refresh", member_id)

    def abort_refresh(self, member_id: int) -> None:
        self.calls.append(("abort_refresh", GuildMember.objects.get(pk=member_id).name))

    def handle_lost_process(self, member_id: int) -> None:
        self._do("handle_lost_process", member_id)

    def look_up_version(self, look_up: VersionLookUp) -> None:
        self._do("look up", look_up.member_id)

    def request_refreshes(self) -> None:
        pass

    def write_progress(self) -> None:
        pass

    def live_members(self) -> list[Any]:
        return self.live

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        return GuildMember.objects.filter(pk=member_id)
