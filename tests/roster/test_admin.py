"""The admin: what it shows, to whom, and what its buttons do. No runtime runs here; rows say what it would say."""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.staticfiles import finders
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from mcp_runtime import access, control, lease, logs
from mcp_runtime.invocations import Caller
from roster import calls
from roster.admin import members as member_screens
from roster.models import ApiToken, GuildMember, Hall, Invocation, PortAllocation, StatusChange, Tool

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>"
ESCAPED = "&lt;script&gt;"
NO_RUNTIME = "No runtime is alive; start one with"

ECHO_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "times": {"type": "integer", "default": 1},
        "password": {"type": "string", "format": "password"},
        "loud": {"type": "boolean"},
    },
    "required": ["text"],
}


@pytest.fixture(autouse=True)
def _static_root() -> None:
    # WhiteNoise warns about a folder that is not there, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)


# Who and what -----------------------------------------------------------------------------------------------------


@pytest.fixture
def alice() -> User:
    """May do everything."""
    return User.objects.create_superuser("alice")


@pytest.fixture
def bob() -> User:
    """May log in to the admin, and nothing else."""
    return User.objects.create_user("bob", is_staff=True)


def allow(user: User, *codenames: str) -> None:
    user.user_permissions.add(*Permission.objects.filter(codename__in=codenames, content_type__app_label="roster"))


@pytest.fixture
def page(client: Client, alice: User) -> Client:
    """A browser in which alice is logged in."""
    client.force_login(alice)
    return client


@pytest.fixture
def runtime() -> Iterator[None]:
    """As if a runtime were alive."""
    lease_id = lease.take()
    yield
    lease.release(lease_id)


def make_member(name: str, **columns: Any) -> GuildMember:
    manifest = {"name": name, "version": "1", "command": "python3", "args": [], "env": {"API_KEY": "sk-very-secret"}}
    return GuildMember.objects.create(**{"name": name, "directory": name, "manifest": manifest, **columns})


def make_tool(member: GuildMember, name: str = "echo", **columns: Any) -> Tool:
    definition = {"name": name, "description": f"Does {name}.", "inputSchema": ECHO_SCHEMA}
    return Tool.objects.create(**{"member": member, "name": name, "definition": definition, **columns})


def make_call(member: GuildMember, **columns: Any) -> Invocation:
    values = {"tool_name": "echo", "timeout": 30, "door": "rest", "requester": "alice", **columns}
    return Invocation.objects.create(member=member, **values)


@pytest.fixture
def example() -> GuildMember:
    member = make_member("example", display_name="The Example", status="connected", pid=4242, started_at=timezone.now())
    PortAllocation.objects.create(port=20000, member=member)
    return member


@pytest.fixture
def echo(example: GuildMember) -> Tool:
    return make_tool(example)


def list_of(model: str) -> str:
    return reverse(f"admin:roster_{model}_changelist")


def page_of(row: Any) -> str:
    return reverse(f"admin:roster_{row._meta.model_name}_change", args=[row.pk])


def html(response: Any) -> str:
    assert response.status_code == 200, response
    return str(response.content.decode())


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def act(page: Client, model: str, action: str, *rows: Any, **more: str) -> Any:
    data = {"action": action, "_selected_action": [str(row.pk) for row in rows], **more}
    return page.post(list_of(model), data, follow=True)


# Every page, to those who may -------------------------------------------------------------------------------------

LISTS = ["guildmember", "tool", "invocation", "statuschange", "portallocation", "apitoken"]


@pytest.fixture
def full_hall(example: GuildMember, echo: Tool, alice: User) -> dict[str, Any]:
    change = StatusChange.objects.create(member=example, old="connected", new="error", cause="exit", exit_code=-9)
    return {
        "guildmember": example,
        "tool": echo,
        "invocation": make_call(example),
        "statuschange": change,
        "portallocation": PortAllocation.objects.get(),
        "apitoken": ApiToken.make(user=alice)[0],
    }


@pytest.mark.parametrize("model", LISTS)
def test_every_list_and_page_renders_for_alice(page: Client, full_hall: dict[str, Any], model: str) -> None:
    assert "Guild Hall" in html(page.get(list_of(model)))
    html(page.get(list_of(model), {"q": "example"}))
    html(page.get(page_of(full_hall[model])))


@pytest.mark.parametrize("model", LISTS)
def test_bob_without_permissions_sees_no_list_and_no_page(
    client: Client, bob: User, full_hall: dict[str, Any], model: str
) -> None:
    client.force_login(bob)

    assert client.get(list_of(model)).status_code == 403
    assert client.get(page_of(full_hall[model])).status_code == 403


def test_bob_without_permissions_finds_an_empty_index(client: Client, bob: User) -> None:
    client.force_login(bob)

    assert "have permission to view or edit anything" in html(client.get(reverse("admin:index")))


def test_strangers_are_sent_to_the_login(client: Client, echo: Tool) -> None:
    for address in [list_of("guildmember"), reverse("admin:roster_tool_call", args=[echo.pk])]:
        response = client.get(address)
        assert response.status_code == 302
        assert response["Location"].startswith("/admin/login/")


@pytest.mark.parametrize("model", ["guildmember", "tool", "invocation", "statuschange", "portallocation"])
def test_nobody_adds_or_edits_what_the_runtime_writes(page: Client, full_hall: dict[str, Any], model: str) -> None:
    row = full_hall[model]

    assert page.get(reverse(f"admin:roster_{model}_add")).status_code == 403
    assert page.post(page_of(row), {"name": "changed", "enabled": ""}).status_code == 403
    assert page.post(reverse(f"admin:roster_{model}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert type(row).objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize(
    ("model", "heading"),
    [
        *(("guildmember", "Members"), ("tool", "Tools"), ("invocation", "Calls"), ("agentsession", "Agent sessions")),
        *(("apitoken", "API tokens"), ("statuschange", "Status changes"), ("portallocation", "Port allocations")),
    ],
)
def test_a_list_is_headed_by_what_it_lists(page: Client, model: str, heading: str) -> None:
    text = html(page.get(list_of(model)))

    assert f"<title>{heading} | Guild Hall</title>" in text
    assert f"<h1>{heading}</h1>" in text


def test_where_one_selects_or_deletes_the_heading_says_so(page: Client, alice: User) -> None:
    token, other = ApiToken.make(user=alice)[0], ApiToken.make(user=alice)[0]

    assert "<h1>Select API token</h1>" in html(page.get(list_of("apitoken"), {"_popup": 1}))
    assert "<h1>Delete multiple objects</h1>" in html(act(page, "apitoken", "delete_selected", token, other))
    assert "<h1>Delete</h1>" in html(page.get(reverse("admin:roster_apitoken_delete", args=[token.pk])))


# The banner -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["admin:index", "admin:roster_guildmember_changelist"])
def test_without_a_live_runtime_a_banner_says_how_to_start_one(page: Client, name: str) -> None:
    assert NO_RUNTIME in html(page.get(reverse(name)))


@pytest.mark.usefixtures("runtime")
def test_with_a_live_runtime_there_is_no_banner(page: Client) -> None:
    assert NO_RUNTIME not in html(page.get(reverse("admin:index")))


def test_the_banner_is_not_for_strangers(client: Client) -> None:
    assert NO_RUNTIME not in html(client.get(reverse("admin:login")))


# Members ----------------------------------------------------------------------------------------------------------


def shown(response: Any, name: str) -> str:
    """The member's row of the list, as text."""
    rows = re.findall(r"<tr>.*?</tr>", html(response), re.DOTALL)
    row = next(row for row in rows if f">{name}</a>" in row)
    return " ".join(re.sub(r"<[^>]+>", " ", row).split())


@pytest.mark.usefixtures("runtime")
def test_a_server_elsewhere_is_shown_with_its_url_and_the_references_in_its_headers(page: Client) -> None:
    url = "https://mcp.example.com/mcp"
    manifest = {"name": "far", "version": "1", "url": url, "headers": {"Authorization": "Bearer ${env:A_TOKEN}"}}
    member = make_member("far", manifest=manifest, server_url=url, status="connected", started_at=timezone.now())
    assert url in html(page.get(list_of("guildmember")))
    shown = html(page.get(page_of(member)))
    assert url in shown
    assert "Bearer ${env:A_TOKEN}" in shown
    assert "It runs elsewhere, and so does its log." in shown


@pytest.mark.usefixtures("runtime")
def test_the_list_says_status_endpoint_and_tools(page: Client, example: GuildMember, echo: Tool) -> None:
    make_tool(example, "off", enabled=False)
    make_tool(example, "gone", listed=False)

    assert "The Example connected http://localhost:20000/mcp 1" in shown(page.get(list_of("guildmember")), "example")


@pytest.mark.usefixtures("runtime")
def test_the_error_stands_in_the_list_on_one_line(page: Client) -> None:
    make_member("bad", status="error", last_error="ended with exit code 1\nTraceback:\n  boom")

    assert "ended with exit code 1 Traceback: boom" in shown(page.get(list_of("guildmember")), "bad")


@pytest.mark.usefixtures("runtime")
def test_the_list_says_how_a_long_start_gets_on(page: Client) -> None:
    since = timezone.now() - timedelta(seconds=12.2)
    member = make_member("slow", status="starting", status_changed_at=since, progress="Downloading <b>foo</b>")

    assert "starting for 12 s: Downloading &lt;b&gt;foo" in shown(page.get(list_of("guildmember")), "slow")
    assert "starting for 12 s: Downloading &lt;b&gt;foo" in html(page.get(page_of(member)))


def test_without_a_live_runtime_nobody_is_shown_as_connected(page: Client, example: GuildMember) -> None:
    row = shown(page.get(list_of("guildmember")), "example")

    assert "disconnected" in row
    assert "20000" not in row
    assert "4242" not in html(page.get(page_of(example)))


def test_without_a_live_runtime_old_errors_are_not_told_but_faulty_folders_are(page: Client) -> None:
    make_member("crashed", status="error", last_error="ended long ago")
    make_member("faulty", manifest_error="no transport")

    assert "ended long ago" not in shown(page.get(list_of("guildmember")), "crashed")
    assert "error" in shown(page.get(list_of("guildmember")), "faulty")
    assert "no transport" in shown(page.get(list_of("guildmember")), "faulty")


def test_the_status_filter_goes_by_the_status_that_is_shown(page: Client, example: GuildMember) -> None:
    address = list_of("guildmember")

    assert page.get(address, {"status": "connected"}).context["cl"].result_count == 0
    assert page.get(address, {"status": "disconnected"}).context["cl"].result_count == 1
    lease_id = lease.take()
    assert page.get(address, {"status": "connected"}).context["cl"].result_count == 1
    lease.release(lease_id)


def test_members_whose_folder_is_gone_are_hidden_until_asked_for(page: Client) -> None:
    make_member("here")
    make_member("gone", removed_at=timezone.now())

    def names(**query: str) -> list[str]:
        return [row.name for row in page.get(list_of("guildmember"), query).context["cl"].result_list]

    assert names() == ["here"]
    assert names(folder="gone") == ["gone"]
    assert names(folder="any") == ["gone", "here"]


@pytest.mark.usefixtures("runtime")
def test_the_page_shows_facts_tools_changes_and_the_end_of_the_log(
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

    assert "4242, since" in text
    assert reverse("admin:roster_tool_call", args=[echo.pk]) in text
    assert "it just went" in text
    assert f"last words {ESCAPED}" in text


def test_values_of_the_environment_stay_off_the_screen(page: Client, example: GuildMember) -> None:
    text = html(page.get(page_of(example)))

    assert "API_KEY" in text
    assert "sk-very-secret" not in text


@pytest.mark.usefixtures("runtime")
def test_an_action_wishes_where_it_applies_and_reports_both_sides(page: Client, example: GuildMember) -> None:
    asleep = make_member("asleep", wanted="stopped")
    off = make_member("off", enabled=False)
    broken = make_member("broken", manifest={}, manifest_error="no such thing")

    response = act(page, "guildmember", "start_members", example, asleep, off, broken)

    assert messages_of(response) == [
        "Asked to start (1): asleep.",
        "Left alone (3): broken: its guild-member.json cannot be used; example: it is connected already; "
        "off: it is disabled.",
    ]
    asleep.refresh_from_db()
    assert asleep.wanted == "running"


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("verb", "column", "value"),
    [
        ("stop", "wanted", "stopped"),
        ("restart", "restart_requested_at", None),
        ("refresh", "refresh_requested_at", None),
    ],
)
def test_actions_leave_their_wish_on_the_row(
    page: Client, example: GuildMember, verb: str, column: str, value: str | None
) -> None:
    act(page, "guildmember", f"{verb}_members", example)

    example.refresh_from_db()
    wish = getattr(example, column)
    assert wish == value if value else wish is not None


def test_disable_and_enable_go_there_and_back(page: Client, example: GuildMember) -> None:
    act(page, "guildmember", "disable_members", example)
    example.refresh_from_db()
    assert not example.enabled

    act(page, "guildmember", "enable_members", example)
    example.refresh_from_db()
    assert example.enabled


def test_tools_of_a_member_that_no_runtime_runs_cannot_be_refreshed(page: Client, example: GuildMember) -> None:
    response = act(page, "guildmember", "refresh_members", example)

    assert messages_of(response) == ["Left alone (1): example: it is disconnected."]


@pytest.mark.usefixtures("runtime")
def test_buttons_of_the_page_wish_and_are_written_to_its_history(page: Client, example: GuildMember) -> None:
    assert "/wish/start/" not in html(page.get(page_of(example)))

    response = page.post(reverse("admin:roster_guildmember_wish", args=[example.pk, "stop"]), follow=True)

    assert messages_of(response) == ["Asked to stop (1): example."]
    example.refresh_from_db()
    assert example.wanted == "stopped"
    assert LogEntry.objects.get().get_change_message() == "Asked to stop."


def test_an_unknown_verb_or_member_is_not_found(page: Client, example: GuildMember) -> None:
    assert page.post(reverse("admin:roster_guildmember_wish", args=[example.pk, "explode"])).status_code == 404
    assert page.post(reverse("admin:roster_guildmember_wish", args=[0, "stop"])).status_code == 404


def test_members_are_controlled_by_post_alone_and_with_the_permission(
    client: Client, bob: User, example: GuildMember
) -> None:
    allow(bob, "view_guildmember")
    client.force_login(bob)
    wish = reverse("admin:roster_guildmember_wish", args=[example.pk, "stop"])

    assert client.post(wish).status_code == 403
    assert client.post(reverse("admin:roster_guildmember_sync")).status_code == 403
    act(client, "guildmember", "stop_members", example)
    assert "/wish/" not in html(client.get(page_of(example)))
    example.refresh_from_db()
    assert example.wanted == "running"

    allow(bob, "control_member")
    assert client.get(wish).status_code == 405
    client.post(wish)
    example.refresh_from_db()
    assert example.wanted == "stopped"


def test_buttons_want_the_token_against_forgery(alice: User, example: GuildMember) -> None:
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(alice)

    assert careful.post(reverse("admin:roster_guildmember_wish", args=[example.pk, "stop"])).status_code == 403


def test_sync_reads_the_folder_and_says_what_changed(page: Client, tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path
    (tmp_path / "new").mkdir()
    manifest = {"name": "new", "version": "1.0.0", "transport": "http", "command": "true", "args": ["${PORT}"]}
    (tmp_path / "new" / "guild-member.json").write_text(json.dumps(manifest))

    response = page.post(reverse("admin:roster_guildmember_sync"), follow=True)

    assert messages_of(response) == ["Roster synced with the members folder: 1 added: new."]
    assert GuildMember.objects.get().name == "new"


def test_a_member_can_be_deleted_once_its_folder_is_gone(page: Client, example: GuildMember, echo: Tool) -> None:
    make_call(example)
    gone = reverse("admin:roster_guildmember_delete", args=[example.pk])
    assert page.post(gone, {"post": "yes"}).status_code == 403

    GuildMember.objects.filter(pk=example.pk).update(removed_at=timezone.now())
    assert page.post(gone, {"post": "yes"}).status_code == 302

    assert not GuildMember.objects.exists()
    assert not Tool.objects.exists()


@pytest.mark.usefixtures("runtime")
def test_a_member_whose_process_still_runs_is_not_deleted(page: Client, example: GuildMember) -> None:
    GuildMember.objects.filter(pk=example.pk).update(removed_at=timezone.now())

    assert page.post(reverse("admin:roster_guildmember_delete", args=[example.pk]), {"post": "yes"}).status_code == 403


def test_deleting_many_takes_only_those_that_are_gone(page: Client) -> None:
    here, gone = make_member("here"), make_member("gone", removed_at=timezone.now())
    data = {"action": "delete_selected", "_selected_action": [here.pk, gone.pk], "post": "yes"}

    response = page.post(f"{list_of('guildmember')}?folder=any", data, follow=True)

    assert messages_of(response)[0] == "Left alone (1): here: its folder is still there."
    assert [row.name for row in GuildMember.objects.all()] == ["here"]


def test_every_verb_of_control_has_its_button() -> None:
    assert [verb.name for verb in member_screens.VERBS] == list(control.MEMBER_VERBS)


# Tools ------------------------------------------------------------------------------------------------------------


def test_tools_of_a_member_whose_folder_is_gone_are_hidden_until_asked_for(page: Client) -> None:
    here, gone = make_member("here"), make_member("gone", removed_at=timezone.now())
    make_tool(here, "still")
    make_tool(gone, "past")

    def names(**query: Any) -> list[str]:
        return [row.name for row in page.get(list_of("tool"), query).context["cl"].result_list]

    assert names() == ["still"]
    assert names(folder="gone") == ["past"]
    assert names(member__id__exact=gone.pk) == ["past"]
    assert "/call/" not in page.get(list_of("tool"), {"folder": "gone"}).content.decode()


def test_the_filter_by_member_names_those_whose_tools_are_listed_and_the_chosen_one(page: Client) -> None:
    make_member("gone", removed_at=timezone.now())
    make_member("here")
    past = make_member("past", removed_at=timezone.now())
    make_member("still")

    def named(**query: Any) -> list[str]:
        filters = page.get(list_of("tool"), query).context["cl"].filter_specs
        return [name for spec in filters if spec.title == "member" for _, name in spec.lookup_choices]

    assert named() == ["here", "still"]
    assert named(folder="gone") == ["gone", "past"]
    assert named(folder="any") == ["gone", "here", "past", "still"]
    assert named(member__id__exact=past.pk) == ["here", "past", "still"]
    assert page.get(list_of("tool"), {"member__id__exact": "x"})["Location"].endswith("?e=1")


def test_the_only_member_in_place_can_be_filtered_by(page: Client) -> None:
    here = make_member("here")
    make_tool(here, "still")
    make_tool(make_member("gone", removed_at=timezone.now()), "past")

    found = page.get(list_of("tool"), {"member__id__exact": here.pk}).context["cl"].result_list

    assert [tool.name for tool in found] == ["still"]


def test_a_list_offers_to_show_all_where_something_is_left_out(page: Client, echo: Tool) -> None:
    assert "Show all" not in page.get(list_of("tool")).content.decode()
    assert "Show all" in page.get(list_of("tool"), {"q": "echo"}).content.decode()


def test_tools_are_switched_off_and_on_where_that_changes_something(
    page: Client, example: GuildMember, echo: Tool
) -> None:
    off = make_tool(example, "off", enabled=False)

    response = act(page, "tool", "switch_off", echo, off)

    assert messages_of(response) == ["Switched off (1): echo.", "Left alone (1): off: it is off already."]
    echo.refresh_from_db()
    assert not echo.enabled
    page.post(reverse("admin:roster_tool_switch", args=[echo.pk, "on"]))
    echo.refresh_from_db()
    assert echo.enabled


def test_switching_tools_wants_the_permission(client: Client, bob: User, echo: Tool) -> None:
    allow(bob, "view_tool")
    client.force_login(bob)

    assert client.post(reverse("admin:roster_tool_switch", args=[echo.pk, "off"])).status_code == 403
    act(client, "tool", "switch_off", echo)
    echo.refresh_from_db()
    assert echo.enabled


def test_who_may_not_call_is_offered_no_call(client: Client, bob: User, echo: Tool) -> None:
    allow(bob, "view_tool", "view_guildmember")
    client.force_login(bob)
    call = reverse("admin:roster_tool_call", args=[echo.pk])

    assert call not in html(client.get(list_of("tool")))
    assert call not in html(client.get(page_of(echo)))
    assert call not in html(client.get(page_of(echo.member)))
    assert client.get(call).status_code == 403
    assert client.post(call, {"arguments": '{"text": "hello"}'}).status_code == 403
    assert not Invocation.objects.exists()


# The form to call a tool ------------------------------------------------------------------------------------------


def call_form(page: Client, tool: Tool, arguments: str, **more: str) -> Any:
    address = reverse("admin:roster_tool_call", args=[tool.pk])
    return page.post(address, {"arguments": arguments, **more})


def test_the_form_begins_with_what_the_schema_requires_and_presets(page: Client, echo: Tool) -> None:
    response = page.get(reverse("admin:roster_tool_call", args=[echo.pk]))

    assert json.loads(response.context["form"].initial["arguments"]) == {"text": "", "times": 1}
    assert "Does echo." in html(response)
    assert "&quot;format&quot;: &quot;password&quot;" in html(response)


def test_a_sent_form_queues_the_call_and_leads_to_its_page(page: Client, alice: User, echo: Tool) -> None:
    response = call_form(page, echo, '{"text": "hello"}')

    invocation = Invocation.objects.get()
    assert response["Location"] == page_of(invocation)
    assert (invocation.arguments, invocation.door, invocation.requested_by) == ({"text": "hello"}, "admin", alice)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("{nonsense", "the arguments are not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"text": 1e999}', "the arguments are not JSON"),
        ('{"text": 5}', "text: 5 is not of type"),
        ("", "&#x27;text&#x27; is a required property"),
        ("[" * 100_000, "the arguments are nested too deep"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_the_form(
    page: Client, echo: Tool, arguments: str, complaint: str
) -> None:
    response = call_form(page, echo, arguments)

    assert complaint in html(response)
    assert not Invocation.objects.exists()


def test_a_disabled_member_is_refused_at_the_form(page: Client, echo: Tool) -> None:
    GuildMember.objects.update(enabled=False)

    assert "is disabled; enable it first" in html(call_form(page, echo, '{"text": "x"}'))


def test_pressing_the_button_twice_calls_once(page: Client, echo: Tool) -> None:
    shown = page.get(reverse("admin:roster_tool_call", args=[echo.pk])).context["call_key"]
    first = call_form(page, echo, '{"text": "x"}', call_key=str(shown))
    second = call_form(page, echo, '{"text": "x"}', call_key=str(shown))

    assert Invocation.objects.count() == 1
    assert first["Location"] == second["Location"]


def test_a_caller_without_other_rights_can_call_see_and_cancel_their_own_call(
    client: Client, bob: User, echo: Tool
) -> None:
    others = make_call(echo.member)
    allow(bob, "invoke_tool")
    client.force_login(bob)

    own = call_form(client, echo, '{"text": "x"}')["Location"]

    assert "queued" in html(client.get(own))
    assert client.get(page_of(others)).status_code == 403
    assert client.post(reverse("admin:roster_invocation_cancel", args=[others.pk])).status_code == 403
    client.post(reverse("admin:roster_invocation_cancel", args=[Invocation.objects.get(door="admin").pk]))
    assert [row.status for row in Invocation.objects.order_by("id")] == ["queued", "cancelled"]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {}),
        ({"properties": "nonsense", "required": 5}, {}),
        ({"properties": {"a": {"enum": ["x", "y"]}}, "required": ["a", "missing", {}]}, {"a": "x"}),
        (
            {"properties": {"a": {"type": ["null", "string"]}, "b": {"const": 3}}, "required": ["a", "b"]},
            {"a": None, "b": 3},
        ),
        ({"properties": {"n": {"type": "integer", "minimum": 5}}, "required": ["n"]}, {"n": 5}),
        ({"properties": {"a": {"type": {"x": 1}}, "b": True}, "required": ["a", "b"]}, {"a": None, "b": None}),
        (
            {
                "properties": {"who": {"$ref": "#/$defs/who"}},
                "required": ["who"],
                "$defs": {"who": {"type": "object", "properties": {"id": {"type": "number"}}, "required": ["id"]}},
            },
            {"who": {"id": 0}},
        ),
        ({"properties": {"a": {"$ref": "http://elsewhere/x"}}, "required": ["a"]}, {"a": None}),
        ({"properties": {"a": {"anyOf": [{"type": "array"}, {"type": "null"}]}}, "required": ["a"]}, {"a": []}),
    ],
)
def test_a_skeleton_holds_the_least_that_might_fit(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert calls.skeleton_of(schema) == expected


def test_a_schema_that_refers_to_itself_gives_a_skeleton_that_ends() -> None:
    schema = {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]}

    assert len(json.dumps(calls.skeleton_of(schema))) < 200


def test_a_schema_whose_properties_refer_to_each_other_gives_a_skeleton_of_bounded_size() -> None:
    names = [f"p{number}" for number in range(100)]
    schema = {"properties": {name: {"$ref": "#"} for name in names}, "required": names * 200}
    large = {"properties": {name: {"$ref": "#/$defs/d"} for name in names}, "required": names}

    watch = time.thread_time()
    assert len(json.dumps(calls.skeleton_of(schema))) < 100_000
    assert len(json.dumps(calls.skeleton_of({**large, "$defs": {"d": {"default": "x" * 50_000}}}))) < 200_000
    assert time.thread_time() - watch < 1


# Invocations ------------------------------------------------------------------------------------------------------


def test_the_page_of_a_call_looks_again_while_it_is_not_over(page: Client, example: GuildMember) -> None:
    refresh = '<meta http-equiv="refresh" content="1">'

    for status, is_active in [("queued", True), ("running", True), ("succeeded", False), ("cancelled", False)]:
        call = make_call(example, status=status, started_at=timezone.now())
        assert (refresh in html(page.get(page_of(call)))) is is_active, status


@pytest.mark.parametrize("status", ["running", "failed"])
def test_secret_arguments_are_masked_even_while_the_call_runs(page: Client, example: GuildMember, status: str) -> None:
    call = make_call(
        example, status=status, arguments={"text": "plain words", "password": "hunter2"}, secret_paths=[["password"]]
    )

    text = html(page.get(page_of(call)))

    assert "plain words" in text
    assert "hunter2" not in text


def test_the_answer_is_shown_as_text_and_the_result_as_json(page: Client, example: GuildMember) -> None:
    result = {"content": [{"type": "text", "text": "one\ntwo"}], "structuredContent": {"n": [1, 2]}}
    began = timezone.now()
    call = make_call(
        example, status="succeeded", result=result, started_at=began, finished_at=began + timedelta(seconds=0.25)
    )

    text = html(page.get(page_of(call)))

    assert "one\ntwo" in text
    assert "&quot;structuredContent&quot;: {" in text
    assert "250 ms" in text


def test_a_huge_result_is_shown_in_part(page: Client, example: GuildMember) -> None:
    call = make_call(example, status="succeeded", result={"content": [{"type": "text", "text": "x" * 3_000_000}]})

    text = html(page.get(page_of(call)))

    assert len(text) < 1_000_000
    assert "more characters, which the API gives" in text


def test_cancel_ends_the_queued_asks_the_running_and_leaves_the_finished(page: Client, example: GuildMember) -> None:
    queued = make_call(example)
    running = make_call(example, status="running")
    done = make_call(example, status="succeeded")

    response = act(page, "invocation", "cancel", queued, running, done)

    assert messages_of(response) == [
        f"Cancelled (1): {queued.pk} echo.",
        f"Running, asked to cancel (1): {running.pk} echo.",
        f"Left alone (1): invocation {done.pk} is over: it has Succeeded.",
    ]
    queued.refresh_from_db()
    running.refresh_from_db()
    assert queued.status == "cancelled"
    assert running.cancel_requested_at


def test_the_list_of_calls_filters_and_searches(page: Client, example: GuildMember) -> None:
    make_call(example, tool_name="echo", door="rest")
    failed = make_call(example, tool_name="reverse", door="admin", status="failed", error_kind="timeout")

    def found(**query: Any) -> list[Invocation]:
        return list(page.get(list_of("invocation"), query).context["cl"].result_list)

    for query in [
        {"q": "rever"},
        {"status__exact": "failed"},
        {"door__exact": "admin"},
        {"error_kind__exact": "timeout"},
    ]:
        assert found(**query) == [failed], query
    assert len(found(member__id__exact=example.pk)) == 2
    assert len(found(queued_at__gte=timezone.now() - timedelta(days=1))) == 2


# Tokens -----------------------------------------------------------------------------------------------------------


ADD_TOKEN = "admin:roster_apitoken_add"


def test_a_new_token_is_shown_once_and_never_again(page: Client, alice: User) -> None:
    response = page.post(reverse(ADD_TOKEN), {"user": alice.pk, "name": "laptop", "scope": "all"}, follow=True)

    (token,) = re.findall(r"gh_[\w-]{43}", html(response))
    row = ApiToken.objects.get()
    assert row.digest == ApiToken.digest_of(token)
    assert row.name == "laptop"
    for address in [list_of("apitoken"), page_of(row), reverse("admin:index")]:
        text = html(page.get(address))
        assert token not in text
        assert row.digest not in text


def test_a_token_is_made_with_scope_end_and_limits(page: Client, alice: User, echo: Tool) -> None:
    wish = {"expires_at_0": "2099-01-31", "expires_at_1": "12:00:00", "calls_per_minute": "7", "max_in_flight": "2"}
    form = {"user": alice.pk, "name": "narrow", "scope": "tools", "tools": [echo.pk], **wish}
    assert "example/echo" in html(page.get(reverse(ADD_TOKEN)))
    assert page.post(reverse(ADD_TOKEN), form).status_code == 302
    row = ApiToken.objects.get()
    assert (row.scope, list(row.tools.all()), list(row.members.all())) == ("tools", [echo], [])
    assert (row.calls_per_minute, row.max_in_flight) == (7, 2)
    assert row.expires_at is not None
    assert row.expires_at.isoformat() == "2099-01-31T12:00:00+00:00"
    shown = html(page.get(page_of(row)))
    for said in ("example/echo", "2099-01-31 12:00:00", "calls a minute: 7; at the same time: 2", "good"):
        assert said in shown


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"scope": "members"}, "Choose some, for the scope says: some members."),
        ({"scope": "tools"}, "Choose some, for the scope says: some tools."),
        ({"scope": "all", "members": "chosen"}, "Members were chosen, which this scope does not look at."),
        ({"scope": "all", "expires_at_0": "2001-01-31", "expires_at_1": "12:00:00"}, "That is over already."),
        ({"scope": "all", "max_in_flight": "0"}, "greater than or equal to 1"),
    ],
)
def test_a_token_that_would_not_be_what_was_meant_is_not_made(
    page: Client, alice: User, example: GuildMember, wish: dict[str, Any], said: str
) -> None:
    wish = {key: example.pk if value == "chosen" else value for key, value in wish.items()}
    assert said in html(page.post(reverse(ADD_TOKEN), {"user": alice.pk, **wish}))
    assert not ApiToken.objects.exists()


def test_others_make_see_and_revoke_only_their_own_tokens(client: Client, alice: User, bob: User) -> None:
    hers, _ = ApiToken.make(user=alice)
    allow(bob, "add_apitoken", "view_apitoken", "delete_apitoken")
    client.force_login(bob)

    wish = {"user": alice.pk, "scope": "all"}
    assert "Select a valid choice" in html(client.post(reverse(ADD_TOKEN), wish))
    assert client.post(reverse(ADD_TOKEN), {**wish, "user": bob.pk}).status_code == 302
    his = ApiToken.objects.get(user=bob)
    assert list(client.get(list_of("apitoken")).context["cl"].result_list) == [his]
    act(client, "apitoken", "revoke", hers, his)
    assert client.post(reverse("admin:roster_apitoken_revoke", args=[hers.pk])).status_code == 403
    assert set(ApiToken.objects.exclude(revoked_at=None)) == {his}
    client.post(reverse("admin:roster_apitoken_delete", args=[hers.pk]), {"post": "yes"})
    client.post(reverse("admin:roster_apitoken_delete", args=[his.pk]), {"post": "yes"})
    assert ApiToken.objects.get() == hers


@pytest.mark.parametrize("by", ["its page", "the list"])
def test_a_token_that_is_deleted_takes_its_queued_calls_along(page: Client, alice: User, echo: Tool, by: str) -> None:
    row, _ = ApiToken.make(user=alice)
    caller = Caller(Invocation.Door.REST, alice, access.principal_of_row(row))
    call, _ = control.queue_call("example", "echo", {"text": "later"}, caller=caller)

    if by == "its page":
        page.post(reverse("admin:roster_apitoken_delete", args=[row.pk]), {"post": "yes"})
    else:
        page.post(list_of("apitoken"), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})

    call.refresh_from_db()
    assert (call.status, call.token_id, ApiToken.objects.exists()) == ("cancelled", None, False)


def test_the_button_revokes_at_once_and_is_gone_afterwards(page: Client, alice: User) -> None:
    row, token = ApiToken.make(user=alice, name="laptop")
    button = reverse("admin:roster_apitoken_revoke", args=[row.pk])
    assert button in html(page.get(page_of(row)))
    assert page.get(button).status_code == 405
    shown = html(page.post(button, follow=True))
    assert "Revoked (1)" in shown
    assert button not in shown
    assert Client(headers={"Authorization": f"Bearer {token}"}).get("/api/roster/").status_code == 401
    assert "it was revoked already" in html(act(page, "apitoken", "revoke", row))


@pytest.mark.parametrize("state", ["good", "expired", "revoked"])
def test_every_state_of_a_token_has_a_colour(state: str) -> None:
    found = finders.find("roster/admin.css")
    assert isinstance(found, str)
    assert Path(found).read_text().count(f".status-{state}") == 3


# Members that are reserved for groups -----------------------------------------------------------------------------


@pytest.fixture
def writers(example: GuildMember) -> Group:
    group = Group.objects.create(name="writers")
    control.reserve(example, [group])
    return group


def test_a_reserved_member_is_nowhere_for_who_is_in_no_group_of_it(
    client: Client, bob: User, echo: Tool, writers: Group
) -> None:
    open_tool = make_tool(make_member("open"), "hum")
    make_call(echo.member)
    StatusChange.objects.create(member=echo.member, old="starting", new="connected", cause="handshake")
    views = ["view_guildmember", "view_tool", "view_invocation", "view_statuschange", "view_portallocation"]
    allow(bob, "invoke_tool", "control_member", "add_apitoken", "view_apitoken", *views)
    client.force_login(bob)
    call_form = reverse("admin:roster_tool_call", args=[echo.pk])
    for model in LISTS:
        assert "example" not in html(client.get(list_of(model))), model
    assert "example" not in html(client.get(reverse(ADD_TOKEN)))
    assert client.get(call_form).status_code == 404
    assert client.post(call_form, {"arguments": '{"text": "hi"}'}).status_code == 404
    act(client, "guildmember", "stop_members", echo.member)
    act(client, "tool", "switch_off", echo)
    assert client.post(reverse("admin:roster_guildmember_wish", args=[echo.member.pk, "stop"])).status_code == 404
    echo.refresh_from_db()
    assert echo.enabled
    assert GuildMember.objects.get(name="example").wanted == "running"
    assert client.get(reverse("admin:roster_tool_call", args=[open_tool.pk])).status_code == 200

    bob.groups.add(writers)

    assert "example" in html(client.get(list_of("guildmember")))
    assert client.post(call_form, {"arguments": '{"text": "hi"}'}).status_code == 302


def test_a_call_of_ones_own_stays_in_sight_when_its_member_is_reserved_for_others(
    client: Client, bob: User, example: GuildMember, writers: Group
) -> None:
    own = make_call(example, requested_by=bob)
    client.force_login(bob)
    assert client.get(page_of(own)).status_code == 200


def test_the_groups_of_a_member_are_chosen_on_a_page_of_their_own(page: Client, example: GuildMember) -> None:
    group = Group.objects.create(name="writers")
    form = reverse("admin:roster_guildmember_groups", args=[example.pk])
    assert form in html(page.get(page_of(example)))
    assert "open to everybody who may call tools" in html(page.get(page_of(example)))
    said = html(page.post(form, {"groups": [group.pk]}, follow=True))
    assert "Reserved for: writers." in said
    assert list(example.groups.all()) == [group]
    assert "checked" in html(page.get(form))
    page.post(form, {})
    assert not example.groups.exists()
    assert LogEntry.objects.filter(change_message__startswith="Reserved for").count() == 2


def test_choosing_groups_wants_the_permission_to_change_members(
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


def test_a_group_that_members_are_reserved_for_is_not_deleted(
    page: Client, example: GuildMember, writers: Group
) -> None:
    page.post(reverse("admin:auth_group_delete", args=[writers.pk]), {"post": "yes"})
    assert list(example.groups.all()) == [writers]


def test_a_user_with_tokens_can_be_deleted_and_their_calls_stay(page: Client, bob: User, example: GuildMember) -> None:
    token, _ = ApiToken.make(user=bob, name="laptop")
    call = make_call(example, requested_by=bob, requester="bob (laptop)", token=token)
    page.post(reverse("admin:auth_user_delete", args=[bob.pk]), {"post": "yes"})
    assert not User.objects.filter(pk=bob.pk).exists()
    call.refresh_from_db()
    assert (call.token, call.requester) == (None, "bob (laptop)")


# What comes from members is text ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("runtime")
def test_hostile_words_are_escaped_wherever_they_show(page: Client, alice: User) -> None:
    member = make_member(
        "evil",
        display_name=EVIL,
        description=EVIL,
        status="error",
        last_error=EVIL,
        warnings=[EVIL],
        instructions=EVIL,
        server_info={"name": EVIL},
        capabilities={EVIL: EVIL},
    )
    schema = {"type": "object", "description": EVIL, "properties": {EVIL: {"default": EVIL}}}
    tool = make_tool(
        member,
        f"{EVIL}/t",
        definition={"title": EVIL, "description": EVIL, "inputSchema": schema},
        schema_error=EVIL,
    )
    call = make_call(
        member,
        tool_name=tool.name,
        arguments={EVIL: EVIL},
        status="failed",
        error_kind="tool",
        error_message=EVIL,
        error_data={EVIL: EVIL},
        result={"content": [{"type": "text", "text": EVIL}]},
    )
    change = StatusChange.objects.create(
        member=member, old="starting", new="error", cause="exit", message=EVIL, log_tail=EVIL
    )
    addresses = [list_of(model) for model in LISTS]
    addresses += [page_of(row) for row in (member, tool, call, change)]
    addresses.append(reverse("admin:roster_tool_call", args=[tool.pk]))

    seen = 0
    for address in addresses:
        text = html(page.get(address))
        assert EVIL not in text, address
        seen += text.count(ESCAPED)
    assert seen > 20
    assert ESCAPED in html(act(page, "tool", "switch_off", tool))
    assert ESCAPED in html(call_form(page, tool, "{}"))  # refused: it is switched off, and the message names it


def test_no_page_carries_a_script_of_its_own(page: Client, full_hall: dict[str, Any], echo: Tool) -> None:
    addresses = [page_of(row) for row in full_hall.values()]
    addresses += [list_of("guildmember"), reverse("admin:roster_tool_call", args=[echo.pk])]

    for address in addresses:
        scripts = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", html(page.get(address)))
        assert not scripts, address


def test_a_calls_page_shows_its_progress(page: Client, echo: Tool) -> None:
    call = make_call(echo.member, status="running", progress={"progress": 2, "total": 3, "message": "<b>fetching"})
    assert "2 of 3: &lt;b&gt;fetching" in html(page.get(page_of(call)))


# Cost -------------------------------------------------------------------------------------------------------------


def fill(count: int, begin: int, alice: User) -> None:
    for number in range(begin, begin + count):
        member = make_member(f"member-{number}", status="connected")
        PortAllocation.objects.create(port=20000 + number, member=member)
        make_tool(member)
        make_call(member, requested_by=alice)
        StatusChange.objects.create(member=member, old="starting", new="connected", cause="handshake")
        ApiToken.make(user=alice)


def queries(page: Client, address: str) -> int:
    html(page.get(address))  # Django remembers content types from the first time on
    with CaptureQueriesContext(connection) as captured:
        html(page.get(address))
    return len(captured)


@pytest.mark.parametrize("model", LISTS)
@pytest.mark.usefixtures("runtime")
def test_a_list_costs_the_same_queries_for_two_rows_and_for_twenty(page: Client, alice: User, model: str) -> None:
    fill(2, 0, alice)
    few = queries(page, list_of(model))
    fill(18, 2, alice)

    assert queries(page, list_of(model)) == few
    assert few <= 12


@pytest.mark.usefixtures("runtime")
def test_a_members_page_costs_the_same_queries_for_two_tools_and_for_twenty(page: Client, example: GuildMember) -> None:
    def grow(begin: int, end: int) -> None:
        for number in range(begin, end):
            make_tool(example, f"tool-{number}")
            StatusChange.objects.create(member=example, old="starting", new="connected", cause="handshake")

    grow(0, 2)
    few = queries(page, page_of(example))
    grow(2, 20)

    assert queries(page, page_of(example)) == few


def test_the_list_of_calls_does_not_read_results(page: Client, example: GuildMember) -> None:
    make_call(example, status="succeeded", result={"content": []})
    with CaptureQueriesContext(connection) as captured:
        html(page.get(list_of("invocation")))

    assert not [query for query in captured if '"roster_invocation"."result"' in query["sql"]]


# Twins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [*GuildMember.Status.values, *Invocation.Status.values])
def test_every_status_has_a_colour_in_light_and_in_dark(status: str) -> None:
    css = Path(str(finders.find("roster/admin.css"))).read_text()

    assert len(re.findall(rf"\.status-{status}\b", css)) >= 2


def test_nothing_that_people_are_told_is_written_in_markdown() -> None:
    told = []
    for path in [*(settings.BASE_DIR / "roster").rglob("*.py"), *(settings.BASE_DIR / "mcp_runtime").rglob("*.py")]:
        raised = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
        told += [node.value for each in raised for node in ast.walk(each) if isinstance(node, ast.Constant)]
    for path in (settings.BASE_DIR / "roster" / "templates").rglob("*.html"):
        told += re.split(r"{#.*?#}|{%.*?%}", path.read_text())

    assert [text for text in told if "`" in str(text)] == []


def test_the_banner_asks_for_the_runtime_once_per_request(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real: Callable[[], Any] = control.live_runtime
    monkeypatch.setattr(control, "live_runtime", lambda: asked.append(1) or real())

    html(page.get(list_of("guildmember"), {"status": "error"}))

    assert len(asked) == 1
    assert Hall.objects.count() <= 1
