"""Queued calls run at most once, always end, and have the reason of their end."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from mcp_runtime.control.calls import cancel_call, wait_for_call
from mcp_runtime.control.members import disable_member, stop_member
from roster.models import Call, GuildMember
from tests.conftest import eventually
from tests.support import machine
from tests.support.hall import Hall, call, member, queue, wait_for_status
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def running_hall(shared_hall: Hall) -> Hall:
    shared_hall.add("one", timeout=20, tool_timeouts={"sleep": 1, "dribble": 1})
    shared_hall.start()
    wait_for_status(shared_hall, "one", "connected")
    return shared_hall


def test_a_call_ends_with_its_result_its_source_and_its_requester(running_hall: Hall) -> None:
    row = call("one", "echo", {"text": "grüß dich"})
    assert row.status == "succeeded"
    assert row.result == {"content": [{"type": "text", "text": "grüß dich"}]}
    assert row.source == "command"
    assert row.requester
    assert row.duration.total_seconds() < 5


@pytest.mark.parametrize(
    ("tool", "kind", "text"),
    [
        ("fail", "tool", "it went wrong"),
        ("refuse", "protocol", "not with me"),
        ("html", "protocol", "text/html instead of JSON"),
        ("wrong_id", "protocol", "answered request 'another'"),
        ("big", "protocol", "larger than"),
        ("sleep", "timeout", "within 1 s"),
        ("dribble", "timeout", "within 1 s"),
    ],
)
def test_a_failed_call_has_its_error_kind_and_the_member_keeps_running(
    running_hall: Hall, tool: str, kind: str, text: str
) -> None:
    pid = member("one").pid
    row = call("one", tool)
    assert (row.status, row.error_kind) == ("failed", kind)
    assert text in row.error_message
    assert "member 'one'" in row.error_message
    if kind == "timeout":
        assert row.duration.total_seconds() < machine.patience(1.5)
    if tool == "refuse":
        assert (row.error_code, row.error_data) == (-32602, {"hint": "ask somebody else"})
    if tool == "fail":
        assert row.result["isError"] is True
    assert (member("one").status, member("one").pid) == ("connected", pid)
    assert call("one", "echo", {"text": "next"}).status == "succeeded"


def test_streamed_results_and_text_that_no_database_stores_are_read(running_hall: Hall) -> None:
    assert call("one", "stream").result["content"][0]["text"] == "streamed é"
    assert call("one", "nul").result["content"][0]["text"] == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


def test_a_reset_connection_puts_the_member_in_error_and_restarts_it(running_hall: Hall) -> None:
    pid = member("one").pid
    row = call("one", "reset")
    assert (row.status, row.error_kind) == ("failed", "transport")
    eventually(lambda: member("one").status == "connected" and member("one").pid != pid)
    change = member("one").status_changes.filter(new="error").get()
    assert change.cause == "connection"
    assert len(running_hall.tagged_processes()) == 1


def test_a_stopped_member_is_started_for_a_call(running_hall: Hall) -> None:
    stop_member(member("one"))
    wait_for_status(running_hall, "one", "disconnected")
    assert call("one", "echo", {"text": "wake up"}).status == "succeeded"
    assert member("one").desired_state == "running"


def test_a_call_waits_for_a_restart_that_is_due_in_time(running_hall: Hall) -> None:
    call("one", "exit")
    row = call("one", "echo", {"text": "after the crash"})
    assert row.status == "succeeded"


def test_a_call_to_a_member_that_does_not_start_fails_as_unavailable(hall: Hall) -> None:
    folder = hall.add("one", restart="never")
    hall.start()
    wait_for_status(hall, "one", "connected")
    (folder / "server.py").write_text("import sys; sys.exit('no more')")
    call("one", "exit")
    wait_for_status(hall, "one", "error")
    row = call("one", "echo", {"text": "anybody?"})
    assert (row.status, row.error_kind) == ("failed", "unavailable")
    assert "ended with exit code 1 before the handshake was done" in row.error_message
    # The last output may be about other users, so only users who may view the member see it.
    assert "no more" not in row.error_message
    assert "no more" in member("one").last_error


def test_a_call_to_a_member_disabled_meanwhile_is_unavailable(hall: Hall) -> None:
    hall.add("one", max_concurrency=1)
    hall.start()
    wait_for_status(hall, "one", "connected")
    queue("one", "sleep")
    queued_call = queue("one", "echo", {"text": "late"})
    disable_member(member("one"))
    wait_for_call(queued_call.pk, 10)
    queued_call.refresh_from_db()
    assert (queued_call.status, queued_call.error_kind) == ("failed", "unavailable")


def test_cancel_reaches_the_member_and_ends_the_call_at_once(hall: Hall) -> None:
    folder = hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    active_call = queue("one", "sleep")
    eventually(lambda: Call.objects.get(pk=active_call.pk).status == "running")
    cancel_call(active_call)
    assert wait_for_call(active_call.pk, 3)
    active_call.refresh_from_db()
    assert active_call.status == "cancelled"
    notification = json.loads((folder / "cancelled.json").read_text())
    assert notification["method"] == "notifications/cancelled"
    assert isinstance(notification["params"]["requestId"], int)


def test_a_queued_call_that_is_cancelled_is_never_sent(hall: Hall) -> None:
    folder = hall.add("one", max_concurrency=1)
    hall.start()
    wait_for_status(hall, "one", "connected")
    first = queue("one", "sleep", {"seconds": 1})
    second = queue("one", "echo", {"text": "never"})
    assert cancel_call(second).status == "cancelled"
    assert wait_for_call(first.pk, 5)
    time.sleep(0)
    assert call("one", "echo", {"text": "after"}).status == "succeeded"
    assert "never" not in (folder / "calls-one.log").read_text()


def test_ten_hung_members_delay_nobody_and_calls_without_a_slot_stay_queued(hall: Hall) -> None:
    hung_members = [f"hung{number}" for number in range(10)]
    for name in hung_members:
        hall.add(name, max_concurrency=4, timeout=60)
    hall.add("well")
    hall.start()
    eventually(lambda: GuildMember.objects.filter(status="connected").count() == 11, within=30)
    for name in hung_members:
        for _ in range(8):
            queue(name, "sleep")
    eventually(lambda: Call.objects.filter(status="running").count() == 30)
    durations = []
    for _ in range(20):
        watch = Stopwatch()
        assert call("well", "echo", {"text": "hi"}).status == "succeeded"
        durations.append(watch.seconds)
    assert sorted(durations)[10] < 0.5
    assert Call.objects.filter(status="running").count() == 30
    assert Call.objects.filter(status="queued").count() == 50


def test_secrets_are_masked_once_the_call_is_over(running_hall: Hall) -> None:
    row = call("one", "echo", {"text": "hi", "password": "hunter2"})
    assert row.status == "succeeded"
    assert row.arguments == {"text": "hi", "password": "********"}


def test_a_tool_with_a_broken_schema_has_an_error_and_is_called_without_validation(running_hall: Hall) -> None:
    tool = member("one").tools.get(name="broken/schema.v1")
    assert "nonsense" in tool.schema_error
    assert call("one", "broken/schema.v1", {"anything": 1}).status == "succeeded"


def test_concurrent_writers_never_meet_a_locked_database(running_hall: Hall) -> None:
    def one_call(number: int) -> str:
        try:
            return call("one", "echo", {"text": str(number)}, within=40).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(one_call, range(320)))
    assert statuses == ["succeeded"] * 320
    assert "locked" not in running_hall.output()


def test_progress_is_written_to_the_row_while_the_call_runs(running_hall: Hall) -> None:
    row = queue("one", "progress")

    def progress() -> dict[str, Any] | None:
        row.refresh_from_db()
        return row.progress

    first = eventually(progress)
    assert isinstance(first, dict)
    assert first == {"progress": first["progress"], "total": 100, "message": f"step {first['progress']}"}
    eventually(lambda: progress() != first, what="the progress continues")
    cancel_call(row)
    eventually(lambda: (progress(), row.is_finished)[1])
