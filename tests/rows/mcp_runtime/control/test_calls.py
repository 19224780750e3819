from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import (
    call_counts,
    cancel_call,
    masked_arguments,
    prune_calls,
    queue_call,
    queue_depth,
)
from mcp_runtime.control.members import (
    stop_member,
)
from mcp_runtime.security.access import OPERATOR
from roster.models import Call, GuildMember, Tool
from tests.rows.mcp_runtime.control.conftest import Broker

pytestmark = pytest.mark.django_db

COMMAND = Requester(Call.Source.COMMAND)


@pytest.mark.django_db(transaction=True)
def test_a_call_starts_a_member_that_was_stopped(echo: Tool, broker: Broker) -> None:
    GuildMember.objects.update(desired_state="stopped", status="disconnected")
    queue_call("anna", "echo", {}, requester=COMMAND)
    assert GuildMember.objects.get().desired_state == "running"
    assert sorted(broker.members) == [False, True]


@pytest.mark.django_db(transaction=True)
def test_a_repeated_call_starts_no_member(echo: Tool, broker: Broker, django_user_model: Any) -> None:
    requester = Requester(Call.Source.REST, django_user_model.objects.create_superuser("bob"))
    first, _ = queue_call("anna", "echo", {}, requester=requester, idempotency_key="k")
    stop_member(echo.member)
    broker.sent.clear()
    assert queue_call("anna", "echo", {}, requester=requester, idempotency_key="k") == (first, False)
    assert GuildMember.objects.get().desired_state == "stopped"
    assert broker.sent == []


@pytest.mark.django_db(transaction=True)
def test_a_cancelled_call_sends_a_notification(echo: Tool, broker: Broker) -> None:
    call, _ = queue_call("anna", "echo", {}, requester=COMMAND)
    broker.sent.clear()
    assert cancel_call(call).status == "cancelled"
    assert broker.members == [True]


def test_secret_arguments_are_masked_before_the_call_ends(echo: Tool) -> None:
    schema = {"properties": {"key": {"type": "string", "writeOnly": True}}}
    Tool.objects.update(definition={"inputSchema": schema})
    call, _ = queue_call("anna", "echo", {"key": "sesame", "text": "a"}, requester=COMMAND)
    assert masked_arguments(call) == {"key": "********", "text": "a"}
    assert Call.objects.get().arguments["key"] == "sesame"


def test_queue_depth_counts_queued_and_running_calls(echo: Tool) -> None:
    assert queue_depth(OPERATOR) == {"queued": 0, "running": 0}
    for status in ("queued", "queued", "running", "succeeded", "failed", "cancelled"):
        Call.objects.create(member=echo.member, tool_name="echo", timeout=1, source="rest", status=status)
    assert queue_depth(OPERATOR) == {"queued": 2, "running": 1}


def test_totals_stay_the_same_after_a_prune(echo: Tool) -> None:
    call, _ = queue_call("anna", "echo", {}, requester=COMMAND)
    cancel_call(call)
    assert call_counts() == {("anna", "cancelled"): 1}
    count, _ = prune_calls(days=30, keep=0)
    assert count == 1
    assert call_counts() == {("anna", "cancelled"): 1}
