"""Who may what at the gateway: every path and verb with every kind of token, and every id of somebody else's."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import requests
from django.contrib.auth.models import Group, Permission, User
from django.utils import timezone

from mcp_runtime.control.members import set_tool_enabled
from mcp_runtime.gateway import app, eras
from mcp_runtime.gateway.endpoints.routing import Endpoints
from roster.models import Agent, Call, Hall, Token, Tool
from tests.attack import rights_table
from tests.conftest import eventually
from tests.rows.mcp_runtime.gateway import conftest
from tests.support.agents import GatewayClient, MessageStream, make_token
from tests.support.gateway_world import ALL, DEFAULT, World, event, notification, request, result, text

pytestmark = pytest.mark.no_cover  # as in test_rights
world = conftest.world  # the fixture

SECRET = "word-of-somebody-else"
# Each address with whom it is there for. `{agent}` is an agent of somebody else.
PATHS = {line.split()[0]: set(line.split()[2:]) for line in rights_table.GATEWAY_PATHS.strip().splitlines()}
METHODS = {line.split()[0]: line.split()[1:] for line in rights_table.GATEWAY.strip().splitlines()[1:]}
NOWHERE = (
    "/",
    "/mcp/notes/x",
    "/agents/1",
    "/.well-known/oauth-authorization-server",
    "/register",
    "/healthz",
    "/api/",
)
VERBS = ("POST", "GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD")
# Kinds of token, with the members of which they may use something.
REACH: dict[str, set[str]] = {
    **{"full": {"notes", "other"}, "members": {"notes"}, "tools": {"notes"}},
    **{"empty": set(), "nothing": set()},
}
KNOWN = tuple(REACH)
UNKNOWN = ("none", "unknown", "revoked", "expired", "inactive", "in the address")


def word_of(member: str) -> str:
    """What nobody hears who may not use the member."""
    return f"word-of-{member}-alone"


class Place:
    """Members notes, other and hidden (reserved for a group), and a token of every kind."""

    def __init__(self, world: World) -> None:
        Hall.objects.create()
        self.world = world
        names = ("notes", "other", "hidden")
        self.scripts = {name: world.member(name, self._behaviours(name), capabilities=ALL) for name in names}
        self.members = {name: script.row for name, script in self.scripts.items()}
        for tool in Tool.objects.all():
            tool.definition["title"] = word_of(tool.member.name)
            tool.save()
        circle = Group.objects.create(name="circle")
        self.members["hidden"].groups.add(circle)
        self.victim = self._user("victim")
        self.victim.groups.add(circle)
        self.attacker = self._user("attacker")
        self.victims_agent = Agent.objects.create(name="theirs", created_by=self.victim)
        self.victims_agent.members.add(self.members["notes"])
        self.tokens = self._tokens()

    @staticmethod
    def _behaviours(name: str) -> dict[str, Any]:
        """A member that answers whatever it is asked, and has something of everything."""
        word = word_of(name)

        def answers(**told: Any) -> Any:
            return lambda asked: asked.result({**told, "word": word})

        return {
            "tools/list": answers(tools=[{"name": "echo", "title": word, "inputSchema": {"type": "object"}}]),
            "tools/call": answers(**text(SECRET)),
            "prompts/list": answers(prompts=[{"name": "p", "title": word}]),
            "resources/list": answers(resources=[{"uri": f"x://{name}", "name": "r", "title": word}]),
            "resources/templates/list": answers(
                resourceTemplates=[{"uriTemplate": f"y://{name}/{{a}}", "name": "t", "title": word}]
            ),
            # A member with sessions: it knows of nothing else until one has begun.
            "server/discover": lambda asked: (
                answers()(asked) if "Mcp-Session-Id" in asked.headers else DEFAULT["server/discover"](asked)
            ),
            "*": answers(),
        }

    @staticmethod
    def _user(name: str, *, may_call: bool = True) -> User:
        user = User.objects.create_user(name)
        if may_call:
            user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
        return user

    def _tokens(self) -> dict[str, str | None]:
        past = timezone.now() - timedelta(hours=1)
        tool = Tool.objects.get(member=self.members["notes"])
        over = {name: Token.make(user=self.attacker) for name in ("revoked", "expired")}
        Token.objects.filter(pk=over["revoked"][0].pk).update(revoked_at=past)
        Token.objects.filter(pk=over["expired"][0].pk).update(expires_at=past)
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

    def agent(self, kind: str, path: str = "/mcp") -> GatewayClient:
        return self.world.agent(path, self.tokens[kind]) if self.tokens[kind] else self._anonymous(path)

    def _anonymous(self, path: str) -> GatewayClient:
        assert self.world.gateway
        return GatewayClient(self.world, None, path)  # type: ignore[arg-type]


@pytest.fixture
def place(world: World) -> Place:
    made = Place(world)
    agent = made.agent("full").begin()
    eventually(lambda: agent.tools() == ["notes__echo", "other__echo"])
    for row in made.members.values():
        world.gateway.member_changed(row.pk)  # so that it is asked for what it has beside tools
    for method in ("prompts/list", "resources/list", "resources/templates/list"):
        eventually(lambda method=method: all(word_of(name) in agent.send(method).text for name in ("notes", "other")))
    return made


def sent(agent: GatewayClient, verb: str, method: str = "initialize", **headers: str) -> requests.Response:
    body = json.dumps(request(1, method, protocolVersion="2025-06-18", capabilities={}))
    named = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    data = body if verb in ("POST", "PUT", "PATCH") else None
    return agent.http.request(verb, agent.url, data=data, headers=named, timeout=20)


def test_every_path_verb_and_method_of_the_gateway_has_a_row_and_every_row_is_one() -> None:
    """A new one is a new decision: write down who may use it."""
    patterns = {line.split()[1] for line in rights_table.GATEWAY_PATHS.strip().splitlines()}
    assert patterns == set(app.PATHS)
    assert rights_table.GATEWAY_VERBS.keys() == set(app.VERBS)
    rows = set(METHODS) - {rights_table.EVERY_OTHER, rights_table.EVERY_OTHER_NOTICE}
    assert sorted(served() - rows) == []
    assert sorted(rows - served()) == []
    for path in NOWHERE:
        assert not app._PATH.fullmatch(path), path


# Modules that may compare the method of a client's message with one that they know.
COMPARING = [
    importlib.import_module(f"mcp_runtime.gateway.{name}")
    for name in (
        *("app", "intake", "legacy", "modern", "endpoints.answers", "endpoints.member", "endpoints.params"),
        *("endpoints.roster", "endpoints.routing", "endpoints.tools"),
    )
]


def served() -> set[str]:
    """The methods that the gateway knows: those of its tables, and those that it compares a message's method with."""
    answered = Endpoints(*[MagicMock()] * len(inspect.signature(Endpoints).parameters)).methods
    tables = {*answered, *eras.REMOVED, *eras.ADDED}
    return tables.union(*map(compared_methods, COMPARING))


def compared_methods(module: ModuleType) -> set[str]:
    compared: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Compare) or "method" not in ast.unparse(node):
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                compared.add(part.value)
            elif isinstance(part, ast.Name):
                constant = getattr(module, part.id, None)
                compared |= {constant} if isinstance(constant, str) else set()
                compared |= set(constant) if isinstance(constant, (tuple, dict)) else set()
    return compared - {"method"}


def test_every_path_and_verb_answers_each_kind_of_token_as_the_table_says(place: Place) -> None:
    broken = []
    for path, verb, kind in product(PATHS, VERBS, KNOWN + UNKNOWN):
        agent = place.agent(kind, path.format(agent=place.victims_agent.pk))
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
    status = rights_table.GATEWAY_VERBS.get(verb, 405)
    return {403} if status == 200 and not REACH[kind] else {status}


# Methods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Try:
    """One message to the gateway by one kind of token, about one member."""

    method: str
    kind: str
    member: str
    is_modern: bool
    is_at_member: bool

    @property
    def opened_by(self) -> list[str]:
        return METHODS[self.method][2 * self.is_at_member + self.is_modern].split("+")

    def is_opened_by(self, word: str) -> bool:
        may_come = self.member in REACH[self.kind] if self.is_at_member else self.is_modern or bool(REACH[self.kind])
        may_use = self.member in REACH[self.kind]
        rights = {"known": True, "may": bool(REACH[self.kind]), "tool": may_use, "none": False}
        return may_come and (rights | {"all": may_use and self.kind != "tools"})[word]

    @property
    def params(self) -> dict[str, Any]:
        prefix = "" if self.is_at_member else f"{self.member}__"
        about: dict[str, dict[str, Any]] = {
            "tools/call": {"name": f"{prefix}echo", "arguments": {}},
            "prompts/get": {"name": f"{prefix}p"},
            "completion/complete": {"ref": {"type": "ref/prompt", "name": f"{prefix}p"}, "argument": {"name": "a"}},
            "logging/setLevel": {"level": "error"},
            "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
            "notifications/cancelled": {"requestId": 1},
        }
        is_about_resource = self.method.startswith("resources/") and "list" not in self.method
        return {"uri": f"x://{self.member}"} if is_about_resource else about.get(self.method, {})

    def send(self, agent: GatewayClient) -> tuple[bool, str]:
        """Whether there is a result, and all that was said."""
        if self.is_modern:
            message, headers = agent.modern_message(self.method, **self.params)
        else:
            message, headers = request(1, self.method, **self.params), {}
        if self.is_notice:
            del message["id"]
        named = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        with agent.http.post(agent.url, data=json.dumps(message), headers=named, timeout=20, stream=True) as reply:
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                said = next(line for line in reply.iter_lines(decode_unicode=True) if line.startswith("data:"))
                return "acknowledged" in said or '"result"' in said, said
            return '"result"' in reply.text, reply.text

    @property
    def is_notice(self) -> bool:
        return self.method.startswith("notifications/")

    def faults(self, agent: GatewayClient, place: Place) -> list[str]:
        """What came, or reached a member, that should not have, and what did not."""
        before = {name: len(script.requests) for name, script in place.scripts.items()}
        has_result, said = self.send(agent)
        reached = {
            name
            for name, script in place.scripts.items()
            if any(one.body and one.message.get("method") == self.method for one in script.requests[before[name] :])
        }
        told = {name for name in place.scripts if word_of(name) in said}
        opened, has_word = self.is_opened_by(self.opened_by[0]), self.is_opened_by(self.opened_by[-1])
        is_of_member = self.opened_by[-1] in ("tool", "all")
        faults = [f"tells of {sorted(told - REACH[self.kind])}"] if told - REACH[self.kind] else []
        faults += [f"reached {sorted(reached - REACH[self.kind])}"] if reached - REACH[self.kind] else []
        if has_result != (opened and not self.is_notice):
            faults.append(f"has {'a' if has_result else 'no'} result ({said[:200]})")
        if (self.member in told) != (has_word and is_of_member and not self.is_notice):
            faults.append(f"{'tells' if self.member in told else 'does not tell'} of {self.member}")
        if "known" not in self.opened_by and (self.member in reached) != (has_word and is_of_member):
            faults.append(f"{'reached' if self.member in reached else 'did not reach'} {self.member}")
        return [f"{self}: {fault}" for fault in faults]


@pytest.mark.parametrize("kind", KNOWN)
def test_every_method_answers_each_kind_of_token_as_the_table_says(place: Place, kind: str) -> None:
    """At the roster and at each member's own path, in a session and without one, about each member."""
    broken: list[str] = []
    for member, is_at_member, is_modern in product(place.members, (False, True), (False, True)):
        agent = place.agent(kind, f"/mcp/{member}" if is_at_member else "/mcp")
        if not is_modern and member in REACH[kind]:
            assert agent.begin().text("echo" if is_at_member else f"{member}__echo") == SECRET
        elif not is_modern and not is_at_member and REACH[kind]:
            agent.begin()
        for method in METHODS:
            broken += Try(method, kind, member, is_modern, is_at_member).faults(agent, place)
    assert not broken, "\n".join(broken)


def test_no_method_is_for_who_has_no_good_token(place: Place) -> None:
    before = [
        len(script.messages(method)) for script in place.scripts.values() for method in METHODS if "list" not in method
    ]
    for method, kind, is_at_member in product(METHODS, UNKNOWN, (False, True)):
        agent = place.agent(kind, "/mcp/notes" if is_at_member else "/mcp")
        has_result, said = Try(method, "full", "notes", True, is_at_member).send(agent)
        assert not has_result, (method, kind)
        assert "word-of" not in said, (method, kind)
    assert before == [
        len(script.messages(method)) for script in place.scripts.values() for method in METHODS if "list" not in method
    ]


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
def victim(place: Place) -> GatewayClient:
    agent = place.world.agent("/mcp", make_token(place.victim)).begin()
    assert agent.text("notes__echo") == SECRET
    return agent


@pytest.mark.parametrize("kind", KNOWN + UNKNOWN)
def test_a_session_of_somebody_else_is_none(place: Place, victim: GatewayClient, kind: str) -> None:
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


def test_another_token_of_the_same_user_is_somebody_else(place: Place, victim: GatewayClient) -> None:
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
    with owner.stream(request(5, "tools/call", name="echo", arguments={})) as lost:
        lost.until("notifications/progress")
    thief = place.agent("full", "/mcp/slow").begin()
    told: list[Any] = []

    def steal(event_id: str) -> None:
        with MessageStream(thief, "GET", None, {"Accept": "text/event-stream", "Last-Event-ID": event_id}) as heard:
            heard.ended.wait(0.5)
        told.extend(heard.all_messages)

    steal("e1")
    # The member is asked once the thief's own session with it has begun.
    eventually(lambda: steal("slow/e1") or "e1" in asked_for)
    assert SECRET not in json.dumps(told)
    with MessageStream(owner, "GET", None, {"Accept": "text/event-stream", "Last-Event-ID": "slow/e1"}) as heard:
        eventually(lambda: SECRET in json.dumps(heard.all_messages))


def test_a_subscription_of_somebody_else_is_not_heard(place: Place, victim: GatewayClient) -> None:
    with victim.listen() as theirs, place.agent("tools").begin().listen() as mine:
        set_tool_enabled(Tool.objects.get(member=place.members["other"]), False)
        theirs.until("notifications/tools/list_changed")
        set_tool_enabled(Tool.objects.get(member=place.members["notes"]), False)
        assert mine.until("notifications/tools/list_changed")
        assert [message["method"] for message in mine.all_messages] == ["notifications/tools/list_changed"]


def test_calls_of_the_gateway_are_told_to_who_made_them(place: Place, victim: GatewayClient, client: Any) -> None:
    """Their ids, over REST, with every kind of token: as if there were none."""
    eventually(lambda: Call.objects.exists())
    pk = Call.objects.get().pk
    for kind in KNOWN + UNKNOWN:
        token = place.tokens[kind]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        for method, address in product(("get", "post"), (f"/api/calls/{pk}/", f"/api/calls/{pk}/cancel/")):
            reply = getattr(client, method)(address, headers=headers)
            assert reply.status_code in ({401} if kind in UNKNOWN else {404, 405}), (kind, method, address)
            assert SECRET not in reply.content.decode()
