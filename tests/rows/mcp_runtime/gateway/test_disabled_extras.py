"""Disabled prompts, resources and resource templates: in no list, and refused at every address of the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.control.extras import Kind, extras_of, find_extra, set_extra_enabled
from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import Hall, MemberExtras
from tests.conftest import eventually
from tests.support.agents import GatewayClient
from tests.support.extras import Updates
from tests.support.gateway_world import ALL, Member, World, event, notification
from tests.support.scripted_server import Behaviour
from tests.support.scripted_server import Request as MemberRequest

PATHS = ("/mcp", "/mcp?members=notes", "/sets/all/mcp", "/mcp/notes")
LISTS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "prompts/list": ("prompts", "name", [{"name": "greet"}, {"name": "safe"}]),
    "resources/list": (
        "resources",
        "uri",
        [{"uri": "file:///a.txt", "name": "a"}, {"uri": "file:///b.txt", "name": "b"}],
    ),
    "resources/templates/list": (
        "resourceTemplates",
        "uriTemplate",
        [{"uriTemplate": "db://{table}/rows", "name": "rows"}, {"uriTemplate": "db://{table}", "name": "tables"}],
    ),
}
BEHAVIOURS: dict[str, Behaviour] = {
    **{
        method: lambda incoming, kind=kind, entries=entries: incoming.result({kind: entries})
        for method, (kind, _, entries) in LISTS.items()
    },
    "*": lambda incoming: incoming.result({"asked": incoming.message["params"]}),
}


@pytest.fixture(params=["record", "hold"])
def notes(world: World, request: pytest.FixtureRequest) -> Member:
    """A member with both policies of contracts, once the gateway has its lists."""
    return start(world, BEHAVIOURS, request.param)


def start(world: World, behaviours: dict[str, Behaviour], policy: str) -> Member:
    Hall.objects.create()
    world.agent()
    member = world.member("notes", behaviours, capabilities=ALL, contracts=policy)
    eventually(lambda: MemberExtras.objects.filter(pk=member.row.pk).exists())
    create_tool_set(Values("all", entries=(Entry("notes"),)), OPERATOR, None)
    eventually(lambda: len(listed(world.agent().begin(), "prompts/list")) == 2)
    return member


def listed(client: GatewayClient, method: str) -> list[str]:
    kind, key, _ = LISTS[method]
    return [entry[key] for entry in client.ask(method)["result"][kind]]


def as_listed(path: str, name: str) -> str:
    if path == "/mcp/notes":
        return name
    return f"guild://notes/{name}" if ":" in name else f"notes__{name}"


def switch(member: Member, kind: Kind, name: str, enabled: bool = False) -> None:
    set_extra_enabled(member.row, find_extra(member.row, kind, name), enabled)


def require_disabled(answer: dict[str, Any], sentence: str) -> None:
    assert answer["error"]["message"] == f"{sentence} of member 'notes' is disabled; an operator can enable it"
    assert answer["error"]["data"] == {"member": "notes", "kind": "disabled"}


@pytest.mark.parametrize("path", PATHS)
def test_a_disabled_prompt_is_in_no_list_and_each_use_of_it_says_why(world: World, notes: Member, path: str) -> None:
    client = world.agent(path).begin()
    switch(notes, Kind.PROMPT, "greet")
    eventually(lambda: listed(client, "prompts/list") == [as_listed(path, "safe")])
    name = as_listed(path, "greet")
    require_disabled(client.ask("prompts/get", name=name), "prompt 'greet'")
    ref = {"type": "ref/prompt", "name": name}
    answer = client.ask("completion/complete", ref=ref, argument={"name": "a", "value": "b"})
    require_disabled(answer, "prompt 'greet'")
    assert notes.messages("prompts/get") == notes.messages("completion/complete") == []
    assert client.ask("prompts/get", name=as_listed(path, "safe"))["result"]["asked"]["name"] == "safe"
    switch(notes, Kind.PROMPT, "greet", True)
    eventually(lambda: len(listed(client, "prompts/list")) == 2)
    assert "result" in client.ask("prompts/get", name=name)


@pytest.mark.parametrize("path", PATHS)
def test_a_disabled_resource_is_in_no_list_and_cannot_be_read_in_any_spelling(
    world: World, notes: Member, path: str
) -> None:
    client = world.agent(path).begin()
    switch(notes, Kind.RESOURCE, "file:///a.txt")
    eventually(lambda: listed(client, "resources/list") == [as_listed(path, "file:///b.txt")])
    spellings = (
        *("file:///a.txt", "FILE:///a.txt", "file:///%61.txt", "file:///%2561.txt", "file:////a.txt"),
        *("file:///./a.txt", "file:///x/../a.txt", "file:///x%2f..%2fA.TXT", "file:\\\\\\a.txt", "file:///a.txt#part"),
    )
    for uri in spellings:
        for method in ("resources/read", "resources/subscribe"):
            require_disabled(client.ask(method, uri=as_listed(path, uri)), f"resource {uri!r}")
    assert notes.messages("resources/read") == notes.messages("resources/subscribe") == []
    # Another resource, a URI of a template, and one that is in no list.
    for uri in ("file:///b.txt", "db://cars", "x:y"):
        assert client.ask("resources/read", uri=as_listed(path, uri))["result"]["asked"]["uri"] == uri


@pytest.mark.parametrize("path", PATHS)
def test_a_disabled_template_is_in_no_list_and_its_uris_cannot_be_read(world: World, notes: Member, path: str) -> None:
    client = world.agent(path).begin()
    template = "db://{table}/rows"
    switch(notes, Kind.RESOURCE_TEMPLATE, template)
    eventually(lambda: listed(client, "resources/templates/list") == [as_listed(path, "db://{table}")])
    ref = {"type": "ref/resource", "uri": as_listed(path, template)}
    for answer in (
        client.ask("resources/read", uri=as_listed(path, "db://cars/rows")),
        client.ask("resources/subscribe", uri=as_listed(path, "db://cars/rows")),
        client.ask("completion/complete", ref=ref, argument={"name": "a", "value": "b"}),
    ):
        require_disabled(answer, f"resource template {template!r}")
    assert notes.messages("resources/read") == notes.messages("completion/complete") == []
    assert "result" in client.ask("resources/read", uri=as_listed(path, "db://cars"))


def test_a_plain_uri_of_a_disabled_resource_is_refused_at_the_roster(world: World, notes: Member) -> None:
    client = world.agent().begin()
    switch(notes, Kind.RESOURCE, "file:///a.txt")
    eventually(lambda: len(listed(client, "resources/list")) == 1)
    require_disabled(client.ask("resources/read", uri="file:///a.txt"), "resource 'file:///a.txt'")


def test_what_is_disabled_stays_so_when_it_leaves_the_list_and_comes_back(world: World, notes: Member) -> None:
    switch(notes, Kind.PROMPT, "greet")
    lists = {"prompts": [{"name": "safe"}], "resources": [], "resource_templates": []}
    MemberExtras.objects.filter(pk=notes.row.pk).update(**lists, digest="other")
    assert [(e.name, e.is_listed, e.is_enabled) for e in extras_of(notes.row, Kind.PROMPT)] == [
        ("safe", True, True),
        ("greet", False, False),
    ]
    client = world.agent("/mcp/notes").begin()
    eventually(lambda: listed(client, "prompts/list") == ["safe"])
    require_disabled(client.ask("prompts/get", name="greet"), "prompt 'greet'")


def test_nobody_hears_of_updates_of_a_disabled_resource(world: World) -> None:
    def send_updates(incoming: MemberRequest) -> None:
        uris = ("file:///a.txt", "file:///b.txt")
        incoming.stream(*(event(notification("notifications/resources/updated", uri=uri)) for uri in uris))
        incoming.hang()

    notes = start(world, {**BEHAVIOURS, "GET": send_updates}, "record")
    switch(notes, Kind.RESOURCE, "file:///a.txt")
    eventually(lambda: len(listed(world.agent("/mcp/notes").begin(), "resources/list")) == 1)
    client = world.agent("/mcp/notes")
    uris = ["file:///a.txt", "file:///b.txt"]
    message, headers = client.modern_message("subscriptions/listen", notifications={"resourceSubscriptions": uris})
    with client.stream(message, **headers) as stream:
        assert stream.until("notifications/resources/updated")["params"]["uri"] == "file:///b.txt"
    assert [message["params"]["uri"] for message in notes.messages("resources/subscribe")] == ["file:///b.txt"]


def test_a_subscription_hears_no_more_of_a_resource_that_is_disabled_meanwhile(world: World) -> None:
    updates, uris = Updates(), ["file:///a.txt", "file:///b.txt"]
    notes = start(world, {**BEHAVIOURS, "GET": updates.open}, "record")
    client = world.agent("/mcp/notes")
    message, headers = client.modern_message("subscriptions/listen", notifications={"resourceSubscriptions": uris})
    with client.stream(message, **headers) as stream:
        eventually(lambda: len(notes.messages("resources/subscribe")) == 2)
        switch(notes, Kind.RESOURCE, uris[0])
        eventually(lambda: len(listed(world.agent("/mcp/notes").begin(), "resources/list")) == 1)
        for uri in uris:
            updates.send(uri)
        assert stream.until("notifications/resources/updated")["params"]["uri"] == uris[1]
