"""The page of a member in the admin: its parts that update automatically, and its log. The tests write the rows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from mcp_runtime.members import logs
from mcp_runtime.rows import lease
from roster.admin.members import page as member_page
from roster.models import Call, GuildMember, Node, StatusChange, Tool
from tests.support.leases import add_node, own_node

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>"
PARTS = ["head", "tools", "activity"]


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """As if a runtime were live."""
    lease_id = lease.take()
    yield
    lease.release(lease_id)


@pytest.fixture
def page(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("alice"))
    return client


@pytest.fixture
def reader() -> Client:
    """A browser of a user who may only see members."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_guildmember"))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def anna() -> GuildMember:
    manifest = {"name": "anna", "version": "1", "command": "python3", "env": {"API_KEY": "sk-very-secret"}}
    columns = {"manifest": manifest, "status": "connected", "node": own_node()}
    return GuildMember.objects.create(name="anna", directory="anna", **columns)


@pytest.fixture
def log(anna: GuildMember) -> Iterator[Path]:
    path = logs.path_of(settings.GUILD_HALL_DATA_DIR, anna.name)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    yield path
    for name in path.parent.glob("anna.log*"):
        name.unlink()


def page_url(member: GuildMember) -> str:
    return reverse("admin:roster_guildmember_change", args=[member.pk])


def part_url(member: GuildMember, part: str) -> str:
    return reverse("admin:roster_guildmember_part", args=[member.pk, part])


def log_url(member: GuildMember, *, as_file: bool = False) -> str:
    return reverse(f"admin:roster_guildmember_log{'_file' if as_file else ''}", args=[member.pk])


def text_of(response: Any) -> str:
    assert response.status_code == 200, response
    return str(response.content.decode())


def add_tool(member: GuildMember, name: str, **columns: Any) -> Tool:
    definition = {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}}
    return Tool.objects.create(**{"member": member, "name": name, "definition": definition, **columns})


def add_call(member: GuildMember, **columns: Any) -> Call:
    return Call.objects.create(**{"member": member, "tool_name": "echo", "timeout": 30, "source": "rest", **columns})


def crash(member: GuildMember, message: str = "ended with exit code 3", log_tail: str = "the disk is full") -> None:
    StatusChange.objects.create(
        member=member, old="connected", new="error", cause="exit", message=message, exit_code=3, log_tail=log_tail
    )
    GuildMember.objects.filter(pk=member.pk).update(status="error", last_error=message, exit_code=3)


# Parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_sent_again_only_after_a_change(page: Client, anna: GuildMember, part: str) -> None:
    tool = add_tool(anna, "echo")
    first = page.get(part_url(anna, part))
    tag = first["ETag"]
    assert page.get(part_url(anna, part), headers={"If-None-Match": tag}).status_code == 304

    Tool.objects.filter(pk=tool.pk).update(enabled=False)
    crash(anna)

    second = page.get(part_url(anna, part), headers={"If-None-Match": tag})
    assert second.status_code == 200
    assert second.content != first.content


def test_a_request_for_an_unknown_part_of_the_page_is_404(page: Client, anna: GuildMember) -> None:
    assert page.get(part_url(anna, "cellar")).status_code == 404
    assert page.get(reverse("admin:roster_guildmember_part", args=[0, "head"])).status_code == 404


def test_the_page_contains_all_parts(page: Client, anna: GuildMember) -> None:
    add_tool(anna, "echo")
    add_call(anna, status="failed", error_kind="tool", error_message="no such note")
    text = text_of(page.get(page_url(anna)))
    for part in PARTS:
        assert part_url(anna, part) in text
    assert "Does echo." in text
    assert "no such note" in text


def test_a_crash_is_shown_with_its_cause_its_last_output_and_a_hint(page: Client, anna: GuildMember) -> None:
    crash(anna)
    head = text_of(page.get(part_url(anna, "head")))
    assert "Ended with exit code 3" in head
    assert "the disk is full" in head
    assert "does not try again automatically" in head
    assert "exit code 3" in text_of(page.get(part_url(anna, "activity")))

    GuildMember.objects.update(next_restart_at=timezone.now() + timedelta(seconds=8))
    head = text_of(page.get(part_url(anna, "head")))
    assert "does not try again automatically" not in head
    assert "Next restart at" in head


def test_failures_in_a_row_are_told_apart_from_restarts(page: Client, anna: GuildMember) -> None:
    GuildMember.objects.update(restarts=3, restarts_total=2)
    assert "<dd>2, after 3 failures in a row</dd>" in text_of(page.get(part_url(anna, "head")))
    GuildMember.objects.update(restarts=0)
    assert "<dt>Restarts</dt><dd>2</dd>" in text_of(page.get(part_url(anna, "head")))


def test_an_old_crash_is_not_a_reason_while_the_member_runs(page: Client, anna: GuildMember) -> None:
    crash(anna)
    GuildMember.objects.update(status="connected")
    assert "the disk is full" not in text_of(page.get(part_url(anna, "head")))
    assert "the disk is full" in text_of(page.get(part_url(anna, "activity")))


def test_without_a_runtime_an_old_crash_is_not_shown_as_current(page: Client, anna: GuildMember) -> None:
    crash(anna)
    Node.objects.update(lease_id=None)
    head = text_of(page.get(part_url(anna, "head")))
    assert "the disk is full" not in head
    assert "disconnected" in head


def test_the_age_is_that_of_the_status_that_is_shown(page: Client, anna: GuildMember) -> None:
    age = '<span class="quiet">for <time '
    assert age in text_of(page.get(part_url(anna, "head")))
    GuildMember.objects.update(manifest_error="command: missing", status="disconnected")
    assert age not in text_of(page.get(part_url(anna, "head")))
    GuildMember.objects.update(manifest_error="", status="connected")
    Node.objects.update(lease_id=None)
    assert age not in text_of(page.get(part_url(anna, "head")))


def test_an_invalid_manifest_is_shown_with_its_path(page: Client, anna: GuildMember) -> None:
    fault = {"manifest_error": "command: missing", "manifest_error_key": "command"}
    GuildMember.objects.update(**fault, status="disconnected")
    head = text_of(page.get(part_url(anna, "head")))
    assert "command: missing" in head
    assert "Fix command in anna/guild-member.json" in head


def test_only_the_buttons_that_apply_are_shown(page: Client, anna: GuildMember) -> None:
    head = text_of(page.get(part_url(anna, "head")))
    assert "Stop" in head
    assert ">Start<" not in head
    GuildMember.objects.update(desired_state="stopped", status="disconnected")
    assert ">Start<" in text_of(page.get(part_url(anna, "head")))


def test_a_button_responds_to_a_script_with_the_change(page: Client, anna: GuildMember) -> None:
    stop_url = reverse("admin:roster_guildmember_verb", args=[anna.pk, "stop"])
    response = page.post(stop_url, headers={"X-Live": "form"}).json()
    assert [message["text"] for message in response["messages"]] == ["Stop requested (1): anna."]
    tool = add_tool(anna, "echo")
    disable_url = reverse("admin:roster_tool_disable", args=[tool.pk])
    response = page.post(disable_url, headers={"X-Live": "form"}).json()
    assert [message["text"] for message in response["messages"]] == ["Disabled (1): echo."]


def test_a_tool_that_is_disabled_or_not_listed_has_no_link_to_call_it(page: Client, anna: GuildMember) -> None:
    enabled_tool, disabled_tool, unlisted_tool = (
        add_tool(anna, "on"),
        add_tool(anna, "off", enabled=False),
        add_tool(anna, "gone", listed=False),
    )
    text = text_of(page.get(part_url(anna, "tools")))
    assert reverse("admin:roster_tool_call", args=[enabled_tool.pk]) in text
    for tool in (disabled_tool, unlisted_tool):
        assert reverse("admin:roster_tool_change", args=[tool.pk]) in text
        assert reverse("admin:roster_tool_call", args=[tool.pk]) not in text


def test_the_first_call_is_suggested_only_while_there_is_a_tool_to_call(page: Client, anna: GuildMember) -> None:
    def is_suggested() -> bool:
        return "Choose a tool to call" in text_of(page.get(part_url(anna, "activity")))

    assert not is_suggested()
    add_tool(anna, "echo")
    assert is_suggested()
    GuildMember.objects.update(enabled=False)
    assert not is_suggested()


def test_a_failed_call_has_the_words_of_its_tool(page: Client, anna: GuildMember) -> None:
    message = "tool 'echo' of member 'anna': the oven is cold"
    add_call(anna, tool_name="echo", status="failed", error_kind="tool", error_message=message)

    shown = text_of(page.get(part_url(anna, "activity")))

    assert "tool: the oven is cold" in shown
    assert "of member" not in shown


@pytest.mark.parametrize("part", PARTS)
def test_a_part_costs_the_same_number_of_queries_for_any_number_of_rows(
    page: Client, anna: GuildMember, part: str
) -> None:
    def count_queries(count: int) -> int:
        for number in range(count):
            add_tool(anna, f"tool-{count}-{number}")
            add_call(anna, status="failed", error_message="no")
            crash(anna)
            anna.groups.add(Group.objects.create(name=f"group-{count}-{number}"))
        page.get(part_url(anna, part))
        with CaptureQueriesContext(connection) as queries:
            text_of(page.get(part_url(anna, part)))
        return len(queries)

    assert count_queries(2) == count_queries(18) <= 12


@pytest.mark.usefixtures("several_nodes")
def test_the_page_names_nodes_that_lack_the_folder(page: Client, anna: GuildMember) -> None:
    Node.objects.create(name="b", lease_id=uuid.uuid4())
    note = "The folder of 'anna' is missing on nodes 'b' and 'main'."
    assert escape(note) in text_of(page.get(page_url(anna)))


def test_the_page_has_a_limited_size(page: Client, anna: GuildMember) -> None:
    for _ in range(30):
        crash(anna, message="m" * 100_000, log_tail="x" * 100_000)
        add_call(anna, status="failed", error_message="e" * 100_000, tool_name="t" * 255)
    add_tool(anna, "long", definition={"name": "long", "description": "d" * 100_000})
    assert len(text_of(page.get(page_url(anna)))) < 300_000


def test_hostile_texts_are_escaped_in_every_part(page: Client, anna: GuildMember) -> None:
    add_tool(anna, EVIL, definition={"name": EVIL, "title": EVIL, "description": EVIL})
    add_call(anna, tool_name=EVIL, status="failed", error_kind="tool", error_message=EVIL, requester=EVIL)
    crash(anna, message=EVIL, log_tail=EVIL)
    GuildMember.objects.update(description=EVIL, display_name=EVIL, warnings=[EVIL], instructions=EVIL)
    for address in [page_url(anna), *(part_url(anna, part) for part in PARTS)]:
        text = text_of(page.get(address))
        assert EVIL not in text
        assert "&lt;script&gt;" in text


# Access control ---------------------------------------------------------------------------------------------------


def test_a_reader_sees_no_buttons_no_tools_and_no_calls_of_others(reader: Client, anna: GuildMember) -> None:
    add_tool(anna, "echo")
    add_call(anna, tool_name="of-somebody")
    own_call = add_call(anna, tool_name="of-bob", requested_by=User.objects.get(username="bob"))
    text = text_of(reader.get(page_url(anna)))
    assert "formaction" not in text
    assert "Does echo." not in text
    assert "of-somebody" not in text
    assert reverse("admin:roster_call_change", args=[own_call.pk]) in text
    assert "All calls of this member" not in text


@pytest.mark.parametrize("kind", ["part", "log", "file"])
def test_a_member_is_hidden_from_users_who_may_not_see_it(
    page: Client, reader: Client, anna: GuildMember, kind: str
) -> None:
    address = {"part": part_url(anna, "head"), "log": log_url(anna), "file": log_url(anna, as_file=True)}[kind]
    assert page.get(address).status_code == 200
    assert reader.get(address).status_code == 200
    anna.groups.add(Group.objects.create(name="others"))
    assert reader.get(address).status_code == 404
    anna.groups.clear()
    User.objects.get(username="bob").user_permissions.clear()
    assert reader.get(address).status_code == 403
    assert Client().get(address).status_code == 302


# The log ----------------------------------------------------------------------------------------------------------


def test_the_log_continues_after_the_cursor_of_the_page(page: Client, anna: GuildMember, log: Path) -> None:
    log.write_text("one\ntwo\n")
    text = text_of(page.get(page_url(anna)))
    first = page.get(log_url(anna)).json()
    assert first["lines"] == ["one", "two"]
    assert f'data-cursor="{first["cursor"]}"' in text
    with log.open("a") as log_file:
        log_file.write(f"three {EVIL}\n")
    second = page.get(log_url(anna), {"after": first["cursor"]})
    assert second.json()["lines"] == [f"three {EVIL}"]
    assert second.json()["gap"] is False
    assert second["Content-Type"] == "application/json"


def test_the_log_continues_after_a_rotation(page: Client, anna: GuildMember, log: Path) -> None:
    log.write_text("one\n")
    cursor = page.get(log_url(anna)).json()["cursor"]
    with log.open("a") as log_file:
        log_file.write("two\n")
    log.rename(logs.rotated_path(log))
    log.write_text("three\n")
    response = page.get(log_url(anna), {"after": cursor}).json()
    assert (response["lines"], response["gap"]) == (["two", "three"], False)


def test_a_request_for_the_log_costs_few_queries(page: Client, anna: GuildMember, log: Path) -> None:
    cursor = page.get(log_url(anna)).json()["cursor"]
    with CaptureQueriesContext(connection) as queries:
        page.get(log_url(anna), {"after": cursor})
    assert len(queries) <= 6


def test_a_member_without_output_has_an_empty_log(page: Client, anna: GuildMember) -> None:
    assert page.get(log_url(anna)).json() == {"lines": [], "cursor": "", "gap": False}
    assert b"".join(page.get(log_url(anna, as_file=True)).streaming_content) == b""


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_the_page_says_on_which_other_node_the_log_is(page: Client, anna: GuildMember, log: Path) -> None:
    own_node()
    GuildMember.objects.update(node=add_node("b"))
    text = page.get(reverse("admin:roster_guildmember_change", args=[anna.pk])).content.decode()
    assert (
        "The log of &#x27;anna&#x27; is on node &#x27;b&#x27;, which does not send it: GUILD_HALL_NODE_URL is not"
        in text
    )
    assert "The log is empty." not in text


def test_lines_are_shown_without_colours_and_control_characters(page: Client, anna: GuildMember, log: Path) -> None:
    log.write_text("\x1b[31mred\x1b[0m \x08bell \u202eevil\n")
    assert page.get(log_url(anna)).json()["lines"] == ["red �bell �evil"]


def test_a_slow_reader_of_the_log_holds_no_database_connection(
    page: Client, anna: GuildMember, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns: list[int] = []
    log.write_text("one\n")
    monkeypatch.setattr(member_page, "give_connection_back", lambda: returns.append(1))
    chunks = iter(page.get(log_url(anna, as_file=True)).streaming_content)
    assert next(chunks) == b"one\n"
    assert returns == [1]
    assert list(chunks) == []


def test_the_whole_log_is_a_text_file_to_download(page: Client, anna: GuildMember, log: Path) -> None:
    logs.rotated_path(log).write_text("older\n")
    log.write_text(f"newer {EVIL}\n")
    response = page.get(log_url(anna, as_file=True))
    assert b"".join(response.streaming_content) == f"older\nnewer {EVIL}\n".encode()
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["Content-Disposition"] == 'attachment; filename="anna.log"'
    assert response["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("cursor", ["nonsense", "1-1-1", "\x00", "9" * 5000])
def test_an_invalid_cursor_gives_the_end_of_the_log(page: Client, anna: GuildMember, log: Path, cursor: str) -> None:
    log.write_text("one\n")
    response = page.get(log_url(anna), {"after": cursor}).json()
    assert (response["lines"], response["gap"]) == (["one"], True)


def test_the_manifest_is_shown_with_its_environment_masked(page: Client, anna: GuildMember) -> None:
    text = text_of(page.get(page_url(anna)))
    assert "sk-very-secret" not in text
    assert json.dumps("API_KEY")[1:-1] in text


def test_the_manifest_is_shown_without_its_empty_keys(page: Client, anna: GuildMember) -> None:
    oauth = {"client_id": "", "scopes": [], "credentials": "user"}
    anna.manifest = {**anna.manifest, "args": [], "env": {"EMPTY_ONE": ""}, "oauth": oauth, "timeout": 0}
    anna.save()
    shown = text_of(page.get(page_url(anna))).partition('id="manifest"')[2].partition("</section>")[0]
    for word in ("EMPTY_ONE", "credentials", "timeout"):
        assert word in shown
    for word in ("client_id", "scopes", "args"):
        assert word not in shown
    anna.manifest["oauth"] = None
    anna.save()
    assert page.get(page_url(anna)).status_code == 200


def test_the_page_has_the_address_at_the_gateway_with_a_button_to_copy_it(
    page: Client, anna: GuildMember, settings: Any
) -> None:
    settings.GUILD_HALL_GATEWAY_URL = "https://gateway.example.com"
    text = text_of(page.get(page_url(anna)))
    assert '<code id="gateway-address">https://gateway.example.com/mcp/anna</code>' in text
    assert 'data-copy="gateway-address"' in text
    GuildMember.objects.update(removed_at=timezone.now())
    assert "gateway-address" not in text_of(page.get(page_url(anna)))  # nobody can use it any more
