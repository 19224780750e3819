"""The common behaviour of all screens of the admin. No runtime runs here. The tests write its rows."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.rows import lease
from roster.admin import present
from roster.models import Call, GuildMember, Hall, Node, PortAllocation, StatusChange, Token, Tool
from tests.support.admin import (
    ESCAPED,
    EVIL,
    LISTS,
    act,
    allow,
    call_form,
    html,
    list_of,
    make_call,
    make_member,
    make_tool,
    page_of,
)
from tests.support.leases import add_node

pytestmark = pytest.mark.django_db

NO_RUNTIME = "No runtime is alive. Members do not run"


# Every page, with and without permission --------------------------------------------------------------------------


@pytest.fixture
def full_hall(example: GuildMember, echo: Tool, alice: User) -> dict[str, Any]:
    change = StatusChange.objects.create(member=example, old="connected", new="error", cause="exit", exit_code=-9)
    return {
        "guildmember": example,
        "tool": echo,
        "call": make_call(example),
        "statuschange": change,
        "portallocation": PortAllocation.objects.get(),
        "node": Node.objects.create(name="old"),
        "token": Token.make(user=alice)[0],
    }


@pytest.mark.parametrize("model", LISTS)
def test_every_list_and_page_renders_for_alice(page: Client, full_hall: dict[str, Any], model: str) -> None:
    assert "Guild Hall" in html(page.get(list_of(model)))
    html(page.get(list_of(model), {"q": "example"}))
    html(page.get(page_of(full_hall[model])))


@pytest.mark.parametrize("model", LISTS)
def test_a_user_without_permissions_sees_no_list_and_no_page(
    client: Client, bob: User, full_hall: dict[str, Any], model: str
) -> None:
    client.force_login(bob)

    assert client.get(list_of(model)).status_code == 403
    hidden = 404 if model == "call" else 403  # for each user, only the calls that they may see exist
    assert client.get(page_of(full_hall[model])).status_code == hidden


def test_the_first_page_names_the_permission_that_a_user_with_another_permission_lacks(
    client: Client, bob: User
) -> None:
    allow(bob, "invoke_tool")
    client.force_login(bob)

    assert "do not have permission to view the roster" in html(client.get(reverse("admin:index")))


def test_anonymous_users_are_sent_to_the_login(client: Client, echo: Tool) -> None:
    for address in [list_of("guildmember"), reverse("admin:roster_tool_call", args=[echo.pk])]:
        response = client.get(address)
        assert response.status_code == 302
        assert response["Location"].startswith("/admin/login/")


@pytest.mark.parametrize("model", ["guildmember", "tool", "call", "statuschange", "portallocation", "node"])
def test_rows_of_the_runtime_cannot_be_added_or_edited(page: Client, full_hall: dict[str, Any], model: str) -> None:
    row = full_hall[model]

    assert page.get(reverse(f"admin:roster_{model}_add")).status_code == 403
    assert page.post(page_of(row), {"name": "changed", "enabled": ""}).status_code == 403
    assert page.post(reverse(f"admin:roster_{model}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert type(row).objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize(
    ("model", "heading"),
    [
        *(("guildmember", "Members"), ("tool", "Tools"), ("call", "Calls"), ("agent", "Agents")),
        *(("token", "Tokens"), ("statuschange", "Status changes"), ("portallocation", "Port allocations")),
        ("node", "Nodes"),
    ],
)
def test_a_list_has_the_name_of_its_model_as_heading(page: Client, model: str, heading: str) -> None:
    text = html(page.get(list_of(model)))

    assert f"<title>{heading} | Guild Hall</title>" in text
    assert f"<h1>{heading}</h1>" in text


@pytest.mark.parametrize("page_name", ["change", "delete", "history"])
def test_the_way_back_from_a_row_goes_through_its_list(page: Client, alice: User, page_name: str) -> None:
    token = Token.make(user=alice)[0]

    text = html(page.get(reverse(f"admin:roster_token_{page_name}", args=[token.pk])))

    way = text.split('class="breadcrumbs">')[1].split("</div>")[0]
    steps = re.findall(r'<a href="([^"]*)"', way)
    assert steps == [reverse("admin:index"), list_of("token"), page_of(token)][: len(steps)]
    assert len(steps) == (2 if page_name == "change" else 3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("toolset", "There are no tool sets yet."),
        ("secret", "There are no secrets yet."),
        ("token", "There are no tokens yet."),
        ("agent", "There are no agents yet."),
        ("node", "There are no nodes yet."),
        ("invitation", "Nobody is invited yet."),
        ("statuschange", "The status of no member has changed yet."),
        ("portallocation", "No member has a port yet."),
    ],
)
def test_an_empty_list_says_what_it_is_for(admin_client: Client, model: str, words: str) -> None:
    text = html(admin_client.get(list_of(model)))
    assert f'<p class="no-matches">{words}' in text
    assert 'name="action"' not in text


def test_a_search_without_matches_leads_to_all_rows(page: Client, alice: User) -> None:
    Token.make(user=alice, name="laptop")

    text = html(page.get(list_of("token"), {"q": "nothing like this"}))

    assert '<p class="no-matches">No matches. <a href="?">Show all</a></p>' in text


def test_the_pages_to_select_and_to_delete_have_their_own_headings(page: Client, alice: User) -> None:
    token, other = Token.make(user=alice)[0], Token.make(user=alice)[0]

    assert "<h1>Tokens</h1>" in html(page.get(list_of("token"), {"_popup": 1}))
    assert "<h1>Delete 2 tokens</h1>" in html(act(page, "token", "delete_selected", token, other))
    assert f"<h1>Delete {token}</h1>" in html(page.get(reverse("admin:roster_token_delete", args=[token.pk])))


# The banner -------------------------------------------------------------------------------------------------------


def test_the_question_before_a_deletion_names_all_that_goes_and_leads_back(page: Client) -> None:
    bob = User.objects.create_user("bob")
    token, _ = Token.make(user=bob)
    users, own_page = reverse("admin:auth_user_changelist"), reverse("admin:auth_user_change", args=[bob.pk])
    form = {"action": "delete_selected", "_selected_action": [str(bob.pk)]}
    one = html(page.get(reverse("admin:auth_user_delete", args=[bob.pk])))
    selected = html(page.post(users, form))
    for text, back in ((one, own_page), (selected, users)):
        assert "You cannot take this back." in text
        assert str(token) in strip_tags(text)
        assert f'<a href="{back}" class="button cancel-link">Do not delete</a>' in text
        assert "No, take me back" not in text
    page.post(users, {**form, "post": "yes"})
    assert not User.objects.filter(pk=bob.pk).exists()


def test_after_a_logout_the_page_says_what_ended_and_leads_to_the_login(page: Client) -> None:
    text = html(page.post(reverse("admin:logout")))
    assert "Your session in this browser has ended." in text
    assert f'href="{reverse("admin:index")}">Log in again</a>' in text


@pytest.mark.parametrize("name", ["admin:index", "admin:roster_guildmember_changelist"])
def test_without_a_live_runtime_a_banner_tells_how_to_start_one(page: Client, name: str) -> None:
    assert NO_RUNTIME in html(page.get(reverse(name)))


@pytest.mark.usefixtures("runtime")
def test_with_a_live_runtime_there_is_no_banner(page: Client) -> None:
    assert NO_RUNTIME not in html(page.get(reverse("admin:index")))


def test_the_login_page_has_no_banner(client: Client) -> None:
    assert NO_RUNTIME not in html(client.get(reverse("admin:login")))


# Texts of members are escaped -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("runtime")
def test_hostile_texts_are_escaped_on_every_page(page: Client, alice: User) -> None:
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

    count = 0
    for address in addresses:
        text = html(page.get(address))
        assert EVIL not in text, address
        count += text.count(ESCAPED)
    assert count > 20
    assert ESCAPED in html(act(page, "tool", "disable", tool))
    # The call is refused because the tool is disabled, and the message contains its name.
    assert ESCAPED in html(call_form(page, tool, "{}"))


def test_no_page_has_an_inline_script(page: Client, full_hall: dict[str, Any], echo: Tool) -> None:
    addresses = [page_of(row) for row in full_hall.values()]
    addresses += [list_of("guildmember"), reverse("admin:roster_tool_call", args=[echo.pk])]

    for address in addresses:
        scripts = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", html(page.get(address)))
        assert not scripts, address


def test_the_page_of_a_call_shows_its_progress(page: Client, echo: Tool) -> None:
    call = make_call(echo.member, status="running", progress={"progress": 2, "total": 3, "message": "<b>fetching"})
    assert "2 of 3: &lt;b&gt;fetching" in html(page.get(page_of(call)))


# Cost -------------------------------------------------------------------------------------------------------------


def add_rows(count: int, begin: int, alice: User) -> None:
    for number in range(begin, begin + count):
        member = make_member(f"member-{number}", status="connected")
        PortAllocation.objects.create(port=20000 + number, member=member)
        make_tool(member)
        make_call(member, requested_by=alice)
        StatusChange.objects.create(member=member, old="starting", new="connected", cause="handshake")
        Token.make(user=alice)


def count_queries(page: Client, address: str) -> int:
    html(page.get(address))  # Django caches content types after the first request
    with CaptureQueriesContext(connection) as queries:
        html(page.get(address))
    return len(queries)


@pytest.mark.parametrize("model", LISTS)
@pytest.mark.usefixtures("runtime")
def test_a_list_costs_the_same_queries_for_two_rows_and_for_twenty(page: Client, alice: User, model: str) -> None:
    add_rows(2, 0, alice)
    query_count = count_queries(page, list_of(model))
    add_rows(18, 2, alice)

    assert count_queries(page, list_of(model)) == query_count
    assert query_count <= 15


@pytest.mark.usefixtures("runtime")
def test_a_member_page_costs_the_same_queries_for_two_tools_and_for_twenty(page: Client, example: GuildMember) -> None:
    def add_tools(begin: int, end: int) -> None:
        for number in range(begin, end):
            make_tool(example, f"tool-{number}")
            StatusChange.objects.create(member=example, old="starting", new="connected", cause="handshake")

    add_tools(0, 2)
    query_count = count_queries(page, page_of(example))
    add_tools(2, 20)

    assert count_queries(page, page_of(example)) == query_count


def test_the_list_of_calls_does_not_read_results(page: Client, example: GuildMember) -> None:
    make_call(example, status="succeeded", result={"content": []})
    with CaptureQueriesContext(connection) as queries:
        html(page.get(list_of("call")))

    assert not [query for query in queries if '"roster_call"."result"' in query["sql"]]


# Things that must agree -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [*GuildMember.Status.values, *Call.Status.values])
def test_every_status_has_a_colour_in_light_and_in_dark(status: str) -> None:
    css = Path(str(finders.find("roster/admin.css"))).read_text()

    assert len(re.findall(rf"\.status-{status}\b", css)) >= 2


def test_no_text_for_users_contains_markdown() -> None:
    texts = []
    for path in [*(settings.BASE_DIR / "roster").rglob("*.py"), *(settings.BASE_DIR / "mcp_runtime").rglob("*.py")]:
        statements = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise)]
        texts += [
            node.value for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Constant)
        ]
    for path in (settings.BASE_DIR / "roster" / "templates").rglob("*.html"):
        texts += re.split(r"{#.*?#}|{%.*?%}", path.read_text())

    assert [text for text in texts if "`" in str(text)] == []


def test_the_banner_reads_the_runtime_once_per_request(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    original: Callable[[], Any] = read_liveness
    monkeypatch.setattr(present, "read_liveness", lambda: reads.append(1) or original())

    html(page.get(list_of("guildmember"), {"status": "error"}))

    assert len(reads) == 1
    assert Hall.objects.count() <= 1


def test_the_page_of_nodes_shows_which_runtimes_are_alive(page: Client) -> None:
    lease_id = lease.take()
    Node.objects.filter(lease_id=lease_id).update(cpu_percent=12.34, memory_bytes=75_000_000)
    Node.objects.create(name="old", host="box")
    text = " ".join(strip_tags(html(page.get(list_of("node"))).replace("<", " <")).split())
    assert re.search(r"main alive since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)
    assert "12.3 %" in text
    assert "75 MB" in text
    assert "old not alive" in text


def test_the_page_of_nodes_shows_labels_and_which_nodes_are_draining(page: Client) -> None:
    add_node("b", labels=["gpu", "eu"], is_draining=True)
    text = html(page.get(list_of("node")))
    assert " UTC, draining" in strip_tags(text)
    assert "gpu, eu" in text
