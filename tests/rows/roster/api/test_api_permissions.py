"""The API needs the same permissions as the admin."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from mcp_runtime.calls.transitions import Requester
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
def test_a_user_without_the_permission_to_control_cannot_change_a_member(as_charlie: Client, verb: str) -> None:
    response = as_charlie.post(f"/api/members/example/{verb}/")
    assert response.status_code == 403
    assert "roster.control_member" in response.json()["detail"]
    member = GuildMember.objects.get()
    assert (member.enabled, member.desired_state, member.restart_requested_at) == (True, "running", None)


def test_a_user_without_the_permission_to_control_cannot_disable_a_tool(as_charlie: Client) -> None:
    assert as_charlie.post("/api/members/example/tools/echo/disable/").status_code == 403
    assert Tool.objects.get().enabled


def test_a_user_without_the_permission_to_call_cannot_queue_a_call(as_charlie: Client) -> None:
    response = as_charlie.post("/api/members/example/tools/echo/invoke/", {}, content_type="application/json")
    assert response.status_code == 403
    assert "roster.invoke_tool" in response.json()["detail"]
    assert not Call.objects.exists()


def test_every_user_may_view_the_roster(as_charlie: Client) -> None:
    assert as_charlie.get("/api/roster/").json()["members"][0]["name"] == "example"


def test_calls_of_others_are_hidden_from_a_user_who_may_only_call(
    as_charlie: Client, charlie: User, bob: User, as_bob: Client
) -> None:
    charlie.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    other_call, _ = queue_call("example", "echo", {}, requester=Requester(Call.Source.REST, bob))
    own_id = as_charlie.post("/api/members/example/tools/echo/invoke/", {}, content_type="application/json").json()[
        "id"
    ]
    assert [row["id"] for row in as_charlie.get("/api/calls/").json()["results"]] == [own_id]
    assert as_charlie.get(f"/api/calls/{other_call.pk}/").status_code == 404
    assert as_charlie.post(f"/api/calls/{other_call.pk}/cancel/").status_code == 404
    assert as_charlie.post(f"/api/calls/{own_id}/cancel/").status_code == 200
    assert {row["id"] for row in as_bob.get("/api/calls/").json()["results"]} == {other_call.pk, own_id}
