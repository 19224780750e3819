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


def body(client: Client, query: str = "") -> dict[str, Any]:
    response = client.get(ADDRESS + query)
    assert response.status_code == 200, response.content
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("is_summed", [True, False])
def test_the_last_hour_is_told_by_the_minute(as_bob: Client, is_summed: bool) -> None:
    if is_summed:
        statistics.roll_up()
    found = body(as_bob)
    assert (found["span"], found["seconds"], len(found["points"])) == ("hour", 60, 60)
    assert {**found["total"], "begins_at": ""} == {
        "begins_at": "",
        "calls": 2,
        "failed": 1,
        "p50": pytest.approx(2, rel=0.2),
        "p95": pytest.approx(2, rel=0.2),
        "mean": pytest.approx(2),
    }
    assert [(point["calls"], point["failed"]) for point in found["points"] if point["calls"]] == [(2, 1)]
    assert found["points"][0]["p50"] is None


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(("span", "points"), [("day", 96), ("week", 168)])
def test_longer_spans_have_more_points(as_bob: Client, span: str, points: int) -> None:
    statistics.roll_up()
    found = body(as_bob, f"?span={span}")
    assert len(found["points"]) == points
    assert found["total"]["calls"] == 3


@pytest.mark.usefixtures("calls")
def test_one_tool_is_told_alone(as_bob: Client) -> None:
    assert body(as_bob, "?tool=add")["total"]["calls"] == 1
    assert body(as_bob, "?tool=nothing")["total"]["calls"] == 0


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("codename", "of_member", "of_tool"),
    [
        (None, 403, 403),
        ("invoke_tool", 403, 403),
        ("control_member", 403, 403),
        ("view_guildmember", 200, 403),
        ("view_tool", 200, 200),
        ("view_call", 200, 200),
    ],
)
def test_figures_are_for_those_who_may_view_what_they_are_of(
    charlie: User, as_charlie: Client, codename: str | None, of_member: int, of_tool: int
) -> None:
    """As in the admin: the pages that show them need the same permissions."""
    charlie.is_staff = True
    charlie.save()
    charlie.user_permissions.set(Permission.objects.filter(codename=codename))
    assert as_charlie.get(ADDRESS).status_code == of_member
    assert as_charlie.get(f"{ADDRESS}?tool=echo").status_code == of_tool
    page = Client()
    page.force_login(charlie)
    member = GuildMember.objects.get(name="example")
    part = reverse("admin:roster_statistics")
    assert page.get(part, {"member": member.pk}).status_code == of_member
    assert page.get(part, {"member": member.pk, "tool": "echo"}).status_code == of_tool


def test_other_spans_are_refused(as_bob: Client, example: GuildMember) -> None:
    assert as_bob.get(f"{ADDRESS}?span=year").status_code == 400


def test_a_member_that_is_not_there_for_one_has_no_figures(as_bob: Client, example: GuildMember) -> None:
    example.groups.add(Group.objects.create(name="others"))
    assert as_bob.get(ADDRESS).status_code == 404
    assert as_bob.get("/api/members/nobody/statistics/").status_code == 404


@pytest.mark.usefixtures("calls")
def test_a_token_of_single_tools_is_told_of_these_alone(bob: User, example: GuildMember) -> None:
    client = client_of(bob, scope="tools", tools=[add_tool(example, "add")])
    assert body(client, "?tool=add")["total"]["calls"] == 1
    assert client.get(ADDRESS).status_code == 403
    assert client.get(f"{ADDRESS}?tool=echo").status_code == 403


def test_figures_are_for_those_with_a_token_or_a_session(client: Client, example: GuildMember) -> None:
    assert client.get(ADDRESS).status_code == 401


@pytest.mark.usefixtures("calls")
def test_figures_take_three_queries(as_bob: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(3):  # the token, the member, its figures
        body(as_bob, "?span=week")
