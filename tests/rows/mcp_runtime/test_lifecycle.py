"""The methods of the lifecycle, called one by one on real processes, without a supervisor and a worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.client.handshake import InitializeResult
from mcp_runtime.members import announcements, lifecycle, ports, process, status, supervisor, tools
from mcp_runtime.members.process import MemberProcess, kill_tagged
from mcp_runtime.members.readiness import StoppedWhileStartingError
from mcp_runtime.members.restarts import QUICK_TRIES
from mcp_runtime.members.status import Statuses
from mcp_runtime.protocol.errors import ConnectError, HttpStatusError, McpRuntimeError, SpawnError
from mcp_runtime.rows import ownership
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import GuildMember, Hall, Node, PortAllocation, Tool
from tests.conftest import ROOT, eventually
from tests.support.leases import current_lease_id
from tests.support.lifecycle_stage import (
    DEAD,
    ECHO,
    Stage,
    Status,
    history,
    in_thread,
    last_change,
    row,
    wait_for,
)
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    threads = set(threading.enumerate())
    yield stage
    stage.end_processes()
    eventually(lambda: set(threading.enumerate()) - threads <= serving_threads(), what="threads that write are done")


def serving_threads() -> set[threading.Thread]:
    """The threads that read output, watch for exits, report exits and write to the console. They stay."""
    names = ("member-output", "member-exit", "console")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


# Start ------------------------------------------------------------------------------------------------------------


def test_a_start_ends_connected_with_the_members_data_on_its_row(stage: Stage) -> None:
    member = stage.up()
    first = stage.port_range[0]
    (process,) = stage.processes()
    assert (member.pid, member.last_port, member.last_error) == (process.pid, first, "")
    assert (member.protocol_version, member.server_info) == ("2025-06-18", {"name": "test"})
    assert (member.capabilities, member.instructions, member.warnings) == ({"tools": {}}, "Be kind.", [])
    assert member.started_at is not None
    assert member.port_allocation.endpoint == f"http://localhost:{first}/mcp"
    assert list(Tool.objects.values_list("name", "listed")) == [("echo", True)]
    assert history(member) == ["disconnected -> starting: start", "starting -> connected: handshake"]
    assert stage.changes == [(member.pk, "connected")]
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None
    assert (live_member.port, live_member.process.pid) == (first, process.pid)


@pytest.mark.parametrize("status", [Status.STARTING, Status.CONNECTED, Status.STOPPING])
def test_only_a_member_that_is_down_can_be_started(stage: Stage, status: Status) -> None:
    member = stage.add()
    GuildMember.objects.update(status=status)
    stage.lifecycle.start(member.pk)
    assert (row(member).status, stage.processes(), history(member)) == (status, [], [])


def test_a_start_after_an_error_clears_the_time_of_the_next_attempt(stage: Stage) -> None:
    member = stage.add()
    GuildMember.objects.update(status="error", next_restart_at=timezone.now(), restarts=2, last_error="it fell")
    stage.lifecycle.start(member.pk, automatic=True)
    anna = row(member)
    assert (anna.status, anna.next_restart_at, anna.last_error) == ("connected", None, "")
    assert (anna.restarts, anna.restarts_total) == (2, 1)  # it has yet to prove that it is stable
    assert history(member)[0] == "error -> starting: restart"


def test_each_process_has_its_own_environment_tag_below_that_of_its_runtime(stage: Stage) -> None:
    members = [stage.up("anna"), stage.up("bob")]
    tags = [stage.live(member).process.tag for member in members]
    prefix = f"{stage.hall_id}/{RuntimeId.own()}/"
    assert tags == [f"{prefix}1/anna", f"{prefix}2/bob"]


@pytest.mark.parametrize(
    ("modes", "manifest", "text"),
    [
        (["exit=3"], {}, "ended with exit code 3 before the handshake was done"),
        (["exit=0"], {}, "ended with exit code 0 before the handshake was done"),
        (["hang"], {"start_timeout": 0.4}, "nothing listened on its port within 0.4 s of its start; if it only"),
        (["hang-initialize"], {"start_timeout": 2.5}, "did not complete the initialize handshake within 2.5 s"),
        (["old"], {}, "protocol version '1999-01-01'"),
        ([], {"tools": [{"tools": "none"}, 7]}, ""),
        ([], {"command": "no-such-command-anywhere"}, "command not found: 'no-such-command-anywhere'"),
        ([], {"command": "./server.py"}, "permission denied: './server.py' is not executable"),
    ],
)
def test_a_start_that_fails_is_an_error_with_the_reason_and_leaves_no_process(
    stage: Stage, modes: list[str], manifest: dict[str, Any], text: str
) -> None:
    if "tools" in manifest:
        member = stage.add("anna")
        stage.set("tools.json", '{"tools": "none"}')
        text = "tools/list failed: the answer to tools/list has no array of tools"
    else:
        member = stage.add("anna", *modes, **manifest)
    stage.lifecycle.start(member.pk)
    failed_member = row(member)
    assert failed_member.status == "error"
    assert failed_member.last_error.startswith("member 'anna' could not be started: ")
    assert text in failed_member.last_error
    assert history(member)[-1] == "starting -> error: start failed"
    assert (stage.processes(), stage.lifecycle.live_members()) == ([], [])
    assert (failed_member.pid, PortAllocation.objects.count()) == (None, 0)
    assert failed_member.restarts == 1
    assert failed_member.next_restart_at is not None
    assert stage.changes == [(member.pk, "error")]


def test_the_last_output_is_in_the_error_and_in_the_status_change(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    stage.lifecycle.start(member.pk)
    assert row(member).last_error.endswith(". Last output:\ncannot go on")
    change = last_change(member)
    assert (change.exit_code, change.log_tail) == (3, "cannot go on")
    assert row(member).exit_code == 3


def test_the_output_of_an_earlier_start_is_not_in_a_later_error(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    stage.lifecycle.start(member.pk)
    stage.write_manifest("anna", command="no-such-command-anywhere")
    stage.lifecycle.start(member.pk)
    assert "cannot go on" not in row(member).last_error


def test_an_internal_error_puts_the_member_in_error_and_ends_its_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_write(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    member = stage.add()
    monkeypatch.setattr(tools, "write", fail_write)
    stage.lifecycle.start(member.pk)
    assert row(member).status == "error"
    assert "internal error while starting it: ZeroDivisionError('a bug')" in row(member).last_error
    assert (stage.processes(), stage.lifecycle.live_members()) == ([], [])
    assert "Traceback" in caplog.text


def test_a_long_start_shows_its_last_line_until_it_ends(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_runtime.members.starting.PROGRESS_AFTER", 0.0)
    monkeypatch.setattr("mcp_runtime.members.starting.PROGRESS_INTERVAL", 0.0)
    member = stage.add("anna", "hang-initialize", start_timeout=30)
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))

    def shows_progress() -> bool:
        stage.lifecycle.write_progress()
        return row(member).progress == "listening"

    eventually(shows_progress)
    assert row(member).status == "starting"
    stage.clear("hang-initialize")
    thread.join(10)
    stage.lifecycle.write_progress()
    assert (row(member).status, row(member).progress) == ("connected", "")


def test_a_short_start_shows_no_progress(stage: Stage) -> None:
    member = stage.add("anna", "hang-initialize", start_timeout=30)
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.lifecycle.live_members() and stage.live(member).process.last_line())
    stage.live(member).process.spawned_at = time.monotonic()
    stage.lifecycle.write_progress()
    assert row(member).progress == ""
    stage.clear("hang-initialize")
    thread.join(10)


def test_a_runtime_without_the_lease_writes_no_progress(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_runtime.members.starting.PROGRESS_AFTER", 0.0)
    member = stage.add("anna", "hang-initialize", start_timeout=30)
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.lifecycle.live_members() and stage.live(member).process.last_line())
    stage.lose_the_lease()
    stage.lifecycle.write_progress()
    assert row(member).progress == ""
    stage.live(member).process.kill()
    thread.join(10)


def test_a_stdio_server_is_spawned_behind_the_bridge(stage: Stage) -> None:
    member = stage.add("anna", transport="stdio", command="sh", args=["-c", "exit 2"])
    stage.lifecycle.start(member.pk)
    failed_member = row(member)
    # Code 2 was the server's own: no other port is tried for it.
    assert (failed_member.status, failed_member.exit_code, history(member)) == (
        "error",
        2,
        ["disconnected -> starting: start", "starting -> error: start failed"],
    )


def test_a_manifest_that_changes_during_the_start_is_the_one_that_is_started(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = stage.add()
    original = Statuses.to_starting

    def to_starting(*args: Any, **options: Any) -> bool:
        stage.write_manifest("anna", args=["server.py", "${PORT}", "edited"])
        return original(*args, **options)

    monkeypatch.setattr(Statuses, "to_starting", to_starting)
    stage.lifecycle.start(member.pk)
    (process,) = stage.processes()
    assert process.cmdline()[-1] == "edited"


def test_a_stored_manifest_that_is_invalid_is_an_error(stage: Stage) -> None:
    member = stage.add()
    GuildMember.objects.update(manifest={"nonsense": 1})
    stage.lifecycle.start(member.pk)
    assert row(member).status == "error"


def test_exits_during_a_database_lock_are_recorded_with_their_true_cause(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the exits that wait until others are written."""
    single_thread = ThreadPoolExecutor(1)
    monkeypatch.setattr(process, "exit_threads", single_thread)
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", -1.0)
    members = [stage.up("anna"), stage.up("bob")]
    is_unlocked, is_waiting = threading.Event(), threading.Event()

    def write_when_unlocked(write: Callable[[], bool]) -> bool:
        is_waiting.set()
        is_unlocked.wait(20)
        return write()

    monkeypatch.setattr(status, "persistently", write_when_unlocked)
    own_supervisor = supervisor.Supervisor(
        lifecycle=stage.lifecycle, members_dir=stage.members_dir, start_concurrency=1
    )
    lost_ids: list[int] = []
    monkeypatch.setattr(stage.lifecycle, "handle_lost_process", lost_ids.append)
    for member_process in [stage.live(member).process for member in members]:
        os.kill(member_process.pid, signal.SIGKILL)
        assert member_process.exited.wait(5)
    assert is_waiting.wait(5)
    own_supervisor.find_untracked()
    is_unlocked.set()
    for member in members:
        assert wait_for(member, Status.ERROR).exit_code == -signal.SIGKILL
        assert history(member)[-1] == "connected -> error: exit"
    single_thread.shutdown()
    assert lost_ids == []
    assert not stage.lifecycle.ending


def test_a_server_that_exits_after_its_tools_list_is_in_error(stage: Stage) -> None:
    member = stage.add("anna", "exit-after-list")
    stage.lifecycle.start(member.pk)
    failed_member = wait_for(member, Status.ERROR)
    assert failed_member.exit_code == 9
    assert stage.lifecycle.connected_member(member.pk) is None


def test_a_member_that_listens_on_all_addresses_gets_a_warning(stage: Stage) -> None:
    member = stage.up("anna", "everywhere")
    port = stage.port_range[0]
    assert member.warnings == [f"listens on 0.0.0.0 port {port}; bind 127.0.0.1 so that nobody else can reach it"]


def test_tools_that_are_left_out_of_the_list_are_a_warning(stage: Stage) -> None:
    member = stage.up(tools=[ECHO, {"no": "name"}])
    assert member.warnings == ["tools/list: entry 1 has no usable name and is left out"]


# Ports ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def occupy(port: int) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server


def test_an_occupied_port_leads_to_the_next_port(stage: Stage) -> None:
    with occupy(stage.port_range[0]):
        assert stage.up().last_port == stage.port_range[0] + 1


def test_a_port_that_another_member_has_reserved_is_not_used(stage: Stage) -> None:
    other = stage.add("bob")
    PortAllocation.objects.create(member=other, port=stage.port_range[0], lease_id=stage.lease_id)
    assert stage.up("anna").last_port == stage.port_range[0] + 1


def test_a_member_gets_its_last_port_again(stage: Stage) -> None:
    member = stage.add()
    GuildMember.objects.update(last_port=stage.port_range[0] + 3)
    stage.lifecycle.start(member.pk)
    assert row(member).port_allocation.port == stage.port_range[0] + 3


def test_a_last_port_that_is_occupied_or_out_of_range_is_not_used_again(stage: Stage) -> None:
    first = stage.port_range[0]
    members = [stage.add("anna"), stage.add("bob")]
    GuildMember.objects.filter(name="anna").update(last_port=first + 1)
    GuildMember.objects.filter(name="bob").update(last_port=19_999)
    with occupy(first + 1):
        for member in members:
            stage.lifecycle.start(member.pk)
    assert [row(member).last_port for member in members] == [first, first + 2]


def test_a_range_without_a_free_port_is_an_error_with_this_reason(stage: Stage) -> None:
    first = stage.port_range[0]
    stage.lifecycle = stage.make_lifecycle(port_range=(first, first + 1))
    stage.up("anna")
    stage.up("bob")
    member = stage.add("carl")
    stage.lifecycle.start(member.pk)
    assert f"no free port from {first} to {first + 1}" in row(member).last_error
    assert PortAllocation.objects.count() == 2


@pytest.mark.parametrize("sign", ["exit code 2", "its output"])
def test_a_server_whose_port_is_occupied_is_started_on_the_next_port(stage: Stage, sign: str) -> None:
    first = stage.port_range[0]
    member = stage.add()
    if sign == "its output":
        script = (stage.members_dir / "anna" / "server.py").read_text().replace("sys.exit(2)", "sys.exit(1)")
        (stage.members_dir / "anna" / "server.py").write_text(script)
    watch = Stopwatch()
    with occupy(first), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "is_free", lambda port: True)  # the port was free a moment ago
        stage.lifecycle.start(member.pk)
    assert watch.seconds < 4  # the other process on the port does not answer, and nobody waits for it
    assert (row(member).status, row(member).last_port) == ("connected", first + 1)
    assert history(member) == ["disconnected -> starting: start", "starting -> connected: handshake"]
    assert PortAllocation.objects.get().port == first + 1


def test_a_bridge_whose_port_is_occupied_is_started_on_the_next_port(stage: Stage) -> None:
    first = stage.port_range[0]
    server = ROOT / "tests" / "support" / "servers" / "stdio_server.py"
    member = stage.add(transport="stdio", args=[str(server)])
    with occupy(first), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "is_free", lambda port: True)  # the port was free a moment ago
        stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).last_port) == ("connected", first + 1)


@pytest.mark.parametrize("modes", [[], ["compute"]], ids=["quick start", "slow start"])
def test_another_server_on_the_port_is_not_mistaken_for_the_member(stage: Stage, modes: list[str]) -> None:
    other = stage.up("stranger")
    port = row(other).last_port
    assert port is not None
    PortAllocation.objects.all().delete()  # of another hall, say
    member = stage.add("anna", *modes)
    GuildMember.objects.filter(pk=member.pk).update(last_port=port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "is_free", lambda port: True)
        stage.lifecycle.start(member.pk)
    assert row(member).status == "connected"
    assert row(member).last_port != port


def test_exit_code_two_for_another_reason_does_not_try_all_ports(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_runtime.members.starting.MAX_PORT_TRIES", 3)
    member = stage.add("anna", "exit=2")
    stage.lifecycle.start(member.pk)
    assert "exit code 2" in row(member).last_error
    lines = (stage.data_dir / "logs" / "anna.log").read_text().count("cannot go on")
    assert lines == 3


# Restarts ---------------------------------------------------------------------------------------------------------


def test_a_member_that_failed_often_is_started_less_often_and_its_error_tells_this(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    for failures in range(1, QUICK_TRIES + 3):
        stage.lifecycle.start(member.pk, automatic=failures > 1)
        failed_member = row(member)
        assert (failed_member.status, failed_member.restarts) == ("error", failures)
        assert failed_member.next_restart_at is not None
        is_slow = failures > QUICK_TRIES
        assert (failed_member.next_restart_at - failed_member.status_changed_at > timedelta(minutes=4)) is is_slow
        text = f"(it failed {failures} times in a row, and is tried every 5 minutes)"
        assert (text in failed_member.last_error, text in last_change(member).message) == (is_slow, is_slow)
    assert failed_member.last_error.endswith("). Last output:\ncannot go on")


def test_the_next_attempt_is_due_after_the_delay(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    GuildMember.objects.update(restarts=2)
    before = timezone.now()
    stage.lifecycle.start(member.pk)
    due = row(member).next_restart_at
    assert due is not None
    assert before + timedelta(seconds=4) <= due <= timezone.now() + timedelta(seconds=4)


def test_a_member_with_restart_never_is_not_restarted(stage: Stage) -> None:
    member = stage.add("anna", "exit=3", restart="never")
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).next_restart_at) == ("error", None)


@pytest.mark.parametrize("end", ["exit", "connection", "refresh"])
def test_a_failure_after_a_stable_time_counts_as_the_first(
    stage: Stage, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_runtime.members.live.STABLE_SECONDS", 0.0)
    member = stage.up()
    GuildMember.objects.update(restarts=QUICK_TRIES)
    fail(stage, member, end)
    failed_member = wait_for(member, Status.ERROR)
    assert failed_member.restarts == 1
    assert failed_member.next_restart_at is not None


# Ends without a request -------------------------------------------------------------------------------------------


def fail(stage: Stage, member: GuildMember, failure: str) -> None:
    live = stage.live(member)
    if failure == "exit":
        os.kill(live.process.pid, signal.SIGKILL)
    elif failure == "connection":
        stage.lifecycle.handle_connection_failure(live, ConnectError("connection refused"))
    else:
        stage.set("tools.json", "{}")
        stage.lifecycle.refresh(member.pk)


def test_a_member_that_refuses_connections_is_ended_before_the_database_is_used(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = stage.up()

    def fail_write(*_: Any, **__: Any) -> None:
        assert stage.processes() == []
        raise OperationalError("gone")

    monkeypatch.setattr(Statuses, "to_error", fail_write)
    with pytest.raises(OperationalError):
        fail(stage, member, "connection")
    assert stage.processes() == []


def test_text_of_a_member_that_postgresql_cannot_store_is_changed(stage: Stage) -> None:
    member = stage.up()
    stage.lifecycle.handle_connection_failure(stage.live(member), ConnectError("\x00"))
    assert row(member).status == "error"
    assert row(member).last_error.count("\N{REPLACEMENT CHARACTER}") == 1


def test_a_process_that_ended_unnoticed_counts_as_a_failure(stage: Stage) -> None:
    member = stage.up()
    GuildMember.objects.update(restarts=2)
    live_member = stage.live(member)
    live_member.stop_requested.set()
    live_member.process.stop()
    stage.lifecycle.handle_lost_process(member.pk)
    failed_member = row(member)
    assert (failed_member.status, failed_member.restarts, stage.lifecycle.live_members()) == ("error", 3, [])
    assert "hall missed when and why" in failed_member.last_error
    assert PortAllocation.objects.count() == 0


def test_a_stop_that_was_only_half_written_is_finished(stage: Stage) -> None:
    member = stage.add()
    GuildMember.objects.update(status=Status.STOPPING)
    stage.lifecycle.handle_lost_process(member.pk)
    assert (row(member).status, row(member).restarts) == ("disconnected", 0)


@pytest.mark.parametrize(("number", "text"), [(signal.SIGKILL, "signal SIGKILL"), (signal.SIGTERM, "signal SIGTERM")])
def test_an_exit_that_nobody_requested_is_an_error_at_once(stage: Stage, number: signal.Signals, text: str) -> None:
    member = stage.up()
    pid = row(member).pid
    assert pid is not None
    os.kill(pid, number)
    failed_member = wait_for(member, Status.ERROR)
    assert f"member 'anna' exited without being asked, with {text}" in failed_member.last_error
    assert (failed_member.exit_code, failed_member.pid) == (-number, None)
    assert failed_member.next_restart_at is not None
    assert PortAllocation.objects.count() == 0
    change = last_change(member)
    assert (change.cause, change.exit_code, change.log_tail) == ("exit", -number, "listening")
    eventually(lambda: stage.changes[-1] == (member.pk, "error"))
    assert stage.lifecycle.live_members() == []


def test_processes_that_a_crash_left_are_ended_and_the_new_process_stays(stage: Stage) -> None:
    member = stage.up()
    old = stage.live(member).process
    sweeping, go_on = threading.Event(), threading.Event()

    def sweep_late(tag: str) -> int:
        """As if the search through all processes took long."""
        sweeping.set()
        assert go_on.wait(10)
        return kill_tagged(tag)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "kill_tagged", sweep_late)
        os.kill(old.pid, signal.SIGKILL)
        assert sweeping.wait(10)
        assert row(member).status == "error"
        successor = in_thread(lambda: stage.lifecycle.start(member.pk))
        wait_for(member, Status.CONNECTED)
        go_on.set()
        successor.join(10)
    new = stage.live(member).process
    assert not new.exited.wait(0.3)
    assert row(member).status == "connected"


def test_a_refused_connection_is_an_error_at_once_and_ends_the_process(stage: Stage) -> None:
    member = stage.up("anna", "deaf")
    live_member = stage.live(member)
    stage.lifecycle.handle_connection_failure(live_member, ConnectError("connection refused"))
    failed_member = row(member)
    assert failed_member.status == "error"
    assert f"does not answer on port {live_member.port}: connection refused" in failed_member.last_error
    assert history(member)[-1] == "connected -> error: connection"
    assert (stage.processes(), stage.lifecycle.connected_member(member.pk)) == ([], None)


def test_many_failed_calls_at_once_are_one_error(stage: Stage) -> None:
    member = stage.up()
    live_member = stage.live(member)
    error = ConnectError("refused")
    threads = [in_thread(lambda: stage.lifecycle.handle_connection_failure(live_member, error)) for _ in range(5)]
    for thread in threads:
        thread.join(10)
    assert row(member).restarts == 1
    assert history(member).count("connected -> error: connection") == 1


def test_an_exit_is_recorded_as_the_cause_of_a_failed_connection(stage: Stage) -> None:
    member = stage.up()
    live_member = stage.live(member)
    os.kill(live_member.process.pid, signal.SIGKILL)
    stage.lifecycle.handle_connection_failure(live_member, ConnectError("reset"))
    wait_for(member, Status.ERROR)
    assert history(member)[-1] == "connected -> error: exit"


def test_a_connection_that_a_stop_ends_is_no_error(stage: Stage) -> None:
    member = stage.up()
    live_member = stage.live(member)
    live_member.stop_requested.set()
    stage.lifecycle.handle_connection_failure(live_member, ConnectError("reset"))
    assert row(member).status == "connected"
    live_member.stop_requested.clear()


# Stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_ends_the_process_and_is_recorded(stage: Stage) -> None:
    member = stage.up()
    GuildMember.objects.update(restarts=3, warnings=["old"])
    stage.lifecycle.stop(member.pk)
    stopped_member = row(member)
    assert (stopped_member.status, stopped_member.pid, stopped_member.restarts, stopped_member.warnings) == (
        "disconnected",
        None,
        0,
        [],
    )
    assert stopped_member.exit_code == -signal.SIGTERM
    assert history(member)[-2:] == ["connected -> stopping: stop", "stopping -> disconnected: stop"]
    assert (stage.processes(), PortAllocation.objects.count()) == ([], 0)
    assert stage.lifecycle.live_members() == []
    assert stage.changes[-1] == (member.pk, "disconnected")


def test_a_stop_kills_a_process_that_ignores_sigterm(stage: Stage) -> None:
    member = stage.up("anna", "deaf")
    stage.lifecycle.stop(member.pk, cause="restart", timeout=0.2)
    assert row(member).exit_code == -signal.SIGKILL
    assert history(member)[-1] == "stopping -> disconnected: restart"


def test_the_tools_of_a_stopped_member_stay(stage: Stage) -> None:
    member = stage.up()
    stage.lifecycle.stop(member.pk)
    assert Tool.objects.get().listed


def test_a_stop_in_error_ends_the_restarts(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    stage.lifecycle.start(member.pk)
    stage.lifecycle.stop(member.pk)
    stopped_member = row(member)
    assert (stopped_member.status, stopped_member.next_restart_at, stopped_member.restarts) == ("disconnected", None, 0)
    assert history(member)[-1] == "error -> disconnected: stop"


def test_a_stop_of_a_member_that_is_down_changes_nothing(stage: Stage) -> None:
    member = stage.add()
    stage.lifecycle.stop(member.pk)
    assert (row(member).status, history(member)) == ("disconnected", [])


def test_a_stop_during_the_start_is_obeyed(stage: Stage) -> None:
    member = stage.add("anna", "hang-initialize")
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.processes())
    stage.lifecycle.abort_start(member.pk)
    thread.join(10)
    assert row(member).status == "disconnected"
    assert history(member) == [
        "disconnected -> starting: start",
        "starting -> stopping: stop",
        "stopping -> disconnected: stop",
    ]
    assert (stage.processes(), PortAllocation.objects.count(), row(member).restarts) == ([], 0, 0)


@pytest.mark.parametrize("mode", ["hang", "hang-tools-list"])
def test_a_stop_is_obeyed_at_every_point_of_the_start(stage: Stage, mode: str) -> None:
    member = stage.add("anna", mode, start_timeout=20)
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.processes())
    time.sleep(0.3 if mode == "hang-tools-list" else 0)  # after the handshake, but an earlier time does no harm
    stage.lifecycle.abort_start(member.pk)
    thread.join(10)
    assert row(member).status == "disconnected"
    assert stage.processes() == []


def test_a_stop_before_the_process_is_spawned_is_obeyed(stage: Stage) -> None:
    member = stage.add()
    stage.lifecycle.abort_start(member.pk)
    stage.lifecycle.start(member.pk)
    assert (row(member).status, stage.processes()) == ("disconnected", [])
    stage.lifecycle.start(member.pk)  # and it is forgotten then
    assert row(member).status == "connected"


def test_a_stop_at_the_moment_of_connecting_is_not_a_crash(stage: Stage) -> None:
    member = stage.add()
    original = tools.write

    def write(*args: Any) -> None:
        original(*args)
        stage.lifecycle.abort_start(args[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools, "write", write)
        stage.lifecycle.start(member.pk)
    assert row(member).status == "disconnected"
    assert (row(member).restarts, stage.processes()) == (0, [])
    assert not any("error" in change for change in history(member))


def test_a_process_is_ended_even_if_the_database_is_unavailable(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    member = stage.up()
    live_member = stage.live(member)
    original, attempts = Statuses.to_disconnected, []

    def fail_write(*_: Any) -> None:
        attempts.append("stopping")
        raise OperationalError("gone")

    def to_disconnected(*args: Any) -> bool:
        assert live_member.process.exited.is_set()  # it did not wait for the database
        attempts.append("disconnected")
        return original(*args)

    monkeypatch.setattr(Statuses, "to_stopping", fail_write)
    monkeypatch.setattr(Statuses, "to_disconnected", to_disconnected)
    stage.lifecycle.stop(member.pk)
    assert attempts == ["stopping", "disconnected"]
    assert row(member).status == "disconnected"
    assert PortAllocation.objects.count() == 0


# Refresh ----------------------------------------------------------------------------------------------------------


def test_a_refresh_lists_the_tools_again(stage: Stage) -> None:
    member = stage.up(tools=[ECHO, {"name": "old"}])
    stage.set("tools.json", json.dumps([{"name": "new"}, ECHO]))
    stage.changes.clear()
    stage.lifecycle.refresh(member.pk)
    assert list(Tool.objects.filter(listed=True).values_list("name", flat=True)) == ["new", "echo"]
    assert stage.changes == [(member.pk, "connected")]


def test_a_short_failure_of_the_database_loses_no_start_and_no_refresh(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failures = tools.contracts_of, []

    def contracts_of(*args: Any) -> Any:
        if len(failures) % 2 == 0:
            failures.append(args)
            raise OperationalError("gone")
        failures.append(args)
        return original(*args)

    monkeypatch.setattr(tools, "contracts_of", contracts_of)
    monkeypatch.setattr("mcp_runtime.rows.database.RETRY_INTERVAL", 0.001)
    member = stage.up(tools=[ECHO])
    assert row(member).status == "connected"
    stage.set("tools.json", json.dumps([{"name": "new"}]))
    stage.lifecycle.refresh(member.pk)
    assert len(failures) == 4
    assert row(member).status == "connected"
    assert list(Tool.objects.filter(listed=True).values_list("name", flat=True)) == ["new"]


def test_a_refresh_warns_about_tools_that_are_left_out(stage: Stage) -> None:
    member = stage.up(tools=[ECHO])
    assert row(member).warnings == []
    stage.set("tools.json", json.dumps([{"name": "line\nbreak"}, ECHO]))
    stage.lifecycle.refresh(member.pk)
    (warning,) = row(member).warnings
    assert "'line\\nbreak' is left out" in warning
    assert list(Tool.objects.filter(listed=True).values_list("name", flat=True)) == ["echo"]
    stage.set("tools.json", json.dumps([ECHO]))
    stage.lifecycle.refresh(member.pk)
    assert row(member).warnings == []


def test_a_refresh_that_fails_is_an_error_and_ends_the_process(stage: Stage) -> None:
    member = stage.up()
    fail(stage, member, "refresh")
    failed_member = row(member)
    assert failed_member.status == "error"
    assert "member 'anna': tools/list failed" in failed_member.last_error
    assert (stage.processes(), PortAllocation.objects.count()) == ([], 0)
    assert Tool.objects.get().listed  # the last list stays


def test_an_exit_during_a_refresh_is_recorded_as_an_exit(stage: Stage) -> None:
    member = stage.up()
    stage.set("hang-tools-list")
    thread = in_thread(lambda: stage.lifecycle.refresh(member.pk))
    os.kill(stage.live(member).process.pid, signal.SIGKILL)
    thread.join(10)
    wait_for(member, Status.ERROR)
    assert history(member)[-1] == "connected -> error: exit"


def test_a_refresh_that_hangs_does_not_delay_a_stop_and_is_no_failure(stage: Stage) -> None:
    member = stage.up()
    stage.set("hang-tools-list")
    thread = in_thread(lambda: stage.lifecycle.refresh(member.pk))
    eventually(lambda: stage.live(member).hall_exchange.request_id is not None and thread.is_alive())
    watch = Stopwatch()
    eventually(lambda: (stage.lifecycle.abort_refresh(member.pk), not thread.is_alive())[1])
    assert watch.seconds < 2
    assert (row(member).status, row(member).last_error) == ("connected", "")


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("listen-")]


@pytest.mark.parametrize(("status", "is_retried"), [(405, False), (404, False), (501, False), (503, True)])
def test_only_a_stream_that_failed_for_a_moment_is_opened_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, status: int, is_retried: bool
) -> None:
    timeouts = []

    def listen(self: JsonRpcClient, exchange: Exchange, timeout: float) -> None:
        timeouts.append(timeout)
        raise HttpStatusError(status)

    monkeypatch.setattr(announcements, "LISTEN_PAUSE", 0.01)
    monkeypatch.setattr(JsonRpcClient, "listen", listen)
    monkeypatch.setattr(InitializeResult, "announces_changes", True)
    member = stage.up()
    eventually(lambda: len(timeouts) > 3 if is_retried else not listeners())
    assert (len(timeouts) == 1) is not is_retried
    stage.lifecycle.stop(member.pk)
    eventually(lambda: not listeners())


def test_a_stop_does_not_wait_for_the_stream_of_announcements(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(self: JsonRpcClient, exchange: Exchange, timeout: float) -> None:
        exchange.begin(1, timeout)
        exchange.pause(timeout)

    monkeypatch.setattr(JsonRpcClient, "listen", listen)
    monkeypatch.setattr(InitializeResult, "announces_changes", True)
    member = stage.up()
    eventually(listeners)
    stage.lifecycle.stop(member.pk)
    eventually(lambda: not listeners(), within=2)


def test_a_busy_member_that_does_not_list_its_tools_is_not_ended(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member = stage.up()
    monkeypatch.setattr(lifecycle, "REQUEST_TIMEOUT", 0.2)
    stage.set("hang-tools-list")
    stage.live(member).calls = 1
    stage.lifecycle.refresh(member.pk)
    assert row(member).status == "connected"
    assert "while 1 calls ran in it" in caplog.text
    stage.live(member).calls = 0
    stage.lifecycle.refresh(member.pk)
    assert row(member).status == "error"


def test_only_a_connected_member_is_refreshed(stage: Stage) -> None:
    member = stage.add()
    stage.lifecycle.refresh(member.pk)
    assert (row(member).status, stage.changes) == ("disconnected", [])


# The lease --------------------------------------------------------------------------------------------------------


def test_a_start_whose_lease_is_lost_reserves_no_port(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    member = stage.add()
    original = ports.is_free

    def is_free(port: int) -> bool:
        stage.lose_the_lease()
        return original(port)

    monkeypatch.setattr(ports, "is_free", is_free)
    stage.lifecycle.start(member.pk)
    assert (PortAllocation.objects.count(), stage.processes()) == (0, [])


def test_without_the_lease_nothing_is_started(stage: Stage) -> None:
    member = stage.add()
    stage.lose_the_lease()
    stage.lifecycle.start(member.pk)
    assert (row(member).status, history(member), stage.processes()) == ("disconnected", [], [])


def test_a_start_whose_lease_is_lost_ends_and_writes_nothing(stage: Stage) -> None:
    member = stage.add("anna", "hang-tools-list")
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.processes())
    stage.lose_the_lease()
    stage.clear("hang-tools-list")
    thread.join(20)
    assert not thread.is_alive()
    assert (row(member).status, Tool.objects.count()) == ("starting", 0)
    assert stage.processes() == []


@pytest.mark.parametrize("end", ["exit", "connection", "refresh", "stop", "good refresh"])
def test_without_the_lease_nothing_is_written(stage: Stage, end: str) -> None:
    member = stage.up()
    stage.lose_the_lease()
    changes, before = history(member), GuildMember.objects.filter(pk=member.pk).values().get()
    live_member = stage.live(member)
    if end == "stop":
        stage.lifecycle.stop(member.pk)
    elif end == "good refresh":
        stage.set("tools.json", json.dumps([{"name": "new"}]))
        stage.lifecycle.refresh(member.pk)
    else:
        fail(stage, member, end)
    if end != "good refresh":
        assert live_member.process.exited.wait(10)
        eventually(lambda: stage.lifecycle.live_members() == [])
    assert GuildMember.objects.filter(pk=member.pk).values().get() == before
    assert history(member) == changes
    assert PortAllocation.objects.count() == 1  # it belongs to the next runtime now
    assert list(Tool.objects.values_list("name", flat=True)) == ["echo"]


def test_a_runtime_that_lost_its_lease_kills_only_its_own_members(stage: Stage) -> None:
    anna = stage.up("anna")
    stage.lose_the_lease()
    stage.lease_id = current_lease_id()
    next_lifecycle = stage.make_lifecycle(runtime=DEAD)
    bob = stage.add("bob")
    next_lifecycle.start(bob.pk)
    own_process = stage.live(anna).process
    stage.lifecycle.kill_everything()
    assert own_process.exited.wait(5)
    (last_process,) = stage.processes()
    assert last_process.pid == row(bob).pid
    next_lifecycle.stop(bob.pk)


def test_a_start_after_the_last_sweep_leaves_no_process(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    member = stage.add()
    original = ports.is_free

    def is_free(port: int) -> bool:
        stage.lifecycle.kill_everything()  # the last sweep, while this start chooses its port
        return original(port)

    monkeypatch.setattr(ports, "is_free", is_free)
    stage.lifecycle.start(member.pk)
    assert stage.processes() == []
    assert row(member).status == Status.DISCONNECTED
    assert stage.lifecycle.live_members() == []


def run_and_close(work: Callable[..., Any], *args: Any) -> None:
    """For a new thread. Its connection to the database ends with it."""
    try:
        work(*args)
    finally:
        connection.close()


def test_a_spawn_in_progress_is_killed_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    member = stage.add()
    spawn, has_begun, may_continue = MemberProcess.spawn, threading.Event(), threading.Event()

    def spawn_slowly(*argv: Any, **options: Any) -> MemberProcess:
        has_begun.set()
        may_continue.wait(10)
        return spawn(*argv, **options)

    monkeypatch.setattr("mcp_runtime.members.spawns.SPAWN_GRACE", 30)
    monkeypatch.setattr(MemberProcess, "spawn", spawn_slowly)
    starter = threading.Thread(target=run_and_close, args=(stage.lifecycle.start, member.pk))
    starter.start()
    assert has_begun.wait(10)
    killer = threading.Thread(target=run_and_close, args=(stage.lifecycle.kill_everything,))
    killer.start()
    may_continue.set()
    killer.join(10)
    assert stage.processes() == []
    starter.join(10)


def test_a_spawn_that_hangs_does_not_keep_other_members_alive(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    anna, bob = stage.up("anna"), stage.add("bob")
    has_begun, may_end = threading.Event(), threading.Event()

    def hang(*argv: Any, **options: Any) -> MemberProcess:
        has_begun.set()
        may_end.wait(10)
        raise SpawnError("its disk hangs")

    monkeypatch.setattr(MemberProcess, "spawn", hang)
    starter = threading.Thread(target=run_and_close, args=(stage.lifecycle.start, bob.pk))
    starter.start()
    assert has_begun.wait(10)
    process = stage.live(anna).process
    stage.lifecycle.kill_everything()
    assert process.exited.wait(5)
    may_end.set()
    starter.join(10)


# Rows at the beginning --------------------------------------------------------------------------------------------


def test_a_new_runtime_kills_the_processes_of_the_last_one_and_resets_the_rows(stage: Stage) -> None:
    stage.lifecycle = stage.make_lifecycle(runtime=DEAD)
    connected_member, failed_member, stopped_member = stage.up("anna"), stage.add("bob", "exit=3"), stage.add("carl")
    stage.lifecycle.start(failed_member.pk)
    stage.lose_the_lease()
    hall = Hall.objects.get()
    live_process = stage.live(connected_member).process
    ownership.take_over_own(Node.objects.get())
    process.kill_left_behind(hall.hall_id)
    assert live_process.exited.wait(5)
    for member in (connected_member, failed_member):
        reset_member = row(member)
        assert (reset_member.status, reset_member.pid, reset_member.restarts, reset_member.next_restart_at) == (
            "disconnected",
            None,
            0,
            None,
        )
        assert history(member)[-1].endswith(" -> disconnected: runtime start")
    assert "cannot go on" in row(failed_member).last_error  # why it failed can still be read
    assert history(stopped_member) == []
    assert PortAllocation.objects.count() == 0
    eventually(lambda: stage.lifecycle.live_members() == [])


def test_processes_of_a_copy_of_the_hall_that_is_live_are_not_killed(stage: Stage) -> None:
    live_process = stage.live(stage.up("anna")).process
    process.kill_left_behind(Hall.objects.get().hall_id)
    assert not live_process.is_over


def test_the_stopped_start_error_names_the_member() -> None:
    assert isinstance(StoppedWhileStartingError("anna"), McpRuntimeError)
