"""What the page "Add a member" says about approved members. The tests write the rows as a runtime would."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from mcp_runtime.control import proposals
from mcp_runtime.control.members import reserve_member
from mcp_runtime.protocol.errors import InstallError
from roster.models import GuildMember, MemberProposal, PortAllocation
from tests.support.admin import allow, html, make_member, make_tool, page_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]

PAGE = "/admin/roster/guildmember/proposals/"
PART = f"{PAGE}approved/"


@pytest.fixture
def thing() -> MemberProposal:
    """An approved member with locked packages, without a folder yet."""
    (row,) = proposals.propose("npx -y thing", None)[1]
    return proposals.approve("thing", row.digest, None)


def arrive(**columns: Any) -> GuildMember:
    """The folder of the member is there, and the hall has read it."""
    MemberProposal.objects.update(nodes={"main": ""})
    member, _ = GuildMember.objects.update_or_create(name="thing", defaults={"directory": "thing", **columns})
    return GuildMember.objects.get(pk=member.pk)


def steps(page: Client) -> list[tuple[str, str]]:
    """The steps on the page, each with its state."""
    return [
        (label, state) for state, label in re.findall(r'<li class="step-(\w+)"[^>]*>([^<]+)<', html(page.get(PART)))
    ]


def test_after_the_approval_the_page_follows_the_member_until_it_is_connected(page: Client) -> None:
    (row,) = proposals.propose("npx -y thing", None)[1]
    answer = page.post(PAGE, {"name": "thing", "approve": row.digest}, follow=True)
    assert f'data-live="{PART}"' in html(answer)
    assert 'id="approved-thing"' in html(answer)
    folder, packages, start = "Create the folder", "Install the packages", "Start and connect"
    assert steps(page) == [(folder, "now"), (packages, "later"), (start, "later")]
    MemberProposal.objects.update(nodes={"main": ""})
    assert steps(page) == [(folder, "done"), (packages, "now"), (start, "later")]
    assert "The hall reads its manifest." in html(page.get(PART))

    member = make_member("thing", status="starting", progress="installs its packages: added 3")
    GuildMember.objects.update(status_changed_at=timezone.now() - timedelta(seconds=5))
    assert steps(page) == [(folder, "done"), (packages, "now"), (start, "later")]
    assert "starting for 5 s: installs its packages: added 3" in html(page.get(PART))
    assert page_of(member) in html(page.get(PART))
    PortAllocation.objects.create(member=member, port=20001)
    assert steps(page) == [(folder, "done"), (packages, "done"), (start, "now")]

    GuildMember.objects.update(status="connected")
    make_tool(member)
    assert steps(page) == []
    text = html(page.get(PART))
    assert "It has 1 tool." in text
    assert f'href="{page_of(member)}">Open thing</a>' in text


def test_a_folder_that_cannot_be_created_is_explained_and_the_member_can_be_discarded(
    page: Client, thing: MemberProposal
) -> None:
    MemberProposal.objects.update(nodes={"main": "the folder <b> exists already; rename or remove it"})
    assert steps(page)[0] == ("Create the folder", "failed")
    text = html(page.get(PART))
    assert "On node main: the folder &lt;b&gt; exists already; rename or remove it." in text
    assert 'name="discard" value="thing"' in text
    response = page.post(PAGE, {"discard": "thing"}, headers={"X-Live": "form"})
    assert response.json()["messages"][0]["text"] == "The proposed member thing is discarded."
    assert steps(page) == []


def test_packages_that_cannot_be_installed_are_explained(page: Client, thing: MemberProposal) -> None:
    error = f"{InstallError('npm is not on the PATH of the hall')}{GuildMember.TAIL_MARK}<b>npm error"
    member = make_member("thing", status="error", last_error=error)
    arrive()
    assert [state for _, state in steps(page)] == ["done", "failed", "later"]
    text = html(page.get(PART))
    assert "What to do:" in text
    assert "&lt;b&gt;npm error" in text
    GuildMember.objects.filter(pk=member.pk).update(last_error="ended with exit code 3")
    assert [state for _, state in steps(page)] == ["done", "done", "failed"]


def test_a_wrong_value_leads_to_its_field(page: Client, thing: MemberProposal) -> None:
    error = "thing/guild-member.json: timeout: must be a number"
    member = make_member("thing", manifest_error=error, manifest_error_key="timeout")
    arrive()
    assert f'/admin/roster/guildmember/{member.pk}/edit/?key=timeout"' in html(page.get(PART))


def test_a_stopped_or_disabled_member_says_so_and_is_not_about_to_start(page: Client, thing: MemberProposal) -> None:
    make_member("thing", desired_state="stopped")
    arrive()
    text = html(page.get(PART))
    assert "Stopped on request." in text
    assert "The hall starts it." not in text


def test_a_bundle_is_unpacked(page: Client) -> None:
    row = proposals.propose_template(
        "greeter",
        {
            "guild-member.json": '{"name": "greeter", "version": "1", '
            '"transport": "http", "command": "python3", "args": ["server.py"]}',
            "server.py": "",
        },
        None,
    )[1][0]
    proposals.approve("greeter", row.digest, None)
    assert steps(page) == [("Unpack the files", "now"), ("Start and connect", "later")]


def test_an_old_approval_is_followed_only_while_a_folder_is_missing(page: Client, thing: MemberProposal) -> None:
    long_ago = timezone.now() - 2 * proposals.FOLLOWED
    MemberProposal.objects.update(approved_at=long_ago)
    assert steps(page) != []
    MemberProposal.objects.update(nodes={"main": "", "far": "the disk is full"})
    assert "On node far: the disk is full." in html(page.get(PART))
    MemberProposal.objects.update(nodes={"main": "", "far": ""})
    assert steps(page) == []


def test_a_member_that_is_reserved_for_others_is_not_followed(client: Client, bob: User, thing: MemberProposal) -> None:
    member = make_member("thing", status="connected")
    reserve_member(member, [Group.objects.create(name="circle")])
    allow(bob, "approve_member", "view_guildmember")
    client.force_login(bob)
    assert "thing" not in html(client.get(PART))


def test_who_may_not_see_members_sees_no_status(client: Client, bob: User, thing: MemberProposal) -> None:
    make_member("thing", status="error", last_error="word-of-error")
    arrive()
    allow(bob, "approve_member")
    client.force_login(bob)
    text = html(client.get(PART))
    assert "It is in the roster." in text
    assert steps(client) == []
    assert "word-of-error" not in text


def test_who_may_not_approve_members_sees_nothing(client: Client, bob: User, thing: MemberProposal) -> None:
    allow(bob, "view_guildmember", "control_member")
    client.force_login(bob)
    assert client.get(PART).status_code == 403
