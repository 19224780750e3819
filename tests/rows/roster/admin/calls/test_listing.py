"""The list of calls: its filters, its speed with a million calls, and its live updates."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.control.members import reserve_member
from roster.admin.calls import lines, list_screen, listing
from roster.models import Call, GuildMember, Token, Tool
from tests.support.calls import LIST, add, html, ids, numbered, words

pytestmark = pytest.mark.django_db

EVIL = "<img src=x onerror=alert(1)>"

# Filters and search -----------------------------------------------------------------------------------------------


def test_a_call_is_found_by_each_of_its_columns(page: Client, anna: GuildMember, alice: User) -> None:
    token = Token.make(user=alice, name="laptop")[0]
    other_member = GuildMember.objects.create(name="bert", directory="bert")
    long_ago = datetime(2020, 5, 1, 12, tzinfo=UTC)
    add(anna, queued_at=long_ago)
    call = add(
        other_member,
        tool_name="reverse",
        status="failed",
        error_kind="timeout",
        source="admin",
        token=token,
        requester="dora",
    )
    Token.objects.update(last_used_at=timezone.now())
    for query in [
        *({"status__exact": "failed"}, {"error_kind__exact": "timeout"}, {"source__exact": "admin"}),
        *({"member__id__exact": other_member.pk}, {"tool_name": "reverse"}, {"token": token.pk}, {"within": "3600"}),
        *({"queued_at__gte": "2021-01-01T00:00"}, {"q": "rever"}, {"q": "bert"}, {"q": "dora"}, {"q": f"#{call.pk}"}),
    ]:
        assert ids(page, **query) == [call.pk], query
    assert len(ids(page)) == 2
    assert ids(page, queued_at__lt="2021-01-01T00:00") == [call.pk - 1]
    assert ids(page, tool_name="reverse", status__exact="succeeded") == []


def test_a_row_has_the_error_in_the_tools_own_words(page: Client, anna: GuildMember) -> None:
    message = "tool 'echo' of member 'anna': the cellar is flooded"
    add(anna, status="failed", error_kind="tool", error_message=message)

    text = words(page.get(LIST))

    assert "the cellar is flooded" in text
    assert "of member" not in text


@pytest.mark.parametrize("text", ["it broke", "BROKE", "code 42%"])
def test_a_call_is_found_by_the_text_of_its_error(page: Client, anna: GuildMember, text: str) -> None:
    add(anna)
    call = add(anna, status="failed", error_kind="tool", error_message="it broke with code 42%")
    assert ids(page, q=text) == [call.pk]


def test_a_call_is_found_by_words_of_its_arguments_and_result(page: Client, anna: GuildMember) -> None:
    call = add(anna, search_text="invoice 4711 paid")
    other_call = add(anna, tool_name="invoices")
    assert ids(page, q="4711 invo") == [call.pk]
    assert ids(page, q="invoice") == [other_call.pk, call.pk]
    assert ids(page, q="invoice", status__exact="failed") == []


def test_a_search_that_takes_too_long_says_so(page: Client, anna: GuildMember, too_long_searches: None) -> None:
    add(anna, search_text="same")
    assert "Use more or longer words" in words(page.get(LIST, {"q": "same"}))


def test_a_search_says_from_when_on_it_finds_words(page: Client, anna: GuildMember) -> None:
    add(anna)
    assert "searched of calls that ended after" not in words(page.get(LIST, {"q": "x"}))
    add(anna, queued_at=datetime(2020, 5, 1, tzinfo=UTC))
    Call.objects.filter(queued_at__gt=datetime(2021, 1, 1, tzinfo=UTC)).delete()
    assert "searched of calls that ended after" in words(page.get(LIST, {"q": "x"}))
    assert "searched of calls that ended after" not in words(page.get(LIST))


# A line -----------------------------------------------------------------------------------------------------------


def test_a_line_has_the_arguments_the_time_and_a_link_to_the_tool(page: Client, anna: GuildMember, echo: Tool) -> None:
    add(anna, arguments={"text": "grüezi", "n": 3}, queued_at=datetime(2020, 5, 1, 12, 30, 5, tzinfo=UTC))
    add(anna, tool_name="gone", arguments={})
    response = page.get(LIST)
    assert '"text": "grüezi"' in unescape(html(response))
    assert '"n": 3' in unescape(html(response))
    assert "2020-05-01 12:30:05" in words(response)
    assert [row.tool_page for row in response.context["rows"]] == [None, echo.pk]
    assert f'<a href="/admin/roster/tool/{echo.pk}/change/">echo</a>' in html(response)


def test_a_user_who_may_not_see_tools_gets_no_link(client: Client, bob: User, echo: Tool) -> None:
    add(echo.member)
    assert [row.tool_page for row in client.get(LIST).context["rows"]] == [None]


def test_hostile_arguments_in_a_line_are_harmless(page: Client, anna: GuildMember) -> None:
    add(anna, arguments={"text": f"{EVIL}\u202egnp.exe\x7f"})
    text = html(page.get(LIST))
    assert EVIL not in text
    assert "\u202e" not in text
    assert "\\u202egnp.exe\\u007f" in text


def test_long_arguments_are_cut(page: Client, anna: GuildMember) -> None:
    add(anna, arguments={"text": "x" * 1_000_000})
    add(anna, arguments={"text": "y" * 250})
    lengths = [len(row.arguments) for row in page.get(LIST).context["rows"]]
    assert lengths == [lines.MAX_ARGUMENTS] * 2


def test_secrets_of_a_call_in_progress_are_not_in_its_line(page: Client, anna: GuildMember) -> None:
    add(anna, status="running", arguments={"key": "sesame"}, secret_paths=[["key"]])
    add(anna, arguments={"key": "********"}, secret_paths=[["key"]])
    response = page.get(LIST)
    assert "sesame" not in html(response)
    assert [row.arguments for row in response.context["rows"]] == ['"key": "********"', lines.HIDDEN]


def test_percent_signs_and_underscores_are_no_wildcards(page: Client, anna: GuildMember) -> None:
    add(anna, tool_name="plain")
    assert ids(page, q="%") == []
    assert ids(page, q="pla_n") == []


@pytest.mark.parametrize(
    "query",
    [
        {"token": "x"},
        {"before": "-1"},
        {"within": "12"},
        {"queued_at__gte": "soon"},
        {"queued_at__lt": "2020-99-01"},
        {"queued_at__lt": "9999-12-31T23:30"},
        {"queued_at__gte": "0001-01-01T00:00"},
    ],
)
def test_an_invalid_filter_is_removed_with_a_message(page: Client, anna: GuildMember, query: Any) -> None:
    assert page.get(LIST, query).headers["Location"] == f"{LIST}?e=1"
    assert page.get(f"{LIST}export/csv/", query).status_code == 404
    assert page.get(LIST, query, headers={"X-Live": "part"}).status_code == 404


def test_empty_fields_of_the_form_are_left_out_of_the_query(page: Client, anna: GuildMember) -> None:
    response = page.get(LIST, {"q": "", "status__exact": "failed", "tool_name": ""})
    assert response.headers["Location"] == f"{LIST}?status__exact=failed"
    assert page.get(LIST, {"q": ""}).headers["Location"] == LIST


def test_the_form_shows_the_chosen_filters(page: Client, anna: GuildMember) -> None:
    text = html(page.get(LIST, {"status__exact": "failed", "tool_name": EVIL, "q": EVIL}))
    assert '<option value="failed" selected>Failed</option>' in text
    assert "Filters (2)" in text
    assert EVIL not in text


def test_the_member_filter_has_no_members_reserved_for_others(client: Client, bob: User, echo: Tool) -> None:
    assert ">anna</option>" in html(client.get(LIST))
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert ">anna</option>" not in html(client.get(LIST))


def test_the_token_filter_has_tokens_of_others_only_for_superusers(
    client: Client, bob: User, alice: User, echo: Tool
) -> None:
    for user in (alice, bob):
        token, _ = Token.make(user=user, name=f"key of {user}")
        Token.objects.filter(pk=token.pk).update(last_used_at=timezone.now())
    text = html(client.get(LIST))
    assert "key of bob" in text
    assert "key of alice" not in text
    client.force_login(alice)
    assert "key of bob" in html(client.get(LIST))


@pytest.mark.parametrize(
    ("address", "lookup"),
    [
        (LIST, "arguments__password__startswith"),
        (LIST, "requested_by__password__startswith"),
        ("/admin/roster/guildmember/", "manifest__env__API_KEY__startswith"),
        ("/admin/roster/guildmember/", "tokens"),
        ("/admin/roster/tool/", "member__manifest__env__API_KEY__startswith"),
        ("/admin/roster/token/", "digest__startswith"),
        ("/admin/roster/agent/", "created_by__password__startswith"),
    ],
)
def test_secret_columns_cannot_be_used_as_filters(page: Client, anna: GuildMember, address: str, lookup: str) -> None:
    assert page.get(address, {lookup: "a"}).status_code == 400
    if address == LIST:
        assert page.get(f"{LIST}export/csv/", {lookup: "a"}).status_code == 400


def test_plots_above_the_list_exclude_members_reserved_for_others(client: Client, bob: User, echo: Tool) -> None:
    query = {"member__id__exact": echo.member.pk, "span": "week"}
    assert "anna" in html(client.get(LIST, query))
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert client.get(LIST, query).status_code == 404


# Pages of a list of a million calls -------------------------------------------------------------------------------


def link(response: Any, text: str) -> str:
    """The address of the link with this text, or an empty text."""
    links = re.findall(rf'<a href="([^"]*)"[^>]*>{text}</a>', html(response))
    return links[0].replace("&amp;", "&") if links else ""


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can reach."""
    monkeypatch.setattr(listing, "MAX_COUNTED", 100)
    monkeypatch.setattr(listing, "SCANNED", 200)


@pytest.mark.usefixtures("low_limits")
def test_the_links_to_older_calls_lead_through_all_calls(page: Client, anna: GuildMember) -> None:
    call_ids = numbered(anna, 330)
    ids_on_pages, query = [], "?"
    while query:
        response = page.get(LIST + query)
        ids_on_pages += [row.call.pk for row in response.context["rows"]]
        query = link(response, "Older")
    assert ids_on_pages == call_ids[::-1]


@pytest.mark.usefixtures("low_limits")
def test_counting_stops_at_its_limit(page: Client, anna: GuildMember) -> None:
    numbered(anna, 101)
    assert "More than 100 calls." in words(page.get(LIST))
    assert "Page 2 of 2" in words(page.get(LIST, {"p": 2}))
    assert page.get(LIST, {"p": 3}).status_code == 302
    assert "20 calls." in words(page.get(LIST, {"before": Call.objects.order_by("id")[20].pk}))


@pytest.mark.usefixtures("low_limits")
def test_a_search_reads_a_limited_number_of_calls_and_offers_to_continue(page: Client, anna: GuildMember) -> None:
    (rare_id,) = numbered(anna, 1, tool_name="rare")
    numbered(anna, 450)
    query, searches = "?tool_name=rare", 0
    while query and not (rows := page.get(LIST + query).context["rows"]):
        response = page.get(LIST + query)
        assert "No matches." in words(response)
        query, searches = link(response, "Search older calls"), searches + 1
    assert [row.call.pk for row in rows] == [rare_id]
    assert searches == 2
    assert link(page.get(LIST + query), "Search older calls") == ""


def test_a_list_costs_the_same_number_of_queries_for_few_and_for_many_calls(page: Client, anna: GuildMember) -> None:
    def count_queries(**query: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            page.get(LIST, query)
        assert not [query_ for query_ in queries if "COUNT(" in query_["sql"] and "roster_call" in query_["sql"]]
        return len(queries)

    numbered(anna, 2)
    count_queries()
    query_counts = count_queries(), count_queries(q="echo"), count_queries(status__exact="succeeded")
    numbered(anna, 120)
    assert (count_queries(), count_queries(q="echo"), count_queries(status__exact="succeeded")) == query_counts


def test_the_first_call_after_a_time_is_found_by_bisection(anna: GuildMember) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    call_ids = [add(anna, queued_at=begin + timedelta(minutes=number)).pk for number in range(50)]
    Call.objects.filter(pk__in=call_ids[5:15]).delete()
    assert listing.first_id_at(begin + timedelta(minutes=20)) == call_ids[20]
    assert listing.first_id_at(begin) <= call_ids[0]
    assert listing.first_id_at(begin + timedelta(days=1)) > call_ids[-1]
    with CaptureQueriesContext(connection) as queries:
        listing.first_id_at(begin + timedelta(minutes=33))
    assert len(queries) <= 10


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the plan of the default database")
@pytest.mark.parametrize(
    "filters", [{}, {"q": "x"}, {"status__exact": "failed"}, {"within": "3600"}, {"tool_name": "x"}]
)
def test_no_list_reads_or_sorts_the_whole_table(page: Client, anna: GuildMember, filters: dict[str, str]) -> None:
    numbered(anna, 60)
    with CaptureQueriesContext(connection) as queries:
        html(page.get(LIST, filters))
    statements = [query["sql"] for query in queries if 'FROM "roster_call"' in query["sql"]]
    assert statements
    for sql in statements:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql.replace('%', '%%')}", [])
            plan = str(cursor.fetchall())
        assert "TEMP B-TREE FOR ORDER BY" not in plan, sql
        assert "SEARCH roster_call" in plan or "LIMIT" in sql, sql


# Live updates -----------------------------------------------------------------------------------------------------


def live_part_of(response: Any) -> tuple[str, str]:
    """The address and the ETag of the list's live part."""
    matches = re.findall(r'class="calls-list"[^>]* data-live="([^"]*)" data-live-etag="([^"]*)"', html(response))
    return (matches[0][0].replace("&amp;", "&"), matches[0][1].replace("&quot;", '"')) if matches else ("", "")


def test_new_calls_appear_on_top_and_without_them_nothing_is_read(page: Client, anna: GuildMember) -> None:
    first = add(anna, status="failed")
    address, etag = live_part_of(page.get(LIST, {"status__exact": "failed"}))
    headers = {"X-Live": "part", "If-None-Match": etag}
    with CaptureQueriesContext(connection) as queries:
        assert page.get(address, headers=headers).status_code == 304
    assert len(queries) <= 5
    second = add(anna, status="failed", error_message=EVIL)
    text = html(page.get(address, headers=headers))
    assert "<html" not in text
    assert EVIL not in text
    assert re.findall(r'<tr id="call-(\d+)">', text) == [str(second.pk), str(first.pk)]


@pytest.mark.parametrize(
    "change",
    [
        {"status": "running", "started_at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"status": "succeeded", "finished_at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"cancel_requested_at": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
def test_a_change_of_a_call_updates_the_list(page: Client, anna: GuildMember, change: dict[str, Any]) -> None:
    call = add(anna, status="queued")
    address, etag = live_part_of(page.get(LIST))
    Call.objects.filter(pk=call.pk).update(**change)
    assert page.get(address, headers={"X-Live": "part", "If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize(("query", "status"), [({"within": "900"}, 200), ({}, 304)])
def test_old_calls_leave_the_list_of_the_last_minutes_without_a_new_call(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch, query: dict[str, str], status: int
) -> None:
    add(anna)
    monkeypatch.setattr(list_screen, "time", SimpleNamespace(time=lambda: 1000.0))
    address, etag = live_part_of(page.get(LIST, query))
    headers = {"X-Live": "part", "If-None-Match": etag}
    assert page.get(address, headers=headers).status_code == 304
    monkeypatch.setattr(list_screen, "time", SimpleNamespace(time=lambda: 1000.0 + list_screen.AGING_SECONDS))
    assert page.get(address, headers=headers).status_code == status


def test_older_pages_are_not_updated(page: Client, anna: GuildMember) -> None:
    numbered(anna, 60)
    assert live_part_of(page.get(LIST))[0] == LIST
    assert live_part_of(page.get(LIST, {"p": 2})) == ("", "")
    assert live_part_of(page.get(LIST, {"before": 10**9})) == ("", "")


def test_the_live_part_needs_the_permission_of_the_list(client: Client, echo: Tool) -> None:
    client.force_login(User.objects.create_user("eve", is_staff=True))
    assert client.get(LIST, headers={"X-Live": "part"}).status_code == 403


# Plots beside the list --------------------------------------------------------------------------------------------


def test_plots_are_shown_above_the_list_on_request(page: Client, anna: GuildMember) -> None:
    add(anna, finished_at=timezone.now())
    assert 'class="plot"' not in html(page.get(LIST))
    query = link(page.get(LIST, {"member__id__exact": anna.pk}), "Plots")
    text = html(page.get(LIST + query))
    assert 'class="plot"' in text
    assert "Calls and durations: anna" in text
    assert link(page.get(LIST + query), "Hide plots") == f"?member__id__exact={anna.pk}"
