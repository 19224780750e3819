"""The page of a call, and its button to repeat the call."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.control.members import reserve_member
from roster.models import Call, GuildMember, Tool
from tests.support.calls import LIST, add, at, html, messages_of, words

pytestmark = pytest.mark.django_db

EVIL = "<img src=x onerror=alert(1)>"

# A call's page ----------------------------------------------------------------------------------------------------


def test_a_running_call_shows_its_progress_and_updates_until_it_ends(page: Client, echo: Tool) -> None:
    call = add(
        echo.member,
        status="running",
        started_at=timezone.now(),
        progress={"progress": 2, "total": 5, "message": f"fetching {EVIL}"},
    )
    text = html(page.get(at(call, "change")))
    assert f'data-live="{at(call, "part")}"' in text
    assert '<progress aria-label="Progress of the call" value="40.0" max="100">' in text
    assert "2 of 5: fetching &lt;img" in text
    assert at(call, "cancel") in text
    part = page.get(at(call, "part"))
    assert part.headers["X-Live"] == "part"
    assert page.get(at(call, "part"), headers={"If-None-Match": part.headers["ETag"]}).status_code == 304
    Call.objects.filter(pk=call.pk).update(
        status="succeeded", finished_at=timezone.now(), result={"content": [{"type": "text", "text": "all done"}]}
    )
    part = page.get(at(call, "part"), headers={"If-None-Match": part.headers["ETag"]})
    assert part.headers["X-Live"] == "done"
    assert "all done" in html(part)
    assert "<progress" not in html(part)
    assert "data-live=" not in html(page.get(at(call, "change"))).split('class="call-part"')[1].split(">")[0]


def test_cancel_responds_to_the_script_of_the_page(page: Client, echo: Tool) -> None:
    call = add(echo.member, status="running")
    response = page.post(at(call, "cancel"), headers={"X-Live": "form"}).json()
    assert response["messages"] == [{"level": "success", "text": f"Cancellation requested (1): {call.pk} echo."}]
    assert "Cancellation requested." in words(page.get(at(call, "part")))


def test_a_call_is_visible_to_its_requester_and_to_users_who_may_view_calls(
    client: Client, bob: User, echo: Tool
) -> None:
    call = add(echo.member, status="running")
    assert client.get(at(call, "part")).status_code == 200
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert client.get(at(call, "part")).status_code == 404
    Call.objects.update(requested_by=bob)
    bob.user_permissions.clear()
    assert client.get(at(call, "part")).status_code == 200


def test_texts_of_a_member_are_escaped_on_the_page(page: Client, echo: Tool) -> None:
    call = add(
        echo.member,
        status="failed",
        tool_name=EVIL,
        requester=EVIL,
        arguments={EVIL: EVIL},
        error_kind="tool",
        error_message=EVIL,
        result={"isError": True, "content": [{"type": "text", "text": EVIL}]},
    )
    for address in (at(call, "change"), at(call, "part"), LIST):
        assert EVIL not in html(page.get(address))


# Repeat -----------------------------------------------------------------------------------------------------------


def test_a_call_is_repeated_once_even_if_the_button_is_pressed_twice(page: Client, alice: User, echo: Tool) -> None:
    call = add(echo.member, arguments={"text": "hello"})
    text = html(page.get(at(call, "change")))
    assert f"{reverse('admin:roster_tool_call', args=[echo.pk])}?from={call.pk}" in text
    (key,) = re.findall(r'name="call_key" value="([^"]+)"', text)
    for _ in range(2):
        response = page.post(at(call, "replay"), {"call_key": key})
        new_call = Call.objects.exclude(pk=call.pk).get()
        assert response.headers["Location"] == at(new_call, "change")
    assert (new_call.arguments, new_call.tool_name, new_call.source, new_call.requested_by) == (
        call.arguments,
        "echo",
        "admin",
        alice,
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"secret_paths": [["password"]], "arguments": {"password": "***"}}, "its arguments held secrets"),
        ({"arguments": {"guild-hall/cut": {"bytes": 9000, "beginning": "{"}}}, "too long to be kept whole"),
    ],
)
def test_a_call_whose_arguments_are_not_stored_is_not_repeated(
    page: Client, echo: Tool, columns: dict[str, Any], reason: str
) -> None:
    call = add(echo.member, **columns)
    text = html(page.get(at(call, "change")))
    assert reason in text
    assert at(call, "replay") not in text
    assert "?from=" in text
    (message,) = messages_of(page.post(at(call, "replay"), follow=True))
    assert reason in message
    assert Call.objects.count() == 1


def test_gateway_calls_without_arguments_are_not_repeated(page: Client, echo: Tool, settings: Any) -> None:
    call = add(echo.member, source="gateway")
    assert at(call, "replay") in html(page.get(at(call, "change")))
    settings.GUILD_HALL_RECORD_BYTES = 0
    assert "are not stored in the database" in html(page.get(at(call, "change")))


def test_a_refused_repetition_shows_the_reason(page: Client, echo: Tool) -> None:
    call = add(echo.member, arguments={"text": 5})
    (message,) = messages_of(page.post(at(call, "replay"), follow=True))
    assert message.startswith("The call was not made: ")
    assert Call.objects.count() == 1


def test_a_repetition_needs_the_permission_to_call_and_the_post_method(client: Client, bob: User, echo: Tool) -> None:
    call = add(echo.member)
    assert at(call, "replay") not in html(client.get(at(call, "change")))
    assert client.get(at(call, "replay")).status_code == 405
    assert client.post(at(call, "replay")).status_code == 403
    assert Call.objects.count() == 1


@pytest.mark.parametrize("columns", [{"enabled": False}, {"removed_at": datetime(2026, 1, 1, tzinfo=UTC)}])
def test_a_call_of_a_disabled_or_removed_member_cannot_be_repeated(
    page: Client, echo: Tool, columns: dict[str, Any]
) -> None:
    call = add(echo.member)
    GuildMember.objects.update(**columns)
    assert at(call, "replay") not in html(page.get(at(call, "change")))
