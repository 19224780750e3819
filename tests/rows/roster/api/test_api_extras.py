"""Prompts, resources and resource templates over REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from mcp_runtime.control.extras import Kind, find_extra, set_extra_enabled
from mcp_runtime.control.watches import watches
from roster.api import requests
from roster.models import AuditEntry, Contract, GuildMember, MemberExtras, Token
from tests.conftest import eventually
from tests.support.api import client_of
from tests.support.extras import TRIP, Updates, connect, start_member
from tests.support.gateway_world import Member, World, in_background

HOME = "/api/members/notes/"


def post(client: Client, path: str, **body: Any) -> Any:
    return client.post(HOME + path, body, content_type="application/json")


def names(client: Client, path: str) -> list[str]:
    answer = client.get(HOME + path).json()
    entries = next(value for value in answer.values() if isinstance(value, list))
    return [entry.get("name") or entry.get("uri") or entry["uri_template"] for entry in entries]


# Lists ------------------------------------------------------------------------------------------------------------


def test_lists_have_the_definitions_and_what_programs_need(as_bob: Client, listed: GuildMember) -> None:
    prompts = as_bob.get(f"{HOME}prompts/").json()
    assert prompts["count"] == 2
    assert prompts["prompts"][0] == {
        **{"name": "trip", "title": "Plan a trip", "description": "Plans it.", "enabled": True, "listed": True},
        "arguments": [
            {"name": "city", "title": "", "description": "", "required": True},
            {"name": "season", "title": "", "description": "When.", "required": False},
        ],
        "definition": TRIP,
    }
    (first, second) = as_bob.get(f"{HOME}resources/").json()["resources"]
    assert (first["uri"], first["title"], first["mime_type"], first["size"]) == ("file:///a.txt", "a", "text/plain", 3)
    assert (second["title"], second["size"]) == ("The second", None)
    (template,) = as_bob.get(f"{HOME}resource-templates/").json()["resource_templates"]
    assert template["variables"] == [{"name": "table", "required": True}, {"name": "page", "required": False}]


def test_a_long_list_is_searched_and_comes_in_pages(as_bob: Client, listed: GuildMember) -> None:
    resources = [{"uri": f"x:{number:04}", "name": f"Book {number}"} for number in range(2_000)]
    MemberExtras.objects.update(resources=resources)
    answer = as_bob.get(f"{HOME}resources/?offset=1950").json()
    assert (answer["count"], len(answer["resources"])) == (2_000, 50)
    assert names(as_bob, "resources/?search=BOOK+1999") == ["x:1999"]
    assert len(names(as_bob, "resources/?limit=2000")) == 2_000
    for query in ("limit=2001", "limit=0", "offset=-1", "serach=x"):
        assert as_bob.get(f"{HOME}resources/?{query}").status_code == 400


def test_what_is_held_or_disabled_is_left_out(as_bob: Client, listed: GuildMember) -> None:
    set_extra_enabled(listed, find_extra(listed, Kind.PROMPT, "trip"), False)
    assert names(as_bob, "prompts/") == ["greet"]
    assert names(as_bob, "prompts/?disabled=true") == ["trip", "greet"]
    Contract.objects.create(member=listed, kind="prompt", name="greet", version="1", is_held=True)
    assert names(as_bob, "prompts/?disabled=true") == ["trip"]


def test_a_token_for_tools_alone_sees_none(bob: User, listed: GuildMember) -> None:
    tool = listed.tools.create(name="echo", definition={"inputSchema": {}})
    client = client_of(bob, scope=Token.Scope.TOOLS, tools=[tool])
    assert client.get(f"{HOME}prompts/").json() == {"count": 0, "prompts": []}
    assert post(client, "prompts/get/", name="greet").status_code == 403


# Switches ---------------------------------------------------------------------------------------------------------


def test_each_kind_is_disabled_and_enabled_with_an_entry_in_the_audit_log(as_bob: Client, listed: GuildMember) -> None:
    for noun, key, name in (
        ("prompts", "name", "trip"),
        ("resources", "uri", "file:///a.txt"),
        ("resource-templates", "uri_template", "db://{table}/rows{?page}"),
    ):
        for verb in ("disable", "disable", "enable"):
            answer = post(as_bob, f"{noun}/{verb}/", **{key: name})
            assert (answer.status_code, answer.json()["enabled"]) == (200, verb == "enable")
    kinds = AuditEntry.objects.order_by("pk").values_list("kind", "target")
    assert [(kind, target) for kind, target in kinds if "table" in target] == [
        ("resource_template_disabled", "resource template notes/db://{table}/rows{?page}"),
        ("resource_template_disabled", "resource template notes/db://{table}/rows{?page}"),
        ("resource_template_enabled", "resource template notes/db://{table}/rows{?page}"),
    ]
    assert post(as_bob, "prompts/disable/", name="nobody").json()["code"] == "not_listed"
    assert post(as_bob, "prompts/disable/", nam="trip").status_code == 400


# Use --------------------------------------------------------------------------------------------------------------


def test_a_prompt_and_resources_are_used_and_arguments_completed(as_bob: Client, notes: Member) -> None:
    prompt = post(as_bob, "prompts/get/", name="trip", arguments={"city": " Rome "})
    assert prompt.json()["messages"][0]["content"]["text"] == "{'city': ' Rome '}"
    for body in (
        {"uri": "db://cars/rows?page=2"},
        {"uri_template": "db://{table}/rows{?page}", "arguments": {"table": "cars", "page": "2"}},
    ):
        assert post(as_bob, "resources/read/", **body).json()["contents"][0]["uri"] == "db://cars/rows?page=2"
    completion = post(as_bob, "prompts/complete/", name="trip", argument="city", value="Ro").json()
    assert completion == {"values": ["trip", "Ro", "None"], "total": 5, "has_more": False}
    template = {"uri_template": "db://{table}/rows{?page}", "argument": "table"}
    assert post(as_bob, "resource-templates/complete/", **template).json()["values"][0] == "db://{table}/rows{?page}"


def test_refusals_say_what_to_do(as_bob: Client, notes: Member) -> None:
    for path, body, status, code in (
        ("prompts/get/", {"name": "nobody"}, 404, "not_listed"),
        ("prompts/get/", {"name": "trip"}, 400, "invalid_arguments"),
        ("prompts/get/", {}, 400, "invalid"),
        ("prompts/get/", {"name": "trip", "arguments": {"city": ["x"]}}, 400, "invalid"),
        ("resources/read/", {}, 400, "invalid"),
        ("resources/read/", {"uri": "x:y", "arguments": {}}, 400, "invalid"),
        ("resources/read/", {"uri": "x" * 9_000}, 400, "invalid_arguments"),
        ("resources/read/", {"uri_template": "x:{y}"}, 404, "not_listed"),
        ("resources/watch/", {"uri": "x:y", "cursor": "nonsense"}, 400, "invalid"),
    ):
        answer = post(as_bob, path, **body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (path, body)


def test_a_member_that_fails_is_not_the_failure_of_the_hall(world: World, as_bob: Client, settings: Any) -> None:
    connect(world, settings)
    start_member(world, resources_read=lambda incoming: incoming.error(-32002, "<b>gone</b>"))
    answer = post(as_bob, "resources/read/", uri="x:y")
    assert answer.status_code == 502
    assert answer.json().items() >= {"detail": "<b>gone</b>", "code": "member_failed", "kind": "protocol"}.items()


def test_what_is_disabled_is_refused(world: World, as_bob: Client, notes: Member) -> None:
    assert post(as_bob, "prompts/disable/", name="greet").status_code == 200

    def is_refused() -> bool:
        answer = post(as_bob, "prompts/get/", name="greet")
        return bool(answer.status_code == 409 and answer.json()["code"] == "disabled")

    eventually(is_refused)
    assert notes.messages("prompts/get") == [] or "greet" in str(notes.messages("prompts/get"))


def test_without_a_runtime_or_a_free_seat_the_client_may_try_again(
    as_bob: Client, listed: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = post(as_bob, "prompts/get/", name="greet")
    assert (answer.status_code, answer.json()["code"]) == (503, "gateway_unavailable")
    monkeypatch.setattr(requests.seats, "count", 0)
    answer = post(as_bob, "prompts/get/", name="greet")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


def test_a_client_hears_of_updates(as_bob: Client, notes: Member, updates: Updates) -> None:
    uri = "file:///a.txt"
    first = post(as_bob, "resources/watch/", uri=uri).json()
    assert (first["updated"], first["updated_at"], first["is_gap"]) == (False, None, True)
    eventually(lambda: notes.messages("resources/subscribe"))
    with in_background(lambda: updates.send(uri)):
        body = {"uri": uri, "cursor": first["cursor"]}
        second: Any = as_bob.post(
            f"{HOME}resources/watch/", body, content_type="application/json", headers={"Prefer": "wait=20"}
        ).json()
    assert (second["updated"], second["is_gap"]) == (True, False)
    third = post(as_bob, "resources/watch/", uri=uri, cursor=second["cursor"]).json()
    assert (third["updated"], third["updated_at"]) == (False, second["updated_at"])
    other = post(as_bob, "resources/watch/", uri=uri, cursor="0123456789abcdef-0").json()
    assert other["is_gap"]
    for watch in list(watches.open_watches.values()):
        watch.exchange.abort()
