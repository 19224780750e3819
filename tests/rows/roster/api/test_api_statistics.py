from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from mcp_runtime.calls import statistics
from roster.models import GuildMember
from tests.support.api import add_call, add_member, add_tool, client_of

ADDRESS = "/api/members/example/statistics/"


@pytest.fixture
def calls(example: GuildMember) -> None:
    for ago, tool, status in ((1, "echo", "succeeded"), (1, "add", "failed"), (200, "echo", "succeeded")):
        moment = timezone.now() - timedelta(minutes=ago)
        add_call(example, tool, status=status, started_at=moment - timedelta(seconds=2), finished_at=moment)
    add_call(add_member("other"), status="succeeded", finished_at=timezone.now())


def get_body(client: Client, query: str = "") -> dict[str, Any]:
    response = client.get(ADDRESS + query)
    assert response.status_code == 200, response.content
    body: dict[str, Any] = response.json()
    return body


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("is_rolled_up", [True, False])
def test_the_last_hour_has_one_point_for_each_minute(as_bob: Client, is_rolled_up: bool) -> None:
    if is_rolled_up:
        statistics.roll_up()
    body = get_body(as_bob)
    assert (body["span"], body["seconds"], len(body["points"])) == ("hour", 60, 60)
    assert {**body["total"], "begins_at": ""} == {
        "begins_at": "",
        "calls": 2,
        "failed": 1,
        "p50": pytest.approx(2, rel=0.2),
        "p95": pytest.approx(2, rel=0.2),
        "mean": pytest.approx(2),
    }
    assert [(point["calls"], point["failed"]) for point in body["points"] if point["calls"]] == [(2, 1)]
    assert body["points"][0]["p50"] is None


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(("span", "points"), [("day", 96), ("week", 168)])
def test_longer_spans_have_more_points(as_bob: Client, span: str, points: int) -> None:
    statistics.roll_up()
    body = get_body(as_bob, f"?span={span}")
    assert len(body["points"]) == points
    assert body["total"]["calls"] == 3


@pytest.mark.usefixtures("calls")
def test_one_tool_has_its_own_statistics(as_bob: Client) -> None:
    assert get_body(as_bob, "?tool=add")["total"]["calls"] == 1
    assert get_body(as_bob, "?tool=nothing")["total"]["calls"] == 0


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("codename", "member_status", "tool_status"),
    [
        (None, 403, 403),
        ("invoke_tool", 403, 403),
        ("control_member", 403, 403),
        ("view_guildmember", 200, 403),
        ("view_tool", 200, 200),
        ("view_call", 200, 200),
    ],
)
def test_statistics_need_the_permission_to_view_members_tools_or_calls(
    charlie: User, as_charlie: Client, codename: str | None, member_status: int, tool_status: int
) -> None:
    """The pages of the admin with these statistics need the same permissions."""
    charlie.is_staff = True
    charlie.save()
    charlie.user_permissions.set(Permission.objects.filter(codename=codename))
    assert as_charlie.get(ADDRESS).status_code == member_status
    assert as_charlie.get(f"{ADDRESS}?tool=echo").status_code == tool_status
    browser = Client()
    browser.force_login(charlie)
    member = GuildMember.objects.get(name="example")
    address = reverse("admin:roster_statistics")
    assert browser.get(address, {"member": member.pk}).status_code == member_status
    assert browser.get(address, {"member": member.pk, "tool": "echo"}).status_code == tool_status


def test_unknown_spans_are_refused(as_bob: Client, example: GuildMember) -> None:
    assert as_bob.get(f"{ADDRESS}?span=year").status_code == 400


def test_an_unknown_or_reserved_member_has_no_statistics(as_bob: Client, example: GuildMember) -> None:
    example.groups.add(Group.objects.create(name="others"))
    assert as_bob.get(ADDRESS).status_code == 404
    assert as_bob.get("/api/members/nobody/statistics/").status_code == 404


@pytest.mark.usefixtures("calls")
def test_a_token_for_some_tools_sees_only_their_statistics(bob: User, example: GuildMember) -> None:
    client = client_of(bob, scope="tools", tools=[add_tool(example, "add")])
    assert get_body(client, "?tool=add")["total"]["calls"] == 1
    assert client.get(ADDRESS).status_code == 403
    assert client.get(f"{ADDRESS}?tool=echo").status_code == 403


def test_statistics_need_a_token_or_a_session(client: Client, example: GuildMember) -> None:
    assert client.get(ADDRESS).status_code == 401


@pytest.mark.usefixtures("calls")
def test_statistics_take_three_queries(as_bob: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(3):  # the token, the member, its statistics
        get_body(as_bob, "?span=week")
