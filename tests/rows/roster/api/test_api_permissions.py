"""The permissions of the admin hold here too."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control.calls import queue_call
from mcp_runtime.control.members import MEMBER_VERBS
from roster.models import Call, GuildMember, Tool
from tests.support.api import add_member

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def example() -> GuildMember:
    member = add_member()
    Tool.objects.create(member=member, name="echo", definition={"name": "echo", "inputSchema": {"type": "object"}})
    return member


@pytest.mark.parametrize("verb", MEMBER_VERBS)
def test_a_user_without_the_permission_to_control_changes_no_member(as_charlie: Client, verb: str) -> None:
    response = as_charlie.post(f"/api/members/example/{verb}/")
    assert response.status_code == 403
    assert "roster.control_member" in response.json()["error"]
    member = GuildMember.objects.get()
    assert (member.enabled, member.desired_state, member.restart_requested_at) == (True, "running", None)


def test_a_user_without_the_permission_to_control_switches_no_tool(as_charlie: Client) -> None:
    assert as_charlie.post("/api/members/example/tools/echo/disable/").status_code == 403
    assert Tool.objects.get().enabled


def test_a_user_without_the_permission_to_invoke_queues_nothing(as_charlie: Client) -> None:
    response = as_charlie.post("/api/members/example/tools/echo/invoke/", {}, content_type="application/json")
    assert response.status_code == 403
    assert "roster.invoke_tool" in response.json()["error"]
    assert not Call.objects.exists()


def test_everybody_with_an_account_may_look_at_the_roster(as_charlie: Client) -> None:
    assert as_charlie.get("/api/roster/").json()["members"][0]["name"] == "example"


def test_calls_of_others_are_hidden_from_a_user_who_may_only_call(
    as_charlie: Client, charlie: User, bob: User, as_bob: Client
) -> None:
    charlie.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    theirs, _ = queue_call("example", "echo", {}, caller=Caller(Call.Source.REST, bob))
    own = as_charlie.post("/api/members/example/tools/echo/invoke/", {}, content_type="application/json").json()["id"]
    assert [row["id"] for row in as_charlie.get("/api/calls/").json()["results"]] == [own]
    assert as_charlie.get(f"/api/calls/{theirs.pk}/").status_code == 404
    assert as_charlie.post(f"/api/calls/{theirs.pk}/cancel/").status_code == 404
    assert as_charlie.post(f"/api/calls/{own}/cancel/").status_code == 200
    assert {row["id"] for row in as_bob.get("/api/calls/").json()["results"]} == {theirs.pk, own}
