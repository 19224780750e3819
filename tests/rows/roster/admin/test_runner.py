"""The tool runner as the server renders it: calls without leaving the page, presets and access control."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.control.members import reserve_member
from mcp_runtime.schemas import secrets
from mcp_runtime.security.limits import SharedSlots
from roster import presets
from roster.admin.tools import forms, runner
from roster.api import requests
from roster.models import Call, GuildMember, Preset, Tool

pytestmark = pytest.mark.django_db

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "times": {"type": "integer", "minimum": 1},
        "login": {"type": "object", "properties": {"key": {"type": "string", "writeOnly": True}}},
        "keys": {"type": "array", "items": {"type": "string", "format": "password"}},
    },
    "required": ["text"],
}
SECRETS = {"text": "x", "login": {"key": "s3cret"}, "keys": ["s3cret"]}
EVIL = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """No runtime runs here, so no request really waits. The list has the calls and the seconds of the waits."""
    waits: list[tuple[int, float]] = []
    monkeypatch.setattr(runner, "wait_for_call", lambda call_id, timeout: waits.append((call_id, timeout)))
    return waits


@pytest.fixture
def alice() -> User:
    return User.objects.create_superuser("alice")


@pytest.fixture
def bob() -> User:
    """A user who may call tools."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return user


@pytest.fixture
def page(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def make_tool(name: str = "echo", schema: Any = None, **definition: Any) -> Tool:
    member, _ = GuildMember.objects.get_or_create(name="example", defaults={"directory": "example"})
    schema = SCHEMA if schema is None else schema
    return Tool.objects.create(member=member, name=name, definition={"name": name, "inputSchema": schema, **definition})


@pytest.fixture
def echo() -> Tool:
    return make_tool()


def address(tool: Tool, name: str = "call", *more_ids: Any) -> str:
    return reverse(f"admin:roster_tool_{name}", args=[tool.pk, *more_ids])


def call_tool(page: Client, tool: Tool, arguments: Any, **fields: str) -> Any:
    """Calls as the script of the page does, and returns the JSON of the response."""
    form = {"arguments": arguments if isinstance(arguments, str) else json.dumps(arguments), **fields}
    response = page.post(address(tool), form, headers={"Accept": "application/json"})
    assert response.status_code == 200
    return response.json()


def get_form(page: Client, tool: Tool, **query: Any) -> tuple[Any, str]:
    """The arguments at the beginning of the form, and the whole page."""
    response = page.get(address(tool), query)
    return json.loads(response.context["form"].initial["arguments"]), response.content.decode()


def obstacle_in(text: str) -> str:
    return text.partition('id="call-obstacle">')[2].partition("</p>")[0]


def make_call(tool: Tool, **columns: Any) -> Call:
    values = {"tool_name": tool.name, "timeout": 30, "source": "rest", "requester": "x", **columns}
    return Call.objects.create(member=tool.member, **values)


# Calls without leaving the page -----------------------------------------------------------------------------------


def test_a_call_responds_with_the_address_of_its_outcome_and_a_new_key(
    page: Client, echo: Tool, waits: list[tuple[int, float]]
) -> None:
    key = "6f1ed002-ab59-4e5c-8ba3-1f1f1f1f1f1f"
    response = call_tool(page, echo, {"text": "hi"}, call_key=key)

    row = Call.objects.get()
    assert (row.arguments, row.source, row.idempotency_key) == ({"text": "hi"}, "admin", key)
    assert response["outcome"] == address(echo, "outcome", row.pk)
    assert response["call_key"] != key
    assert waits == [(row.pk, runner.PATIENCE_SECONDS)]


def test_a_call_waits_only_with_a_free_seat(
    page: Client, echo: Tool, waits: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "seats", SharedSlots(1))
    with requests.seat((0, None), {}):
        assert call_tool(page, echo, {"text": "hi"})["call"]
    assert waits == []
    call_tool(page, echo, {"text": "hi"})
    assert len(waits) == 1
    assert requests.seats.in_use == 0


def test_the_same_form_sent_twice_makes_one_call(page: Client, echo: Tool) -> None:
    key = "6f1ed002-ab59-4e5c-8ba3-1f1f1f1f1f1f"
    assert [call_tool(page, echo, {"text": "hi"}, call_key=key)["call"] for _ in range(2)] == [
        Call.objects.get().pk
    ] * 2


def test_changed_arguments_with_an_old_key_are_refused_once_and_then_called(page: Client, echo: Tool) -> None:
    key = "6f1ed002-ab59-4e5c-8ba3-1f1f1f1f1f1f"
    call_tool(page, echo, {"text": "hi"}, call_key=key)
    response = call_tool(page, echo, {"text": "changed"}, call_key=key)
    assert response["errors"] == [{"path": [], "reason": forms.SENT_OTHERWISE}]
    assert Call.objects.count() == 1

    call_tool(page, echo, {"text": "changed"}, call_key=response["call_key"])
    assert Call.objects.latest("pk").arguments == {"text": "changed"}


def test_without_a_script_the_refused_form_has_a_new_key(page: Client, echo: Tool) -> None:
    key = "6f1ed002-ab59-4e5c-8ba3-1f1f1f1f1f1f"
    call_tool(page, echo, {"text": "hi"}, call_key=key)
    response = page.post(address(echo), {"arguments": '{"text": "changed"}', "call_key": key})
    assert forms.SENT_OTHERWISE in response.content.decode()
    assert str(response.context["call_key"]) != key


def test_every_validation_error_is_shown_with_its_path(page: Client, echo: Tool) -> None:
    response = call_tool(page, echo, {"times": 0, "login": {"key": 5}, "keys": ["a", 7]})

    assert {json.dumps(error["path"]) for error in response["errors"]} == {
        '["text"]',
        '["times"]',
        '["login", "key"]',
        '["keys", 1]',
    }
    assert not Call.objects.exists()


def test_without_a_script_every_validation_error_is_shown_too(page: Client, echo: Tool) -> None:
    text = page.post(address(echo), {"arguments": '{"times": 0}'}).content.decode()
    assert "text: &#x27;text&#x27; is a required property" in text
    assert "times: 0 is less than the minimum of 1" in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [("{nonsense", "not JSON"), ("[1]", "must be a JSON object"), ("[" * 100_000, "nested too deep")],
)
def test_arguments_that_are_no_object_are_an_error_without_a_path(
    page: Client, echo: Tool, arguments: str, reason: str
) -> None:
    (error,) = call_tool(page, echo, arguments)["errors"]
    assert error["path"] == []
    assert reason in error["reason"]


def test_a_check_tells_the_errors_and_calls_nothing(page: Client, echo: Tool) -> None:
    assert call_tool(page, echo, {"text": "hi"}, only_check="on") == {"errors": []}
    errors = call_tool(page, echo, {"times": 0}, only_check="on")["errors"]
    assert {json.dumps(error["path"]) for error in errors} == {'["text"]', '["times"]'}
    tool = make_tool("destroy", {}, annotations={"destructiveHint": True})
    assert call_tool(page, tool, {}, only_check="on") == {"errors": []}
    assert not Call.objects.exists()


@pytest.mark.parametrize("no_check", ["false", "False", ""])
def test_a_form_that_is_no_check_needs_the_confirmation(page: Client, no_check: str) -> None:
    tool = make_tool("destroy", {}, annotations={"destructiveHint": True})
    (error,) = call_tool(page, tool, {}, only_check=no_check)["errors"]
    assert "Confirm the call" in error["reason"]
    assert not Call.objects.exists()


def test_a_check_needs_the_right_to_call_the_tool(client: Client, bob: User, echo: Tool) -> None:
    client.force_login(User.objects.create_user("eve", is_staff=True))
    response = client.post(address(echo), {"arguments": "{}", "only_check": "on"})
    assert response.status_code == 403


@pytest.mark.parametrize(
    ("definition", "title"),
    [
        ({}, "Call echo"),
        ({"title": "An echo"}, "Call An echo"),
        ({"annotations": {"title": EVIL}}, "Call &lt;script&gt;alert(1)&lt;/script&gt;"),
        ({"title": "gnp\u202eexe"}, "Call gnp�exe"),
    ],
)
def test_the_heading_is_the_title_of_the_tool(page: Client, definition: Any, title: str) -> None:
    assert f"<h1>{title}</h1>" in page.get(address(make_tool(**definition))).content.decode()


def test_a_description_in_markdown_is_laid_out(page: Client) -> None:
    tool = make_tool(description=f"Does **much**:\n\n- this {EVIL}\n- ![x](https://evil.example/x.png)")
    text = page.get(address(tool)).content.decode()
    assert "<strong>much</strong>" in text
    assert EVIL not in text
    assert "<img" not in text


@pytest.mark.parametrize(
    ("member", "tool", "obstacle"),
    [
        ({"enabled": False}, {}, "The member example is disabled."),
        ({"removed_at": timezone.now()}, {}, "is gone"),
        ({}, {"enabled": False}, "This tool is disabled."),
        ({}, {"listed": False}, "no longer lists this tool"),
        ({}, {"is_held": True}, "This tool is held"),
        ({}, {}, ""),
    ],
)
def test_what_is_in_the_way_of_a_call_is_said_before_it(
    page: Client, echo: Tool, member: Any, tool: Any, obstacle: str
) -> None:
    GuildMember.objects.update(**member)
    Tool.objects.update(**{**tool, "name": "echo"})
    text = page.get(address(echo)).content.decode()
    assert ('id="call-obstacle"' in text) is bool(obstacle)
    assert obstacle in text
    assert ('id="call" disabled' in text) is bool(obstacle)
    assert ("Open its page" in text) is ("on its page" in obstacle_in(text))


def test_examples_are_no_arguments(page: Client) -> None:
    schema = {
        "properties": {
            "text": {"type": "string", "examples": ["Ada"]},
            "count": {"type": "integer", "examples": [7]},
            "times": {"type": "integer", "examples": [7], "default": 2},
        },
        "required": ["text", "count", "times"],
    }
    assert get_form(page, make_tool(schema=schema))[0] == {"text": "", "times": 2}


def test_a_refusal_is_shown(page: Client, echo: Tool) -> None:
    GuildMember.objects.update(enabled=False)
    assert "is disabled" in call_tool(page, echo, {"text": "x"})["errors"][0]["reason"]


def test_a_destructive_tool_is_called_only_after_a_confirmation(page: Client) -> None:
    tool = make_tool("destroy", {}, annotations={"destructiveHint": True})

    assert "Confirm the call" in call_tool(page, tool, {})["errors"][0]["reason"]
    assert page.post(address(tool), {"arguments": "{}"}).status_code == 200
    assert not Call.objects.exists()
    assert "call" in call_tool(page, tool, {}, confirmed="on")


@pytest.mark.parametrize(
    ("annotations", "needs_confirmation"),
    [
        (None, False),
        ("nonsense", False),
        ({}, False),
        ({"destructiveHint": True}, True),
        ({"destructiveHint": "yes"}, False),
        ({"destructiveHint": True, "readOnlyHint": True}, False),
    ],
)
def test_only_tools_that_declare_themselves_destructive_need_a_confirmation(
    page: Client, annotations: Any, needs_confirmation: bool
) -> None:
    text = page.get(address(make_tool("t", {}, annotations=annotations))).content.decode()
    assert ('id="confirm"' in text) is needs_confirmation
    assert ('name="confirmed"' in text) is needs_confirmation


@pytest.mark.parametrize(
    ("schema", "takes_arguments"),
    [
        ({}, False),
        ({"type": "object", "properties": {}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {"a": {}}}, True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, True),
        ({"type": "object", "required": ["a"]}, True),
        ({"anyOf": [{"required": ["a"]}]}, True),
    ],
)
def test_a_tool_without_arguments_says_so(page: Client, schema: Any, takes_arguments: bool) -> None:
    text = page.get(address(make_tool("t", schema))).content.decode()
    assert ("This tool takes no arguments." in text) is not takes_arguments


# Progress and outcome ---------------------------------------------------------------------------------------------


def test_a_running_call_shows_its_progress_and_can_be_cancelled(page: Client, echo: Tool) -> None:
    progress = {"progress": 1, "total": 4, "message": EVIL}
    row = make_call(echo, status="running", started_at=timezone.now(), progress=progress)

    response = page.get(address(echo, "outcome", row.pk))
    text = response.content.decode()
    assert response["X-Live"] == "part"
    assert '<progress max="100" value="25.0"' in text
    assert "1 of 4: &lt;script&gt;" in text
    assert reverse("admin:roster_call_cancel", args=[row.pk]) in text


def test_a_finished_call_is_shown_once_and_not_requested_again(page: Client, echo: Tool) -> None:
    row = make_call(echo, status="succeeded", result={"content": [{"type": "text", "text": "done and dusted"}]})

    response = page.get(address(echo, "outcome", row.pk))
    assert response["X-Live"] == "done"
    assert "done and dusted" in response.content.decode()
    second_response = page.get(address(echo, "outcome", row.pk), headers={"If-None-Match": response["ETag"]})
    assert (second_response.status_code, second_response["X-Live"]) == (304, "done")


def test_the_duration_of_a_call_is_the_same_in_the_runner_and_on_the_page_of_the_call(page: Client, echo: Tool) -> None:
    start = timezone.now()
    end = start + timedelta(microseconds=2_520)
    row = make_call(echo, status="succeeded", result={"content": []}, started_at=start, finished_at=end)
    pages = [address(echo, "outcome", row.pk), reverse("admin:roster_call_change", args=[row.pk])]
    assert ["2.5 ms" in page.get(each).content.decode() for each in pages] == [True, True]


def test_before_the_first_call_the_outcome_is_empty(page: Client, echo: Tool) -> None:
    response = page.get(address(echo, "outcome", 0))
    assert (response.content.strip(), response["X-Live"]) == (b"", "done")


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        ({"progress": 1, "total": 0}, None),
        ({"progress": 1}, None),
        ({"progress": 9, "total": 3}, 100),
        ({"progress": -1, "total": 3}, 0),
        ({"progress": 1, "total": -3}, 0),
    ],
)
def test_odd_progress_gives_a_valid_bar(echo: Tool, progress: Any, share: float | None) -> None:
    bar = runner.progress_of(make_call(echo, status="running", progress=progress))
    assert bar is not None
    assert bar.share == share


def test_a_cancellation_from_the_page_stays_on_the_page(page: Client, echo: Tool) -> None:
    row = make_call(echo)
    cancel = reverse("admin:roster_call_cancel", args=[row.pk])
    assert "Cancelled" in page.post(cancel, headers={"X-Live": "form"}).json()["messages"][0]["text"]


# Initial arguments ------------------------------------------------------------------------------------------------


def test_the_arguments_of_an_earlier_call_are_used_without_its_secrets(page: Client, echo: Tool) -> None:
    paths = [["login", "key"], ["keys", 0]]
    row = make_call(echo, status="succeeded", arguments=secrets.mask(SECRETS, paths), secret_paths=paths)

    arguments, text = get_form(page, echo, **{"from": row.pk})
    assert arguments == {"text": "x", "login": {}, "keys": [None]}
    assert "Enter them again: login.key, keys.0" in text
    assert "********" not in text.split('id="snippets"')[0]


def test_the_arguments_of_a_running_call_are_shown_without_its_secrets(page: Client, echo: Tool) -> None:
    row = make_call(echo, status="running", arguments=SECRETS, secret_paths=[["login", "key"], ["keys", 0]])
    assert "s3cret" not in get_form(page, echo, **{"from": row.pk})[1]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"arguments": {"guild-hall/cut": {"bytes": 9000, "beginning": "{"}}}, "were too long to be kept whole"),
        ({"arguments": {"guild-hall/cut": {"bytes": 9000}}, "secret_paths": [["text"]]}, "were too long to be kept"),
        ({"arguments": {}, "source": "gateway"}, "are not stored in the database"),
    ],
)
def test_arguments_that_were_not_stored_are_not_used_and_the_page_tells_why(
    page: Client, echo: Tool, settings: Any, columns: dict[str, Any], reason: str
) -> None:
    settings.GUILD_HALL_RECORD_BYTES = 0
    row = make_call(echo, status="succeeded", **columns)
    arguments, text = get_form(page, echo, **{"from": row.pk})
    assert arguments == {"text": ""}
    assert f"The arguments of call {row.pk} are not available: " in text
    assert reason in text


@pytest.mark.parametrize("number", ["999999", "0", "x", "9" * 5000, "-1"])
def test_a_call_that_does_not_exist_gives_no_arguments(page: Client, echo: Tool, number: str) -> None:
    assert get_form(page, echo, **{"from": number})[0] == {"text": ""}
    assert get_form(page, echo, preset=number)[0] == {"text": ""}


def test_a_call_of_another_tool_gives_no_arguments(page: Client, echo: Tool) -> None:
    row = make_call(make_tool("other"), arguments={"text": "theirs"})
    arguments, text = get_form(page, echo, **{"from": row.pk})
    assert arguments == {"text": ""}
    assert f"There is no call {row.pk} of this tool that you may see." in text


def test_calls_of_others_give_no_arguments_and_show_no_outcome(
    client: Client, alice: User, bob: User, echo: Tool
) -> None:
    other_call = make_call(echo, arguments={"text": "private"}, requested_by=alice)
    own_call = make_call(echo, arguments={"text": "own"}, requested_by=bob)
    client.force_login(bob)

    assert get_form(client, echo, **{"from": other_call.pk})[0] == {"text": ""}
    assert get_form(client, echo, **{"from": own_call.pk})[0] == {"text": "own"}
    assert client.get(address(echo, "outcome", other_call.pk)).status_code == 404
    assert client.get(address(echo, "outcome", own_call.pk)).status_code == 200


# Presets ----------------------------------------------------------------------------------------------------------


def save_preset(page: Client, tool: Tool, name: str, arguments: Any) -> Any:
    form = {"preset_name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
    return page.post(address(tool, "presets"), form, headers={"X-Live": "form"}).json()["messages"]


def test_a_preset_is_saved_used_replaced_and_deleted(page: Client, echo: Tool) -> None:
    save_preset(page, echo, "  mine  ", {"text": "one"})
    save_preset(page, echo, "mine", {"text": "two"})

    row = Preset.objects.get()
    assert (row.name, row.arguments) == ("mine", {"text": "two"})
    assert get_form(page, echo, preset=row.pk)[0] == {"text": "two"}
    assert f"?preset={row.pk}" in page.get(address(echo, "presets")).content.decode()
    page.post(address(echo, "preset_delete", row.pk))
    assert not Preset.objects.exists()


def test_secrets_are_never_stored_in_a_preset(page: Client, echo: Tool) -> None:
    (message,) = save_preset(page, echo, "mine", SECRETS)

    assert Preset.objects.get().arguments == {"text": "x", "login": {}, "keys": [None]}
    assert message["text"] == "Saved the preset “mine”. Its secrets are not stored: keys.0, login.key."
    assert "Enter them again: keys.0, login.key." in get_form(page, echo, preset=Preset.objects.get().pk)[1]


def test_an_argument_that_became_a_secret_later_is_not_shown(page: Client, echo: Tool, alice: User) -> None:
    row = Preset.objects.create(user=alice, tool=echo, name="old", arguments=SECRETS)
    arguments, text = get_form(page, echo, preset=row.pk)
    assert "s3cret" not in text
    assert arguments["text"] == "x"


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("", {}, "needs a name"),
        ("x" * 101, {}, "needs a name"),
        ("a", "[1]", "must be a JSON object"),
        ("a", "{nonsense", "not JSON"),
        ("a", '{"text": "\\u0000"}', "cannot be stored"),
        ("a", '{"text": "\\ud800"}', "cannot be stored"),
        ("a", {"text": "x" * 200_000}, "longer than"),
        ("a", '{"a":' * 200 + "1" + "}" * 200, "cannot be stored"),
    ],
)
def test_a_preset_that_cannot_be_stored_is_refused(
    page: Client, echo: Tool, name: str, arguments: Any, reason: str
) -> None:
    (message,) = save_preset(page, echo, name, arguments)
    assert message["level"] == "error"
    assert reason in message["text"]
    assert not Preset.objects.exists()


def test_the_number_of_presets_of_a_tool_is_limited(page: Client, echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "MAX_PRESETS", 2)
    for name in ("a", "b", "c", "b"):
        save_preset(page, echo, name, {"text": name})
    assert sorted(Preset.objects.values_list("name", flat=True)) == ["a", "b"]


def test_a_preset_belongs_to_one_user_and_one_tool(client: Client, alice: User, bob: User, echo: Tool) -> None:
    preset_of_alice = Preset.objects.create(user=alice, tool=echo, name="private", arguments={"text": "private"})
    preset_of_other_tool = Preset.objects.create(user=bob, tool=make_tool("other"), name="elsewhere")
    client.force_login(bob)

    for row in (preset_of_alice, preset_of_other_tool):
        arguments, text = get_form(client, echo, preset=row.pk)
        assert arguments == {"text": ""}
        assert row.name not in text
        assert client.post(address(echo, "preset_delete", row.pk)).status_code == 404
    save_preset(client, echo, "private", {"text": "bobs"})
    assert Preset.objects.get(pk=preset_of_alice.pk).arguments == {"text": "private"}


def test_without_a_script_saving_a_preset_leads_back_to_it(page: Client, echo: Tool) -> None:
    response = page.post(address(echo, "presets"), {"preset_name": "s", "arguments": '{"text": "x"}'})
    assert response["Location"] == f"{address(echo)}?preset={Preset.objects.get().pk}"


# Texts to copy ----------------------------------------------------------------------------------------------------


def test_texts_to_copy_mask_secrets_and_links_leave_them_out(page: Client, echo: Tool) -> None:
    response = page.post(address(echo, "snippets"), {"arguments": json.dumps(SECRETS)}).json()

    assert response["arguments"] == {"text": "x", "login": {}, "keys": [None]}
    assert response["left_out"] == ["keys.0", "login.key"]
    assert "s3cret" not in json.dumps(response)
    assert "http://testserver/api/members/example/tools/echo/invoke/" in response["snippets"]["curl"]


@pytest.mark.parametrize("arguments", ["{nonsense", "[]", "5", "[" * 100_000])
def test_arguments_that_are_no_object_give_no_text_to_copy(page: Client, echo: Tool, arguments: str) -> None:
    assert set(page.post(address(echo, "snippets"), {"arguments": arguments}).json()) == {"error"}


# Access control, and hostile texts --------------------------------------------------------------------------------


def test_a_user_who_may_not_call_tools_has_no_access_to_the_runner(client: Client, echo: Tool) -> None:
    client.force_login(User.objects.create_user("carol", is_staff=True))
    row = make_call(echo)
    for address_ in (address(echo), address(echo, "presets"), address(echo, "outcome", row.pk)):
        assert client.get(address_).status_code == 403
    for address_ in (address(echo), address(echo, "presets"), address(echo, "snippets")):
        assert client.post(address_, {"arguments": "{}", "preset_name": "x"}).status_code == 403


def test_a_member_reserved_for_others_has_no_runner(client: Client, bob: User, echo: Tool) -> None:
    own_call = make_call(echo, requested_by=bob)
    reserve_member(echo.member, [Group.objects.create(name="others")])
    client.force_login(bob)
    for address_ in (address(echo), address(echo, "presets"), address(echo, "outcome", own_call.pk)):
        assert client.get(address_).status_code == 404
    for address_ in (address(echo), address(echo, "presets"), address(echo, "snippets")):
        assert client.post(address_, {"arguments": "{}", "preset_name": "x"}).status_code == 404


@pytest.mark.parametrize("name", ["call", "presets", "snippets"])
def test_posts_need_the_csrf_token(alice: User, echo: Tool, name: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert client.post(address(echo, name), {"arguments": "{}"}).status_code == 403


def test_hostile_schemas_and_names_are_escaped(page: Client, alice: User) -> None:
    schema = {"type": "object", "title": EVIL, "properties": {EVIL: {"type": "string", "description": EVIL}}}
    tool = make_tool(EVIL, schema, description=EVIL * 100, annotations={"destructiveHint": True, "title": EVIL})
    Preset.objects.create(user=alice, tool=tool, name=EVIL, arguments={EVIL: EVIL})

    for text in (page.get(address(tool)).content.decode(), page.get(address(tool, "presets")).content.decode()):
        assert EVIL not in text
        assert "&lt;script&gt;" in text


def test_a_very_long_schema_is_not_in_the_page(page: Client) -> None:
    tool = make_tool("wide", {"type": "object", "properties": {"a": {"description": "x" * 300_000}}})
    text = page.get(address(tool)).content.decode()
    assert len(text) < 100_000
    assert 'id="input-schema"' not in text


def test_the_page_has_no_inline_script_style_or_handler(page: Client, echo: Tool) -> None:
    text = page.get(address(echo)).content.decode()
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)


def test_the_page_costs_the_same_queries_for_two_presets_and_for_twenty(
    page: Client, alice: User, echo: Tool, django_assert_max_num_queries: Any
) -> None:
    def count_queries(count: int) -> int:
        Preset.objects.all().delete()
        for number in range(count):
            Preset.objects.create(user=alice, tool=echo, name=str(number))
        page.get(address(echo))
        with django_assert_max_num_queries(30) as queries:
            page.get(address(echo))
        return len(queries)

    assert count_queries(2) == count_queries(20)
