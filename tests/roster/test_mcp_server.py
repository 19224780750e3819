"""The roster as an MCP server, without a wire; and the wire, with pipes of the test."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.utils import timezone

from mcp_runtime import control
from mcp_runtime.errors import MethodError
from mcp_runtime.invocations import Caller
from mcp_runtime.jsonrpc import request_id
from roster import mcp_server
from roster.management.commands import mcp_stdio
from roster.management.commands.mcp_stdio import StdioServer
from roster.mcp_server import RosterServer
from roster.models import GuildMember, Invocation, Tool
from tests.conftest import eventually

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
RESULT = {"content": [{"type": "text", "text": "hi"}], "structuredContent": {"more": 1}}


@pytest.fixture
def echo() -> Tool:
    member = GuildMember.objects.create(name="one", directory="one", status="connected")
    definition = {"name": "echo", "inputSchema": TEXT, "x-ours": ["kept", "ü"]}
    return Tool.objects.create(member=member, name="echo", definition=definition)


class Conversation:
    """A server, and who plays the runtime for it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.server = RosterServer(Caller(Invocation.Door.GATEWAY), lambda *said: self.told.append(said))
        self.threads = ThreadPoolExecutor(4)

    def call(self, name: str = "one__echo", asked_id: Any = 1, **params: Any) -> Any:
        """A call under way in a thread: its result, or its error, is the future's."""

        def ask() -> Any:
            request_id.set(asked_id)
            try:
                return self.server.call_tool(name=name, **params)
            finally:
                connection.close()

        return self.threads.submit(ask)


@pytest.fixture
def conversation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Conversation]:
    monkeypatch.setattr(mcp_server, "SLICE_SECONDS", 0.02)
    conversation = Conversation()
    yield conversation
    conversation.threads.shutdown()


def end(**columns: Any) -> Invocation:
    """The runtime's part: the call that waits ends like this."""
    eventually(lambda: Invocation.objects.filter(status="queued").exists())
    Invocation.objects.filter(status="queued").update(finished_at=timezone.now(), **columns)
    return Invocation.objects.latest("id")


def test_a_list_has_every_tool_as_its_member_gave_it_under_both_names(conversation: Conversation, echo: Tool) -> None:
    (listed,) = conversation.server.list_tools()["tools"]
    assert listed == {**echo.definition, "name": "one__echo"}


@pytest.mark.parametrize(
    "hide",
    [
        lambda tool: Tool.objects.update(enabled=False),
        lambda tool: Tool.objects.update(listed=False),
        lambda tool: GuildMember.objects.update(enabled=False),
        lambda tool: GuildMember.objects.update(removed_at=timezone.now()),
    ],
)
def test_what_may_not_be_called_is_not_listed_and_not_known(
    conversation: Conversation, echo: Tool, hide: Callable[[Tool], Any]
) -> None:
    hide(echo)
    assert conversation.server.list_tools()["tools"] == []
    with pytest.raises(MethodError, match="unknown tool 'one__echo'"):
        conversation.call().result()


def test_a_schema_that_breaks_the_rules_is_replaced(conversation: Conversation, echo: Tool) -> None:
    Tool.objects.update(definition={"name": "echo", "inputSchema": {"type": "nonsense"}})
    assert conversation.server.list_tools()["tools"][0]["inputSchema"] == {"type": "object"}


@pytest.mark.parametrize(
    "slip",
    [
        {"description": 5},
        {"title": {}},
        {"annotations": "x"},
        {"annotations": {"readOnlyHint": "yes"}},
        {"outputSchema": []},
        {"outputSchema": {"type": "string"}},
        {"annotations": {"readOnlyHint": None, "taskSupport": 5}},
        {"execution": {"taskSupport": "maybe"}},
        {"execution": {"taskSupport": ["required"]}},
        {"icons": 7},
        {"icons": [7, {"src": 7}, {"src": "x", "sizes": "any"}, {"src": "x", "theme": "blue"}]},
        {"_meta": 3},
        {"inputSchema": {"type": "object", "properties": []}},
        {"inputSchema": {"type": "object", "required": "text"}},
        {"inputSchema": None},
    ],
)
def test_a_slip_in_one_definition_does_not_cost_the_client_the_list(
    conversation: Conversation, echo: Tool, slip: dict[str, Any]
) -> None:
    from mcp.types import ListToolsResult

    Tool.objects.update(definition={**echo.definition, "annotations": {"title": "Echo", "readOnlyHint": True}, **slip})
    listed = conversation.server.list_tools()
    assert ListToolsResult.model_validate(listed).tools[0].name == "one__echo"
    assert listed["tools"][0]["x-ours"] == ["kept", "ü"]


def test_a_tool_that_runs_only_as_a_task_is_neither_listed_nor_called(conversation: Conversation, echo: Tool) -> None:
    Tool.objects.update(definition={**echo.definition, "execution": {"taskSupport": "required"}})
    assert conversation.server.list_tools()["tools"] == []
    with pytest.raises(MethodError, match="tool 'echo' of member 'one' runs only as a task"):
        conversation.call().result(10)
    assert not Invocation.objects.exists()


def test_a_cancellation_that_comes_before_its_call_is_queued_is_not_lost(
    conversation: Conversation, echo: Tool
) -> None:
    conversation.server.expect([{"method": "tools/call", "id": "mine"}, {"method": "ping", "id": 2}, "nonsense"])
    conversation.server.cancelled(requestId="mine")
    with pytest.raises(MethodError, match="cancelled"):
        conversation.call(asked_id="mine").result(10)
    assert not Invocation.objects.exists()
    assert (conversation.server._calls, conversation.server._unwanted) == ({}, set())


def test_a_call_gives_the_result_word_for_word(conversation: Conversation, echo: Tool) -> None:
    called = conversation.call(arguments={"text": "hi"})
    row = end(status="succeeded", result=RESULT)
    assert called.result(10) == RESULT
    assert (row.arguments, row.door, row.tool_name) == ({"text": "hi"}, "gateway", "echo")


def test_a_tools_own_failure_is_its_result(conversation: Conversation, echo: Tool) -> None:
    called = conversation.call()
    end(status="failed", error_kind="tool", result={**RESULT, "isError": True})
    assert called.result(10)["isError"] is True


@pytest.mark.parametrize(
    ("columns", "code", "data"),
    [
        ({"status": "failed", "error_kind": "timeout", "error_message": "late"}, -32603, {"kind": "timeout"}),
        (
            {"status": "failed", "error_kind": "protocol", "error_message": "no", "error_code": 5, "error_data": [1]},
            5,
            {"kind": "protocol", "data": [1]},
        ),
        ({"status": "cancelled"}, -32603, {"kind": "cancelled"}),
    ],
)
def test_any_other_failure_is_an_error_that_names_the_member(
    conversation: Conversation, echo: Tool, columns: dict[str, Any], code: int, data: dict[str, Any]
) -> None:
    called = conversation.call()
    end(**columns)
    with pytest.raises(MethodError) as caught:
        called.result(10)
    assert (caught.value.code, caught.value.data) == (code, {"member": "one", **data})


def test_arguments_that_do_not_fit_are_for_the_model_to_read(conversation: Conversation, echo: Tool) -> None:
    result = conversation.call(arguments={"text": 7}).result(10)
    assert result["isError"]
    assert "7 is not of type 'string'" in result["content"][0]["text"]
    assert not Invocation.objects.exists()


def test_progress_is_told_to_who_gave_a_token_and_once(conversation: Conversation, echo: Tool) -> None:
    called = conversation.call(_meta={"progressToken": "t"})
    eventually(lambda: Invocation.objects.filter(status="queued").exists())
    Invocation.objects.update(progress={"progress": 1, "total": None, "message": "begun"})
    eventually(lambda: conversation.told)
    end(status="succeeded", result=RESULT)
    called.result(10)
    params = {"progressToken": "t", "progress": 1, "message": "begun"}
    assert conversation.told == [("notifications/progress", params)]


def test_a_cancelled_call_is_cancelled_by_the_clients_own_id(conversation: Conversation, echo: Tool) -> None:
    called = conversation.call(asked_id="mine")
    eventually(lambda: conversation.server._calls)
    conversation.server.cancelled(requestId="another's")
    assert not called.done()
    conversation.server.cancelled(requestId="mine")
    with pytest.raises(MethodError, match="cancelled"):
        called.result(10)
    assert Invocation.objects.get().status == "cancelled"
    conversation.server.cancelled(requestId="mine")  # too late is no harm
    assert conversation.server._calls == {}


def test_a_call_that_never_begins_is_told_of_in_the_end(
    conversation: Conversation, echo: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "PATIENCE_SECONDS", -29.9)
    with pytest.raises(MethodError, match="has not begun in time"):
        conversation.call().result(10)


def test_a_change_of_the_list_is_noticed_once(conversation: Conversation, echo: Tool) -> None:
    assert not conversation.server.tools_changed()  # nobody asked for the list yet
    conversation.server.list_tools()
    assert not conversation.server.tools_changed()
    Tool.objects.update(enabled=False)
    assert conversation.server.tools_changed()
    assert not conversation.server.tools_changed()


@pytest.mark.parametrize("cursor", ["", "next", 0])
def test_a_list_has_one_page(conversation: Conversation, cursor: Any) -> None:
    with pytest.raises(MethodError, match="unknown cursor"):
        conversation.server.list_tools(cursor=cursor)


# On pipes ---------------------------------------------------------------------------------------------------------


def spoken(*lines: bytes) -> list[Any]:
    sink = io.BytesIO()
    StdioServer(io.BytesIO(b"".join(lines)), sink, Caller(Invocation.Door.GATEWAY)).serve()
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def line(method: str, asked_id: Any = None, **params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if asked_id is None else {"id": asked_id})}
    return json.dumps(message).encode() + b"\n"


def test_lines_are_answered_and_empty_ones_passed_over(echo: Tool) -> None:
    answers = spoken(b"\n", line("ping", 1), line("notifications/initialized"), b"  \n", line("nowhere", 2))
    assert sorted((answer["id"], "result" in answer) for answer in answers) == [(1, True), (2, False)]


def test_a_line_that_is_too_long_is_refused_and_the_next_one_read(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_stdio, "MAX_LINE", 100)
    answers = spoken(line("ping", 1, x="y" * 1000), line("ping", 2))
    assert {answer["id"]: answer.get("error", {}).get("code") for answer in answers} == {None: -32600, 2: None}


def test_a_cancellation_does_not_wait_behind_calls(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_stdio, "THREADS", 1)
    call = {"name": "one__echo", "arguments": {}}
    lines = [line("tools/call", number, **call) for number in range(3)]
    lines += [line("notifications/cancelled", requestId=number) for number in range(3)] + [line("ping", "last")]
    answers = spoken(*lines)
    assert answers[0]["id"] == "last"
    assert sorted(answer["id"] for answer in answers[1:]) == [0, 1, 2]
    assert set(Invocation.objects.values_list("status", flat=True)) <= {"cancelled"}


def test_a_client_that_stopped_reading_is_no_traceback(echo: Tool) -> None:
    class Broken(io.BytesIO):
        def write(self, data: Any) -> int:
            raise BrokenPipeError

    StdioServer(io.BytesIO(line("ping", 1)), Broken(), Caller(Invocation.Door.GATEWAY)).serve()


def test_a_change_of_the_roster_is_told(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_stdio, "LOOK_SECONDS", 0.02)
    sink, go_on = io.BytesIO(), threading.Event()

    class Source(io.BytesIO):
        def readline(self, size: Any = -1) -> bytes:
            return super().readline(size) or ((go_on.wait(10) and b"") or b"")

    source = Source(line("initialize", 1) + line("notifications/initialized") + line("tools/list", 2))
    serving = threading.Thread(target=StdioServer(source, sink, Caller(Invocation.Door.GATEWAY)).serve)
    serving.start()
    eventually(lambda: sink.getvalue().count(b"\n") == 2)
    Tool.objects.update(enabled=False)
    eventually(lambda: b"notifications/tools/list_changed" in sink.getvalue())
    go_on.set()
    serving.join(10)
    assert not serving.is_alive()


# As a user --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bob() -> User:
    return User.objects.create_user("bob")


def as_user(user: User) -> RosterServer:
    return RosterServer(Caller(Invocation.Door.GATEWAY, user), lambda *said: None)


def names_of(server: RosterServer) -> list[str]:
    return [tool["name"] for tool in server.list_tools()["tools"]]


def test_a_user_is_shown_what_they_may_call_and_told_when_that_changes(echo: Tool, bob: User) -> None:
    server = as_user(bob)
    assert names_of(server) == []
    assert not server.tools_changed()
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    assert server.tools_changed()
    assert names_of(server) == ["one__echo"]
    control.reserve(echo.member, [Group.objects.create(name="writers")])
    assert names_of(server) == []


def test_what_a_user_may_not_call_is_an_unknown_tool_to_them(echo: Tool, bob: User) -> None:
    with pytest.raises(MethodError, match="unknown tool 'one__echo'"):
        as_user(bob).call_tool(name="one__echo", arguments={})
    assert not Invocation.objects.exists()


def test_a_user_who_is_not_active_any_more_is_told_so(echo: Tool, bob: User) -> None:
    server = as_user(bob)
    names_of(server)
    bob.is_active = False
    bob.save()
    with pytest.raises(MethodError, match="'bob' is not active"):
        server.list_tools()
