"""What users see of calls who may call tools and may not see the calls of others."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from mcp_runtime.control.members import reserve_member
from roster import roles
from roster.models import Call, GuildMember, Role, Token, ToolSet
from tests.support.calls import LIST, add, at, html, ids, words

pytestmark = pytest.mark.django_db


@pytest.fixture
def carl(client: Client) -> User:
    """A user with the role caller, who is logged in."""
    user = User.objects.create_user("carl")
    roles.set_role(user, Role.objects.get(name="caller"))
    client.force_login(user)
    return user


@pytest.fixture
def call(anna: GuildMember, carl: User) -> Call:
    """A call of carl."""
    return add(anna, requested_by=carl, requester="carl", arguments={"text": "mine"})


@pytest.fixture
def foreign_call(anna: GuildMember, alice: User) -> Call:
    """A call of alice, with words that carl must not see."""
    result = {"content": [{"type": "text", "text": "word-of-result"}]}
    return add(
        anna, requested_by=alice, requester="alice", tool_name="word-of-tool", arguments={"text": "word"}, result=result
    )


def test_a_caller_sees_a_list_of_own_calls_and_a_link_to_it(client: Client, call: Call, foreign_call: Call) -> None:
    assert ids(client) == [call.pk]
    text = html(client.get(LIST))
    assert "You see the calls that you made yourself." in text
    assert "word-of-tool" not in text
    assert "Plots" not in words(client.get(LIST))  # they count the calls of all users
    assert f'<a href="{LIST}">Calls</a>' in html(client.get("/admin/"))


def test_neither_filters_nor_a_search_reveal_calls_of_others(client: Client, call: Call, foreign_call: Call) -> None:
    ToolSet.objects.create(name="writing")
    Call.objects.filter(pk=foreign_call.pk).update(tool_set="writing", error_kind="tool", status="failed")
    queries = [
        *({"q": "word-of-tool"}, {"q": "alice"}, {"q": f"#{foreign_call.pk}"}, {"tool_name": "word-of-tool"}),
        *({"status__exact": "failed"}, {"error_kind__exact": "tool"}, {"tool_set": "writing"}),
    ]
    for query in queries:
        assert ids(client, **query) == [], query
    assert ids(client, member__id__exact=foreign_call.member_id) == [call.pk]
    assert ids(client, before=foreign_call.pk + 1) == [call.pk]


def test_the_export_and_the_live_part_have_own_calls_alone(client: Client, call: Call, foreign_call: Call) -> None:
    response = client.get(f"{LIST}export/jsonl/")
    lines = b"".join(response.streaming_content).decode().splitlines()  # type: ignore[attr-defined]  # it streams
    assert [json.loads(line)["id"] for line in lines] == [call.pk]
    part = html(client.get(LIST, headers={"X-Live": "part"}))
    assert f"call-{call.pk}" in part
    assert "word-of-tool" not in part


@pytest.mark.parametrize("action", ["change", "history", "part", "previous"])
def test_the_pages_of_a_call_of_another_user_do_not_exist(
    client: Client, foreign_call: Call, carl: User, action: str
) -> None:
    response = client.get(at(foreign_call, action))
    assert response.status_code == 404
    assert "word-of" not in response.content.decode()


@pytest.mark.parametrize("action", ["cancel", "replay"])
def test_a_call_of_another_user_is_neither_cancelled_nor_repeated(
    client: Client, foreign_call: Call, carl: User, action: str
) -> None:
    Call.objects.filter(pk=foreign_call.pk).update(status="queued")
    assert client.post(at(foreign_call, action)).status_code == 404
    assert list(Call.objects.values_list("pk", "status")) == [(foreign_call.pk, "queued")]


def test_actions_of_the_list_leave_calls_of_others_alone(client: Client, call: Call, foreign_call: Call) -> None:
    Call.objects.update(status="queued")
    selected = [call.pk, foreign_call.pk]
    client.post(LIST, {"action": "cancel", "_selected_action": selected})
    statuses = dict(Call.objects.values_list("pk", "status"))
    assert statuses == {call.pk: "cancelled", foreign_call.pk: "queued"}
    response = client.post(LIST, {"action": "compare", "_selected_action": selected}, follow=True)
    assert "Choose exactly two calls to compare." in html(response)
    comparison = f"{LIST}compare/?left={call.pk}&right={foreign_call.pk}"
    assert client.get(comparison).status_code == 404


def test_the_page_of_an_own_call_stays_when_its_member_is_reserved_for_others(client: Client, call: Call) -> None:
    reserve_member(call.member, [Group.objects.create(name="others")])
    assert ids(client) == [call.pk]
    assert "mine" in html(client.get(at(call, "change")))


def test_users_without_the_right_to_call_tools_get_no_list(client: Client, anna: GuildMember) -> None:
    viewer = User.objects.create_user("vera")
    roles.set_role(viewer, Role.objects.get(name="viewer"))
    client.force_login(viewer)
    assert client.get(LIST).status_code == 403
    assert client.get(f"{LIST}export/csv/").status_code == 403


def test_pages_with_own_calls_link_to_the_list_of_own_calls(client: Client, call: Call, carl: User) -> None:
    text = html(client.get(f"/admin/roster/guildmember/{call.member_id}/change/"))
    assert "All your calls of this member" in text
    token = Token.make(user=carl, name="laptop")[0]
    assert f'href="{LIST}?token={token.pk}"' in html(client.get(f"/admin/roster/token/{token.pk}/change/"))
    tool_set = ToolSet.objects.create(name="writing")
    assert "All your calls at this address" in html(client.get(f"/admin/roster/toolset/{tool_set.pk}/change/"))
