"""The verbs, called one by one on real processes; no supervisor, no worker."""

from __future__ import annotations

import asyncio
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

import psutil
import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.handshake import InitializeResult
from mcp_runtime.client.transport import Exchange
from mcp_runtime.members import announcements, lifecycle, ports, process, status, supervisor, tools
from mcp_runtime.members.process import MemberProcess, kill_tagged
from mcp_runtime.members.readiness import StoppedWhileStartingError
from mcp_runtime.members.restarts import QUICK_TRIES
from mcp_runtime.members.status import Statuses
from mcp_runtime.protocol.errors import ConnectError, HttpStatusError, McpRuntimeError, SpawnError
from mcp_runtime.system.loops import loop
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import GuildMember, Hall, PortAllocation, Tool
from tests.conftest import ROOT, eventually
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
    wait_for_exit_callbacks,
)
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    threads = set(threading.enumerate())
    yield stage
    kill_tagged(f"{stage.hall_id}/")
    eventually(lambda: not psutil.Process().children(), what="all exits are noticed")
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop("member-exits")).result(10)
    wait_for_exit_callbacks()
    eventually(lambda: set(threading.enumerate()) - threads <= serving_all(), what="threads that write are done")


def serving_all() -> set[threading.Thread]:
    """The threads that read output, watch for exits, tell of them and write to the console stay."""
    names = ("member-output", "member-exit", "console")
    return {one for one in threading.enumerate() if one.name.startswith(names)}


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
    live = stage.lifecycle.connected_member(member.pk)
    assert live is not None
    assert (live.port, live.process.pid) == (first, process.pid)


@pytest.mark.parametrize("status", [Status.STARTING, Status.CONNECTED, Status.STOPPING])
def test_what_is_not_down_is_not_started(stage: Stage, status: Status) -> None:
    member = stage.add()
    GuildMember.objects.update(status=status)
    stage.lifecycle.start(member.pk)
    assert (row(member).status, stage.processes(), history(member)) == (status, [], [])


def test_a_start_out_of_error_forgets_when_the_next_try_was_due(stage: Stage) -> None:
    member = stage.add()
    GuildMember.objects.update(status="error", next_restart_at=timezone.now(), restarts=2, last_error="it fell")
    stage.lifecycle.start(member.pk, automatic=True)
    found = row(member)
    assert (found.status, found.next_restart_at, found.last_error) == ("connected", None, "")
    assert (found.restarts, found.restarts_total) == (2, 1)  # it has yet to prove that it is stable
    assert history(member)[0] == "error -> starting: restart"


def test_each_process_has_a_mark_of_its_own_below_its_runtimes(stage: Stage) -> None:
    members = [stage.up("anna"), stage.up("bob")]
    marks = [stage.live(member).process.tag for member in members]
    below = f"{stage.hall_id}/{RuntimeId.own()}/"
    assert marks == [f"{below}1/anna", f"{below}2/bob"]


@pytest.mark.parametrize(
    ("modes", "manifest", "said"),
    [
        (["exit=3"], {}, "ended with exit code 3 before the handshake was done"),
        (["exit=0"], {}, "ended with exit code 0 before the handshake was done"),
        (["hang"], {"start_timeout": 0.4}, "nothing listened on its port within 0.4 s of its start; if it only"),
        (["hang-initialize"], {"start_timeout": 0.8}, "within 0.8 s (no complete answer"),
        (["old"], {}, "protocol version '1999-01-01'"),
        ([], {"tools": [{"tools": "none"}, 7]}, ""),
        ([], {"command": "no-such-command-anywhere"}, "command not found: 'no-such-command-anywhere'"),
        ([], {"command": "./server.py"}, "permission denied: './server.py' is not executable"),
    ],
)
def test_a_start_that_fails_is_an_error_with_the_reason_and_leaves_nothing(
    stage: Stage, modes: list[str], manifest: dict[str, Any], said: str
) -> None:
    if "tools" in manifest:
        member = stage.add("anna")
        stage.set("tools.json", '{"tools": "none"}')
        said = "tools/list failed: the answer to tools/list has no array of tools"
    else:
        member = stage.add("anna", *modes, **manifest)
    stage.lifecycle.start(member.pk)
    found = row(member)
    assert found.status == "error"
    assert found.last_error.startswith("member 'anna' could not be started: ")
    assert said in found.last_error
    assert history(member)[-1] == "starting -> error: start failed"
    assert (stage.processes(), stage.lifecycle.live_members()) == ([], [])
    assert (found.pid, PortAllocation.objects.count()) == (None, 0)
    assert found.restarts == 1
    assert found.next_restart_at is not None
    assert stage.changes == [(member.pk, "error")]


def test_what_it_wrote_last_is_quoted_and_kept_with_the_change(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    stage.lifecycle.start(member.pk)
    assert row(member).last_error.endswith(". Last output:\ncannot go on")
    change = last_change(member)
    assert (change.exit_code, change.log_tail) == (3, "cannot go on")
    assert row(member).exit_code == 3


def test_the_quote_of_an_earlier_start_is_not_told_of_a_later_one(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    stage.lifecycle.start(member.pk)
    stage.write_manifest("anna", command="no-such-command-anywhere")
    stage.lifecycle.start(member.pk)
    assert "cannot go on" not in row(member).last_error


def test_a_fault_of_the_hall_itself_is_an_error_of_the_member_and_ends_its_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    member = stage.add()
    monkeypatch.setattr(tools, "write", broken)
    stage.lifecycle.start(member.pk)
    assert row(member).status == "error"
    assert "internal error while starting it: ZeroDivisionError('a bug')" in row(member).last_error
    assert (stage.processes(), stage.lifecycle.live_members()) == ([], [])
    assert "Traceback" in caplog.text


def test_a_start_that_takes_longer_tells_its_last_line_until_it_is_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_runtime.members.starting.PROGRESS_AFTER", 0.0)
    monkeypatch.setattr("mcp_runtime.members.starting.PROGRESS_INTERVAL", 0.0)
    member = stage.add("anna", "hang-initialize", start_timeout=30)
    starting = in_thread(lambda: stage.lifecycle.start(member.pk))

    def is_told() -> bool:
        stage.lifecycle.write_progress()
        return row(member).progress == "listening"

    eventually(is_told)
    assert row(member).status == "starting"
    stage.clear("hang-initialize")
    starting.join(10)
    stage.lifecycle.write_progress()
    assert (row(member).status, row(member).progress) == ("connected", "")


def test_a_start_that_is_over_soon_tells_no_progress(stage: Stage) -> None:
    member = stage.add("anna", "hang-initialize", start_timeout=30)
    starting = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.lifecycle.live_members() and stage.live(member).process.last_line())
    stage.live(member).process.spawned_at = time.monotonic()
    stage.lifecycle.write_progress()
    assert row(member).progress == ""
    stage.clear("hang-initialize")
    starting.join(10)


def test_a_runtime_without_the_lease_tells_no_progress(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_runtime.members.starting.PROGRESS_AFTER", 0.0)
    member = stage.add("anna", "hang-initialize", start_timeout=30)
    starting = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.lifecycle.live_members() and stage.live(member).process.last_line())
    stage.lose_the_lease()
    stage.lifecycle.write_progress()
    assert row(member).progress == ""
    stage.live(member).process.kill()
    starting.join(10)


def test_a_stdio_server_is_spawned_behind_the_bridge(stage: Stage) -> None:
    member = stage.add("anna", transport="stdio", command="sh", args=["-c", "exit 2"])
    stage.lifecycle.start(member.pk)
    found = row(member)
    # Code 2 was the server's own: no other port is tried for it.
    assert (found.status, found.exit_code, history(member)) == (
        "error",
        2,
        ["disconnected -> starting: start", "starting -> error: start failed"],
    )


def test_a_manifest_that_changes_until_the_very_move_is_the_one_that_is_started(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = stage.add()
    real = Statuses.to_starting

    def to_starting(*args: Any, **options: Any) -> bool:
        stage.write_manifest("anna", args=["server.py", "${PORT}", "edited"])
        return real(*args, **options)

    monkeypatch.setattr(Statuses, "to_starting", to_starting)
    stage.lifecycle.start(member.pk)
    (process,) = stage.processes()
    assert process.cmdline()[-1] == "edited"


def test_a_manifest_that_cannot_be_read_back_is_an_error(stage: Stage) -> None:
    member = stage.add()
    GuildMember.objects.update(manifest={"nonsense": 1})
    stage.lifecycle.start(member.pk)
    assert row(member).status == "error"


def test_ends_that_wait_for_a_locked_database_are_recorded_with_their_true_cause(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that wait for their turn to be written."""
    one_at_a_time = ThreadPoolExecutor(1)
    monkeypatch.setattr(process, "exit_threads", one_at_a_time)
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", -1.0)
    members = [stage.up("anna"), stage.up("bob")]
    unlocked, waiting = threading.Event(), threading.Event()

    def locked(write: Callable[[], bool]) -> bool:
        waiting.set()
        unlocked.wait(20)
        return write()

    monkeypatch.setattr(status, "persistently", locked)
    looks = supervisor.Supervisor(lifecycle=stage.lifecycle, members_dir=stage.members_dir, start_concurrency=1)
    lost: list[int] = []
    monkeypatch.setattr(stage.lifecycle, "handle_lost_process", lost.append)
    for process_ in [stage.live(member).process for member in members]:
        os.kill(process_.pid, signal.SIGKILL)
        assert process_.exited.wait(5)
    assert waiting.wait(5)
    looks.find_untracked()
    unlocked.set()
    for member in members:
        assert wait_for(member, Status.ERROR).exit_code == -signal.SIGKILL
        assert history(member)[-1] == "connected -> error: exit"
    one_at_a_time.shutdown()
    assert lost == []
    assert not stage.lifecycle.ending


def test_a_server_that_exits_between_its_list_and_its_row_is_in_error(stage: Stage) -> None:
    member = stage.add("anna", "exit-after-list")
    stage.lifecycle.start(member.pk)
    found = wait_for(member, Status.ERROR)
    assert found.exit_code == 9
    assert stage.lifecycle.connected_member(member.pk) is None


def test_a_member_that_others_can_reach_is_warned_about(stage: Stage) -> None:
    member = stage.up("anna", "everywhere")
    port = stage.port_range[0]
    assert member.warnings == [f"listens on 0.0.0.0 port {port}; bind 127.0.0.1 so that nobody else can reach it"]


def test_what_tools_list_left_out_is_a_warning(stage: Stage) -> None:
    member = stage.up(tools=[ECHO, {"no": "name"}])
    assert member.warnings == ["tools/list: entry 1 has no usable name and is left out"]


# Ports ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def occupied(port: int) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server


def test_an_occupied_port_leads_to_the_next(stage: Stage) -> None:
    with occupied(stage.port_range[0]):
        assert stage.up().last_port == stage.port_range[0] + 1


def test_a_port_that_another_member_claims_is_not_taken_though_nobody_listens_on_it_yet(stage: Stage) -> None:
    other = stage.add("bob")
    PortAllocation.objects.create(member=other, port=stage.port_range[0])
    assert stage.up("anna").last_port == stage.port_range[0] + 1


def test_a_member_gets_its_last_port_again(stage: Stage) -> None:
    member = stage.add()
    GuildMember.objects.update(last_port=stage.port_range[0] + 3)
    stage.lifecycle.start(member.pk)
    assert row(member).port_allocation.port == stage.port_range[0] + 3


def test_a_last_port_that_is_taken_or_out_of_the_range_is_given_up(stage: Stage) -> None:
    first = stage.port_range[0]
    members = [stage.add("anna"), stage.add("bob")]
    GuildMember.objects.filter(name="anna").update(last_port=first + 1)
    GuildMember.objects.filter(name="bob").update(last_port=19_999)
    with occupied(first + 1):
        for member in members:
            stage.lifecycle.start(member.pk)
    assert [row(member).last_port for member in members] == [first, first + 2]


def test_a_range_without_a_free_port_is_an_error_that_says_so(stage: Stage) -> None:
    first = stage.port_range[0]
    stage.lifecycle = stage.make_lifecycle(port_range=(first, first + 1))
    stage.up("anna")
    stage.up("bob")
    member = stage.add("carl")
    stage.lifecycle.start(member.pk)
    assert f"no free port from {first} to {first + 1}" in row(member).last_error
    assert PortAllocation.objects.count() == 2


@pytest.mark.parametrize("how", ["exit code 2", "its words"])
def test_a_server_that_finds_its_port_taken_is_tried_on_the_next(stage: Stage, how: str) -> None:
    first = stage.port_range[0]
    member = stage.add()
    if how == "its words":
        script = (stage.members_dir / "anna" / "server.py").read_text().replace("sys.exit(2)", "sys.exit(1)")
        (stage.members_dir / "anna" / "server.py").write_text(script)
    watch = Stopwatch()
    with occupied(first), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "is_free", lambda port: True)  # it was, a moment ago
        stage.lifecycle.start(member.pk)
    assert watch.seconds < 4  # whoever has the port says nothing, and is not waited for
    assert (row(member).status, row(member).last_port) == ("connected", first + 1)
    assert history(member) == ["disconnected -> starting: start", "starting -> connected: handshake"]
    assert PortAllocation.objects.get().port == first + 1


def test_a_bridge_that_finds_its_port_taken_comes_again_with_the_next(stage: Stage) -> None:
    first = stage.port_range[0]
    server = ROOT / "tests" / "support" / "servers" / "stdio_server.py"
    member = stage.add(transport="stdio", args=[str(server)])
    with occupied(first), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "is_free", lambda port: True)  # it was, a moment ago
        stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).last_port) == ("connected", first + 1)


@pytest.mark.parametrize("modes", [[], ["compute"]], ids=["", "long before the member finds the port taken"])
def test_a_stranger_that_answers_on_the_port_is_not_taken_for_the_member(stage: Stage, modes: list[str]) -> None:
    stranger = stage.up("stranger")
    port = row(stranger).last_port
    assert port is not None
    PortAllocation.objects.all().delete()  # of another hall, say
    member = stage.add("anna", *modes)
    GuildMember.objects.filter(pk=member.pk).update(last_port=port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "is_free", lambda port: True)
        stage.lifecycle.start(member.pk)
    assert row(member).status == "connected"
    assert row(member).last_port != port


def test_a_server_that_says_two_for_another_reason_does_not_try_ten_thousand_ports(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_runtime.members.starting.MAX_PORT_TRIES", 3)
    member = stage.add("anna", "exit=2")
    stage.lifecycle.start(member.pk)
    assert "exit code 2" in row(member).last_error
    lines = (stage.data_dir / "logs" / "anna.log").read_text().count("cannot go on")
    assert lines == 3


# Restarts ---------------------------------------------------------------------------------------------------------


def test_a_member_that_failed_often_is_tried_on_slowly_and_its_error_says_so(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    for failures in range(1, QUICK_TRIES + 3):
        stage.lifecycle.start(member.pk, automatic=failures > 1)
        found = row(member)
        assert (found.status, found.restarts) == ("error", failures)
        assert found.next_restart_at is not None
        is_slow = failures > QUICK_TRIES
        assert (found.next_restart_at - found.status_changed_at > timedelta(minutes=4)) is is_slow
        said = f"(it failed {failures} times in a row, and is tried every 5 minutes)"
        assert (said in found.last_error, said in last_change(member).message) == (is_slow, is_slow)
    assert found.last_error.endswith("). Last output:\ncannot go on")


def test_the_next_try_is_due_after_the_delay(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    GuildMember.objects.update(restarts=2)
    before = timezone.now()
    stage.lifecycle.start(member.pk)
    due = row(member).next_restart_at
    assert due is not None
    assert before + timedelta(seconds=4) <= due <= timezone.now() + timedelta(seconds=4)


def test_a_member_that_is_never_to_be_restarted_is_not(stage: Stage) -> None:
    member = stage.add("anna", "exit=3", restart="never")
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).next_restart_at) == ("error", None)


@pytest.mark.parametrize("end", ["exit", "connection", "refresh"])
def test_a_stable_while_makes_the_next_failure_the_first_one_again(
    stage: Stage, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_runtime.members.live.STABLE_SECONDS", 0.0)
    member = stage.up()
    GuildMember.objects.update(restarts=QUICK_TRIES)
    fail(stage, member, end)
    found = wait_for(member, Status.ERROR)
    assert found.restarts == 1
    assert found.next_restart_at is not None


# Ends that nobody asked for ---------------------------------------------------------------------------------------


def fail(stage: Stage, member: GuildMember, how: str) -> None:
    live = stage.live(member)
    if how == "exit":
        os.kill(live.process.pid, signal.SIGKILL)
    elif how == "connection":
        stage.lifecycle.handle_connection_failure(live, ConnectError("connection refused"))
    else:
        stage.set("tools.json", "{}")
        stage.lifecycle.refresh(member.pk)


def test_a_member_that_refuses_connections_is_gone_before_the_database_is_asked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = stage.up()

    def away(*_: Any, **__: Any) -> None:
        assert stage.processes() == []
        raise OperationalError("gone")

    monkeypatch.setattr(Statuses, "to_error", away)
    with pytest.raises(OperationalError):
        fail(stage, member, "connection")
    assert stage.processes() == []


def test_words_of_a_member_that_postgres_would_not_store_are_made_harmless(stage: Stage) -> None:
    member = stage.up()
    stage.lifecycle.handle_connection_failure(stage.live(member), ConnectError("\x00"))
    assert row(member).status == "error"
    assert row(member).last_error.count("\N{REPLACEMENT CHARACTER}") == 1


def test_a_process_that_is_gone_unnoticed_counts_as_a_failure(stage: Stage) -> None:
    member = stage.up()
    GuildMember.objects.update(restarts=2)
    live = stage.live(member)
    live.stop_requested.set()
    live.process.stop()
    stage.lifecycle.handle_lost_process(member.pk)
    found = row(member)
    assert (found.status, found.restarts, stage.lifecycle.live_members()) == ("error", 3, [])
    assert "hall missed when and why" in found.last_error
    assert PortAllocation.objects.count() == 0


def test_a_stop_that_was_not_written_to_its_end_is_finished(stage: Stage) -> None:
    member = stage.add()
    GuildMember.objects.update(status=Status.STOPPING)
    stage.lifecycle.handle_lost_process(member.pk)
    assert (row(member).status, row(member).restarts) == ("disconnected", 0)


@pytest.mark.parametrize(("number", "said"), [(signal.SIGKILL, "signal SIGKILL"), (signal.SIGTERM, "signal SIGTERM")])
def test_an_exit_that_nobody_requested_is_an_error_at_once(stage: Stage, number: signal.Signals, said: str) -> None:
    member = stage.up()
    pid = row(member).pid
    assert pid is not None
    os.kill(pid, number)
    found = wait_for(member, Status.ERROR)
    assert f"member 'anna' exited without being asked, with {said}" in found.last_error
    assert (found.exit_code, found.pid) == (-number, None)
    assert found.next_restart_at is not None
    assert PortAllocation.objects.count() == 0
    change = last_change(member)
    assert (change.cause, change.exit_code, change.log_tail) == ("exit", -number, "listening")
    eventually(lambda: stage.changes[-1] == (member.pk, "error"))
    assert stage.lifecycle.live_members() == []


def test_what_a_crashed_member_left_is_ended_and_never_its_successor(stage: Stage) -> None:
    member = stage.up()
    old = stage.live(member).process
    sweeping, go_on = threading.Event(), threading.Event()

    def sweep_late(mark: str) -> int:
        """As if looking through all processes took long."""
        sweeping.set()
        assert go_on.wait(10)
        return kill_tagged(mark)

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
    live = stage.live(member)
    stage.lifecycle.handle_connection_failure(live, ConnectError("connection refused"))
    found = row(member)
    assert found.status == "error"
    assert f"does not answer on port {live.port}: connection refused" in found.last_error
    assert history(member)[-1] == "connected -> error: connection"
    assert (stage.processes(), stage.lifecycle.connected_member(member.pk)) == ([], None)


def test_many_calls_that_fail_at_once_are_one_error(stage: Stage) -> None:
    member = stage.up()
    live = stage.live(member)
    error = ConnectError("refused")
    threads = [in_thread(lambda: stage.lifecycle.handle_connection_failure(live, error)) for _ in range(5)]
    for thread in threads:
        thread.join(10)
    assert row(member).restarts == 1
    assert history(member).count("connected -> error: connection") == 1


def test_an_exit_explains_a_failed_connection_better(stage: Stage) -> None:
    member = stage.up()
    live = stage.live(member)
    os.kill(live.process.pid, signal.SIGKILL)
    stage.lifecycle.handle_connection_failure(live, ConnectError("reset"))
    wait_for(member, Status.ERROR)
    assert history(member)[-1] == "connected -> error: exit"


def test_a_connection_that_fails_because_of_a_stop_is_no_error(stage: Stage) -> None:
    member = stage.up()
    live = stage.live(member)
    live.stop_requested.set()
    stage.lifecycle.handle_connection_failure(live, ConnectError("reset"))
    assert row(member).status == "connected"
    live.stop_requested.clear()


# Stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_ends_the_process_and_says_so(stage: Stage) -> None:
    member = stage.up()
    GuildMember.objects.update(restarts=3, warnings=["old"])
    stage.lifecycle.stop(member.pk)
    found = row(member)
    assert (found.status, found.pid, found.restarts, found.warnings) == ("disconnected", None, 0, [])
    assert found.exit_code == -signal.SIGTERM
    assert history(member)[-2:] == ["connected -> stopping: stop", "stopping -> disconnected: stop"]
    assert (stage.processes(), PortAllocation.objects.count()) == ([], 0)
    assert stage.lifecycle.live_members() == []
    assert stage.changes[-1] == (member.pk, "disconnected")


def test_a_stop_kills_what_does_not_listen(stage: Stage) -> None:
    member = stage.up("anna", "deaf")
    stage.lifecycle.stop(member.pk, cause="restart", timeout=0.2)
    assert row(member).exit_code == -signal.SIGKILL
    assert history(member)[-1] == "stopping -> disconnected: restart"


def test_the_tools_of_a_stopped_member_stay(stage: Stage) -> None:
    member = stage.up()
    stage.lifecycle.stop(member.pk)
    assert Tool.objects.get().listed


def test_a_stop_out_of_error_ends_its_restarts(stage: Stage) -> None:
    member = stage.add("anna", "exit=3")
    stage.lifecycle.start(member.pk)
    stage.lifecycle.stop(member.pk)
    found = row(member)
    assert (found.status, found.next_restart_at, found.restarts) == ("disconnected", None, 0)
    assert history(member)[-1] == "error -> disconnected: stop"


def test_a_stop_of_what_is_down_changes_nothing(stage: Stage) -> None:
    member = stage.add()
    stage.lifecycle.stop(member.pk)
    assert (row(member).status, history(member)) == ("disconnected", [])


def test_a_stop_that_comes_during_the_start_is_obeyed(stage: Stage) -> None:
    member = stage.add("anna", "hang-initialize")
    starting = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.processes())
    stage.lifecycle.abort_start(member.pk)
    starting.join(10)
    assert row(member).status == "disconnected"
    assert history(member) == [
        "disconnected -> starting: start",
        "starting -> stopping: stop",
        "stopping -> disconnected: stop",
    ]
    assert (stage.processes(), PortAllocation.objects.count(), row(member).restarts) == ([], 0, 0)


@pytest.mark.parametrize("mode", ["hang", "hang-tools-list"])
def test_a_stop_is_obeyed_wherever_the_start_is(stage: Stage, mode: str) -> None:
    member = stage.add("anna", mode, start_timeout=20)
    starting = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.processes())
    time.sleep(0.3 if mode == "hang-tools-list" else 0)  # past the handshake; earlier is as good
    stage.lifecycle.abort_start(member.pk)
    starting.join(10)
    assert row(member).status == "disconnected"
    assert stage.processes() == []


def test_a_stop_before_the_process_was_spawned_is_obeyed(stage: Stage) -> None:
    member = stage.add()
    stage.lifecycle.abort_start(member.pk)
    stage.lifecycle.start(member.pk)
    assert (row(member).status, stage.processes()) == ("disconnected", [])
    stage.lifecycle.start(member.pk)  # and it is forgotten then
    assert row(member).status == "connected"


def test_a_stop_in_the_very_moment_of_connecting_is_a_stop_and_no_crash(stage: Stage) -> None:
    member = stage.add()
    real = tools.write

    def write(member_id: int, rows: Any) -> None:
        real(member_id, rows)
        stage.lifecycle.abort_start(member_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools, "write", write)
        stage.lifecycle.start(member.pk)
    assert row(member).status == "disconnected"
    assert (row(member).restarts, stage.processes()) == (0, [])
    assert not any("error" in change for change in history(member))


def test_a_database_that_is_away_does_not_keep_a_process_alive(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    member = stage.up()
    live = stage.live(member)
    real, tries = Statuses.to_disconnected, []

    def away(*_: Any) -> None:
        tries.append("stopping")
        raise OperationalError("gone")

    def to_disconnected(*args: Any) -> bool:
        assert live.process.exited.is_set()  # it did not wait for the database
        tries.append("disconnected")
        return real(*args)

    monkeypatch.setattr(Statuses, "to_stopping", away)
    monkeypatch.setattr(Statuses, "to_disconnected", to_disconnected)
    stage.lifecycle.stop(member.pk)
    assert tries == ["stopping", "disconnected"]
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


def test_a_refresh_tells_what_of_the_new_list_is_left_out(stage: Stage) -> None:
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
    found = row(member)
    assert found.status == "error"
    assert "member 'anna': tools/list failed" in found.last_error
    assert (stage.processes(), PortAllocation.objects.count()) == ([], 0)
    assert Tool.objects.get().listed  # what it told last is kept


def test_a_refresh_that_fails_because_the_member_exited_leaves_that_to_be_told(stage: Stage) -> None:
    member = stage.up()
    stage.set("hang-tools-list")
    refreshing = in_thread(lambda: stage.lifecycle.refresh(member.pk))
    os.kill(stage.live(member).process.pid, signal.SIGKILL)
    refreshing.join(10)
    wait_for(member, Status.ERROR)
    assert history(member)[-1] == "connected -> error: exit"


def test_a_refresh_that_hangs_does_not_delay_a_stop_and_is_no_failure(stage: Stage) -> None:
    member = stage.up()
    stage.set("hang-tools-list")
    refreshing = in_thread(lambda: stage.lifecycle.refresh(member.pk))
    eventually(lambda: stage.live(member).hall_exchange.request_id is not None and refreshing.is_alive())
    watch = Stopwatch()
    eventually(lambda: (stage.lifecycle.abort_refresh(member.pk), not refreshing.is_alive())[1])
    assert watch.seconds < 2
    assert (row(member).status, row(member).last_error) == ("connected", "")


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("listen-")]


@pytest.mark.parametrize(("status", "goes_on"), [(405, False), (404, False), (501, False), (503, True)])
def test_who_offers_no_stream_is_not_asked_again_and_who_stumbles_is(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, status: int, goes_on: bool
) -> None:
    asked = []

    def listen(self: JsonRpcClient, exchange: Exchange, timeout: float) -> None:
        asked.append(timeout)
        raise HttpStatusError(status)

    monkeypatch.setattr(announcements, "LISTEN_PAUSE", 0.01)
    monkeypatch.setattr(JsonRpcClient, "listen", listen)
    monkeypatch.setattr(InitializeResult, "announces_changes", True)
    member = stage.up()
    eventually(lambda: len(asked) > 3 if goes_on else not listeners())
    assert (len(asked) == 1) is not goes_on
    stage.lifecycle.stop(member.pk)
    eventually(lambda: not listeners())


def test_a_stop_does_not_wait_for_who_listens(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(self: JsonRpcClient, exchange: Exchange, timeout: float) -> None:
        exchange.begin(1, timeout)
        exchange.pause(timeout)

    monkeypatch.setattr(JsonRpcClient, "listen", listen)
    monkeypatch.setattr(InitializeResult, "announces_changes", True)
    member = stage.up()
    eventually(listeners)
    stage.lifecycle.stop(member.pk)
    eventually(lambda: not listeners(), within=2)


def test_a_busy_member_is_not_ended_because_it_does_not_list_its_tools_meanwhile(
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


def test_what_is_not_connected_is_not_refreshed(stage: Stage) -> None:
    member = stage.add()
    stage.lifecycle.refresh(member.pk)
    assert (row(member).status, stage.changes) == ("disconnected", [])


# The lease --------------------------------------------------------------------------------------------------------


def test_a_lease_that_is_lost_before_the_port_is_chosen_claims_none(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = stage.add()
    real = ports.is_free

    def is_free(port: int) -> bool:
        stage.lose_the_lease()
        return real(port)

    monkeypatch.setattr(ports, "is_free", is_free)
    stage.lifecycle.start(member.pk)
    assert (PortAllocation.objects.count(), stage.processes()) == (0, [])


def test_without_the_lease_nothing_is_started(stage: Stage) -> None:
    member = stage.add()
    stage.lose_the_lease()
    stage.lifecycle.start(member.pk)
    assert (row(member).status, history(member), stage.processes()) == ("disconnected", [], [])


def test_a_lease_that_is_lost_during_the_start_ends_it_and_writes_nothing(stage: Stage) -> None:
    member = stage.add("anna", "hang-tools-list")
    starting = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: stage.processes())
    stage.lose_the_lease()
    stage.clear("hang-tools-list")
    starting.join(20)
    assert not starting.is_alive()
    assert (row(member).status, Tool.objects.count()) == ("starting", 0)
    assert stage.processes() == []


@pytest.mark.parametrize("end", ["exit", "connection", "refresh", "stop", "good refresh"])
def test_without_the_lease_nothing_is_written(stage: Stage, end: str) -> None:
    member = stage.up()
    changes, before = history(member), GuildMember.objects.filter(pk=member.pk).values().get()
    stage.lose_the_lease()
    live = stage.live(member)
    if end == "stop":
        stage.lifecycle.stop(member.pk)
    elif end == "good refresh":
        stage.set("tools.json", json.dumps([{"name": "new"}]))
        stage.lifecycle.refresh(member.pk)
    else:
        fail(stage, member, end)
    if end != "good refresh":
        assert live.process.exited.wait(10)
        eventually(lambda: stage.lifecycle.live_members() == [])
    assert GuildMember.objects.filter(pk=member.pk).values().get() == before
    assert history(member) == changes
    assert PortAllocation.objects.count() == 1  # it is the next runtime's now
    assert list(Tool.objects.values_list("name", flat=True)) == ["echo"]


def test_a_runtime_that_lost_its_lease_kills_its_own_members_and_not_the_next_ones(stage: Stage) -> None:
    anna = stage.up("anna")
    stage.lose_the_lease()
    theirs = stage.make_lifecycle(lease_id=Hall.objects.get().lease_id, runtime=DEAD)
    bob = stage.add("bob")
    theirs.start(bob.pk)
    ours = stage.live(anna).process
    stage.lifecycle.kill_everything()
    assert ours.exited.wait(5)
    (left,) = stage.processes()
    assert left.pid == row(bob).pid
    theirs.stop(bob.pk)


def test_a_start_that_is_late_leaves_no_process_behind_a_stop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    member = stage.add()
    real = ports.is_free

    def is_free(port: int) -> bool:
        stage.lifecycle.kill_everything()  # the last look, while this start chooses its port
        return real(port)

    monkeypatch.setattr(ports, "is_free", is_free)
    stage.lifecycle.start(member.pk)
    assert stage.processes() == []
    assert row(member).status == Status.DISCONNECTED
    assert stage.lifecycle.live_members() == []


def then_closed(work: Callable[..., Any], *args: Any) -> None:
    """For a thread of its own: its connection to the database ends with it."""
    try:
        work(*args)
    finally:
        connection.close()


def test_a_spawn_in_progress_is_killed_with_the_rest(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    member = stage.add()
    spawn, begun, may_go_on = MemberProcess.spawn, threading.Event(), threading.Event()

    def slow(*argv: Any, **about: Any) -> MemberProcess:
        begun.set()
        may_go_on.wait(10)
        return spawn(*argv, **about)

    monkeypatch.setattr("mcp_runtime.members.starting.SPAWN_GRACE", 30)
    monkeypatch.setattr(MemberProcess, "spawn", slow)
    start = threading.Thread(target=then_closed, args=(stage.lifecycle.start, member.pk))
    start.start()
    assert begun.wait(10)
    end = threading.Thread(target=then_closed, args=(stage.lifecycle.kill_everything,))
    end.start()
    may_go_on.set()
    end.join(10)
    assert stage.processes() == []
    start.join(10)


def test_a_spawn_that_hangs_keeps_no_other_member_alive(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    anna, bob = stage.up("anna"), stage.add("bob")
    begun, over = threading.Event(), threading.Event()

    def hang(*argv: Any, **about: Any) -> MemberProcess:
        begun.set()
        over.wait(10)
        raise SpawnError("its disk hangs")

    monkeypatch.setattr(MemberProcess, "spawn", hang)
    start = threading.Thread(target=then_closed, args=(stage.lifecycle.start, bob.pk))
    start.start()
    assert begun.wait(10)
    process = stage.live(anna).process
    stage.lifecycle.kill_everything()
    assert process.exited.wait(5)
    over.set()
    start.join(10)


# Rows at the beginning --------------------------------------------------------------------------------------------


def test_a_new_runtime_kills_what_an_earlier_one_left_and_resets_the_rows(stage: Stage) -> None:
    stage.lifecycle = stage.make_lifecycle(runtime=DEAD)
    connected, failed, down = stage.up("anna"), stage.add("bob", "exit=3"), stage.add("carl")
    stage.lifecycle.start(failed.pk)
    stage.lose_the_lease()
    hall = Hall.objects.get()
    live = stage.live(connected).process
    status.reset_rows()
    process.kill_left_behind(hall.hall_id)
    assert live.exited.wait(5)
    for member in (connected, failed):
        found = row(member)
        assert (found.status, found.pid, found.restarts, found.next_restart_at) == ("disconnected", None, 0, None)
        assert history(member)[-1].endswith(" -> disconnected: runtime start")
    assert "cannot go on" in row(failed).last_error  # why it failed can still be read
    assert history(down) == []
    assert PortAllocation.objects.count() == 0
    eventually(lambda: stage.lifecycle.live_members() == [])


def test_what_a_living_runtime_started_for_a_copy_of_the_database_is_left_alone(stage: Stage) -> None:
    live = stage.live(stage.up("anna")).process
    process.kill_left_behind(Hall.objects.get().hall_id)
    assert not live.is_over


def test_the_stopped_start_error_names_the_member() -> None:
    assert isinstance(StoppedWhileStartingError("anna"), McpRuntimeError)
