"""Queued calls: run at most once, end always, and say why."""

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
def running(shared_hall: Hall) -> Hall:
    shared_hall.add("one", timeout=20, tool_timeouts={"sleep": 1, "dribble": 1})
    shared_hall.start()
    wait_for_status(shared_hall, "one", "connected")
    return shared_hall


def test_a_call_ends_with_its_result_and_says_who_asked(running: Hall) -> None:
    done = call("one", "echo", {"text": "grüß dich"})
    assert done.status == "succeeded"
    assert done.result == {"content": [{"type": "text", "text": "grüß dich"}]}
    assert done.source == "command"
    assert done.requester
    assert done.duration.total_seconds() < 5


@pytest.mark.parametrize(
    ("tool", "kind", "said"),
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
def test_a_failed_call_says_its_kind_and_the_member_runs_on(running: Hall, tool: str, kind: str, said: str) -> None:
    pid = member("one").pid
    done = call("one", tool)
    assert (done.status, done.error_kind) == ("failed", kind)
    assert said in done.error_message
    assert "member 'one'" in done.error_message
    if kind == "timeout":
        assert done.duration.total_seconds() < machine.patience(1.5)
    if tool == "refuse":
        assert (done.error_code, done.error_data) == (-32602, {"hint": "ask somebody else"})
    if tool == "fail":
        assert done.result["isError"] is True
    assert (member("one").status, member("one").pid) == ("connected", pid)
    assert call("one", "echo", {"text": "next"}).status == "succeeded"


def test_answers_in_a_stream_and_text_no_database_takes_are_read(running: Hall) -> None:
    assert call("one", "stream").result["content"][0]["text"] == "streamed é"
    assert call("one", "nul").result["content"][0]["text"] == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


def test_a_reset_connection_is_an_error_of_the_member_and_its_restart(running: Hall) -> None:
    pid = member("one").pid
    done = call("one", "reset")
    assert (done.status, done.error_kind) == ("failed", "transport")
    eventually(lambda: member("one").status == "connected" and member("one").pid != pid)
    change = member("one").status_changes.filter(new="error").get()
    assert change.cause == "connection"
    assert len(running.tagged_processes()) == 1


def test_a_stopped_member_is_started_for_a_call(running: Hall) -> None:
    stop_member(member("one"))
    wait_for_status(running, "one", "disconnected")
    assert call("one", "echo", {"text": "wake up"}).status == "succeeded"
    assert member("one").desired_state == "running"


def test_a_call_waits_for_a_restart_that_is_due_in_time(running: Hall) -> None:
    call("one", "exit")
    done = call("one", "echo", {"text": "after the crash"})
    assert done.status == "succeeded"


def test_a_call_to_a_member_that_will_not_start_is_unavailable_with_the_reason(hall: Hall) -> None:
    folder = hall.add("one", restart="never")
    hall.start()
    wait_for_status(hall, "one", "connected")
    (folder / "server.py").write_text("import sys; sys.exit('no more')")
    call("one", "exit")
    wait_for_status(hall, "one", "error")
    done = call("one", "echo", {"text": "anybody?"})
    assert (done.status, done.error_kind) == ("failed", "unavailable")
    assert "ended with exit code 1 before the handshake was done" in done.error_message
    # What it wrote last may be about others: that is for who may view the member.
    assert "no more" not in done.error_message
    assert "no more" in member("one").last_error


def test_a_call_to_a_member_disabled_meanwhile_is_unavailable(hall: Hall) -> None:
    hall.add("one", max_concurrency=1)
    hall.start()
    wait_for_status(hall, "one", "connected")
    queue("one", "sleep")
    waiting = queue("one", "echo", {"text": "late"})
    disable_member(member("one"))
    wait_for_call(waiting.pk, 10)
    waiting.refresh_from_db()
    assert (waiting.status, waiting.error_kind) == ("failed", "unavailable")


def test_cancel_reaches_the_member_and_ends_the_call_at_once(hall: Hall) -> None:
    folder = hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    running = queue("one", "sleep")
    eventually(lambda: Call.objects.get(pk=running.pk).status == "running")
    cancel_call(running)
    assert wait_for_call(running.pk, 3)
    running.refresh_from_db()
    assert running.status == "cancelled"
    told = json.loads((folder / "cancelled.json").read_text())
    assert told["method"] == "notifications/cancelled"
    assert isinstance(told["params"]["requestId"], int)


def test_cancel_of_a_queued_call_means_it_is_never_sent(hall: Hall) -> None:
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


def test_ten_hung_members_at_once_delay_nobody_and_rows_of_a_full_member_stay_queued(hall: Hall) -> None:
    hung = [f"hung{number}" for number in range(10)]
    for name in hung:
        hall.add(name, max_concurrency=4, timeout=60)
    hall.add("well")
    hall.start()
    eventually(lambda: GuildMember.objects.filter(status="connected").count() == 11, within=30)
    for name in hung:
        for _ in range(8):
            queue(name, "sleep")
    eventually(lambda: Call.objects.filter(status="running").count() == 30)
    took = []
    for _ in range(20):
        watch = Stopwatch()
        assert call("well", "echo", {"text": "hi"}).status == "succeeded"
        took.append(watch.seconds)
    assert sorted(took)[10] < 0.5
    assert Call.objects.filter(status="running").count() == 30
    assert Call.objects.filter(status="queued").count() == 50


def test_secrets_are_masked_once_the_call_is_over(running: Hall) -> None:
    done = call("one", "echo", {"text": "hi", "password": "hunter2"})
    assert done.status == "succeeded"
    assert done.arguments == {"text": "hi", "password": "********"}


def test_a_tool_whose_schema_is_broken_is_called_without_validation_and_says_so(running: Hall) -> None:
    tool = member("one").tools.get(name="broken/schema.v1")
    assert "nonsense" in tool.schema_error
    assert call("one", "broken/schema.v1", {"anything": 1}).status == "succeeded"


def test_concurrent_writers_never_meet_a_locked_database(running: Hall) -> None:
    def one_call(number: int) -> str:
        try:
            return call("one", "echo", {"text": str(number)}, within=40).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(one_call, range(320)))
    assert statuses == ["succeeded"] * 320
    assert "locked" not in running.output()


def test_progress_comes_onto_the_row_while_the_call_runs(running: Hall) -> None:
    call = queue("one", "progress")

    def said() -> dict[str, Any] | None:
        call.refresh_from_db()
        return call.progress

    first = eventually(said)
    assert isinstance(first, dict)
    assert first == {"progress": first["progress"], "total": 100, "message": f"step {first['progress']}"}
    eventually(lambda: said() != first, what="it goes on")
    cancel_call(call)
    eventually(lambda: (said(), call.is_finished)[1])
