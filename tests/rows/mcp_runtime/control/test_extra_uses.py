"""Prompts and resources for people: what the web and commands ask through the gateway."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import requests
from django.contrib.auth.models import Permission, User

from mcp_runtime.control import extra_uses
from mcp_runtime.control.extras import Kind, find_extra, set_extra_enabled
from mcp_runtime.protocol.errors import (
    ErrorKind,
    ExtraDisabledError,
    ExtraHeldError,
    GatewayUnavailableError,
    InvalidArgumentsError,
    McpRuntimeError,
    MemberDisabledError,
    MemberFailedError,
    NotAllowedError,
    RequestRefusedError,
    TooManyCallsError,
    UnknownExtraError,
)
from mcp_runtime.security import principals
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import Contract, GuildMember, Node, Token
from tests.conftest import eventually
from tests.support.agents import make_token
from tests.support.extras import connect, start_member
from tests.support.gateway_world import World
from tests.support.leases import add_node

TEMPLATE = "db://{table}/rows{?page}"


@pytest.fixture
def notes(world: World, settings: Any) -> GuildMember:
    connect(world, settings)
    row = start_member(world).row
    eventually(lambda: extra_uses.get_prompt(OPERATOR, row, "greet", {}))  # the gateway has its lists
    return row


def user(*permissions: str) -> User:
    account = User.objects.create_user("ann")
    account.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return account


def test_a_prompt_is_got_with_its_arguments(notes: GuildMember) -> None:
    result = extra_uses.get_prompt(OPERATOR, notes, "trip", {"city": "Rome"})
    assert result == {
        "description": "A trip",
        "messages": [{"role": "user", "content": {"type": "text", "text": "{'city': 'Rome'}"}}],
    }


@pytest.mark.parametrize(
    ("arguments", "path", "reason"),
    [
        ({}, "city", "this argument is required"),
        ({"city": "Rome", "town": "x"}, "town", "this argument is unknown; there are city, season"),
        ({"city": 7}, "city", "the value must be a string"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_the_member_is_asked(
    world: World, settings: Any, arguments: dict[str, Any], path: str, reason: str
) -> None:
    member = start_member(world)
    with pytest.raises(InvalidArgumentsError) as error:
        extra_uses.get_prompt(OPERATOR, member.row, "trip", arguments)
    assert (error.value.path, error.value.reason) == (path, reason)
    assert member.messages("prompts/get") == []


def test_a_resource_is_read_also_if_no_list_has_it(notes: GuildMember) -> None:
    for uri in ("file:///a.txt", "x:unlisted"):
        content = {"uri": uri, "mimeType": "text/plain", "text": f"content of {uri}"}
        assert extra_uses.read_resource(OPERATOR, notes, uri) == {"contents": [content]}
    for bad in ("", "x:" + "y" * 8_000):
        with pytest.raises(InvalidArgumentsError):
            extra_uses.read_resource(OPERATOR, notes, bad)


def test_a_completion_has_only_strings_within_its_limits(notes: GuildMember) -> None:
    prompt, template = find_extra(notes, Kind.PROMPT, "trip"), find_extra(notes, Kind.RESOURCE_TEMPLATE, TEMPLATE)
    completion = extra_uses.complete(OPERATOR, notes, prompt, "city", "Ro", {"season": "May"})
    assert completion.values == ["trip", "Ro", "{'arguments': {'season': 'May'}}"]
    assert (completion.total, completion.has_more) == (5, False)
    assert extra_uses.complete(OPERATOR, notes, template, "table", "", {}).values == [TEMPLATE, "", "None"]


def test_a_member_that_does_not_complete_is_not_asked(notes: GuildMember) -> None:
    notes.capabilities = {"prompts": {}}
    prompt = find_extra(notes, Kind.PROMPT, "trip")
    with pytest.raises(RequestRefusedError, match="does not complete arguments"):
        extra_uses.complete(OPERATOR, notes, prompt, "city", "", {})


def test_a_template_becomes_a_uri(notes: GuildMember) -> None:
    assert [(each.name, each.is_required) for each in extra_uses.variables_of(TEMPLATE)] == [
        ("table", True),
        ("page", False),
    ]
    assert extra_uses.expand(TEMPLATE, {"table": "a/b ü"}) == "db://a%2Fb%20%C3%BC/rows"
    assert extra_uses.expand(TEMPLATE, {"table": "a", "page": "2"}) == "db://a/rows?page=2"
    for values in ({}, {"table": "a", "other": "b"}):
        with pytest.raises(InvalidArgumentsError):
            extra_uses.expand(TEMPLATE, values)
    assert extra_uses.variables_of("x:{a}" + "y" * 3_000) == []


@pytest.mark.parametrize(
    ("behaviour", "kind", "sentence"),
    [
        (lambda incoming: incoming.error(-32002, "no such thing"), ErrorKind.PROTOCOL, "no such thing"),
        (lambda incoming: incoming.result({"messages": 7}), ErrorKind.PROTOCOL, "has no messages"),
        (lambda incoming: incoming.http(200, b"<html>", "text/html"), ErrorKind.PROTOCOL, "text/html"),
        (lambda incoming: incoming.hang_up(), ErrorKind.TRANSPORT, "connection was closed"),
        (lambda incoming: incoming.hang(), ErrorKind.TIMEOUT, "no complete answer within 1 s"),
        (lambda incoming: incoming.result({"x": "y" * 300_000}), ErrorKind.PROTOCOL, "larger than"),
    ],
)
def test_a_member_that_fails_is_reported_with_the_kind_of_the_failure(
    world: World, settings: Any, behaviour: Any, kind: ErrorKind, sentence: str
) -> None:
    connect(world, settings)
    row = start_member(world, prompts_get=behaviour).row
    GuildMember.objects.filter(pk=row.pk).update(manifest={"timeout": 1.0})
    world.gateway.member_changed(row.pk)
    eventually(lambda: _fails(row, kind, sentence))


def _fails(row: GuildMember, kind: ErrorKind, sentence: str) -> bool:
    with pytest.raises(MemberFailedError) as error:
        extra_uses.get_prompt(OPERATOR, row, "greet", {})
    return error.value.kind == kind and sentence in str(error.value)


def test_what_is_disabled_or_held_is_refused_with_the_reason(notes: GuildMember) -> None:
    set_extra_enabled(notes, find_extra(notes, Kind.PROMPT, "greet"), False)
    set_extra_enabled(notes, find_extra(notes, Kind.RESOURCE, "file:///a.txt"), False)
    Contract.objects.filter(member=notes, kind="prompt", name="trip").update(is_held=True, reason="it changed")
    expected: dict[Any, type[McpRuntimeError]] = {
        (lambda: extra_uses.get_prompt(OPERATOR, notes, "greet", {})): ExtraDisabledError,
        (lambda: extra_uses.read_resource(OPERATOR, notes, "file:///a.txt")): ExtraDisabledError,
        (lambda: extra_uses.get_prompt(OPERATOR, notes, "trip", {"city": "x"})): ExtraHeldError,
    }
    for use, error in expected.items():
        eventually(lambda use=use, error=error: _raises(error, use))


def _raises(error: type[McpRuntimeError], use: Any) -> bool:
    try:
        use()
    except error:
        return True
    return False


def test_rights_are_those_of_the_user_and_the_token(notes: GuildMember) -> None:
    def may_read(principal: Principal) -> bool:
        try:
            return bool(extra_uses.read_resource(principal, notes, "file:///b.txt"))
        except NotAllowedError:
            return False

    ann = user("invoke_tool")
    assert may_read(principals.principal_of_user(ann))
    other = GuildMember.objects.create(name="other", directory="other")
    for members, may in (([notes], True), ([other], False)):
        token = Token.make(user=ann, scope=Token.Scope.MEMBERS, members=members)[1]
        assert may_read(principals.principal_of_token(token)) is may
    token = Token.make(user=ann, scope=Token.Scope.TOOLS, tools=[notes.tools.get()])[1]
    assert not may_read(principals.principal_of_token(token))
    ann.user_permissions.clear()
    assert not may_read(principals.principal_of_user(ann))


def test_the_limit_of_a_token_is_that_of_the_gateway(notes: GuildMember) -> None:
    token = Token.make(user=user("invoke_tool"), calls_per_minute=2)[1]
    principal = principals.principal_of_token(token)
    for _ in range(2):
        extra_uses.read_resource(principal, notes, "file:///a.txt")
    with pytest.raises(TooManyCallsError, match="Too many calls a minute") as error:
        extra_uses.read_resource(principal, notes, "file:///a.txt")
    assert error.value.retry_after > 1


def test_unknown_and_disabled_members_and_prompts_are_refused(notes: GuildMember) -> None:
    with pytest.raises(UnknownExtraError, match="lists no prompt 'nobody'"):
        extra_uses.get_prompt(OPERATOR, notes, "nobody", {})
    notes.enabled = False
    with pytest.raises(MemberDisabledError):
        extra_uses.read_resource(OPERATOR, notes, "file:///a.txt")


def test_without_a_runtime_the_sentence_says_how_to_start_one(notes: GuildMember) -> None:
    Node.objects.update(lease_id=None)
    with pytest.raises(GatewayUnavailableError, match="No runtime is alive"):
        extra_uses.read_resource(OPERATOR, notes, "file:///a.txt")


def test_a_gateway_that_refuses_connections_is_named(notes: GuildMember, settings: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        settings.GUILD_HALL_GATEWAY_PORT = unused.getsockname()[1]
        with pytest.raises(GatewayUnavailableError, match="connection refused"):
            extra_uses.read_resource(OPERATOR, notes, "file:///a.txt")


def test_a_web_on_another_machine_asks_the_node_with_the_member(world: World, settings: Any) -> None:
    """Its own node has no runtime, so it asks at the socket for other nodes."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    world.node_sockets = [listener]
    row = start_member(world).row
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings.GUILD_HALL_NODE = "elsewhere"
    add_node("near", url="")
    far = add_node("far", url=url)
    GuildMember.objects.filter(pk=row.pk).update(node=far)
    row.refresh_from_db()
    assert extra_uses.read_resource(OPERATOR, row, "file:///a.txt")["contents"][0]["uri"] == "file:///a.txt"
    Node.objects.filter(pk=far.pk).update(url="")
    with pytest.raises(GatewayUnavailableError, match="GUILD_HALL_NODE_URL is not set there"):
        extra_uses.read_resource(OPERATOR, row, "file:///a.txt")
    Node.objects.filter(pk=far.pk).update(url="http://far.example:8200")
    with pytest.raises(GatewayUnavailableError, match="is another machine"):
        extra_uses.read_resource(OPERATOR, row, "file:///a.txt")


def test_the_socket_for_other_nodes_accepts_no_token(world: World) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    world.node_sockets = [listener]
    start_member(world)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp/notes"
    for authorization in (f"Bearer {make_token()}", "guild-hall-pass forged", ""):
        response = requests.post(url, json={}, headers={"Authorization": authorization}, timeout=10)
        assert response.status_code in (401, 421)
