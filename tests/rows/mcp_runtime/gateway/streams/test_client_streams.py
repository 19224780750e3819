"""Messages that answer no request: those of members, those about changes of the roster, and which clients get them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcp_runtime.gateway.catalog import Roster
from mcp_runtime.gateway.streams import client_streams, upstream_listeners
from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal
from roster.models import GuildMember, Hall, Token, Tool
from tests.conftest import eventually
from tests.support.agents import META, GatewayClient, MessageStream, make_token, messages_of
from tests.support.gateway_world import (
    ALL,
    MODERN,
    World,
    event,
    in_background,
    notification,
    reply_to,
    request,
    result,
    text,
)
from tests.support.scripted_server import Request as MemberRequest
from tests.support.scripted_server import initialize_result

UPDATED = "notifications/resources/updated"


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client_streams, upstream_listeners):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)


def send_events(*events: bytes) -> Any:
    """A stream that stays open after these events."""

    def behave(incoming: MemberRequest) -> None:
        incoming.stream(*events)
        incoming.hang()

    return behave


def without_session(incoming: MemberRequest) -> None:
    incoming.result(initialize_result(incoming.message["params"]["protocolVersion"]))


def listen(client: GatewayClient, **notifications: Any) -> MessageStream:
    message, headers = client.modern_message("subscriptions/listen", notifications=notifications)
    return client.stream(message, **headers)


def log(data: Any) -> dict[str, Any]:
    return notification("notifications/message", level="info", data=data)


def test_messages_of_a_member_reach_clients_at_its_own_path(world: World) -> None:
    change = notification("notifications/tools/list_changed")
    world.member(behaviours={"GET": send_events(event(log(1)), event(change), event(log(2)))})
    with world.agent("/mcp/notes").begin().listen() as stream:
        assert [stream.next() for _ in range(3)] == [log(1), change, log(2)]


def test_an_invalid_message_of_a_member_does_not_end_the_stream(world: World) -> None:
    invalid_messages = [
        {"jsonrpc": "2.0", "method": UPDATED, "params": [1]},
        {"jsonrpc": "2.0", "method": ["x"], "id": 1},
        {"jsonrpc": "2.0", "method": "notifications/message", "params": 7},
        [1],
        7,
    ]
    odd_message = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"_meta": 1}}
    world.member(behaviours={"GET": send_events(*map(event, invalid_messages), event(odd_message), event(log("good")))})
    with world.agent("/mcp/notes").begin().listen() as stream:
        assert [stream.next(), stream.next()] == [odd_message, log("good")]


def test_a_members_stream_that_ends_is_opened_again(world: World) -> None:
    def end(incoming: MemberRequest) -> None:
        count = len([request for request in incoming.server.requests if not request.body])
        incoming.stream(event(log(count)))
        incoming.hang_up()

    world.member(behaviours={"GET": end})
    with world.agent("/mcp/notes").begin().listen() as stream:
        logs = []
        while len(logs) < 3:
            message = stream.next()
            logs += [message["params"]["data"]] if message["method"] == "notifications/message" else []
    assert logs == [1, 2, 3]


def test_a_member_without_a_stream_gets_one_get_request_per_process(world: World) -> None:
    member = world.member()
    count_gets = lambda: len([request for request in member.requests if not request.body])  # noqa: E731
    with world.agent("/mcp/notes").begin().listen() as stream:
        eventually(lambda: count_gets() == 1)
        world.gateway.member_changed(member.row.pk)
        world.live.pop(member.row.pk)
        world.gateway.member_changed(member.row.pk)
        member.behaviours["GET"] = send_events(event(log("new")))
        world.live[member.row.pk] = member.restart()
        world.gateway.member_changed(member.row.pk)
        stream.until("notifications/resources/list_changed")  # the new process may have other resources
        assert stream.until("notifications/message") == log("new")
    assert count_gets() == 2


def test_clients_are_notified_if_a_members_list_replaces_the_one_in_memory(world: World) -> None:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "for_clients_that_can_be_asked")]
    member = world.member(behaviours={"tools/list": lambda incoming: incoming.result({"tools": tools})})
    live_member = world.live.pop(member.row.pk)
    client = world.agent("/mcp/notes").begin(sampling={})
    with client.listen() as session_stream, listen(world.agent("/mcp/notes"), toolsListChanged=True) as modern_stream:
        assert client.tools() == ["echo"]
        world.live[member.row.pk] = live_member
        world.gateway.member_changed(member.row.pk)
        assert session_stream.until("notifications/tools/list_changed")
        assert modern_stream.until("notifications/tools/list_changed")
        assert client.tools() == ["echo", "for_clients_that_can_be_asked"]


def test_changed_resource_templates_are_announced_as_changed_resources(world: World) -> None:
    templates: list[dict[str, Any]] = []
    lists = {
        "resources/list": lambda incoming: incoming.result({"resources": []}),
        "resources/templates/list": lambda incoming: incoming.result({"resourceTemplates": templates}),
        "prompts/list": lambda incoming: incoming.result({"prompts": []}),
    }
    member = world.member(behaviours=lists, capabilities=ALL)
    with world.agent().begin().listen() as stream:
        world.gateway.lists_changed(member.row.pk)
        eventually(lambda: member.messages("resources/templates/list"))
        templates.append({"uriTemplate": "x:{id}", "name": "x"})
        world.gateway.lists_changed(member.row.pk)
        assert stream.next() == {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}


def test_a_change_of_the_roster_is_announced_to_clients_whose_lists_change(world: World) -> None:
    member, _ = world.member("notes"), world.member("other")
    narrow_token = make_token(scope=Token.Scope.MEMBERS, members=[GuildMember.objects.get(name="other")])
    with (
        world.agent().begin().listen() as full_stream,
        world.agent(token=narrow_token).begin().listen() as narrow_stream,
    ):
        assert world.agent(token=narrow_token).begin().tools() == ["other__echo"]
        Tool.objects.filter(member=member.row).update(enabled=False)
        world.gateway.member_changed(member.row.pk)
        assert full_stream.next() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        Tool.objects.filter(member__name="other").update(enabled=False)
        world.gateway.member_changed(member.row.pk)
        assert narrow_stream.next()["method"] == "notifications/tools/list_changed"
        assert narrow_stream.is_empty


def test_a_new_stream_of_a_session_ends_its_old_stream(world: World) -> None:
    world.member()
    client = world.agent().begin()
    with client.listen() as first, client.listen() as second:
        assert first.ended.wait(5)
        assert not second.ended.is_set()


def test_a_question_on_a_members_stream_reaches_the_client_or_is_declined(world: World) -> None:
    replies: list[dict[str, Any]] = []
    end_of_replies = threading.Event()

    def ask(incoming: MemberRequest) -> None:
        incoming.stream(event(request("q1", "elicitation/create", message="?")), event(request("q2", "roots/list")))
        incoming.send(event({"jsonrpc": "2.0", "id": "q3", "method": "ping"}))
        replies.extend(reply_to(incoming, question) for question in ("q1", "q2", "q3"))
        end_of_replies.set()
        incoming.hang()

    world.member(behaviours={"GET": ask})
    client = world.agent("/mcp/notes").begin(elicitation={})
    with client.listen() as stream:
        question = stream.until("elicitation/create")
        assert client.post(result(question["id"], action="cancel")).status_code == 202
        assert end_of_replies.wait(5)
    assert replies[0]["result"] == {"action": "cancel"}
    assert replies[1]["error"]["code"] == -32601
    assert replies[2]["result"] == {}


def test_a_client_gets_only_its_own_notifications_from_a_member_without_sessions(world: World) -> None:
    question = request("q1", "elicitation/create", message="Is ann's secret right?")
    updates = [notification(UPDATED, uri=uri) for uri in ("x:1", "x:1/part", "x:10")]
    change = notification("notifications/tools/list_changed")
    refusal = threading.Event()

    def send_messages(incoming: MemberRequest) -> None:
        incoming.stream(*map(event, [log("ann's secret"), question, *updates, change]))
        assert reply_to(incoming, "q1")["error"]["code"] == -32601
        refusal.set()
        incoming.hang()

    member = world.member(behaviours={"initialize": without_session, "*": lambda incoming: incoming.result({})})
    clients = [world.agent("/mcp/notes", make_token()).begin(elicitation={}) for _ in range(2)]
    for client, uri in zip(clients, ("x:1", "x:2"), strict=True):
        assert client.ask("resources/subscribe", uri=uri)["result"] == {}
    member.behaviours["GET"] = send_messages
    with clients[0].listen() as ann_stream, clients[1].listen() as bob_stream:
        assert [ann_stream.next(), ann_stream.next(), ann_stream.next()] == [*updates[:2], change]
        assert bob_stream.next() == change
        assert refusal.wait(5)
        assert len(ann_stream.all_messages + bob_stream.all_messages) == 4


def test_a_client_cannot_end_another_clients_subscription_at_a_member_without_sessions(world: World) -> None:
    member = world.member(behaviours={"initialize": without_session, "*": lambda incoming: incoming.result({})})
    ann, bob = (world.agent("/mcp/notes", make_token()).begin() for _ in range(2))
    for client in (ann, bob):
        assert client.ask("resources/subscribe", uri="x:1")["result"] == {}
    assert ann.ask("resources/unsubscribe", uri="x:1")["result"] == {}
    assert member.messages("resources/unsubscribe") == []


def ask_during_call(*methods: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Behaviours of a member that asks on its stream while a call waits for the replies, and the replies by method."""
    streams: dict[str, MemberRequest] = {}
    replies: dict[str, Any] = {}

    def listen(incoming: MemberRequest) -> None:
        incoming.stream()
        streams[incoming.headers["Mcp-Session-Id"]] = incoming
        incoming.hang()

    def call(incoming: MemberRequest) -> None:
        # The hall continues when it reads the head of the stream. The stream may not be in the map yet.
        eventually(lambda: incoming.headers["Mcp-Session-Id"] in streams)
        for method in methods:
            streams[incoming.headers["Mcp-Session-Id"]].send(event(request(f"q-{method}", method)))
            replies[method] = reply_to(incoming, f"q-{method}")
        incoming.result({"content": []})

    return {"GET": listen, "tools/call": call}, replies


def test_a_question_outside_calls_is_declined_at_once_if_no_client_can_answer(world: World) -> None:
    behaviours, replies = ask_during_call("roots/list", "ping")
    world.member(behaviours=behaviours)
    meta = {f"{META}clientCapabilities": {"roots": {}}}
    calls = [
        lambda: world.agent().begin().call("notes__echo"),  # this client cannot answer
        lambda: world.agent().begin(roots={}).call("notes__echo"),  # this client can answer, but reads no stream
        lambda: world.agent("/mcp/notes").begin().call("echo"),
        lambda: messages_of(world.agent().modern("tools/call", name="notes__echo", arguments={}, meta=meta))[-1],
    ]
    for call in calls:
        replies.clear()
        assert "result" in call()
        assert (replies["roots/list"]["error"]["code"], replies["ping"]["result"]) == (-32601, {})


@pytest.mark.parametrize(("path", "tool"), [("/mcp", "notes__echo"), ("/mcp/notes", "echo")])
def test_a_question_outside_calls_reaches_only_the_client_of_its_session(world: World, path: str, tool: str) -> None:
    behaviours, replies = ask_during_call("roots/list")
    world.member(behaviours=behaviours)
    other_client, client = world.agent(path).begin(roots={}), world.agent(path).begin(roots={})
    with other_client.listen() as other_stream, client.listen() as stream:
        with in_background(lambda: client.call(tool)) as responses:
            question = stream.until("roots/list")
            assert client.post(result(question["id"], roots=[{"uri": "file:///mine"}])).status_code == 202
        assert "result" in responses[0]
        assert "roots/list" not in [message.get("method") for message in other_stream.all_messages]
    assert replies["roots/list"]["result"] == {"roots": [{"uri": "file:///mine"}]}


def test_a_members_stream_closes_when_the_member_stops_or_the_client_session_ends(world: World) -> None:
    behaviours, _ = ask_during_call()
    member = world.member(behaviours=behaviours)
    session_ids: list[str] = []
    hang = behaviours["GET"]

    def listen(incoming: MemberRequest) -> None:
        incoming.sock.settimeout(None)
        threading.Thread(
            target=lambda: (incoming.sock.recv(1), session_ids.append(incoming.headers["Mcp-Session-Id"])), daemon=True
        ).start()
        hang(incoming)

    member.behaviours["GET"] = listen
    ann, bob = world.agent().begin(), world.agent().begin()
    for client in (ann, bob):
        client.call("notes__echo")
    assert ann.http.delete(ann.url, timeout=10).status_code == 204
    eventually(lambda: session_ids == ["s2"])
    member.live.stop_requested.set()
    world.gateway.member_changed(member.row.pk)
    eventually(lambda: session_ids == ["s2", "s3"])


def test_streams_above_the_limit_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STREAMS", 1)
    world.member()
    client = world.agent().begin()
    with client.listen():
        other_client = world.agent().begin()
        response = other_client.http.get(other_client.url, headers={"Accept": "text/event-stream"}, timeout=10)
        assert (response.status_code, response.headers["retry-after"]) == (503, "10")
        message, headers = client.modern_message("subscriptions/listen", notifications={})
        assert world.agent().post(message, **headers).status_code == 503


@pytest.mark.parametrize("bound", ["MAX_STREAMS_OF_TOKEN", "MAX_STREAMS_OF_USER"])
def test_one_client_leaves_streams_for_other_clients(world: World, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(limits, bound, 1)
    ann = User.objects.create_superuser("ann")
    first_token, second_token = make_token(ann), make_token(ann)
    bob_token = make_token(User.objects.create_superuser("bob"))

    def status(token: str) -> int:
        client = world.agent(token=token)
        message, headers = client.modern_message("subscriptions/listen", notifications={})
        with contextlib.closing(client.send_only(message, **headers)) as connection:
            return connection.getresponse().status

    with listen(world.agent(token=first_token)):
        assert status(first_token) == 503
        assert status(second_token) == (503 if bound == "MAX_STREAMS_OF_USER" else 200)
        assert status(bob_token) == 200


# Subscriptions ----------------------------------------------------------------------------------------------------


def test_updates_of_a_subscription_at_the_roster_have_the_listed_uri(world: World) -> None:
    updates = [event(notification(UPDATED, uri=uri)) for uri in ("x:1", "x:2")]

    def send_updates(incoming: MemberRequest) -> None:
        incoming.stream()
        while len(member.messages("resources/subscribe")) < 2 and not incoming.server.closing.wait(0.005):
            pass  # the client has subscribed, and its stream knows the member
        incoming.send(b"".join(updates))
        incoming.hang()

    member = world.member(
        behaviours={"GET": send_updates, "resources/subscribe": lambda incoming: incoming.result({})}, capabilities=ALL
    )
    client = world.agent().begin()
    with client.listen() as stream:
        assert member.messages("resources/subscribe") == []
        assert client.ask("resources/subscribe", uri="guild://notes/x:1")["result"] == {}
        assert stream.until(UPDATED)["params"] == {"uri": "guild://notes/x:1"}
        client.ask("resources/unsubscribe", uri="guild://notes/x:1")
    assert {message["params"]["uri"] for message in member.messages("resources/subscribe")} == {"x:1"}


@pytest.fixture
def closed_member_and_token(world: World) -> tuple[Any, str]:
    """A member, and a token that may not use it."""
    closed_member = world.member(
        "closed",
        {
            "GET": send_events(event(notification(UPDATED, uri="x:1")), event(log("secret"))),
            "*": lambda incoming: incoming.result({}),
        },
        capabilities=ALL,
    )
    world.member("open")
    return closed_member, make_token(scope=Token.Scope.MEMBERS, members=[GuildMember.objects.get(name="open")])


def test_a_client_gets_no_notifications_of_a_member_that_it_may_not_use(
    world: World, closed_member_and_token: tuple[Any, str]
) -> None:
    closed_member, token = closed_member_and_token
    client = world.agent(token=token).begin()
    with (
        client.listen() as session_stream,
        listen(world.agent(token=token), resourceSubscriptions=["guild://closed/x:1"]) as modern_stream,
    ):
        error = client.ask("resources/subscribe", uri="guild://closed/x:1")["error"]
        assert error["code"] == -32002
        assert modern_stream.next()["method"] == "notifications/subscriptions/acknowledged"
        Tool.objects.filter(member__name="open").update(enabled=False)
        world.gateway.member_changed(closed_member.row.pk)
        assert session_stream.next()["method"] == "notifications/tools/list_changed"
        assert modern_stream.is_empty
    assert [request for request in closed_member.requests if not request.body] == []
    assert closed_member.messages("resources/subscribe") == []


def test_a_subscription_ends_when_its_token_loses_the_member(world: World) -> None:
    closed_member = world.member(
        "closed", {"GET": send_events(), "resources/subscribe": lambda incoming: incoming.result({})}, capabilities=ALL
    )
    world.member("open")
    rows = list(GuildMember.objects.all())
    token = make_token(scope=Token.Scope.MEMBERS, members=rows)
    client = world.agent(token=token).begin()
    with client.listen() as client_stream:
        client.ask("resources/subscribe", uri="guild://closed/x:1")
        member_stream = eventually(
            lambda: next((request for request in closed_member.requests if not request.body), None)
        )
        row = Token.objects.get(digest=Token.digest_of(token))
        row.members.remove(closed_member.row)
        Hall.objects.get_or_create(pk=1)
        Hall.note_access_change()
        assert client_stream.until("notifications/tools/list_changed")

        def is_closed() -> bool:
            try:
                member_stream.send(b":\n\n")  # type: ignore[attr-defined]
            except OSError:
                return True
            return False

        eventually(is_closed)


def test_a_slow_client_gets_no_notification_after_its_token_is_revoked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.agent().begin().listen() as client_stream:
        streams, loop = world.gateway.client_streams, world.gateway.loop
        (stream,) = eventually(lambda: streams.open_streams)

        async def refuse(authorization: bytes | None) -> Principal:
            raise TokenError("revoked")

        monkeypatch.setattr(streams, "principal_of", refuse)

        async def revoke() -> None:
            stream.put(log("not read"))
            await streams.access_changed()
            stream.put(log("later"))

        asyncio.run_coroutine_threadsafe(revoke(), loop).result(10)
        eventually(client_stream.ended.is_set)
        assert client_stream.all_messages == []


def test_rights_that_were_read_before_a_change_do_not_replace_those_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.member("open")
    with world.agent().begin().listen():
        streams, loop = world.gateway.client_streams, world.gateway.loop
        (stream,) = eventually(lambda: streams.open_streams)
        old, new = replace(stream.client.principal), replace(stream.client.principal, name="new")

        async def change_twice() -> None:
            first, reads = asyncio.Event(), iter((old, new))

            async def read(authorization: bytes | None) -> Principal:
                principal = next(reads)
                if principal is old:
                    await first.wait()
                return principal

            monkeypatch.setattr(streams, "principal_of", read)
            slow = asyncio.ensure_future(streams.access_changed())
            await asyncio.sleep(0)
            await streams.access_changed()
            first.set()
            await slow

        asyncio.run_coroutine_threadsafe(change_twice(), loop).result(10)
        assert stream.client.principal is new


def test_a_stream_whose_token_is_revoked_while_it_is_opened_is_not_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.agent().begin()
    streams = world.gateway.client_streams

    async def refuse(authorization: bytes | None) -> Principal:
        raise TokenError("revoked")

    monkeypatch.setattr(streams, "principal_of", refuse)
    with agent.http.get(agent.url, headers={"Accept": "text/event-stream"}, stream=True, timeout=10) as response:
        assert response.status_code == 403
    assert streams.open_streams == set()


def test_a_modern_client_gets_only_the_notifications_that_it_requested(world: World) -> None:
    changes = [notification("notifications/tools/list_changed"), notification("notifications/prompts/list_changed")]
    updates = [notification(UPDATED, uri="x:1", _meta={"a": 1}), notification(UPDATED, uri="x:2")]

    def send_messages(incoming: MemberRequest) -> None:
        ack = notification("notifications/subscriptions/acknowledged", _meta={f"{META}subscriptionId": incoming.id})
        incoming.stream(*map(event, [ack, *changes, *updates, log("no")]))
        incoming.hang()

    member = world.member(behaviours={**MODERN, "subscriptions/listen": send_messages}, capabilities=ALL)
    with listen(
        world.agent("/mcp/notes"), toolsListChanged=True, promptsListChanged=False, resourceSubscriptions=["x:1"]
    ) as stream:
        tag = {f"{META}subscriptionId": 1}
        first = stream.next()
        assert first["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}
        assert [first["params"]["_meta"], stream.next()] == [tag, {**changes[0], "params": {"_meta": tag}}]
        assert stream.next()["params"] == {"uri": "x:1", "_meta": {"a": 1, **tag}}
        assert stream.is_empty
    notifications = member.messages("subscriptions/listen")[0]["params"]["notifications"]
    assert notifications == {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}


def test_a_modern_client_at_the_roster_gets_resource_updates_of_members_of_both_eras(world: World) -> None:
    update = event(notification(UPDATED, uri="x:1"))
    member = world.member(
        "old",
        {"GET": send_events(update), "resources/subscribe": lambda incoming: incoming.result({})},
        capabilities=ALL,
    )
    world.member("new", {**MODERN, "subscriptions/listen": send_events(update)}, capabilities=ALL)
    uris = ["guild://old/x:1", "guild://new/x:1", 7]
    with listen(world.agent(), resourceSubscriptions=uris) as stream:
        assert stream.next()["params"]["notifications"] == {}  # a list that contains a non-string is ignored
    with listen(world.agent(), resourceSubscriptions=uris[:2]) as stream:
        assert stream.next()["params"]["notifications"] == {"resourceSubscriptions": uris[:2]}
        assert {stream.until(UPDATED)["params"]["uri"] for _ in range(2)} == set(uris[:2])
    assert member.messages("resources/subscribe")[0]["params"] == {"uri": "x:1"}


class Resolutions:
    """The number of lookups of URIs on the roster, and the most of them in one turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most_at_once = self._in_turn = 0
        self._resource = Roster.resource
        monkeypatch.setattr(Roster, "resource", lambda *args: self._count(*args))

    def _count(self, *args: Any) -> tuple[str, str] | None:
        if not self._in_turn:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self.count += 1
        self._in_turn += 1
        self.most_at_once = max(self.most_at_once, self._in_turn)
        return self._resource(*args)

    def _begin_turn(self) -> None:
        self._in_turn = 0


def test_the_resources_of_a_stream_are_resolved_once_and_without_blocking_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = event(notification(UPDATED, uri="x:1"))
    member = world.member("notes", {**MODERN, "subscriptions/listen": send_events(*[update] * 5)}, capabilities=ALL)
    client = world.agent()
    resolutions = Resolutions(monkeypatch)
    uris = [f"guild://notes/x:{number}" for number in range(100)]
    with listen(client, resourceSubscriptions=uris) as stream:
        for _ in range(5):
            assert stream.until(UPDATED)["params"]["uri"] == "guild://notes/x:1"
        assert (resolutions.count, resolutions.most_at_once) == (100, client_streams.RESOLVED_AT_ONCE)
        GuildMember.objects.filter(pk=member.row.pk).update(enabled=False)
        world.gateway.member_changed(member.row.pk)
        eventually(lambda: resolutions.count == 200)  # a new roster resolves them again


def test_a_listening_client_is_notified_when_the_gateway_stops(world: World) -> None:
    world.member(behaviours={**MODERN, "subscriptions/listen": lambda incoming: incoming.http(500)})
    with listen(world.agent("/mcp/notes"), toolsListChanged=True) as stream:
        assert stream.next()["method"] == "notifications/subscriptions/acknowledged"
        world.gateway.stop()
        assert stream.until("")["result"]["resultType"] == "complete"


def test_a_stream_that_nobody_reads_ends_and_other_streams_continue(world: World) -> None:
    world.max_bytes = 8_000_000
    events = [event(log(f"{number} {'x' * 150_000}")) for number in range(100)]
    world.member(behaviours={"GET": send_events(*events)})
    reader, slow_client = (world.agent("/mcp/notes", token=make_token()).begin() for _ in range(2))
    with socket.socket() as slow_socket:
        slow_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow_socket.connect(("127.0.0.1", world.gateway_port))
        head = ["GET /mcp/notes HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream"]
        head += [f"{name}: {slow_client.http.headers[name]}" for name in ("Authorization", "Mcp-Session-Id")]
        slow_socket.sendall("\r\n".join([*head, "", ""]).encode())
        with reader.listen() as stream:
            assert [stream.next()["params"]["data"].split()[0] for _ in range(100)] == [str(n) for n in range(100)]
            eventually(lambda: len(world.gateway.client_streams.open_streams) == 1)
            assert not stream.ended.is_set()
        slow_socket.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            while slow_socket.recv(1_000_000):
                pass
    assert world.agent("/mcp/notes").begin().text("echo") == "{}"


@pytest.mark.parametrize(
    ("uris", "count"),
    [(["x:" + "y" * 998] * 101, 100), ([f"x:{n}" for n in range(1_001)], 1_000), (["x" * 100_001], 0)],
)
def test_a_stream_acknowledges_only_subscriptions_within_its_limits(world: World, uris: list[str], count: int) -> None:
    world.member(behaviours=MODERN)
    with listen(world.agent("/mcp/notes"), resourceSubscriptions=uris) as stream:
        first = stream.next()
        assert first["params"]["notifications"] == {"resourceSubscriptions": uris[:count]}


def test_a_member_cannot_answer_a_call_to_another_member_on_its_stream(world: World) -> None:
    """Ids count up, so a member can guess the id of a request to another member."""
    victim_id: list[str] = []
    may_forge, may_end = threading.Event(), threading.Event()

    def respond_slowly(incoming: MemberRequest) -> None:
        victim_id.append(incoming.id)
        incoming.stream(event(notification("notifications/progress", progressToken=1, progress=1), "1"))
        may_forge.set()
        may_end.wait(10)
        incoming.send(event(result(incoming.id, **text("from the one that was asked")), "2"))
        incoming.hang_up()

    def forge(incoming: MemberRequest) -> None:
        incoming.stream(event(log("begin"), "9"))
        may_forge.wait(10)
        incoming.send(event(result(victim_id[0], **text("forged")), "10") + event(log("end"), "11"))
        incoming.hang()

    world.member("asked", {"tools/call": respond_slowly})
    world.member("forger", {"GET": forge})
    client = world.agent().begin()
    assert client.text("forger__echo") == "{}"  # the client has a session with each member
    with client.stream(request(7, "tools/call", name="asked__echo", arguments={})) as call:
        assert call.next()["method"] == "notifications/progress"
        client.http.headers["Last-Event-ID"] = "forger/9"
        with client.listen() as stream:
            stream.until("notifications/message")
            messages = [stream.next()]
            while messages[-1].get("params", {}).get("data") != "end":
                messages.append(stream.next())
        assert "forged" not in str(messages)
        may_end.set()
        assert call.next() == result(7, **text("from the one that was asked"))


def test_all_streams_of_a_member_share_one_limit_in_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway buffers an event until the event ends. A member has as many streams as sessions."""
    budget = limits.ByteBudget(of_token=150_000, of_user=250_000, in_all=400_000)
    monkeypatch.setattr(limits, "bytes_of_members", lambda: budget)
    streams: list[MemberRequest] = []

    def drip(incoming: MemberRequest) -> None:
        streams.append(incoming)
        incoming.stream(b"data: " + b"x" * 120_000)
        incoming.hang()

    for module in (client_streams, upstream_listeners):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 60.0)
    world.member("greedy", {"GET": drip})
    world.member("modest", {"GET": send_events(event(log("heard")))})
    clients = [world.agent("/mcp/greedy", make_token()).begin() for _ in range(3)]
    for number, client in enumerate(clients):
        client.text("echo")  # which opens the stream of its session
        eventually(lambda most=number: len(streams) > most)
    eventually(lambda: sum(is_closed(stream) for stream in streams) == 1)
    with world.agent("/mcp/modest").begin().listen() as client_stream:
        assert client_stream.until("notifications/message")["params"]["data"] == "heard"
    assert [is_closed(stream) for stream in streams] == [False, False, True]


def is_closed(incoming: MemberRequest) -> bool:
    """Whether the hall has closed the stream, and the scripted member noticed it."""
    return incoming.sock.fileno() < 0


def test_a_stream_frees_the_memory_of_messages_that_it_forwarded(world: World) -> None:
    streams: list[MemberRequest] = []

    def send_message(incoming: MemberRequest) -> None:
        streams.append(incoming)
        incoming.stream(event(log("y" * 150_000)))
        incoming.hang()

    world.member(behaviours={"GET": send_message})
    first = world.agent("/mcp/notes").begin()
    first.text("echo")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            world.agent("/mcp/notes").begin().text("echo")
        eventually(lambda: len(streams) == 21)
        eventually(lambda: tracemalloc.get_traced_memory()[0] - before < 1_500_000)
    finally:
        tracemalloc.stop()


def test_the_tokens_of_one_user_leave_streams_of_members_for_other_users(
    world: World, monkeypatch: pytest.MonkeyPatch, django_user_model: type[User]
) -> None:
    monkeypatch.setattr(limits, "MAX_STREAMS", 2)  # and twice as many streams of members
    monkeypatch.setattr(limits, "MAX_STREAMS_OF_USER", 3)
    streams: list[MemberRequest] = []

    def keep_open(incoming: MemberRequest) -> None:
        streams.append(incoming)
        incoming.stream()
        incoming.hang()

    world.member(behaviours={"GET": keep_open})
    user, other_user = (django_user_model.objects.create_superuser(name) for name in ("one", "other"))
    for number in range(5):
        world.agent("/mcp/notes", make_token(user)).begin().text("echo")
        eventually(lambda most=number: len(streams) > most)
    eventually(lambda: [is_closed(stream) for stream in streams] == [True, True, False, False, False])
    world.agent("/mcp/notes", make_token(other_user)).begin().text("echo")
    eventually(lambda: len(streams) == 6)
    assert [is_closed(stream) for stream in streams] == [True, True, False, False, False, False]
