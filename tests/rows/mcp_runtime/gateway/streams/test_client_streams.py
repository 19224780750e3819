"""What comes unasked: what members say, what changes on the roster, to whom it is told and to whom never."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import tracemalloc
from typing import Any

import pytest
from django.contrib.auth.models import User

from mcp_runtime.gateway.catalog import Roster
from mcp_runtime.gateway.streams import client_streams, upstream_listeners
from mcp_runtime.security import limits
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
from tests.support.scripted_server import Request as Asked
from tests.support.scripted_server import initialize_result

UPDATED = "notifications/resources/updated"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client_streams, upstream_listeners):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)


def saying(*events: bytes) -> Any:
    """A stream that stays open behind these events."""

    def behave(asked: Asked) -> None:
        asked.stream(*events)
        asked.hang()

    return behave


def without_session(asked: Asked) -> None:
    asked.result(initialize_result(asked.message["params"]["protocolVersion"]))


def listen(agent: GatewayClient, **wanted: Any) -> MessageStream:
    message, headers = agent.modern_message("subscriptions/listen", notifications=wanted)
    return agent.stream(message, **headers)


def log(said: Any) -> dict[str, Any]:
    return notification("notifications/message", level="info", data=said)


def test_what_a_member_says_passes_at_its_own_path(world: World) -> None:
    changed = notification("notifications/tools/list_changed")
    world.member(behaviours={"GET": saying(event(log(1)), event(changed), event(log(2)))})
    with world.agent("/mcp/notes").begin().listen() as heard:
        assert [heard.next() for _ in range(3)] == [log(1), changed, log(2)]


def test_an_invalid_message_of_a_member_does_not_end_the_stream(world: World) -> None:
    bad = [
        {"jsonrpc": "2.0", "method": UPDATED, "params": [1]},
        {"jsonrpc": "2.0", "method": ["x"], "id": 1},
        {"jsonrpc": "2.0", "method": "notifications/message", "params": 7},
        [1],
        7,
    ]
    odd = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"_meta": 1}}
    world.member(behaviours={"GET": saying(*map(event, bad), event(odd), event(log("good")))})
    with world.agent("/mcp/notes").begin().listen() as heard:
        assert [heard.next(), heard.next()] == [odd, log("good")]


def test_a_members_stream_that_ends_is_opened_again(world: World) -> None:
    def end(asked: Asked) -> None:
        count = len([one for one in asked.server.requests if not one.body])
        asked.stream(event(log(count)))
        asked.hang_up()

    world.member(behaviours={"GET": end})
    with world.agent("/mcp/notes").begin().listen() as heard:
        logs = []
        while len(logs) < 3:
            message = heard.next()
            logs += [message["params"]["data"]] if message["method"] == "notifications/message" else []
    assert logs == [1, 2, 3]


def test_a_member_without_a_stream_is_asked_for_it_once_a_process(world: World) -> None:
    member = world.member()
    gets = lambda: len([one for one in member.requests if not one.body])  # noqa: E731
    with world.agent("/mcp/notes").begin().listen() as heard:
        eventually(lambda: gets() == 1)
        world.gateway.member_changed(member.row.pk)
        world.live.pop(member.row.pk)
        world.gateway.member_changed(member.row.pk)
        member.behaviours["GET"] = saying(event(log("new")))
        world.live[member.row.pk] = member.restart()
        world.gateway.member_changed(member.row.pk)
        heard.until("notifications/resources/list_changed")  # whatever it was, it is another process now
        assert heard.until("notifications/message") == log("new")
    assert gets() == 2


def test_a_list_from_memory_that_the_member_replaces_is_announced(world: World) -> None:
    shown = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "for_clients_that_can_be_asked")]
    member = world.member(behaviours={"tools/list": lambda asked: asked.result({"tools": shown})})
    live = world.live.pop(member.row.pk)
    agent = world.agent("/mcp/notes").begin(sampling={})
    with agent.listen() as old, listen(world.agent("/mcp/notes"), toolsListChanged=True) as new:
        assert agent.tools() == ["echo"]
        world.live[member.row.pk] = live
        world.gateway.member_changed(member.row.pk)
        assert old.until("notifications/tools/list_changed")
        assert new.until("notifications/tools/list_changed")
        assert agent.tools() == ["echo", "for_clients_that_can_be_asked"]


def test_changed_resource_templates_are_announced_as_changed_resources(world: World) -> None:
    templates: list[dict[str, Any]] = []
    lists = {
        "resources/list": lambda asked: asked.result({"resources": []}),
        "resources/templates/list": lambda asked: asked.result({"resourceTemplates": templates}),
        "prompts/list": lambda asked: asked.result({"prompts": []}),
    }
    member = world.member(behaviours=lists, capabilities=ALL)
    with world.agent().begin().listen() as heard:
        world.gateway.lists_changed(member.row.pk)
        eventually(lambda: member.messages("resources/templates/list"))
        templates.append({"uriTemplate": "x:{id}", "name": "x"})
        world.gateway.lists_changed(member.row.pk)
        assert heard.next() == {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}


def test_a_change_of_the_roster_is_announced_to_clients_whose_lists_change(world: World) -> None:
    member, _ = world.member("notes"), world.member("other")
    narrow = make_token(scope=Token.Scope.MEMBERS, members=[GuildMember.objects.get(name="other")])
    with world.agent().begin().listen() as everyone, world.agent(token=narrow).begin().listen() as others:
        assert world.agent(token=narrow).begin().tools() == ["other__echo"]
        Tool.objects.filter(member=member.row).update(enabled=False)
        world.gateway.member_changed(member.row.pk)
        assert everyone.next() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        Tool.objects.filter(member__name="other").update(enabled=False)
        world.gateway.member_changed(member.row.pk)
        assert others.next()["method"] == "notifications/tools/list_changed"
        assert others._messages.empty()


def test_a_session_has_one_stream_and_the_new_one_ends_the_old(world: World) -> None:
    world.member()
    agent = world.agent().begin()
    with agent.listen() as first, agent.listen() as second:
        assert first.ended.wait(5)
        assert not second.ended.is_set()


def test_a_question_on_a_members_stream_is_asked_or_declined(world: World) -> None:
    replies: list[dict[str, Any]] = []
    told = threading.Event()

    def ask(asked: Asked) -> None:
        asked.stream(event(request("q1", "elicitation/create", message="?")), event(request("q2", "roots/list")))
        asked.send(event({"jsonrpc": "2.0", "id": "q3", "method": "ping"}))
        replies.extend(reply_to(asked, question) for question in ("q1", "q2", "q3"))
        told.set()
        asked.hang()

    world.member(behaviours={"GET": ask})
    agent = world.agent("/mcp/notes").begin(elicitation={})
    with agent.listen() as heard:
        question = heard.until("elicitation/create")
        assert agent.post(result(question["id"], action="cancel")).status_code == 202
        assert told.wait(5)
    assert replies[0]["result"] == {"action": "cancel"}
    assert replies[1]["error"]["code"] == -32601
    assert replies[2]["result"] == {}


def test_a_member_without_sessions_tells_each_client_no_more_than_is_known_to_be_for_it(world: World) -> None:
    question = request("q1", "elicitation/create", message="Is ann's secret right?")
    updates = [notification(UPDATED, uri=uri) for uri in ("x:1", "x:1/part", "x:10")]
    changed = notification("notifications/tools/list_changed")
    declined = threading.Event()

    def say(asked: Asked) -> None:
        asked.stream(*map(event, [log("ann's secret"), question, *updates, changed]))
        assert reply_to(asked, "q1")["error"]["code"] == -32601
        declined.set()
        asked.hang()

    member = world.member(behaviours={"initialize": without_session, "*": lambda asked: asked.result({})})
    clients = [world.agent("/mcp/notes", make_token()).begin(elicitation={}) for _ in range(2)]
    for client, uri in zip(clients, ("x:1", "x:2"), strict=True):
        assert client.ask("resources/subscribe", uri=uri)["result"] == {}
    member.behaviours["GET"] = say
    with clients[0].listen() as anns, clients[1].listen() as bobs:
        assert [anns.next(), anns.next(), anns.next()] == [*updates[:2], changed]
        assert bobs.next() == changed
        assert declined.wait(5)
        assert len(anns.all_messages + bobs.all_messages) == 4


def test_a_client_of_a_member_without_sessions_ends_nobody_elses_subscription(world: World) -> None:
    member = world.member(behaviours={"initialize": without_session, "*": lambda asked: asked.result({})})
    ann, bob = (world.agent("/mcp/notes", make_token()).begin() for _ in range(2))
    for client in (ann, bob):
        assert client.ask("resources/subscribe", uri="x:1")["result"] == {}
    assert ann.ask("resources/unsubscribe", uri="x:1")["result"] == {}
    assert member.messages("resources/unsubscribe") == []


def asking(*methods: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Behaviours of a member that asks on its stream while a call waits for the answers; and what was answered."""
    streams: dict[str, Asked] = {}
    answers: dict[str, Any] = {}

    def listen(asked: Asked) -> None:
        asked.stream()
        streams[asked.headers["Mcp-Session-Id"]] = asked
        asked.hang()

    def call(asked: Asked) -> None:
        # The hall goes on when it sees the head of the stream, which may be sooner than the line behind it.
        eventually(lambda: asked.headers["Mcp-Session-Id"] in streams)
        for method in methods:
            streams[asked.headers["Mcp-Session-Id"]].send(event(request(f"q-{method}", method)))
            answers[method] = reply_to(asked, f"q-{method}")
        asked.result({"content": []})

    return {"GET": listen, "tools/call": call}, answers


def test_what_a_member_asks_outside_its_calls_is_declined_at_once_where_nobody_can_be_asked(world: World) -> None:
    behaviours, answers = asking("roots/list", "ping")
    world.member(behaviours=behaviours)
    able = {f"{META}clientCapabilities": {"roots": {}}}
    calls = [
        lambda: world.agent().begin().call("notes__echo"),  # it cannot answer
        lambda: world.agent().begin(roots={}).call("notes__echo"),  # it can, and reads no stream
        lambda: world.agent("/mcp/notes").begin().call("echo"),
        lambda: messages_of(world.agent().modern("tools/call", name="notes__echo", arguments={}, meta=able))[-1],
    ]
    for call in calls:
        answers.clear()
        assert "result" in call()
        assert (answers["roots/list"]["error"]["code"], answers["ping"]["result"]) == (-32601, {})


@pytest.mark.parametrize(("path", "tool"), [("/mcp", "notes__echo"), ("/mcp/notes", "echo")])
def test_what_a_member_asks_outside_its_calls_is_answered_by_the_client_that_can(
    world: World, path: str, tool: str
) -> None:
    behaviours, answers = asking("roots/list")
    world.member(behaviours=behaviours)
    other, agent = world.agent(path).begin(roots={}), world.agent(path).begin(roots={})
    with other.listen() as others, agent.listen() as heard:
        with in_background(lambda: agent.call(tool)) as said:
            question = heard.until("roots/list")
            assert agent.post(result(question["id"], roots=[{"uri": "file:///mine"}])).status_code == 202
        assert "result" in said[0]
        assert "roots/list" not in [message.get("method") for message in others.all_messages]
    assert answers["roots/list"]["result"] == {"roots": [{"uri": "file:///mine"}]}


def test_a_members_stream_is_closed_when_the_member_is_stopped_and_when_its_client_is_gone(world: World) -> None:
    behaviours, _ = asking()
    member = world.member(behaviours=behaviours)
    closed: list[str] = []
    hang = behaviours["GET"]

    def listen(asked: Asked) -> None:
        asked.sock.settimeout(None)
        threading.Thread(
            target=lambda: (asked.sock.recv(1), closed.append(asked.headers["Mcp-Session-Id"])), daemon=True
        ).start()
        hang(asked)

    member.behaviours["GET"] = listen
    ann, bob = world.agent().begin(), world.agent().begin()
    for agent in (ann, bob):
        agent.call("notes__echo")
    assert ann.http.delete(ann.url, timeout=10).status_code == 204
    eventually(lambda: closed == ["s2"])
    member.live.stop_requested.set()
    world.gateway.member_changed(member.row.pk)
    eventually(lambda: closed == ["s2", "s3"])


def test_more_streams_than_there_is_room_for_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STREAMS", 1)
    world.member()
    agent = world.agent().begin()
    with agent.listen():
        other = world.agent().begin()
        refused = other.http.get(other.url, headers={"Accept": "text/event-stream"}, timeout=10)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        message, headers = agent.modern_message("subscriptions/listen", notifications={})
        assert world.agent().post(message, **headers).status_code == 503


@pytest.mark.parametrize("bound", ["MAX_STREAMS_OF_TOKEN", "MAX_STREAMS_OF_USER"])
def test_one_caller_leaves_streams_for_others(world: World, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(limits, bound, 1)
    ann = User.objects.create_superuser("ann")
    first, second, bob = make_token(ann), make_token(ann), make_token(User.objects.create_superuser("bob"))

    def status(token: str) -> int:
        agent = world.agent(token=token)
        message, headers = agent.modern_message("subscriptions/listen", notifications={})
        with contextlib.closing(agent.send_only(message, **headers)) as connection:
            return connection.getresponse().status

    with listen(world.agent(token=first)):
        assert status(first) == 503
        assert status(second) == (503 if bound == "MAX_STREAMS_OF_USER" else 200)
        assert status(bob) == 200


# Subscriptions ----------------------------------------------------------------------------------------------------


def test_updates_of_a_subscription_at_the_roster_have_the_listed_name(world: World) -> None:
    updates = [event(notification(UPDATED, uri=uri)) for uri in ("x:1", "x:2")]

    def say(asked: Asked) -> None:
        asked.stream()
        while len(member.messages("resources/subscribe")) < 2 and not asked.server.closing.wait(0.005):
            pass  # the client has subscribed, and its stream is told of the member
        asked.send(b"".join(updates))
        asked.hang()

    member = world.member(
        behaviours={"GET": say, "resources/subscribe": lambda asked: asked.result({})}, capabilities=ALL
    )
    agent = world.agent().begin()
    with agent.listen() as heard:
        assert member.messages("resources/subscribe") == []
        assert agent.ask("resources/subscribe", uri="guild://notes/x:1")["result"] == {}
        assert heard.until(UPDATED)["params"] == {"uri": "guild://notes/x:1"}
        agent.ask("resources/unsubscribe", uri="guild://notes/x:1")
    assert {message["params"]["uri"] for message in member.messages("resources/subscribe")} == {"x:1"}


@pytest.fixture
def narrowed(world: World) -> tuple[Any, str]:
    """A member, and a token that does not reach it."""
    closed = world.member(
        "closed",
        {"GET": saying(event(notification(UPDATED, uri="x:1")), event(log("secret"))), "*": lambda a: a.result({})},
        capabilities=ALL,
    )
    world.member("open")
    return closed, make_token(scope=Token.Scope.MEMBERS, members=[GuildMember.objects.get(name="open")])


def test_nobody_gets_notifications_of_a_member_that_is_not_for_them(world: World, narrowed: tuple[Any, str]) -> None:
    closed, token = narrowed
    agent = world.agent(token=token).begin()
    with (
        agent.listen() as old,
        listen(world.agent(token=token), resourceSubscriptions=["guild://closed/x:1"]) as new,
    ):
        refused = agent.ask("resources/subscribe", uri="guild://closed/x:1")["error"]
        assert refused["code"] == -32002
        assert new.next()["method"] == "notifications/subscriptions/acknowledged"
        Tool.objects.filter(member__name="open").update(enabled=False)
        world.gateway.member_changed(closed.row.pk)
        assert old.next()["method"] == "notifications/tools/list_changed"
        assert new._messages.empty()
    assert [one for one in closed.requests if not one.body] == []
    assert closed.messages("resources/subscribe") == []


def test_a_subscription_ends_with_the_right_to_it(world: World) -> None:
    closed = world.member("closed", {"GET": saying(), "resources/subscribe": lambda a: a.result({})}, capabilities=ALL)
    world.member("open")
    rows = list(GuildMember.objects.all())
    token = make_token(scope=Token.Scope.MEMBERS, members=rows)
    agent = world.agent(token=token).begin()
    with agent.listen() as heard:
        agent.ask("resources/subscribe", uri="guild://closed/x:1")
        stream = eventually(lambda: next((one for one in closed.requests if not one.body), None))
        row = Token.objects.get(digest=Token.digest_of(token))
        row.members.remove(closed.row)
        Hall.objects.get_or_create(pk=1)
        Hall.note_access_change()
        assert heard.until("notifications/tools/list_changed")

        def is_closed() -> bool:
            try:
                stream.send(b":\n\n")  # type: ignore[attr-defined]
            except OSError:
                return True
            return False

        eventually(is_closed)


def test_a_modern_client_gets_only_the_notifications_that_it_requested(world: World) -> None:
    told = [notification("notifications/tools/list_changed"), notification("notifications/prompts/list_changed")]
    updates = [notification(UPDATED, uri="x:1", _meta={"a": 1}), notification(UPDATED, uri="x:2")]

    def heard_by(asked: Asked) -> None:
        ack = notification("notifications/subscriptions/acknowledged", _meta={f"{META}subscriptionId": asked.id})
        asked.stream(*map(event, [ack, *told, *updates, log("no")]))
        asked.hang()

    member = world.member(behaviours={**MODERN, "subscriptions/listen": heard_by}, capabilities=ALL)
    with listen(
        world.agent("/mcp/notes"), toolsListChanged=True, promptsListChanged=False, resourceSubscriptions=["x:1"]
    ) as heard:
        tag = {f"{META}subscriptionId": 1}
        first = heard.next()
        assert first["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}
        assert [first["params"]["_meta"], heard.next()] == [tag, {**told[0], "params": {"_meta": tag}}]
        assert heard.next()["params"] == {"uri": "x:1", "_meta": {"a": 1, **tag}}
        assert heard._messages.empty()
    wanted = member.messages("subscriptions/listen")[0]["params"]["notifications"]
    assert wanted == {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}


def test_a_modern_caller_at_the_roster_hears_of_resources_of_every_kind_of_member(world: World) -> None:
    update = event(notification(UPDATED, uri="x:1"))
    member = world.member(
        "old", {"GET": saying(update), "resources/subscribe": lambda a: a.result({})}, capabilities=ALL
    )
    world.member("new", {**MODERN, "subscriptions/listen": saying(update)}, capabilities=ALL)
    uris = ["guild://old/x:1", "guild://new/x:1", 7]
    with listen(world.agent(), resourceSubscriptions=uris) as heard:
        assert heard.next()["params"]["notifications"] == {}  # a list of something else than text is none
    with listen(world.agent(), resourceSubscriptions=uris[:2]) as heard:
        assert heard.next()["params"]["notifications"] == {"resourceSubscriptions": uris[:2]}
        assert {heard.until(UPDATED)["params"]["uri"] for _ in range(2)} == set(uris[:2])
    assert member.messages("resources/subscribe")[0]["params"] == {"uri": "x:1"}


class Resolutions:
    """How often a URI was looked for on the roster, and how often at most before the loop had another turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most_at_once = self._now = 0
        self._look = Roster.resource
        monkeypatch.setattr(Roster, "resource", lambda *args: self._counted(*args))

    def _counted(self, *args: Any) -> tuple[str, str] | None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._begin_anew)
        self.count += 1
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        return self._look(*args)

    def _begin_anew(self) -> None:
        self._now = 0


def test_the_resources_of_a_stream_are_looked_for_once_and_calls_go_on_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = event(notification(UPDATED, uri="x:1"))
    member = world.member("notes", {**MODERN, "subscriptions/listen": saying(*[update] * 5)}, capabilities=ALL)
    agent = world.agent()
    resolutions = Resolutions(monkeypatch)
    uris = [f"guild://notes/x:{number}" for number in range(100)]
    with listen(agent, resourceSubscriptions=uris) as heard:
        for _ in range(5):
            assert heard.until(UPDATED)["params"]["uri"] == "guild://notes/x:1"
        assert (resolutions.count, resolutions.most_at_once) == (100, client_streams.RESOLVED_AT_ONCE)
        GuildMember.objects.filter(pk=member.row.pk).update(enabled=False)
        world.gateway.member_changed(member.row.pk)
        eventually(lambda: resolutions.count == 200)  # another roster has others


def test_a_listening_client_is_notified_when_the_gateway_ends(world: World) -> None:
    world.member(behaviours={**MODERN, "subscriptions/listen": lambda asked: asked.http(500)})
    with listen(world.agent("/mcp/notes"), toolsListChanged=True) as heard:
        assert heard.next()["method"] == "notifications/subscriptions/acknowledged"
        world.gateway.stop()
        assert heard.until("")["result"]["resultType"] == "complete"


def test_a_stream_that_nobody_reads_is_ended_and_those_that_are_read_go_on(world: World) -> None:
    world.max_bytes = 8_000_000
    large = [event(log(f"{number} {'x' * 150_000}")) for number in range(100)]
    world.member(behaviours={"GET": saying(*large)})
    reader, sleeper = (world.agent("/mcp/notes", token=make_token()).begin() for _ in range(2))
    with socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(("127.0.0.1", world.gateway_port))
        head = ["GET /mcp/notes HTTP/1.1", "Host: 127.0.0.1", "Accept: text/event-stream"]
        head += [f"{name}: {sleeper.http.headers[name]}" for name in ("Authorization", "Mcp-Session-Id")]
        unread.sendall("\r\n".join([*head, "", ""]).encode())
        with reader.listen() as heard:
            assert [heard.next()["params"]["data"].split()[0] for _ in range(100)] == [str(n) for n in range(100)]
            eventually(lambda: len(world.gateway._client_streams._open_streams) == 1)
            assert not heard.ended.is_set()
        unread.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            while unread.recv(1_000_000):
                pass
    assert world.agent("/mcp/notes").begin().text("echo") == "{}"


@pytest.mark.parametrize(
    ("uris", "count"),
    [(["x:" + "y" * 998] * 101, 100), ([f"x:{n}" for n in range(1_001)], 1_000), (["x" * 100_001], 0)],
)
def test_a_stream_is_subscribed_to_so_much_and_says_to_what(world: World, uris: list[str], count: int) -> None:
    world.member(behaviours=MODERN)
    with listen(world.agent("/mcp/notes"), resourceSubscriptions=uris) as heard:
        first = heard.next()
        assert first["params"]["notifications"] == {"resourceSubscriptions": uris[:count]}


def test_a_member_cannot_answer_a_call_to_another_member_on_its_stream(world: World) -> None:
    """Ids count up, so a member can guess the one that was sent to its neighbour."""
    victim_id: list[str] = []
    may_forge, may_end = threading.Event(), threading.Event()

    def slow(asked: Asked) -> None:
        victim_id.append(asked.id)
        asked.stream(event(notification("notifications/progress", progressToken=1, progress=1), "1"))
        may_forge.set()
        may_end.wait(10)
        asked.send(event(result(asked.id, **text("from the one that was asked")), "2"))
        asked.hang_up()

    def forge(asked: Asked) -> None:
        asked.stream(event(log("begin"), "9"))
        may_forge.wait(10)
        asked.send(event(result(victim_id[0], **text("forged")), "10") + event(log("end"), "11"))
        asked.hang()

    world.member("asked", {"tools/call": slow})
    world.member("forger", {"GET": forge})
    agent = world.agent().begin()
    assert agent.text("forger__echo") == "{}"  # it has a session with each
    with agent.stream(request(7, "tools/call", name="asked__echo", arguments={})) as call:
        assert call.next()["method"] == "notifications/progress"
        agent.http.headers["Last-Event-ID"] = "forger/9"
        with agent.listen() as heard:
            heard.until("notifications/message")
            messages = [heard.next()]
            while messages[-1].get("params", {}).get("data") != "end":
                messages.append(heard.next())
        assert "forged" not in str(messages)
        may_end.set()
        assert call.next() == result(7, **text("from the one that was asked"))


def test_what_a_member_says_unasked_has_a_bound_for_all_its_streams_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that does not end is kept until it does, on as many streams as the member has sessions."""
    budget = limits.ByteBudget(of_token=150_000, of_user=250_000, in_all=400_000)
    monkeypatch.setattr(limits, "bytes_of_members", lambda: budget)
    opened: list[Asked] = []

    def drip(asked: Asked) -> None:
        opened.append(asked)
        asked.stream(b"data: " + b"x" * 120_000)
        asked.hang()

    for module in (client_streams, upstream_listeners):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 60.0)
    world.member("greedy", {"GET": drip})
    world.member("modest", {"GET": saying(event(log("heard")))})
    agents = [world.agent("/mcp/greedy", make_token()).begin() for _ in range(3)]
    for number, agent in enumerate(agents):
        agent.text("echo")  # which opens the stream of its session
        eventually(lambda most=number: len(opened) > most)
    eventually(lambda: sum(is_closed(one) for one in opened) == 1)
    with world.agent("/mcp/modest").begin().listen() as heard:
        assert heard.until("notifications/message")["params"]["data"] == "heard"
    assert [is_closed(one) for one in opened] == [False, False, True]


def is_closed(asked: Asked) -> bool:
    """Whether the hall has closed the stream, and the script noticed."""
    return asked.sock.fileno() < 0


def test_a_stream_keeps_nothing_of_what_it_has_passed_on(world: World) -> None:
    opened: list[Asked] = []

    def say(asked: Asked) -> None:
        opened.append(asked)
        asked.stream(event(log("y" * 150_000)))
        asked.hang()

    world.member(behaviours={"GET": say})
    first = world.agent("/mcp/notes").begin()
    first.text("echo")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            world.agent("/mcp/notes").begin().text("echo")
        eventually(lambda: len(opened) == 21)
        eventually(lambda: tracemalloc.get_traced_memory()[0] - before < 1_500_000)
    finally:
        tracemalloc.stop()


def test_the_tokens_of_one_user_leave_streams_of_members_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch, django_user_model: type[User]
) -> None:
    monkeypatch.setattr(limits, "MAX_STREAMS", 2)  # and twice as many of members
    monkeypatch.setattr(limits, "MAX_STREAMS_OF_USER", 3)
    opened: list[Asked] = []

    def keep_open(asked: Asked) -> None:
        opened.append(asked)
        asked.stream()
        asked.hang()

    world.member(behaviours={"GET": keep_open})
    one, other = (django_user_model.objects.create_superuser(name) for name in ("one", "other"))
    for number in range(5):
        world.agent("/mcp/notes", make_token(one)).begin().text("echo")
        eventually(lambda most=number: len(opened) > most)
    eventually(lambda: [is_closed(stream) for stream in opened] == [True, True, False, False, False])
    world.agent("/mcp/notes", make_token(other)).begin().text("echo")
    eventually(lambda: len(opened) == 6)
    assert [is_closed(stream) for stream in opened] == [True, True, False, False, False, False]
