"""Members in the admin: the list, the page, the buttons, and the groups that a member is reserved for."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.control.members import MEMBER_VERBS
from mcp_runtime.members import logs
from mcp_runtime.rows import lease
from roster import roles
from roster.admin.members import screens as member_screens
from roster.models import AuditEntry, GuildMember, Node, Role, StatusChange, Token, Tool
from tests.support.admin import (
    ADD_TOKEN,
    ESCAPED,
    EVIL,
    LISTS,
    act,
    allow,
    html,
    list_of,
    make_call,
    make_member,
    make_tool,
    messages_of,
    page_of,
)
from tests.support.leases import add_node

pytestmark = pytest.mark.django_db


# Members ----------------------------------------------------------------------------------------------------------


def row_text(response: Any, name: str) -> str:
    """The member's row of the list, as text."""
    rows = re.findall(r"<tr>.*?</tr>", html(response), re.DOTALL)
    row = next(row for row in rows if f">{name}</a>" in row)
    return " ".join(re.sub(r"<[^>]+>", " ", row).split())


@pytest.mark.usefixtures("runtime")
def test_a_remote_server_is_shown_with_its_url_and_the_references_in_its_headers(page: Client) -> None:
    url = "https://mcp.example.com/mcp"
    manifest = {
        "name": "far",
        "version": "1",
        "url": url,
        "headers": {"Authorization": "Bearer ${env:GUILD_HALL_MEMBER_A_TOKEN}"},
    }
    member = make_member("far", manifest=manifest, server_url=url, status="connected", started_at=timezone.now())
    assert url in html(page.get(list_of("guildmember")))
    text = html(page.get(page_of(member)))
    assert url in text
    assert "Bearer ${env:GUILD_HALL_MEMBER_A_TOKEN}" in text
    assert "This member is a remote server. Its log is on that server." in text


@pytest.mark.usefixtures("runtime")
def test_the_list_shows_status_endpoint_and_tools(page: Client, example: GuildMember, echo: Tool) -> None:
    make_tool(example, "off", enabled=False)
    make_tool(example, "gone", listed=False)

    assert "The Example connected http://localhost:20000/mcp 1" in row_text(page.get(list_of("guildmember")), "example")


def test_the_list_leads_to_the_page_that_adds_a_member(page: Client, client: Client) -> None:
    link = f'href="{reverse("admin:roster_guildmember_proposals")}"'
    assert link in html(page.get(list_of("guildmember")))
    viewer = User.objects.create_user("vera")
    allow(viewer, "view_guildmember")
    client.force_login(viewer)
    assert link not in html(client.get(list_of("guildmember")))


@pytest.mark.usefixtures("runtime")
def test_the_list_shows_the_error_on_one_line(page: Client) -> None:
    make_member("bad", status="error", last_error="ended with exit code 1\nTraceback:\n  boom")

    assert "ended with exit code 1 Traceback: boom" in row_text(page.get(list_of("guildmember")), "bad")


@pytest.mark.usefixtures("runtime")
def test_the_list_shows_the_progress_of_a_long_start(page: Client) -> None:
    since = timezone.now() - timedelta(seconds=12.2)
    member = make_member("slow", status="starting", status_changed_at=since, progress="Downloading <b>foo</b>")

    progress = re.compile(r"starting for 1[2-9] s: Downloading &lt;b&gt;foo")
    assert progress.search(row_text(page.get(list_of("guildmember")), "slow"))
    assert progress.search(html(page.get(page_of(member))))


def test_without_a_live_runtime_no_member_is_shown_as_connected(page: Client, example: GuildMember) -> None:
    row = row_text(page.get(list_of("guildmember")), "example")

    assert "disconnected" in row
    assert "20000" not in row
    assert "4242" not in html(page.get(page_of(example)))


def test_a_member_is_shown_as_connected_only_while_its_own_node_is_alive(page: Client, runtime: None) -> None:
    node = add_node("b")
    member = make_member("example", status="connected", pid=4242, node=node)
    assert "connected" in row_text(page.get(list_of("guildmember")), "example").split()
    assert "4242" in html(page.get(page_of(member)))

    Node.objects.filter(pk=node.pk).update(lease_id=None)
    assert "disconnected" in row_text(page.get(list_of("guildmember")), "example").split()
    assert "4242" not in html(page.get(page_of(member)))
    assert "No runtime is alive" not in html(page.get(page_of(member)))
    assert page.get(list_of("guildmember"), {"status": "disconnected"}).context["cl"].result_count == 1


def test_the_roster_names_the_node_that_does_not_answer(page: Client, runtime: None) -> None:
    make_member("example", status="connected", node=add_node("b", is_alive=False))
    assert "The node &#x27;b&#x27; that owns this member does not answer." in html(page.get("/admin/"))


@pytest.mark.parametrize(
    ("manifest", "is_local"),
    [
        ({}, True),
        ({"node": {"state": None, "labels": []}}, True),  # as the hall stores it
        ({"node": {"state": "local"}}, True),
        ({"node": {"state": "none"}}, False),
        ({"node": {"state": "shared"}}, False),
        ({"url": "https://example.org/mcp"}, False),
    ],
)
def test_the_roster_says_that_local_state_keeps_a_member_on_a_node_that_does_not_answer(
    page: Client, runtime: None, manifest: dict[str, Any], is_local: bool
) -> None:
    node = add_node("b", is_alive=False)
    make_member("example", status="connected", node=node, manifest=manifest, server_url=manifest.get("url", ""))
    text = html(page.get("/admin/"))
    assert ("because the member keeps local state there" in text) is is_local
    assert ("Another node takes the member over" in text) is not is_local


def test_without_a_live_runtime_old_errors_are_hidden_but_invalid_manifests_are_shown(page: Client) -> None:
    make_member("crashed", status="error", last_error="ended long ago")
    make_member("faulty", manifest_error="no transport")

    assert "ended long ago" not in row_text(page.get(list_of("guildmember")), "crashed")
    assert "error" in row_text(page.get(list_of("guildmember")), "faulty")
    assert "no transport" in row_text(page.get(list_of("guildmember")), "faulty")


def test_the_status_filter_uses_the_status_that_is_shown(page: Client, example: GuildMember) -> None:
    address = list_of("guildmember")

    assert page.get(address, {"status": "connected"}).context["cl"].result_count == 0
    assert page.get(address, {"status": "disconnected"}).context["cl"].result_count == 1
    lease_id = lease.take()
    assert page.get(address, {"status": "connected"}).context["cl"].result_count == 1
    lease.release(lease_id)


def test_removed_members_are_hidden_without_the_filter(page: Client) -> None:
    make_member("here")
    make_member("gone", removed_at=timezone.now())

    def names(**query: str) -> list[str]:
        return [row.name for row in page.get(list_of("guildmember"), query).context["cl"].result_list]

    assert names() == ["here"]
    assert names(folder="gone") == ["gone"]
    assert names(folder="any") == ["gone", "here"]


@pytest.mark.usefixtures("runtime")
def test_the_page_shows_data_tools_status_changes_and_the_end_of_the_log(
    page: Client, example: GuildMember, echo: Tool
) -> None:
    StatusChange.objects.create(member=example, old="connected", new="error", cause="exit", message="it just went")
    path = logs.path_of(settings.GUILD_HALL_DATA_DIR, example.name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"first\nlast words {EVIL}\n")
    try:
        text = html(page.get(page_of(example)))
    finally:
        path.unlink()

    assert "PID 4242, started at" in text
    assert reverse("admin:roster_tool_call", args=[echo.pk]) in text
    assert "it just went" in text
    assert f"last words {ESCAPED}" in text


def test_values_of_the_environment_are_not_shown(page: Client, example: GuildMember) -> None:
    text = html(page.get(page_of(example)))

    assert "API_KEY" in text
    assert "sk-very-secret" not in text


@pytest.mark.usefixtures("runtime")
def test_an_action_changes_the_suitable_members_and_reports_both_groups(page: Client, example: GuildMember) -> None:
    stopped = make_member("asleep", desired_state="stopped")
    disabled = make_member("off", enabled=False)
    invalid = make_member("broken", manifest={}, manifest_error="no such thing")

    response = act(page, "guildmember", "start_members", example, stopped, disabled, invalid)

    assert messages_of(response) == [
        "Start requested (1): asleep.",
        "Not changed (3): broken: its guild-member.json has an error; example: it is already connected; "
        "off: it is disabled.",
    ]
    stopped.refresh_from_db()
    assert stopped.desired_state == "running"


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("verb", "column", "value"),
    [
        ("stop", "desired_state", "stopped"),
        ("restart", "restart_requested_at", None),
        ("refresh", "refresh_requested_at", None),
    ],
)
def test_actions_write_their_request_to_the_row(
    page: Client, example: GuildMember, verb: str, column: str, value: str | None
) -> None:
    act(page, "guildmember", f"{verb}_members", example)

    example.refresh_from_db()
    column_value = getattr(example, column)
    assert column_value == value if value else column_value is not None


def test_a_member_can_be_disabled_and_enabled_again(page: Client, example: GuildMember) -> None:
    act(page, "guildmember", "disable_members", example)
    example.refresh_from_db()
    assert not example.enabled

    act(page, "guildmember", "enable_members", example)
    example.refresh_from_db()
    assert example.enabled


def test_tools_of_a_member_without_a_runtime_cannot_be_refreshed(page: Client, example: GuildMember) -> None:
    response = act(page, "guildmember", "refresh_members", example)

    assert messages_of(response) == ["Not changed (1): example: it is disconnected."]


@pytest.mark.usefixtures("runtime")
def test_buttons_of_the_page_work_and_are_recorded_in_its_history(page: Client, example: GuildMember) -> None:
    assert "/do/start/" not in html(page.get(page_of(example)))

    response = page.post(reverse("admin:roster_guildmember_verb", args=[example.pk, "stop"]), follow=True)

    assert messages_of(response) == ["Stop requested (1): example."]
    example.refresh_from_db()
    assert example.desired_state == "stopped"
    assert LogEntry.objects.get().get_change_message() == "Stop requested."


def test_an_unknown_verb_or_member_is_404(page: Client, example: GuildMember) -> None:
    assert page.post(reverse("admin:roster_guildmember_verb", args=[example.pk, "explode"])).status_code == 404
    assert page.post(reverse("admin:roster_guildmember_verb", args=[0, "stop"])).status_code == 404


def test_members_are_controlled_only_by_post_and_with_the_permission(
    client: Client, bob: User, example: GuildMember
) -> None:
    allow(bob, "view_guildmember")
    client.force_login(bob)
    address = reverse("admin:roster_guildmember_verb", args=[example.pk, "stop"])

    assert client.post(address).status_code == 403
    assert client.post(reverse("admin:roster_guildmember_sync")).status_code == 403
    act(client, "guildmember", "stop_members", example)
    assert "/do/" not in html(client.get(page_of(example)))
    example.refresh_from_db()
    assert example.desired_state == "running"

    allow(bob, "control_member")
    assert client.get(address).status_code == 405
    client.post(address)
    example.refresh_from_db()
    assert example.desired_state == "stopped"


def test_buttons_need_the_csrf_token(alice: User, example: GuildMember) -> None:
    strict_client = Client(enforce_csrf_checks=True)
    strict_client.force_login(alice)

    assert strict_client.post(reverse("admin:roster_guildmember_verb", args=[example.pk, "stop"])).status_code == 403


def test_sync_reads_the_folder_and_reports_the_changes(page: Client, tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path
    (tmp_path / "new").mkdir()
    manifest = {"name": "new", "version": "1.0.0", "transport": "http", "command": "true", "args": ["${PORT}"]}
    (tmp_path / "new" / "guild-member.json").write_text(json.dumps(manifest))

    response = page.post(reverse("admin:roster_guildmember_sync"), follow=True)

    assert messages_of(response) == ["Roster synced with the members folder: 1 added: new."]
    assert GuildMember.objects.get().name == "new"


def test_only_a_removed_member_can_be_deleted(page: Client, example: GuildMember, echo: Tool) -> None:
    make_call(example)
    delete_url = reverse("admin:roster_guildmember_delete", args=[example.pk])
    assert page.post(delete_url, {"post": "yes"}).status_code == 403

    GuildMember.objects.filter(pk=example.pk).update(removed_at=timezone.now())
    assert page.post(delete_url, {"post": "yes"}).status_code == 302

    assert not GuildMember.objects.exists()
    assert not Tool.objects.exists()


@pytest.mark.usefixtures("runtime")
def test_a_member_whose_process_still_runs_is_not_deleted(page: Client, example: GuildMember) -> None:
    GuildMember.objects.filter(pk=example.pk).update(removed_at=timezone.now())

    assert page.post(reverse("admin:roster_guildmember_delete", args=[example.pk]), {"post": "yes"}).status_code == 403


def test_the_deletion_of_many_members_deletes_only_removed_ones(page: Client) -> None:
    present_member, removed_member = make_member("here"), make_member("gone", removed_at=timezone.now())
    data = {"action": "delete_selected", "_selected_action": [present_member.pk, removed_member.pk], "post": "yes"}

    response = page.post(f"{list_of('guildmember')}?folder=any", data, follow=True)

    assert messages_of(response)[0] == "Not changed (1): here: its folder still exists."
    assert [row.name for row in GuildMember.objects.all()] == ["here"]


def test_every_verb_of_control_has_its_button() -> None:
    assert [verb.name for verb in member_screens.VERBS] == list(MEMBER_VERBS)


# Members that are reserved for groups -----------------------------------------------------------------------------


def test_a_reserved_member_is_hidden_from_users_outside_its_groups(
    client: Client, bob: User, echo: Tool, writers: Group
) -> None:
    open_tool = make_tool(make_member("open"), "hum")
    make_call(echo.member)
    StatusChange.objects.create(member=echo.member, old="starting", new="connected", cause="handshake")
    views = ["view_guildmember", "view_tool", "view_call", "view_statuschange", "view_portallocation", "view_node"]
    allow(bob, "invoke_tool", "control_member", "add_token", "view_token", *views)
    client.force_login(bob)
    call_form = reverse("admin:roster_tool_call", args=[echo.pk])
    for model in LISTS:
        assert "example" not in html(client.get(list_of(model))), model
    assert "example" not in html(client.get(reverse(ADD_TOKEN)))
    assert client.get(call_form).status_code == 404
    assert client.post(call_form, {"arguments": '{"text": "hi"}'}).status_code == 404
    act(client, "guildmember", "stop_members", echo.member)
    act(client, "tool", "disable", echo)
    assert client.post(reverse("admin:roster_guildmember_verb", args=[echo.member.pk, "stop"])).status_code == 404
    echo.refresh_from_db()
    assert echo.enabled
    assert GuildMember.objects.get(name="example").desired_state == "running"
    assert client.get(reverse("admin:roster_tool_call", args=[open_tool.pk])).status_code == 200

    bob.groups.add(writers)

    assert "example" in html(client.get(list_of("guildmember")))
    assert client.post(call_form, {"arguments": '{"text": "hi"}'}).status_code == 302


def test_a_users_own_call_stays_visible_after_its_member_is_reserved(
    client: Client, bob: User, example: GuildMember, writers: Group
) -> None:
    own_call = make_call(example, requested_by=bob)
    client.force_login(bob)
    assert client.get(page_of(own_call)).status_code == 200


def test_the_groups_of_a_member_are_chosen_on_their_own_page(page: Client, example: GuildMember) -> None:
    group = Group.objects.create(name="writers")
    form = reverse("admin:roster_guildmember_groups", args=[example.pk])
    assert form in html(page.get(page_of(example)))
    assert "all users who may call tools can use it" in html(page.get(page_of(example)))
    text = html(page.post(form, {"groups": [group.pk]}, follow=True))
    assert "Reserved for: writers." in text
    assert list(example.groups.all()) == [group]
    assert "checked" in html(page.get(form))
    page.post(form, {})
    assert not example.groups.exists()
    assert LogEntry.objects.filter(change_message__startswith="Reserved for").count() == 2


def test_an_admin_reserves_a_member_and_learns_when_it_is_hidden_then(client: Client, example: GuildMember) -> None:
    user, own, other = User.objects.create_user("an-admin"), *(Group.objects.create(name=name) for name in "ab")
    roles.set_role(user, Role.objects.get(name="admin"))
    user.groups.add(own)
    client.force_login(user)
    form = reverse("admin:roster_guildmember_groups", args=[example.pk])
    response = client.post(form, {"groups": [own.pk, other.pk]}, follow=True)
    assert response.redirect_chain[-1][0] == page_of(example)
    entry = AuditEntry.objects.latest("pk")
    assert (entry.kind, entry.actor, entry.after) == ("member_reserved", "an-admin", {"groups": ["a", "b"]})
    response = client.post(form, {"groups": [other.pk]}, follow=True)
    assert response.redirect_chain[-1][0] == list_of("guildmember")
    assert "the member does not exist for you any more" in html(response)
    assert client.post(form, {}).status_code == 404
    assert list(example.groups.all()) == [other]


def test_a_member_cannot_be_reserved_for_a_role(page: Client, example: GuildMember) -> None:
    group, role = Group.objects.create(name="writers"), Role.objects.get(name="caller")
    form = reverse("admin:roster_guildmember_groups", args=[example.pk])
    text = html(page.get(form))
    assert "writers" in text
    assert "caller" not in text

    page.post(form, {"groups": [group.pk, role.group.pk]})

    assert not example.groups.exists()


def test_choosing_groups_needs_the_permission_to_change_members(
    client: Client, bob: User, example: GuildMember
) -> None:
    allow(bob, "view_guildmember", "control_member")
    client.force_login(bob)
    form = reverse("admin:roster_guildmember_groups", args=[example.pk])
    assert form not in html(client.get(page_of(example)))
    assert client.get(form).status_code == 403
    assert client.post(form, {}).status_code == 403
    allow(bob, "change_guildmember")
    assert client.get(form).status_code == 200


def test_a_group_of_a_reserved_member_is_not_deleted(page: Client, example: GuildMember, writers: Group) -> None:
    page.post(reverse("admin:auth_group_delete", args=[writers.pk]), {"post": "yes"})
    assert list(example.groups.all()) == [writers]


def test_a_user_with_tokens_can_be_deleted_and_their_calls_stay(page: Client, bob: User, example: GuildMember) -> None:
    token, _ = Token.make(user=bob, name="laptop")
    call = make_call(example, requested_by=bob, requester="bob (laptop)", token=token)
    page.post(reverse("admin:auth_user_delete", args=[bob.pk]), {"post": "yes"})
    assert not User.objects.filter(pk=bob.pk).exists()
    call.refresh_from_db()
    assert (call.token, call.requester) == (None, "bob (laptop)")
