"""The permissions at the gateway: every path and verb with every kind of token, and every id of another user."""

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
from roster.models import Agent, Call, Hall, Token, Tool, ToolSet
from tests.attack import rights_table
from tests.conftest import eventually
from tests.support.agents import GatewayClient, MessageStream, make_token
from tests.support.gateway_world import ALL, DEFAULT, World, event, notification, request, result, text

SECRET = "word-of-somebody-else"
# Each address, with the kinds of token that find it. `{agent}` is an agent of another user.
PATHS = {line.split()[0]: set(line.split()[2:]) for line in rights_table.GATEWAY_PATHS.strip().splitlines()}
METHODS = {line.split()[0]: line.split()[1:] for line in rights_table.GATEWAY.strip().splitlines()[1:]}
UNKNOWN_PATHS = (
    "/",
    "/mcp/notes/x",
    "/agents/1",
    "/.well-known/oauth-authorization-server",
    "/register",
    "/healthz",
    "/api/",
)
VERBS = ("POST", "GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD")
# Kinds of token, with the members that each may use at least in part.
REACH: dict[str, set[str]] = {
    **{"full": {"notes", "other"}, "members": {"notes"}, "tools": {"notes"}},
    **{"empty": set(), "nothing": set()},
}
KNOWN = tuple(REACH)
UNKNOWN = ("none", "unknown", "revoked", "expired", "inactive", "in the address")


def word_of(member: str) -> str:
    """A text that only clients with access to the member may receive."""
    return f"word-of-{member}-alone"


class Scenario:
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
        open_set = ToolSet.objects.create(name="open")
        for member in self.members.values():
            open_set.entries.create(member=member)
        ToolSet.objects.create(name="reserved").groups.add(circle)
        self.tokens = self._tokens()

    @staticmethod
    def _behaviours(name: str) -> dict[str, Any]:
        """A member that answers every request and has one of everything."""
        word = word_of(name)

        def answers(**fields: Any) -> Any:
            return lambda incoming: incoming.result({**fields, "word": word})

        return {
            "tools/list": answers(tools=[{"name": "echo", "title": word, "inputSchema": {"type": "object"}}]),
            "tools/call": answers(**text(SECRET)),
            "prompts/list": answers(prompts=[{"name": "p", "title": word}]),
            "resources/list": answers(resources=[{"uri": f"x://{name}", "name": "r", "title": word}]),
            "resources/templates/list": answers(
                resourceTemplates=[{"uriTemplate": f"y://{name}/{{a}}", "name": "t", "title": word}]
            ),
            # A member with sessions. It has no other method until a session has begun.
            "server/discover": lambda incoming: (
                answers()(incoming) if "Mcp-Session-Id" in incoming.headers else DEFAULT["server/discover"](incoming)
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
        ended_tokens = {name: Token.make(user=self.attacker) for name in ("revoked", "expired")}
        Token.objects.filter(pk=ended_tokens["revoked"][0].pk).update(revoked_at=past)
        Token.objects.filter(pk=ended_tokens["expired"][0].pk).update(expires_at=past)
        inactive = make_token(self._user("inactive"))
        User.objects.filter(username="inactive").update(is_active=False)
        attacker = self.attacker
        return {
            "full": make_token(attacker),
            "members": make_token(attacker, scope="members", members=[self.members["notes"]]),
            "tools": make_token(attacker, scope="tools", tools=[tool]),
            "empty": make_token(attacker, scope="members"),
            "nothing": make_token(self._user("nothing", may_call=False)),
            "none": None,
            "unknown": "gh_unknown",
            "revoked": ended_tokens["revoked"][1],
            "expired": ended_tokens["expired"][1],
            "inactive": inactive,
            "in the address": None,
        }

    def agent(self, kind: str, path: str = "/mcp") -> GatewayClient:
        return self.world.agent(path, self.tokens[kind]) if self.tokens[kind] else self._anonymous(path)

    def _anonymous(self, path: str) -> GatewayClient:
        assert self.world.gateway
        return GatewayClient(self.world, None, path)  # type: ignore[arg-type]


@pytest.fixture
def scenario(world: World) -> Scenario:
    scenario = Scenario(world)
    agent = scenario.agent("full").begin()
    eventually(lambda: agent.tools() == ["notes__echo", "other__echo"])
    for row in scenario.members.values():
        world.gateway.member_changed(row.pk)  # so that the gateway lists its prompts and resources too
    for method in ("prompts/list", "resources/list", "resources/templates/list"):
        eventually(lambda method=method: all(word_of(name) in agent.send(method).text for name in ("notes", "other")))
    return scenario


def send_request(agent: GatewayClient, verb: str, method: str = "initialize", **headers: str) -> requests.Response:
    body = json.dumps(request(1, method, protocolVersion="2025-06-18", capabilities={}))
    all_headers = {
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    data = body if verb in ("POST", "PUT", "PATCH") else None
    return agent.http.request(verb, agent.url, data=data, headers=all_headers, timeout=20)


def test_the_table_has_exactly_the_paths_verbs_and_methods_of_the_gateway() -> None:
    """A new one needs a decision. Write down who may use it."""
    patterns = {line.split()[1] for line in rights_table.GATEWAY_PATHS.strip().splitlines()}
    assert patterns == set(app.PATHS)
    assert rights_table.GATEWAY_VERBS.keys() == set(app.VERBS)
    rows = set(METHODS) - {rights_table.EVERY_OTHER, rights_table.EVERY_OTHER_NOTICE}
    assert sorted(gateway_methods() - rows) == []
    assert sorted(rows - gateway_methods()) == []
    for path in UNKNOWN_PATHS:
        assert not app.PATH_PATTERN.fullmatch(path), path


# Modules that may compare the method of a client's message with one that they know.
MODULES_WITH_METHODS = [
    importlib.import_module(f"mcp_runtime.gateway.{name}")
    for name in (
        *("app", "intake", "legacy", "modern", "endpoints.answers", "endpoints.member", "endpoints.params"),
        *("endpoints.roster", "endpoints.routing", "endpoints.tools"),
    )
]


def gateway_methods() -> set[str]:
    """The methods that the gateway knows: those of its tables, and those that it compares a message's method with."""
    endpoint_methods = Endpoints(*[MagicMock()] * len(inspect.signature(Endpoints).parameters)).methods
    tables = {*endpoint_methods, *eras.ONLY_WITH_SESSIONS, *eras.ONLY_WITHOUT_SESSIONS}
    return tables.union(*map(compared_methods, MODULES_WITH_METHODS))


def compared_methods(module: ModuleType) -> set[str]:
    methods: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Compare) or "method" not in ast.unparse(node):
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                methods.add(part.value)
            elif isinstance(part, ast.Name):
                constant = getattr(module, part.id, None)
                methods |= {constant} if isinstance(constant, str) else set()
                methods |= set(constant) if isinstance(constant, (tuple, dict)) else set()
    return methods - {"method"}


def test_each_token_gets_the_status_of_the_table_at_every_path_and_verb(scenario: Scenario) -> None:
    problems = []
    for path, verb, kind in product(PATHS, VERBS, KNOWN + UNKNOWN):
        agent = scenario.agent(kind, path.format(agent=scenario.victims_agent.pk))
        if kind == "in the address":
            agent.url += f"{'&' if '?' in path else '?'}token={scenario.tokens['full']}"
        response = send_request(agent, verb)
        if response.status_code not in expected_statuses(path, verb, kind) or SECRET in response.text:
            problems.append(
                f"{verb} {path} by {kind}: {response.status_code}, not {expected_statuses(path, verb, kind)}"
            )
    assert not problems, "\n".join(problems)


def expected_statuses(path: str, verb: str, kind: str) -> set[int]:
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
        may_connect = self.member in REACH[self.kind] if self.is_at_member else self.is_modern or bool(REACH[self.kind])
        may_use = self.member in REACH[self.kind]
        rights = {"known": True, "may": bool(REACH[self.kind]), "tool": may_use, "none": False}
        return may_connect and (rights | {"all": may_use and self.kind != "tools"})[word]

    @property
    def params(self) -> dict[str, Any]:
        prefix = "" if self.is_at_member else f"{self.member}__"
        params: dict[str, dict[str, Any]] = {
            "tools/call": {"name": f"{prefix}echo", "arguments": {}},
            "prompts/get": {"name": f"{prefix}p"},
            "completion/complete": {"ref": {"type": "ref/prompt", "name": f"{prefix}p"}, "argument": {"name": "a"}},
            "logging/setLevel": {"level": "error"},
            "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
            "notifications/cancelled": {"requestId": 1},
        }
        is_about_resource = self.method.startswith("resources/") and "list" not in self.method
        return {"uri": f"x://{self.member}"} if is_about_resource else params.get(self.method, {})

    def send(self, agent: GatewayClient) -> tuple[bool, str]:
        """Whether there is a result, and the whole text of the response."""
        if self.is_modern:
            message, headers = agent.modern_message(self.method, **self.params)
        else:
            message, headers = request(1, self.method, **self.params), {}
        if self.is_notification:
            del message["id"]
        all_headers = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        with agent.http.post(
            agent.url, data=json.dumps(message), headers=all_headers, timeout=20, stream=True
        ) as response:
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                line = next(line_ for line_ in response.iter_lines(decode_unicode=True) if line_.startswith("data:"))
                return "acknowledged" in line or '"result"' in line, line
            return '"result"' in response.text, response.text

    @property
    def is_notification(self) -> bool:
        return self.method.startswith("notifications/")

    def faults(self, agent: GatewayClient, scenario: Scenario) -> list[str]:
        """The data that came or reached a member against the table, and the data that is missing."""
        before = {name: len(script.requests) for name, script in scenario.scripts.items()}
        has_result, text_ = self.send(agent)
        receivers = {
            name
            for name, script in scenario.scripts.items()
            if any(
                received.body and received.message.get("method") == self.method
                for received in script.requests[before[name] :]
            )
        }
        members_in_text = {name for name in scenario.scripts if word_of(name) in text_}
        may_have_result, has_word = self.is_opened_by(self.opened_by[0]), self.is_opened_by(self.opened_by[-1])
        is_of_member = self.opened_by[-1] in ("tool", "all")
        faults = (
            [f"tells of {sorted(members_in_text - REACH[self.kind])}"] if members_in_text - REACH[self.kind] else []
        )
        faults += [f"reached {sorted(receivers - REACH[self.kind])}"] if receivers - REACH[self.kind] else []
        if has_result != (may_have_result and not self.is_notification):
            faults.append(f"has {'a' if has_result else 'no'} result ({text_[:200]})")
        if (self.member in members_in_text) != (has_word and is_of_member and not self.is_notification):
            faults.append(f"{'tells' if self.member in members_in_text else 'does not tell'} of {self.member}")
        if "known" not in self.opened_by and (self.member in receivers) != (has_word and is_of_member):
            faults.append(f"{'reached' if self.member in receivers else 'did not reach'} {self.member}")
        return [f"{self}: {fault}" for fault in faults]


@pytest.mark.parametrize("kind", KNOWN)
def test_each_kind_of_token_gets_the_response_of_the_table_for_every_method(scenario: Scenario, kind: str) -> None:
    """On the roster and on each member's own path, in a session and without one, for each member."""
    problems: list[str] = []
    for member, is_at_member, is_modern in product(scenario.members, (False, True), (False, True)):
        agent = scenario.agent(kind, f"/mcp/{member}" if is_at_member else "/mcp")
        if not is_modern and member in REACH[kind]:
            assert agent.begin().text("echo" if is_at_member else f"{member}__echo") == SECRET
        elif not is_modern and not is_at_member and REACH[kind]:
            agent.begin()
        for method in METHODS:
            problems += Try(method, kind, member, is_modern, is_at_member).faults(agent, scenario)
    assert not problems, "\n".join(problems)


def test_clients_without_a_valid_token_can_use_no_method(scenario: Scenario) -> None:
    before = [
        len(script.messages(method))
        for script in scenario.scripts.values()
        for method in METHODS
        if "list" not in method
    ]
    for method, kind, is_at_member in product(METHODS, UNKNOWN, (False, True)):
        agent = scenario.agent(kind, "/mcp/notes" if is_at_member else "/mcp")
        has_result, text_ = Try(method, "full", "notes", True, is_at_member).send(agent)
        assert not has_result, (method, kind)
        assert "word-of" not in text_, (method, kind)
    assert before == [
        len(script.messages(method))
        for script in scenario.scripts.values()
        for method in METHODS
        if "list" not in method
    ]


def test_unknown_paths_are_404_for_everybody(scenario: Scenario) -> None:
    for path, verb, kind in product(UNKNOWN_PATHS, VERBS, ("full", "none")):
        response = send_request(scenario.agent(kind, path), verb)
        assert (response.status_code, SECRET in response.text) == (404, False), (verb, path, kind)


def test_each_kind_of_token_lists_and_calls_only_the_tools_of_its_scope(scenario: Scenario) -> None:
    tools_of_kind = {
        "full": ["notes__echo", "other__echo"],
        "members": ["notes__echo"],
        "tools": ["notes__echo"],
    }
    for kind, names in tools_of_kind.items():
        agent = scenario.agent(kind).begin()
        assert agent.tools() == names
        for name in ("notes__echo", "other__echo", "hidden__echo", "nobody__echo"):
            response = agent.call(name)
            assert ("result" in response, SECRET in json.dumps(response)) == (name in names, name in names), (
                kind,
                name,
            )
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


# Ids of another user -----------------------------------------------------------------------------------------------


@pytest.fixture
def victim(scenario: Scenario) -> GatewayClient:
    agent = scenario.world.agent("/mcp", make_token(scenario.victim)).begin()
    assert agent.text("notes__echo") == SECRET
    return agent


@pytest.mark.parametrize("kind", KNOWN + UNKNOWN)
def test_a_session_of_another_user_does_not_exist(scenario: Scenario, victim: GatewayClient, kind: str) -> None:
    session_id = str(victim.http.headers["Mcp-Session-Id"])
    agent = scenario.agent(kind)
    agent.http.headers["Mcp-Session-Id"] = session_id
    status = 401 if kind in UNKNOWN else 404
    for verb, headers in product(("POST", "GET", "DELETE"), ({}, {"Last-Event-ID": "notes/1"})):
        response = send_request(agent, verb, "ping", **headers)
        assert (response.status_code, SECRET in response.text) == (status, False), (verb, headers)
    for method in ("tools/list", "ping", "tools/call"):
        response = agent.send(method, name="notes__echo", arguments={})
        assert (response.status_code, SECRET in response.text) == (status, False), method
    assert agent.notify("notifications/cancelled", requestId=1).status_code == status
    assert victim.text("notes__echo") == SECRET  # it was not ended


def test_a_session_of_another_token_of_the_same_user_does_not_exist(scenario: Scenario, victim: GatewayClient) -> None:
    agent = scenario.world.agent(
        "/mcp", make_token(scenario.victim, scope="members", members=[scenario.members["other"]])
    )
    agent.http.headers["Mcp-Session-Id"] = str(victim.http.headers["Mcp-Session-Id"])
    for verb in ("POST", "GET", "DELETE"):
        assert send_request(agent, verb, "ping").status_code == 404
    assert victim.text("notes__echo") == SECRET


def test_a_suspended_response_goes_to_its_owner_alone(scenario: Scenario) -> None:
    """Requested by its event id, at a member that sends any response to any client that names the event before it."""
    request_ids: list[Any] = []
    event_ids: list[str | None] = []

    def send_progress(incoming: Any) -> None:
        request_ids.append(incoming.id)
        incoming.stream(event(notification("notifications/progress", progressToken=1, progress=1), "e1", retry=10))
        incoming.hang()

    def send_rest(incoming: Any) -> None:
        event_ids.append(incoming.headers.get("Last-Event-ID"))
        if event_ids[-1] is None:
            incoming.http(405)
            return
        incoming.stream(event(result(request_ids[0], **text(SECRET)), "e2"))
        incoming.hang_up()

    scenario.world.member(
        "slow", {"tools/call": send_progress, "GET": send_rest, "ping": lambda incoming: incoming.result({})}
    )
    owner = scenario.world.agent("/mcp/slow", make_token(scenario.victim))
    eventually(lambda: owner.send("ping").status_code != 404)
    owner.begin()
    with owner.stream(request(5, "tools/call", name="echo", arguments={})) as call_stream:
        call_stream.until("notifications/progress")
    attacker = scenario.agent("full", "/mcp/slow").begin()
    messages: list[Any] = []

    def open_stream(event_id: str) -> None:
        with MessageStream(attacker, "GET", None, {"Accept": "text/event-stream", "Last-Event-ID": event_id}) as stream:
            stream.ended.wait(0.5)
        messages.extend(stream.all_messages)

    open_stream("e1")
    # The member gets this request after the attacker's own session with it has begun.
    eventually(lambda: open_stream("slow/e1") or "e1" in event_ids)
    assert SECRET not in json.dumps(messages)
    with MessageStream(owner, "GET", None, {"Accept": "text/event-stream", "Last-Event-ID": "slow/e1"}) as stream:
        eventually(lambda: SECRET in json.dumps(stream.all_messages))


def test_a_subscription_of_another_user_is_not_received(scenario: Scenario, victim: GatewayClient) -> None:
    with victim.listen() as victim_stream, scenario.agent("tools").begin().listen() as attacker_stream:
        set_tool_enabled(Tool.objects.get(member=scenario.members["other"]), False)
        victim_stream.until("notifications/tools/list_changed")
        set_tool_enabled(Tool.objects.get(member=scenario.members["notes"]), False)
        assert attacker_stream.until("notifications/tools/list_changed")
        assert [message["method"] for message in attacker_stream.all_messages] == ["notifications/tools/list_changed"]


def test_calls_of_the_gateway_are_shown_to_their_user_alone(
    scenario: Scenario, victim: GatewayClient, client: Any
) -> None:
    """Their ids over REST, with every kind of token. The response is as if they did not exist."""
    eventually(lambda: Call.objects.exists())
    pk = Call.objects.get().pk
    for kind in KNOWN + UNKNOWN:
        token = scenario.tokens[kind]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        for method, address in product(("get", "post"), (f"/api/calls/{pk}/", f"/api/calls/{pk}/cancel/")):
            response = getattr(client, method)(address, headers=headers)
            assert response.status_code in ({401} if kind in UNKNOWN else {404, 405}), (kind, method, address)
            assert SECRET not in response.content.decode()
