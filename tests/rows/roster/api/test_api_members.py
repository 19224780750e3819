from __future__ import annotations

import dataclasses
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as hall_settings
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from mcp_runtime.control.members import MEMBER_VERBS
from mcp_runtime.members import logs
from mcp_runtime.members.manifest.declaration import Manifest
from roster.api.member_history import MAX_LINES
from roster.api.members import RosterMemberSerializer, RosterToolSerializer
from roster.models import GuildMember, Node, PortAllocation, StatusChange, Tool
from tests.support.api import MANIFEST, add_member, add_tool, client_of
from tests.support.leases import add_node, own_node

Status = GuildMember.Status


def get_entry(client: Client, name: str = "example") -> dict[str, Any]:
    body = client.get("/api/roster/").json()
    return next(member for member in body["members"] if member["name"] == name)


def set_running(member: GuildMember, status: Status = Status.CONNECTED, port: int = 20007, **values: Any) -> None:
    """Writes the row as the runtime does."""
    GuildMember.objects.filter(pk=member.pk).update(status=status, **values)
    PortAllocation.objects.create(member=member, port=port)


# The roster -------------------------------------------------------------------------------------------------------


def test_the_roster_shows_status_endpoint_and_tools(as_bob: Client, example: GuildMember, live_runtime: None) -> None:
    set_running(example, warnings=["listens on every address"])
    entry = get_entry(as_bob)
    assert entry["status"] == "connected"
    assert entry["port"] == 20007
    assert entry["endpoint"] == "http://localhost:20007/mcp"
    assert entry["error"] == ""
    assert entry["warnings"] == ["listens on every address"]
    assert entry["tools"] == [{"name": "echo", "title": "", "description": "Does echo."}]


def test_the_roster_shows_the_live_runtime(as_bob: Client, live_runtime: None) -> None:
    runtime = as_bob.get("/api/roster/").json()["runtime"]
    assert runtime["alive"] is True
    assert runtime["holder"].startswith("process ")


def test_without_a_runtime_all_members_are_disconnected(as_bob: Client, example: GuildMember) -> None:
    set_running(example, warnings=["listens on every address"], pid=4711)
    assert as_bob.get("/api/roster/").json()["runtime"] == {"alive": False, "holder": None}
    entry = get_entry(as_bob)
    assert (entry["status"], entry["port"], entry["endpoint"], entry["warnings"]) == ("disconnected", None, None, [])
    assert as_bob.get("/api/members/example/").json()["pid"] is None


def test_a_member_is_connected_only_while_its_own_node_is_alive(as_bob: Client, live_runtime: None) -> None:
    node = add_node("b")
    add_member("far", status="connected", pid=7, node=node)
    assert as_bob.get("/api/members/far/").json()["status"] == "connected"
    Node.objects.filter(pk=node.pk).update(lease_id=None)
    roster = as_bob.get("/api/roster/").json()
    assert roster["runtime"]["alive"] is True
    assert [member["status"] for member in roster["members"] if member["name"] == "far"] == ["disconnected"]
    assert as_bob.get("/api/members/far/").json()["pid"] is None


def test_the_roster_shows_why_a_member_is_in_error(as_bob: Client, example: GuildMember, live_runtime: None) -> None:
    GuildMember.objects.update(status=Status.ERROR, last_error="member 'example' ended with exit code 3")
    assert get_entry(as_bob)["error"] == "member 'example' ended with exit code 3"


def test_a_member_in_error_has_a_diagnosis_in_all_lists(
    as_bob: Client, example: GuildMember, live_runtime: None
) -> None:
    tail = "Traceback\nModuleNotFoundError: No module named 'fastmcp'"
    manifest = {**example.manifest, "command": "/opt/python3", "transport": "stdio"}
    error = f"member 'example' could not be started: ended with exit code 1{GuildMember.TAIL_MARK}{tail}"
    GuildMember.objects.update(status="error", last_error=error, manifest=manifest)
    bodies = [
        get_entry(as_bob),
        as_bob.get("/api/members/").json()["members"][0],
        as_bob.get("/api/members/example/").json(),
    ]
    for body in bodies:
        assert body["diagnosis"] == {
            "cause": "Ended with exit code 1.",
            "remedy": "Install the Python module fastmcp if you trust it: `/opt/python3 -m pip install fastmcp` (its "
            "package may have another name). Or name the Python that has it as command in example/guild-member.json. "
            "The hall does not try again automatically.",
            "last_words": "ModuleNotFoundError: No module named 'fastmcp'",
            "key": "command",
        }
    GuildMember.objects.update(status="connected")
    assert get_entry(as_bob)["diagnosis"] is None


def test_a_diagnosis_says_nothing_of_log_and_manifest_to_who_may_not_see_them(
    as_charlie: Client, example: GuildMember, live_runtime: None
) -> None:
    tail = "ModuleNotFoundError: No module named 'private_module'"
    error = f"member 'example' could not be started: ended with exit code 1{GuildMember.TAIL_MARK}{tail}"
    GuildMember.objects.update(status="error", last_error=error, manifest={"command": "/private/python3"})
    for address in ("/api/members/", "/api/roster/", "/api/members/example/"):
        text = as_charlie.get(address).content.decode()
        assert "Restart it." in text
        assert "private" not in text


def test_the_roster_shows_the_progress_of_a_long_start(
    as_bob: Client, example: GuildMember, live_runtime: None
) -> None:
    since = timezone.now() - timedelta(seconds=12.2)
    set_running(example, Status.STARTING, status_changed_at=since, progress="Downloading foo (3/7)")
    assert re.fullmatch(r"starting for 1[2-9] s: Downloading foo \(3/7\)", get_entry(as_bob)["progress"])
    GuildMember.objects.update(progress="")
    assert re.fullmatch(r"starting for 1[2-9] s", get_entry(as_bob)["progress"])
    GuildMember.objects.update(status_changed_at=timezone.now())
    assert get_entry(as_bob)["progress"] == ""


def test_without_a_runtime_no_progress_is_shown(as_bob: Client, example: GuildMember) -> None:
    since = timezone.now() - timedelta(seconds=12)
    set_running(example, Status.STARTING, status_changed_at=since, progress="Downloading foo (3/7)")
    assert get_entry(as_bob)["progress"] == ""


def test_the_roster_shows_a_member_with_an_invalid_manifest(as_bob: Client) -> None:
    add_member("broken", manifest={}, manifest_error="broken/guild-member.json: not JSON")
    entry = get_entry(as_bob, "broken")
    assert (entry["status"], entry["error"]) == ("error", "broken/guild-member.json: not JSON")


def test_the_roster_hides_removed_members_and_disabled_and_unlisted_tools(as_bob: Client, example: GuildMember) -> None:
    add_member("gone", removed_at=timezone.now())
    add_tool(example, "off", enabled=False)
    add_tool(example, "old", listed=False)
    body = as_bob.get("/api/roster/").json()
    assert [member["name"] for member in body["members"]] == ["example"]
    assert [tool["name"] for tool in body["members"][0]["tools"]] == ["echo"]


def test_the_roster_keeps_the_order_of_the_members_tools(as_bob: Client, example: GuildMember) -> None:
    for name in ("zeta", "alpha"):
        add_tool(example, name)
    assert [tool["name"] for tool in get_entry(as_bob)["tools"]] == ["echo", "zeta", "alpha"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"title": "Echo", "annotations": {"title": "Other"}},
        {"annotations": {"title": "Echo"}},
        {"title": None, "description": None, "annotations": None},
        {"title": "", "annotations": "none"},
        {"description": 'größe ☃ "quoted"\n[1, 2]'},
        {"title": "{}", "description": "17"},
    ],
)
def test_the_roster_and_the_tool_page_show_the_same_data_of_a_tool(
    as_bob: Client, example: GuildMember, fields: dict[str, Any]
) -> None:
    Tool.objects.update(definition={"name": "echo", "inputSchema": {}, **fields})
    (tool_in_roster,) = get_entry(as_bob)["tools"]
    tool = as_bob.get("/api/members/example/tools/echo/").json()
    assert tool_in_roster == {key: tool[key] for key in ("name", "title", "description")}


def test_the_roster_has_the_documented_fields(as_bob: Client, example: GuildMember) -> None:
    entry = get_entry(as_bob)
    assert list(entry) == list(RosterMemberSerializer().fields)
    assert list(entry["tools"][0]) == list(RosterToolSerializer().fields)


@pytest.mark.parametrize("address", ["/api/roster/", "/api/members/"])
def test_many_members_need_no_more_queries_than_one(
    as_bob: Client, live_runtime: None, django_assert_num_queries: DjangoAssertNumQueries, address: str
) -> None:
    for number in range(5):
        member = add_member(f"member-{number}")
        set_running(member, port=20000 + number)
        add_tool(member, "one")
        add_tool(member, "two")
    add_member("far", server_url="https://mcp.example.com/mcp", status="connected")
    # The token, the nodes, the members, for the roster their tools.
    with django_assert_num_queries(4 if address == "/api/roster/" else 3):
        as_bob.get(address)


def test_the_list_of_members_is_the_roster_without_tools(as_bob: Client, example: GuildMember) -> None:
    entry = as_bob.get("/api/members/").json()["members"][0]
    assert {**entry, "tools": get_entry(as_bob)["tools"]} == get_entry(as_bob)


# One member -------------------------------------------------------------------------------------------------------


def test_a_member_shows_the_data_that_an_operator_needs(
    as_bob: Client, example: GuildMember, live_runtime: None
) -> None:
    due = timezone.now() + timedelta(seconds=4)
    GuildMember.objects.update(
        status=Status.ERROR, last_error="it died", exit_code=-9, restarts=2, restarts_total=7, next_restart_at=due
    )
    body = as_bob.get("/api/members/example/").json()
    assert (body["enabled"], body["desired_state"]) == (True, "running")
    assert (body["status"], body["error"], body["exit_code"]) == ("error", "it died", -9)
    assert (body["restarts"], body["restarts_total"]) == (2, 7)
    assert body["next_restart_at"] == due.isoformat().replace("+00:00", "Z")
    assert body["manifest"]["args"] == ["server.py", "${PORT}"]
    assert body["manifest"]["tool_timeouts"] == {"slow": 99.0}
    for link in ("url", "tools_url", "logs_url", "status_changes_url"):
        assert as_bob.get(body[link]).status_code == 200


def test_every_key_of_the_manifest_is_shown(as_bob: Client) -> None:
    add_member("modern", manifest={**MANIFEST, "protocol_version": "2026-07-28"})
    body = as_bob.get("/api/members/modern/").json()
    assert body["manifest"]["protocol_version"] == "2026-07-28"
    keys_of_member = {"name", "version", "display_name", "description"}
    keys = {field.name for field in dataclasses.fields(Manifest)}
    assert keys - keys_of_member == set(body["manifest"])


@pytest.mark.usefixtures("several_nodes")
def test_nodes_that_lack_the_folder_of_a_member_are_named(as_bob: Client, example: GuildMember) -> None:
    assert as_bob.get("/api/members/example/").json()["folder_notes"] == []
    for name in ("a", "b"):
        Node.objects.create(name=name, lease_id=uuid.uuid4(), folders={"example": ""} if name == "a" else {})
    notes = as_bob.get("/api/members/example/").json()["folder_notes"]
    assert notes == ["The folder of 'example' is missing on node 'b'."]


def test_values_of_a_members_environment_are_never_shown(as_alice: Client, example: GuildMember) -> None:
    response = as_alice.get("/api/members/example/")
    assert response.json()["manifest"]["env"] == ["API_KEY"]
    assert "sesame" not in response.content.decode()


def test_a_remote_server_has_its_url_as_endpoint_and_no_port(as_bob: Client, live_runtime: None) -> None:
    headers = {"Authorization": "Bearer ${env:GUILD_HALL_MEMBER_A_TOKEN}"}
    url = "https://mcp.example.com/mcp?team=blue"
    manifest = {**MANIFEST, "command": "", "args": [], "env": {}, "url": url, "headers": headers}
    add_member("far", manifest=manifest, server_url=url, status="connected")
    assert (get_entry(as_bob, "far")["endpoint"], get_entry(as_bob, "far")["port"]) == (
        "https://mcp.example.com/mcp",
        None,
    )
    body = as_bob.get("/api/members/far/").json()
    assert (body["manifest"]["url"], body["manifest"]["headers"]) == (url, headers)
    for status in ("disconnected", "error"):
        GuildMember.objects.update(status=status)
        assert get_entry(as_bob, "far")["endpoint"] is None


def test_a_member_without_a_valid_manifest_shows_none(as_bob: Client) -> None:
    add_member("broken", manifest={}, manifest_error="not JSON")
    assert as_bob.get("/api/members/broken/").json()["manifest"] is None


def test_a_removed_member_is_404(as_bob: Client) -> None:
    add_member("gone", removed_at=timezone.now())
    for address in ("", "tools/", "logs/", "status-changes/"):
        assert as_bob.get(f"/api/members/gone/{address}").status_code == 404
    assert as_bob.post("/api/members/gone/start/").status_code == 404


# Verbs ------------------------------------------------------------------------------------------------------------


def test_stop_sets_the_desired_state(as_bob: Client, example: GuildMember) -> None:
    response = as_bob.post("/api/members/example/stop/")
    assert response.status_code == 202
    assert response.json()["desired_state"] == "stopped"
    example.refresh_from_db()
    assert example.desired_state == GuildMember.DesiredState.STOPPED


def test_a_start_of_a_member_in_error_requests_a_restart(
    as_bob: Client, example: GuildMember, live_runtime: None
) -> None:
    GuildMember.objects.update(status=Status.ERROR, desired_state=GuildMember.DesiredState.STOPPED)
    response = as_bob.post("/api/members/example/start/")
    assert (response.status_code, response.json()["desired_state"], response.json()["status"]) == (
        202,
        "running",
        "error",
    )
    assert response.json()["restart_requested_at"] is not None


def test_disable_and_enable(as_bob: Client, example: GuildMember) -> None:
    assert as_bob.post("/api/members/example/disable/").json()["enabled"] is False
    assert as_bob.post("/api/members/example/start/").status_code == 409
    assert as_bob.post("/api/members/example/restart/").json()["code"] == "member_disabled"
    assert as_bob.post("/api/members/example/enable/").json()["enabled"] is True
    assert as_bob.post("/api/members/example/restart/").status_code == 202


def test_a_refresh_of_a_disconnected_member_is_refused_with_the_reason(as_bob: Client, example: GuildMember) -> None:
    response = as_bob.post("/api/members/example/refresh/")
    assert response.status_code == 409
    assert response.json() == {
        "title": "Conflict",
        "status": 409,
        "detail": "member 'example' is disconnected: its tools are listed when it is connected",
        "code": "refused",
    }


def test_every_verb_has_an_address_that_accepts_only_post(as_bob: Client, example: GuildMember) -> None:
    for verb in MEMBER_VERBS:
        assert as_bob.get(f"/api/members/example/{verb}/").status_code == 405
        assert as_bob.post(f"/api/members/nobody/{verb}/").json()["code"] == "unknown_member"


# Logs and status changes ------------------------------------------------------------------------------------------


@pytest.fixture
def log_lines(example: GuildMember, settings: Any, tmp_path: Any) -> list[str]:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    path = logs.path_of(tmp_path, example.name)
    path.parent.mkdir()
    lines = [f"line {number}" for number in range(300)]
    path.write_text("\n".join(lines) + "\n")
    return lines


def test_logs_return_the_last_lines_in_order(as_bob: Client, log_lines: list[str]) -> None:
    assert as_bob.get("/api/members/example/logs/?lines=3").json()["lines"] == log_lines[-3:]
    assert as_bob.get("/api/members/example/logs/").json()["lines"] == log_lines[-200:]


def test_a_member_without_output_has_an_empty_log(
    as_bob: Client, example: GuildMember, settings: Any, tmp_path: Any
) -> None:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    assert as_bob.get("/api/members/example/logs/").json() == {"lines": [], "note": ""}


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_the_log_of_a_member_of_another_node_has_a_note(as_bob: Client, example: GuildMember) -> None:
    own_node()
    GuildMember.objects.update(node=add_node("b"))
    note = "The log of 'example' is on node 'b', which does not send it: GUILD_HALL_NODE_URL is not set there."
    assert as_bob.get("/api/members/example/logs/").json() == {"lines": [], "note": note}


SECRET = "another's argument"


@pytest.mark.parametrize(
    ("codename", "is_open"),
    [(None, False), ("invoke_tool", False), ("control_member", False), ("view_guildmember", True)],
)
def test_output_of_a_member_needs_the_permission_to_view_members(
    charlie: User, as_charlie: Client, log_lines: list[str], live_runtime: None, codename: str | None, is_open: bool
) -> None:
    """Its log, last output and progress can contain arguments of others. The admin needs the same permission."""
    member = GuildMember.objects.get(name="example")
    logs.path_of(hall_settings.GUILD_HALL_DATA_DIR, member.name).write_text(SECRET + "\n")
    GuildMember.objects.update(
        status="error", last_error=f"it exited{GuildMember.TAIL_MARK}{SECRET}", exit_code=3, removed_at=None
    )
    GuildMember.objects.create(
        name="slow",
        directory="slow",
        status="starting",
        node=own_node(),
        progress=SECRET,
        status_changed_at=timezone.now() - timedelta(minutes=1),
    )
    StatusChange.objects.create(member=member, old="connected", new="error", cause="exit", log_tail=SECRET)
    charlie.is_staff = True
    charlie.save()
    charlie.user_permissions.set(Permission.objects.filter(codename=codename))
    expected = 200 if is_open else 403
    for address in ("logs/", "status-changes/"):
        response = as_charlie.get(f"/api/members/example/{address}")
        assert response.status_code == expected
        assert (SECRET in response.content.decode()) is is_open
        assert is_open or "roster.view_guildmember" in response.json()["detail"]
    for address in ("/api/members/", "/api/roster/", "/api/members/example/", "/api/members/slow/"):
        response = as_charlie.get(address)
        assert response.status_code == 200
        assert (SECRET in response.content.decode()) is is_open
    body = as_charlie.get("/api/members/example/").json()
    assert body["error"].startswith("it exited")
    assert (body["manifest"] is not None) is is_open
    page = Client()
    page.force_login(charlie)
    for name in ("log", "log_file"):
        assert page.get(reverse(f"admin:roster_guildmember_{name}", args=[member.pk])).status_code == expected


def test_a_token_for_some_tools_cannot_read_the_log(bob: User, example: GuildMember, log_lines: list[str]) -> None:
    client = client_of(bob, scope="tools", tools=[example.tools.get()])
    for address in ("logs/", "status-changes/"):
        assert client.get(f"/api/members/example/{address}").status_code == 403


@pytest.mark.parametrize("lines", ["0", "-1", "many", str(MAX_LINES + 1)])
def test_an_invalid_number_of_lines_is_refused(as_bob: Client, log_lines: list[str], lines: str) -> None:
    response = as_bob.get("/api/members/example/logs/", {"lines": lines})
    assert response.status_code == 400
    assert list(response.json()["faults"]) == ["lines"]


def test_status_changes_are_listed_newest_first_with_their_cause(as_bob: Client, example: GuildMember) -> None:
    StatusChange.objects.create(member=example, old="starting", new="connected", cause="handshake")
    StatusChange.objects.create(
        member=example, old="connected", new="error", cause="exit", exit_code=-9, log_tail="out of memory"
    )
    StatusChange.objects.create(member=add_member("other"), old="starting", new="error", cause="exit")
    newest, oldest = as_bob.get("/api/members/example/status-changes/").json()["results"]
    assert (newest["new"], newest["signal"], newest["log_tail"]) == ("error", "SIGKILL", "out of memory")
    assert (oldest["cause"], oldest["exit_code"], oldest["signal"]) == ("handshake", None, "")
