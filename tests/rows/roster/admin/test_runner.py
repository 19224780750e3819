"""The tool runner as the server makes it: calls without leaving, presets, links to earlier calls, and who may what."""

from __future__ import annotations

import json
import re
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
from roster.admin.tools import runner
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
    """Nobody really waits, for no runtime runs here: which calls somebody would have waited for, and how long."""
    waits: list[tuple[int, float]] = []
    monkeypatch.setattr(runner, "wait_for_call", lambda call_id, timeout: waits.append((call_id, timeout)))
    return waits


@pytest.fixture
def alice() -> User:
    return User.objects.create_superuser("alice")


@pytest.fixture
def bob() -> User:
    """May call tools."""
    bob = User.objects.create_user("bob", is_staff=True)
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return bob


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


def address(tool: Tool, name: str = "call", *more: Any) -> str:
    return reverse(f"admin:roster_tool_{name}", args=[tool.pk, *more])


def call(page: Client, tool: Tool, arguments: Any, **more: str) -> Any:
    """As the page's script calls; the answer parsed."""
    form = {"arguments": arguments if isinstance(arguments, str) else json.dumps(arguments), **more}
    response = page.post(address(tool), form, headers={"Accept": "application/json"})
    assert response.status_code == 200
    return response.json()


def begun(page: Client, tool: Tool, **query: Any) -> tuple[Any, str]:
    """The arguments that the form begins with, and the whole page."""
    response = page.get(address(tool), query)
    return json.loads(response.context["form"].initial["arguments"]), response.content.decode()


def make_call(tool: Tool, **columns: Any) -> Call:
    values = {"tool_name": tool.name, "timeout": 30, "source": "rest", "requester": "x", **columns}
    return Call.objects.create(member=tool.member, **values)


# Calls without leaving --------------------------------------------------------------------------------------------


def test_a_call_answers_with_where_its_end_will_be_and_a_new_key(
    page: Client, echo: Tool, waits: list[tuple[int, float]]
) -> None:
    key = "6f1ed002-ab59-4e5c-8ba3-1f1f1f1f1f1f"
    said = call(page, echo, {"text": "hi"}, call_key=key)

    row = Call.objects.get()
    assert (row.arguments, row.source, row.idempotency_key) == ({"text": "hi"}, "admin", key)
    assert said["outcome"] == address(echo, "outcome", row.pk)
    assert said["call_key"] != key
    assert waits == [(row.pk, runner.PATIENCE_SECONDS)]


def test_a_call_takes_a_seat_to_wait_and_without_one_answers_at_once(
    page: Client, echo: Tool, waits: list[tuple[int, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "seats", SharedSlots(1))
    with requests.seat((0, None), {}):
        assert call(page, echo, {"text": "hi"})["call"]
    assert waits == []
    call(page, echo, {"text": "hi"})
    assert len(waits) == 1
    assert requests.seats.in_use == 0


def test_the_same_form_sent_twice_calls_once(page: Client, echo: Tool) -> None:
    key = "6f1ed002-ab59-4e5c-8ba3-1f1f1f1f1f1f"
    assert [call(page, echo, {"text": "hi"}, call_key=key)["call"] for _ in range(2)] == [Call.objects.get().pk] * 2


def test_changed_arguments_after_a_lost_answer_are_told_once_and_then_called(page: Client, echo: Tool) -> None:
    key = "6f1ed002-ab59-4e5c-8ba3-1f1f1f1f1f1f"
    call(page, echo, {"text": "hi"}, call_key=key)
    refused = call(page, echo, {"text": "changed"}, call_key=key)
    assert refused["errors"] == [{"path": [], "reason": runner.SENT_OTHERWISE}]
    assert Call.objects.count() == 1

    call(page, echo, {"text": "changed"}, call_key=refused["call_key"])
    assert Call.objects.latest("pk").arguments == {"text": "changed"}


def test_without_a_script_the_form_that_comes_back_has_a_new_key(page: Client, echo: Tool) -> None:
    key = "6f1ed002-ab59-4e5c-8ba3-1f1f1f1f1f1f"
    call(page, echo, {"text": "hi"}, call_key=key)
    response = page.post(address(echo), {"arguments": '{"text": "changed"}', "call_key": key})
    assert runner.SENT_OTHERWISE in response.content.decode()
    assert str(response.context["call_key"]) != key


def test_every_validation_error_is_shown_with_its_place(page: Client, echo: Tool) -> None:
    said = call(page, echo, {"times": 0, "login": {"key": 5}, "keys": ["a", 7]})

    assert {json.dumps(error["path"]) for error in said["errors"]} == {
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
def test_what_is_no_object_is_told_without_a_place(page: Client, echo: Tool, arguments: str, reason: str) -> None:
    (error,) = call(page, echo, arguments)["errors"]
    assert error["path"] == []
    assert reason in error["reason"]


def test_a_refusal_is_told(page: Client, echo: Tool) -> None:
    GuildMember.objects.update(enabled=False)
    assert "is disabled" in call(page, echo, {"text": "x"})["errors"][0]["reason"]


def test_what_may_destroy_is_called_only_when_it_is_meant(page: Client) -> None:
    tool = make_tool("destroy", {}, annotations={"destructiveHint": True})

    assert "Confirm the call" in call(page, tool, {})["errors"][0]["reason"]
    assert page.post(address(tool), {"arguments": "{}"}).status_code == 200
    assert not Call.objects.exists()
    assert "call" in call(page, tool, {}, confirmed="on")


@pytest.mark.parametrize(
    ("annotations", "asks"),
    [
        (None, False),
        ("nonsense", False),
        ({}, False),
        ({"destructiveHint": True}, True),
        ({"destructiveHint": "yes"}, False),
        ({"destructiveHint": True, "readOnlyHint": True}, False),
    ],
)
def test_a_tool_is_taken_at_its_word_about_destroying(page: Client, annotations: Any, asks: bool) -> None:
    text = page.get(address(make_tool("t", {}, annotations=annotations))).content.decode()
    assert ('id="confirm"' in text) is asks
    assert ('name="confirmed"' in text) is asks


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        ({}, False),
        ({"type": "object", "properties": {}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {"a": {}}}, True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, True),
        ({"type": "object", "required": ["a"]}, True),
        ({"anyOf": [{"required": ["a"]}]}, True),
    ],
)
def test_a_tool_without_arguments_says_so(page: Client, schema: Any, takes: bool) -> None:
    text = page.get(address(make_tool("t", schema))).content.decode()
    assert ("This tool takes no arguments." in text) is not takes


# How it gets on ---------------------------------------------------------------------------------------------------


def test_a_call_that_runs_tells_its_progress_and_can_be_cancelled(page: Client, echo: Tool) -> None:
    said = {"progress": 1, "total": 4, "message": EVIL}
    row = make_call(echo, status="running", started_at=timezone.now(), progress=said)

    response = page.get(address(echo, "outcome", row.pk))
    text = response.content.decode()
    assert response["X-Live"] == "part"
    assert '<progress max="100" value="25.0"' in text
    assert "1 of 4: &lt;script&gt;" in text
    assert reverse("admin:roster_call_cancel", args=[row.pk]) in text


def test_a_call_that_is_over_is_shown_once_and_asked_for_no_more(page: Client, echo: Tool) -> None:
    row = make_call(echo, status="succeeded", result={"content": [{"type": "text", "text": "done and dusted"}]})

    response = page.get(address(echo, "outcome", row.pk))
    assert response["X-Live"] == "done"
    assert "done and dusted" in response.content.decode()
    again = page.get(address(echo, "outcome", row.pk), headers={"If-None-Match": response["ETag"]})
    assert (again.status_code, again["X-Live"]) == (304, "done")


def test_before_the_first_call_there_is_nothing(page: Client, echo: Tool) -> None:
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
def test_odd_progress_still_makes_a_bar(echo: Tool, progress: Any, share: float | None) -> None:
    made = runner.progress_of(make_call(echo, status="running", progress=progress))
    assert made is not None
    assert made.share == share


def test_a_cancellation_from_the_page_stays_on_the_page(page: Client, echo: Tool) -> None:
    row = make_call(echo)
    cancel = reverse("admin:roster_call_cancel", args=[row.pk])
    assert "Cancelled" in page.post(cancel, headers={"X-Live": "form"}).json()["messages"][0]["text"]


# Beginnings -------------------------------------------------------------------------------------------------------


def test_an_earlier_calls_arguments_come_without_its_secrets(page: Client, echo: Tool) -> None:
    paths = [["login", "key"], ["keys", 0]]
    row = make_call(echo, status="succeeded", arguments=secrets.mask(SECRETS, paths), secret_paths=paths)

    arguments, text = begun(page, echo, **{"from": row.pk})
    assert arguments == {"text": "x", "login": {}, "keys": [None]}
    assert "Enter them again: login.key, keys.0" in text
    assert "********" not in text.split('id="snippets"')[0]


def test_an_earlier_call_that_still_runs_shows_no_secret(page: Client, echo: Tool) -> None:
    row = make_call(echo, status="running", arguments=SECRETS, secret_paths=[["login", "key"], ["keys", 0]])
    assert "s3cret" not in begun(page, echo, **{"from": row.pk})[1]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"arguments": {"guild-hall/cut": {"bytes": 9000, "beginning": "{"}}}, "were too long to be kept whole"),
        ({"arguments": {"guild-hall/cut": {"bytes": 9000}}, "secret_paths": [["text"]]}, "were too long to be kept"),
        ({"arguments": {}, "source": "gateway"}, "are not stored in the database"),
    ],
)
def test_arguments_that_were_not_kept_are_no_beginning_and_the_page_says_why(
    page: Client, echo: Tool, settings: Any, columns: dict[str, Any], reason: str
) -> None:
    settings.GUILD_HALL_RECORD_BYTES = 0
    row = make_call(echo, status="succeeded", **columns)
    arguments, text = begun(page, echo, **{"from": row.pk})
    assert arguments == {"text": ""}
    assert f"The arguments of call {row.pk} are not available: " in text
    assert reason in text


@pytest.mark.parametrize("number", ["999999", "0", "x", "9" * 5000, "-1"])
def test_a_call_that_is_not_there_is_no_beginning(page: Client, echo: Tool, number: str) -> None:
    assert begun(page, echo, **{"from": number})[0] == {"text": ""}
    assert begun(page, echo, preset=number)[0] == {"text": ""}


def test_a_call_of_another_tool_is_no_beginning(page: Client, echo: Tool) -> None:
    row = make_call(make_tool("other"), arguments={"text": "theirs"})
    arguments, text = begun(page, echo, **{"from": row.pk})
    assert arguments == {"text": ""}
    assert f"There is no call {row.pk} of this tool that you may see." in text


def test_calls_of_others_are_no_beginning_and_have_no_outcome(
    client: Client, alice: User, bob: User, echo: Tool
) -> None:
    theirs = make_call(echo, arguments={"text": "private"}, requested_by=alice)
    own = make_call(echo, arguments={"text": "own"}, requested_by=bob)
    client.force_login(bob)

    assert begun(client, echo, **{"from": theirs.pk})[0] == {"text": ""}
    assert begun(client, echo, **{"from": own.pk})[0] == {"text": "own"}
    assert client.get(address(echo, "outcome", theirs.pk)).status_code == 404
    assert client.get(address(echo, "outcome", own.pk)).status_code == 200


# Sets -------------------------------------------------------------------------------------------------------------


def save(page: Client, tool: Tool, name: str, arguments: Any) -> Any:
    form = {"preset_name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
    return page.post(address(tool, "presets"), form, headers={"X-Live": "form"}).json()["messages"]


def test_a_preset_is_kept_used_replaced_and_deleted(page: Client, echo: Tool) -> None:
    save(page, echo, "  mine  ", {"text": "one"})
    save(page, echo, "mine", {"text": "two"})

    row = Preset.objects.get()
    assert (row.name, row.arguments) == ("mine", {"text": "two"})
    assert begun(page, echo, preset=row.pk)[0] == {"text": "two"}
    assert f"?preset={row.pk}" in page.get(address(echo, "presets")).content.decode()
    page.post(address(echo, "preset_delete", row.pk))
    assert not Preset.objects.exists()


def test_secrets_are_never_stored_in_a_set(page: Client, echo: Tool) -> None:
    (message,) = save(page, echo, "mine", SECRETS)

    assert Preset.objects.get().arguments == {"text": "x", "login": {}, "keys": [None]}
    assert message["text"] == "Saved the preset “mine”. Its secrets are not stored: keys.0, login.key."
    assert "Enter them again: keys.0, login.key." in begun(page, echo, preset=Preset.objects.get().pk)[1]


def test_what_became_a_secret_since_is_not_shown(page: Client, echo: Tool, alice: User) -> None:
    row = Preset.objects.create(user=alice, tool=echo, name="old", arguments=SECRETS)
    arguments, text = begun(page, echo, preset=row.pk)
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
def test_a_set_that_cannot_be_kept_is_refused(page: Client, echo: Tool, name: str, arguments: Any, reason: str) -> None:
    (message,) = save(page, echo, name, arguments)
    assert message["level"] == "error"
    assert reason in message["text"]
    assert not Preset.objects.exists()


def test_there_is_a_bound_to_the_sets_of_a_tool(page: Client, echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "MAX_PRESETS", 2)
    for name in ("a", "b", "c", "b"):
        save(page, echo, name, {"text": name})
    assert sorted(Preset.objects.values_list("name", flat=True)) == ["a", "b"]


def test_presets_are_of_one_user_and_one_tool(client: Client, alice: User, bob: User, echo: Tool) -> None:
    theirs = Preset.objects.create(user=alice, tool=echo, name="private", arguments={"text": "private"})
    elsewhere = Preset.objects.create(user=bob, tool=make_tool("other"), name="elsewhere")
    client.force_login(bob)

    for row in (theirs, elsewhere):
        arguments, text = begun(client, echo, preset=row.pk)
        assert arguments == {"text": ""}
        assert row.name not in text
        assert client.post(address(echo, "preset_delete", row.pk)).status_code == 404
    save(client, echo, "private", {"text": "bobs"})
    assert Preset.objects.get(pk=theirs.pk).arguments == {"text": "private"}


def test_without_a_script_saving_leads_back_to_the_set(page: Client, echo: Tool) -> None:
    response = page.post(address(echo, "presets"), {"preset_name": "s", "arguments": '{"text": "x"}'})
    assert response["Location"] == f"{address(echo)}?preset={Preset.objects.get().pk}"


# Texts to copy ----------------------------------------------------------------------------------------------------


def test_texts_to_copy_mask_secrets_and_links_leave_them_out(page: Client, echo: Tool) -> None:
    said = page.post(address(echo, "snippets"), {"arguments": json.dumps(SECRETS)}).json()

    assert said["arguments"] == {"text": "x", "login": {}, "keys": [None]}
    assert said["left_out"] == ["keys.0", "login.key"]
    assert "s3cret" not in json.dumps(said)
    assert "http://testserver/api/members/example/tools/echo/invoke/" in said["snippets"]["curl"]


@pytest.mark.parametrize("arguments", ["{nonsense", "[]", "5", "[" * 100_000])
def test_of_what_is_no_call_there_is_no_text_to_copy(page: Client, echo: Tool, arguments: str) -> None:
    assert set(page.post(address(echo, "snippets"), {"arguments": arguments}).json()) == {"error"}


# Who may, and hostile words ---------------------------------------------------------------------------------------


def test_who_may_not_call_gets_nothing_of_the_runner(client: Client, echo: Tool) -> None:
    client.force_login(User.objects.create_user("carol", is_staff=True))
    row = make_call(echo)
    for place in (address(echo), address(echo, "presets"), address(echo, "outcome", row.pk)):
        assert client.get(place).status_code == 403
    for place in (address(echo), address(echo, "presets"), address(echo, "snippets")):
        assert client.post(place, {"arguments": "{}", "preset_name": "x"}).status_code == 403


def test_a_member_for_others_has_no_runner(client: Client, bob: User, echo: Tool) -> None:
    own = make_call(echo, requested_by=bob)
    reserve_member(echo.member, [Group.objects.create(name="others")])
    client.force_login(bob)
    for place in (address(echo), address(echo, "presets"), address(echo, "outcome", own.pk)):
        assert client.get(place).status_code == 404
    for place in (address(echo), address(echo, "presets"), address(echo, "snippets")):
        assert client.post(place, {"arguments": "{}", "preset_name": "x"}).status_code == 404


@pytest.mark.parametrize("name", ["call", "presets", "snippets"])
def test_posts_want_the_token_against_forgery(alice: User, echo: Tool, name: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert client.post(address(echo, name), {"arguments": "{}"}).status_code == 403


def test_hostile_schemas_and_names_are_text(page: Client, alice: User) -> None:
    schema = {"type": "object", "title": EVIL, "properties": {EVIL: {"type": "string", "description": EVIL}}}
    tool = make_tool(EVIL, schema, description=EVIL * 100, annotations={"destructiveHint": True, "title": EVIL})
    Preset.objects.create(user=alice, tool=tool, name=EVIL, arguments={EVIL: EVIL})

    for text in (page.get(address(tool)).content.decode(), page.get(address(tool, "presets")).content.decode()):
        assert EVIL not in text
        assert "&lt;script&gt;" in text


def test_a_schema_of_great_length_is_not_put_into_the_page(page: Client) -> None:
    tool = make_tool("wide", {"type": "object", "properties": {"a": {"description": "x" * 300_000}}})
    text = page.get(address(tool)).content.decode()
    assert len(text) < 100_000
    assert 'id="input-schema"' not in text


def test_the_page_has_no_script_style_or_handler_of_its_own(page: Client, echo: Tool) -> None:
    text = page.get(address(echo)).content.decode()
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)


def test_the_page_costs_the_same_queries_for_two_sets_and_for_twenty(
    page: Client, alice: User, echo: Tool, django_assert_max_num_queries: Any
) -> None:
    def queries(count: int) -> int:
        Preset.objects.all().delete()
        for number in range(count):
            Preset.objects.create(user=alice, tool=echo, name=str(number))
        page.get(address(echo))
        with django_assert_max_num_queries(30) as asked:
            page.get(address(echo))
        return len(asked)

    assert queries(2) == queries(20)
