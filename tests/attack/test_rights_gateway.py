"""Who may what at the gateway: every path and verb with every kind of token, and every id of somebody else's."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
import requests
from django.contrib.auth.models import Group, Permission, User
from django.utils import timezone

from mcp_runtime import control
from mcp_runtime.gateway import app
from roster.models import AgentSession, ApiToken, Hall, Invocation, Tool
from tests.conftest import eventually
from tests.end_to_end.agents import Agent, Heard, make_token
from tests.mcp_runtime.gateway import conftest
from tests.mcp_runtime.gateway.conftest import World, event, notification, request, result, text

world = conftest.world  # the fixture

SECRET = "word-of-somebody-else"
# Each path with whom it is there for. `{session}` is an agents' session of somebody else.
PATHS = {
    "/mcp": {"full", "members", "tools", "empty", "nothing"},
    "/mcp/": {"full", "members", "tools", "empty", "nothing"},
    "/mcp?members=notes": {"full", "members", "tools"},
    "/mcp?members=other": {"full"},
    "/mcp?members=hidden": set(),
    "/mcp?members=nobody": set(),
    "/mcp/notes": {"full", "members", "tools"},
    "/mcp/other": {"full"},
    "/mcp/hidden": set(),
    "/mcp/nobody": set(),
    "/sessions/{session}/mcp": set(),
    "/sessions/0/mcp": set(),
    "/sessions/x/mcp": set(),
}
NOWHERE = (
    "/",
    "/mcp/notes/x",
    "/sessions/1",
    "/.well-known/oauth-authorization-server",
    "/register",
    "/healthz",
    "/api/",
)
VERBS = ("POST", "GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD")
KNOWN = ("full", "members", "tools", "empty", "nothing")
UNKNOWN = ("none", "unknown", "revoked", "expired", "inactive", "in the address")


class Place:
    """Members notes, other and hidden (reserved for a group), and a token of every kind."""

    def __init__(self, world: World) -> None:
        Hall.objects.create()
        self.world = world
        self.members = {name: world.member(name, self._behaviours()).row for name in ("notes", "other", "hidden")}
        circle = Group.objects.create(name="circle")
        self.members["hidden"].groups.add(circle)
        self.victim = self._user("victim")
        self.victim.groups.add(circle)
        self.attacker = self._user("attacker")
        self.session = AgentSession.objects.create(name="theirs", created_by=self.victim)
        self.session.members.add(self.members["notes"])
        self.tokens = self._tokens()

    @staticmethod
    def _behaviours() -> dict[str, Any]:
        return {"tools/call": lambda asked: asked.result(text(SECRET))}

    @staticmethod
    def _user(name: str, *, may_call: bool = True) -> User:
        user = User.objects.create_user(name)
        if may_call:
            user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
        return user

    def _tokens(self) -> dict[str, str | None]:
        past = timezone.now() - timedelta(hours=1)
        tool = Tool.objects.get(member=self.members["notes"])
        over = {name: ApiToken.make(user=self.attacker) for name in ("revoked", "expired")}
        ApiToken.objects.filter(pk=over["revoked"][0].pk).update(revoked_at=past)
        ApiToken.objects.filter(pk=over["expired"][0].pk).update(expires_at=past)
        inactive = make_token(self._user("inactive"))
        User.objects.filter(username="inactive").update(is_active=False)
        mine = self.attacker
        return {
            "full": make_token(mine),
            "members": make_token(mine, scope="members", members=[self.members["notes"]]),
            "tools": make_token(mine, scope="tools", tools=[tool]),
            "empty": make_token(mine, scope="members"),
            "nothing": make_token(self._user("nothing", may_call=False)),
            "none": None,
            "unknown": "gh_unknown",
            "revoked": over["revoked"][1],
            "expired": over["expired"][1],
            "inactive": inactive,
            "in the address": None,
        }

    def agent(self, kind: str, path: str = "/mcp") -> Agent:
        return self.world.agent(path, self.tokens[kind]) if self.tokens[kind] else self._anonymous(path)

    def _anonymous(self, path: str) -> Agent:
        assert self.world.gateway
        return Agent(self.world, None, path)  # type: ignore[arg-type]


@pytest.fixture
def place(world: World) -> Place:
    made = Place(world)
    eventually(lambda: made.agent("full").begin().tools() == ["notes__echo", "other__echo"])
    return made


def sent(agent: Agent, verb: str, method: str = "initialize", **headers: str) -> requests.Response:
    body = json.dumps(request(1, method, protocolVersion="2025-06-18", capabilities={}))
    named = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    data = body if verb in ("POST", "PUT", "PATCH") else None
    return agent.http.request(verb, agent.url, data=data, headers=named, timeout=20)


def test_the_paths_of_the_gateway_are_those_of_the_table() -> None:
    """Whoever adds one says here who may come to it."""
    for path in PATHS:
        plain = path.replace("{session}", "1").partition("?")[0]
        assert app._PATH.fullmatch(plain), path
    for path in NOWHERE:
        assert not app._PATH.fullmatch(path), path
    assert set(app._PATH.groupindex) == {"member", "session"}


def test_every_path_and_verb_answers_each_kind_of_token_as_the_table_says(place: Place) -> None:
    broken = []
    for path, verb, kind in product(PATHS, VERBS, KNOWN + UNKNOWN):
        agent = place.agent(kind, path.format(session=place.session.pk))
        if kind == "in the address":
            agent.url += f"{'&' if '?' in path else '?'}token={place.tokens['full']}"
        reply = sent(agent, verb)
        if reply.status_code not in expected(path, verb, kind) or SECRET in reply.text:
            broken.append(f"{verb} {path} by {kind}: {reply.status_code}, not {expected(path, verb, kind)}")
    assert not broken, "\n".join(broken)


def expected(path: str, verb: str, kind: str) -> set[int]:
    if kind in UNKNOWN:
        return {401}
    if kind not in PATHS[path]:
        return {404}
    if verb == "POST":
        return {200} if kind not in ("empty", "nothing") else {403}
    return {405}  # GET and DELETE need a session, the others are no verbs here


def test_what_is_nowhere_is_nowhere_for_everybody(place: Place) -> None:
    for path, verb, kind in product(NOWHERE, VERBS, ("full", "none")):
        reply = sent(place.agent(kind, path), verb)
        assert (reply.status_code, SECRET in reply.text) == (404, False), (verb, path, kind)


def test_each_kind_of_token_lists_and_calls_what_it_may_and_nothing_else(place: Place) -> None:
    listed = {
        "full": ["notes__echo", "other__echo"],
        "members": ["notes__echo"],
        "tools": ["notes__echo"],
    }
    for kind, names in listed.items():
        agent = place.agent(kind).begin()
        assert agent.tools() == names
        for name in ("notes__echo", "other__echo", "hidden__echo", "nobody__echo"):
            told = agent.call(name)
            assert ("result" in told, SECRET in json.dumps(told)) == (name in names, name in names), (kind, name)
        for method, params in (
            ("resources/read", {"uri": "guild://hidden/x"}),
            ("resources/subscribe", {"uri": "guild://hidden/x"}),
            ("prompts/get", {"name": "hidden__x"}),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "hidden__x"}, "argument": {"name": "a"}},
            ),
        ):
            assert SECRET not in agent.send(method, **params).text


# Ids of somebody else ---------------------------------------------------------------------------------------------


@pytest.fixture
def victim(place: Place) -> Agent:
    agent = place.world.agent("/mcp", make_token(place.victim)).begin()
    assert agent.text("notes__echo") == SECRET
    return agent


@pytest.mark.parametrize("kind", KNOWN + UNKNOWN)
def test_a_session_of_somebody_else_is_none(place: Place, victim: Agent, kind: str) -> None:
    stolen = str(victim.http.headers["Mcp-Session-Id"])
    agent = place.agent(kind)
    agent.http.headers["Mcp-Session-Id"] = stolen
    status = 401 if kind in UNKNOWN else 404
    for verb, headers in product(("POST", "GET", "DELETE"), ({}, {"Last-Event-ID": "notes/1"})):
        reply = sent(agent, verb, "ping", **headers)
        assert (reply.status_code, SECRET in reply.text) == (status, False), (verb, headers)
    for method in ("tools/list", "ping", "tools/call"):
        reply = agent.send(method, name="notes__echo", arguments={})
        assert (reply.status_code, SECRET in reply.text) == (status, False), method
    assert agent.notify("notifications/cancelled", requestId=1).status_code == status
    assert victim.text("notes__echo") == SECRET  # it was not ended


def test_another_token_of_the_same_user_is_somebody_else(place: Place, victim: Agent) -> None:
    agent = place.world.agent("/mcp", make_token(place.victim, scope="members", members=[place.members["other"]]))
    agent.http.headers["Mcp-Session-Id"] = str(victim.http.headers["Mcp-Session-Id"])
    for verb in ("POST", "GET", "DELETE"):
        assert sent(agent, verb, "ping").status_code == 404
    assert victim.text("notes__echo") == SECRET


def test_an_answer_that_is_owed_to_somebody_is_given_to_nobody_else(place: Place) -> None:
    """By its event id, at a member that hands out any answer to whoever names the event before it."""
    asked_ids: list[Any] = []
    asked_for: list[str | None] = []

    def early(asked: Any) -> None:
        asked_ids.append(asked.id)
        asked.stream(event(notification("notifications/progress", progressToken=1, progress=1), "e1", retry=10))
        asked.hang()

    def rest(asked: Any) -> None:
        asked_for.append(asked.headers.get("Last-Event-ID"))
        if asked_for[-1] is None:
            asked.http(405)
            return
        asked.stream(event(result(asked_ids[0], **text(SECRET)), "e2"))
        asked.hang_up()

    place.world.member("slow", {"tools/call": early, "GET": rest, "ping": lambda asked: asked.result({})})
    owner = place.world.agent("/mcp/slow", make_token(place.victim))
    eventually(lambda: owner.send("ping").status_code != 404)
    owner.begin()
    with owner.streaming(request(5, "tools/call", name="echo", arguments={})) as lost:
        lost.until("notifications/progress")
    thief = place.agent("full", "/mcp/slow").begin()
    told: list[Any] = []

    def steal(event_id: str) -> None:
        with Heard(thief, "GET", None, {"Accept": "text/event-stream", "Last-Event-ID": event_id}) as heard:
            heard.ended.wait(0.5)
        told.extend(heard.everything)

    steal("e1")
    # The member is asked once the thief's own session with it has begun.
    eventually(lambda: steal("slow/e1") or "e1" in asked_for)
    assert SECRET not in json.dumps(told)
    with Heard(owner, "GET", None, {"Accept": "text/event-stream", "Last-Event-ID": "slow/e1"}) as heard:
        eventually(lambda: SECRET in json.dumps(heard.everything))


def test_a_subscription_of_somebody_else_is_not_heard(place: Place, victim: Agent) -> None:
    with victim.listening() as theirs, place.agent("tools").begin().listening() as mine:
        control.switch_tool(Tool.objects.get(member=place.members["other"]), on=False)
        theirs.until("notifications/tools/list_changed")
        control.switch_tool(Tool.objects.get(member=place.members["notes"]), on=False)
        assert mine.until("notifications/tools/list_changed")
        assert [message["method"] for message in mine.everything] == ["notifications/tools/list_changed"]


def test_calls_of_the_gateway_are_told_to_who_made_them(place: Place, victim: Agent, client: Any) -> None:
    """Their ids, over REST, with every kind of token: as if there were none."""
    eventually(lambda: Invocation.objects.exists())
    pk = Invocation.objects.get().pk
    for kind in KNOWN + UNKNOWN:
        token = place.tokens[kind]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        for method, address in product(("get", "post"), (f"/api/invocations/{pk}/", f"/api/invocations/{pk}/cancel/")):
            reply = getattr(client, method)(address, headers=headers)
            assert reply.status_code in ({401} if kind in UNKNOWN else {404, 405}), (kind, method, address)
            assert SECRET not in reply.content.decode()
