"""The screens of calls: a list that is fast for a million, a call's page, again, side by side, as a file."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.control.members import reserve_member
from mcp_runtime.rows import lease
from roster.admin.calls import comparison, export, listing, screens
from roster.models import ApiToken, GuildMember, Invocation, Tool

pytestmark = pytest.mark.django_db

EVIL = "<img src=x onerror=alert(1)>"
LIST = "/admin/roster/invocation/"


@pytest.fixture(autouse=True)
def _static_root() -> None:
    # WhiteNoise warns about a folder that is not there, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)
    lease.hall()


@pytest.fixture
def alice() -> User:
    return User.objects.create_superuser("alice")


@pytest.fixture
def page(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


@pytest.fixture
def bob(client: Client) -> User:
    """May look at calls, and nothing else."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_invocation"))
    client.force_login(user)
    return user


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna", manifest={})


@pytest.fixture
def echo(anna: GuildMember) -> Tool:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return Tool.objects.create(member=anna, name="echo", definition={"name": "echo", "inputSchema": schema})


def add(member: GuildMember, **columns: Any) -> Invocation:
    known = {"tool_name": "echo", "timeout": 30, "door": "rest", "requester": "carol", "status": "succeeded"}
    return Invocation.objects.create(member=member, **{**known, **columns})


def html(response: Any) -> str:
    assert response.status_code == 200, response
    return str(response.content.decode())


def words(response: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html(response)).split())


def ids(page: Client, **asked: Any) -> list[int]:
    """The calls of the first page."""
    found = page.get(LIST, asked)
    assert found.status_code == 200, (found.status_code, found.headers)
    return [row.call.pk for row in found.context["rows"]]


def at(call: Invocation, action: str) -> str:
    return reverse(f"admin:roster_invocation_{action}", args=[call.pk])


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


# Filters and search -----------------------------------------------------------------------------------------------


def test_a_call_is_found_by_what_it_is(page: Client, anna: GuildMember, alice: User) -> None:
    token = ApiToken.make(user=alice, name="laptop")[0]
    other = GuildMember.objects.create(name="bert", directory="bert")
    long_ago = datetime(2020, 5, 1, 12, tzinfo=UTC)
    add(anna, queued_at=long_ago)
    call = add(
        other, tool_name="reverse", status="failed", error_kind="timeout", door="admin", token=token, requester="dora"
    )
    ApiToken.objects.update(last_used_at=timezone.now())
    for asked in [
        *({"status__exact": "failed"}, {"error_kind__exact": "timeout"}, {"door__exact": "admin"}),
        *({"member__id__exact": other.pk}, {"tool_name": "reverse"}, {"token": token.pk}, {"within": "3600"}),
        *({"queued_at__gte": "2021-01-01T00:00"}, {"q": "rever"}, {"q": "bert"}, {"q": "dora"}, {"q": f"#{call.pk}"}),
    ]:
        assert ids(page, **asked) == [call.pk], asked
    assert len(ids(page)) == 2
    assert ids(page, queued_at__lt="2021-01-01T00:00") == [call.pk - 1]
    assert ids(page, tool_name="reverse", status__exact="succeeded") == []


@pytest.mark.parametrize("text", ["it broke", "BROKE", "code 42%"])
def test_a_call_is_found_by_the_words_of_its_error(page: Client, anna: GuildMember, text: str) -> None:
    add(anna)
    call = add(anna, status="failed", error_kind="tool", error_message="it broke with code 42%")
    assert ids(page, q=text) == [call.pk]


def test_percent_signs_and_underscores_are_no_wildcards(page: Client, anna: GuildMember) -> None:
    add(anna, tool_name="plain")
    assert ids(page, q="%") == []
    assert ids(page, q="pla_n") == []


@pytest.mark.parametrize(
    "asked",
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
def test_a_filter_that_makes_no_sense_is_left_out_and_said(page: Client, anna: GuildMember, asked: Any) -> None:
    assert page.get(LIST, asked).headers["Location"] == f"{LIST}?e=1"
    assert page.get(f"{LIST}export/csv/", asked).status_code == 404
    assert page.get(LIST, asked, headers={"X-Live": "part"}).status_code == 404


def test_what_was_left_empty_in_the_form_is_not_asked(page: Client, anna: GuildMember) -> None:
    response = page.get(LIST, {"q": "", "status__exact": "failed", "tool_name": ""})
    assert response.headers["Location"] == f"{LIST}?status__exact=failed"
    assert page.get(LIST, {"q": ""}).headers["Location"] == LIST


def test_the_form_keeps_what_was_chosen(page: Client, anna: GuildMember) -> None:
    text = html(page.get(LIST, {"status__exact": "failed", "tool_name": EVIL, "q": EVIL}))
    assert '<option value="failed" selected>Failed</option>' in text
    assert "Filters (2)" in text
    assert EVIL not in text


def test_the_filter_by_member_does_not_name_those_reserved_for_others(client: Client, bob: User, echo: Tool) -> None:
    assert ">anna</option>" in html(client.get(LIST))
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert ">anna</option>" not in html(client.get(LIST))


def test_the_filter_by_token_names_those_of_others_to_superusers_alone(
    client: Client, bob: User, alice: User, echo: Tool
) -> None:
    for user in (alice, bob):
        token, _ = ApiToken.make(user=user, name=f"key of {user}")
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=timezone.now())
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
        ("/admin/roster/guildmember/", "api_tokens"),
        ("/admin/roster/tool/", "member__manifest__env__API_KEY__startswith"),
        ("/admin/roster/apitoken/", "digest__startswith"),
        ("/admin/roster/agentsession/", "created_by__password__startswith"),
    ],
)
def test_what_pages_mask_cannot_be_guessed_by_filters_of_ones_own(
    page: Client, anna: GuildMember, address: str, lookup: str
) -> None:
    assert page.get(address, {lookup: "a"}).status_code == 400
    if address == LIST:
        assert page.get(f"{LIST}export/csv/", {lookup: "a"}).status_code == 400


def test_plots_of_the_list_are_not_of_members_reserved_for_others(client: Client, bob: User, echo: Tool) -> None:
    asked = {"member__id__exact": echo.member.pk, "span": "week"}
    assert "anna" in html(client.get(LIST, asked))
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert client.get(LIST, asked).status_code == 404


# Pages that never count a million ---------------------------------------------------------------------------------


def numbered(member: GuildMember, number: int, **columns: Any) -> list[int]:
    known = {"tool_name": "echo", "timeout": 1, "door": "rest", "status": "succeeded", **columns}
    return [
        call.pk for call in Invocation.objects.bulk_create(Invocation(member=member, **known) for _ in range(number))
    ]


def link(response: Any, text: str) -> str:
    """Where the link of that text leads, or nothing."""
    found = re.findall(rf'<a href="([^"]*)"[^>]*>{text}</a>', html(response))
    return found[0].replace("&amp;", "&") if found else ""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach."""
    monkeypatch.setattr(listing, "MAX_COUNTED", 100)
    monkeypatch.setattr(listing, "SCANNED", 200)


@pytest.mark.usefixtures("small")
def test_older_leads_through_all_calls_without_a_gap(page: Client, anna: GuildMember) -> None:
    made = numbered(anna, 330)
    seen, query = [], "?"
    while query:
        response = page.get(LIST + query)
        seen += [row.call.pk for row in response.context["rows"]]
        query = link(response, "Older")
    assert seen == made[::-1]


@pytest.mark.usefixtures("small")
def test_counting_stops_at_its_bound(page: Client, anna: GuildMember) -> None:
    numbered(anna, 101)
    assert "More than 100 calls." in words(page.get(LIST))
    assert "Page 2 of 2" in words(page.get(LIST, {"p": 2}))
    assert page.get(LIST, {"p": 3}).status_code == 302
    assert "20 calls." in words(page.get(LIST, {"before": Invocation.objects.order_by("id")[20].pk}))


@pytest.mark.usefixtures("small")
def test_a_search_looks_through_so_many_calls_and_leads_further_back(page: Client, anna: GuildMember) -> None:
    (rare,) = numbered(anna, 1, tool_name="rare")
    numbered(anna, 450)
    query, looks = "?tool_name=rare", 0
    while query and not (found := page.get(LIST + query).context["rows"]):
        response = page.get(LIST + query)
        assert "No call is like that." in words(response)
        query, looks = link(response, "Look further back"), looks + 1
    assert [row.call.pk for row in found] == [rare]
    assert looks == 2
    assert link(page.get(LIST + query), "Look further back") == ""


def test_a_list_costs_the_same_for_few_calls_and_for_many(page: Client, anna: GuildMember) -> None:
    def queries(**asked: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            page.get(LIST, asked)
        assert not [query for query in captured if "COUNT(" in query["sql"] and "roster_invocation" in query["sql"]]
        return len(captured)

    numbered(anna, 2)
    queries()
    few = queries(), queries(q="echo"), queries(status__exact="succeeded")
    numbered(anna, 120)
    assert (queries(), queries(q="echo"), queries(status__exact="succeeded")) == few


def test_the_first_call_of_a_time_is_found_by_halving(anna: GuildMember) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    made = [add(anna, queued_at=begin + timedelta(minutes=number)).pk for number in range(50)]
    Invocation.objects.filter(pk__in=made[5:15]).delete()
    assert listing.first_id_at(begin + timedelta(minutes=20)) == made[20]
    assert listing.first_id_at(begin) <= made[0]
    assert listing.first_id_at(begin + timedelta(days=1)) > made[-1]
    with CaptureQueriesContext(connection) as captured:
        listing.first_id_at(begin + timedelta(minutes=33))
    assert len(captured) <= 10


@pytest.mark.skipif(connection.vendor != "sqlite", reason="the plan of the default database")
@pytest.mark.parametrize("asked", [{}, {"q": "x"}, {"status__exact": "failed"}, {"within": "3600"}, {"tool_name": "x"}])
def test_no_list_reads_or_sorts_the_whole_table(page: Client, anna: GuildMember, asked: dict[str, str]) -> None:
    numbered(anna, 60)
    with CaptureQueriesContext(connection) as captured:
        html(page.get(LIST, asked))
    read = [query["sql"] for query in captured if 'FROM "roster_invocation"' in query["sql"]]
    assert read
    for sql in read:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql.replace('%', '%%')}", [])
            plan = str(cursor.fetchall())
        assert "TEMP B-TREE FOR ORDER BY" not in plan, sql
        assert "SEARCH roster_invocation" in plan or "LIMIT" in sql, sql


# Following live ---------------------------------------------------------------------------------------------------


def followed(response: Any) -> tuple[str, str]:
    """The address and the ETag of the list's live part."""
    found = re.findall(r'class="calls-list"[^>]* data-live="([^"]*)" data-live-etag="([^"]*)"', html(response))
    return (found[0][0].replace("&amp;", "&"), found[0][1].replace("&quot;", '"')) if found else ("", "")


def test_new_calls_appear_on_top_and_nothing_is_read_while_none_do(page: Client, anna: GuildMember) -> None:
    first = add(anna, status="failed")
    address, etag = followed(page.get(LIST, {"status__exact": "failed"}))
    asked = {"X-Live": "part", "If-None-Match": etag}
    with CaptureQueriesContext(connection) as captured:
        assert page.get(address, headers=asked).status_code == 304
    assert len(captured) <= 5
    second = add(anna, status="failed", error_message=EVIL)
    text = html(page.get(address, headers=asked))
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
def test_a_change_of_a_call_is_news(page: Client, anna: GuildMember, change: dict[str, Any]) -> None:
    call = add(anna, status="queued")
    address, etag = followed(page.get(LIST))
    Invocation.objects.filter(pk=call.pk).update(**change)
    assert page.get(address, headers={"X-Live": "part", "If-None-Match": etag}).status_code == 200


@pytest.mark.parametrize(("asked", "status"), [({"within": "900"}, 200), ({}, 304)])
def test_calls_drop_out_of_the_last_minutes_though_nothing_comes(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], status: int
) -> None:
    add(anna)
    monkeypatch.setattr(screens, "time", SimpleNamespace(time=lambda: 1000.0))
    address, etag = followed(page.get(LIST, asked))
    held = {"X-Live": "part", "If-None-Match": etag}
    assert page.get(address, headers=held).status_code == 304
    monkeypatch.setattr(screens, "time", SimpleNamespace(time=lambda: 1000.0 + screens.AGING_SECONDS))
    assert page.get(address, headers=held).status_code == status


def test_older_pages_stand_still(page: Client, anna: GuildMember) -> None:
    numbered(anna, 60)
    assert followed(page.get(LIST))[0] == LIST
    assert followed(page.get(LIST, {"p": 2})) == ("", "")
    assert followed(page.get(LIST, {"before": 10**9})) == ("", "")


def test_the_list_is_followed_by_those_who_may_see_it(client: Client, echo: Tool) -> None:
    client.force_login(User.objects.create_user("eve", is_staff=True))
    assert client.get(LIST, headers={"X-Live": "part"}).status_code == 403


# A call's page ----------------------------------------------------------------------------------------------------


def test_a_running_call_shows_progress_and_its_end_stops_the_asking(page: Client, echo: Tool) -> None:
    call = add(
        echo.member,
        status="running",
        started_at=timezone.now(),
        progress={"progress": 2, "total": 5, "message": f"fetching {EVIL}"},
    )
    text = html(page.get(at(call, "change")))
    assert f'data-live="{at(call, "part")}"' in text
    assert '<progress aria-label="Progress of the call" value="40.0" max="100">' in text
    assert "2 of 5: fetching &lt;img" in text
    assert at(call, "cancel") in text
    part = page.get(at(call, "part"))
    assert part.headers["X-Live"] == "part"
    assert page.get(at(call, "part"), headers={"If-None-Match": part.headers["ETag"]}).status_code == 304
    Invocation.objects.filter(pk=call.pk).update(
        status="succeeded", finished_at=timezone.now(), result={"content": [{"type": "text", "text": "all done"}]}
    )
    part = page.get(at(call, "part"), headers={"If-None-Match": part.headers["ETag"]})
    assert part.headers["X-Live"] == "done"
    assert "all done" in html(part)
    assert "<progress" not in html(part)
    assert "data-live=" not in html(page.get(at(call, "change"))).split('class="call-part"')[1].split(">")[0]


def test_cancel_answers_the_page_in_place(page: Client, echo: Tool) -> None:
    call = add(echo.member, status="running")
    answer = page.post(at(call, "cancel"), headers={"X-Live": "form"}).json()
    assert answer["messages"] == [{"level": "success", "text": f"Running, asked to cancel (1): {call.pk} echo."}]
    assert "Asked to cancel." in words(page.get(at(call, "part")))


def test_a_call_is_shown_to_its_maker_and_to_those_who_may_see_calls(client: Client, bob: User, echo: Tool) -> None:
    call = add(echo.member, status="running")
    assert client.get(at(call, "part")).status_code == 200
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert client.get(at(call, "part")).status_code == 404
    Invocation.objects.update(requested_by=bob)
    bob.user_permissions.clear()
    assert client.get(at(call, "part")).status_code == 200


def test_what_a_member_said_is_text_everywhere_on_the_page(page: Client, echo: Tool) -> None:
    call = add(
        echo.member,
        status="failed",
        tool_name=EVIL,
        requester=EVIL,
        arguments={EVIL: EVIL},
        error_kind="tool",
        error_message=EVIL,
        result={"isError": True, "content": [{"type": "text", "text": EVIL}]},
    )
    for address in (at(call, "change"), at(call, "part"), LIST):
        assert EVIL not in html(page.get(address))


# Again ------------------------------------------------------------------------------------------------------------


def test_a_call_is_made_again_with_one_press_however_often_it_is_pressed(page: Client, alice: User, echo: Tool) -> None:
    call = add(echo.member, arguments={"text": "hello"})
    text = html(page.get(at(call, "change")))
    assert f"{reverse('admin:roster_tool_call', args=[echo.pk])}?from={call.pk}" in text
    (key,) = re.findall(r'name="call_key" value="([^"]+)"', text)
    for _ in range(2):
        response = page.post(at(call, "replay"), {"call_key": key})
        again = Invocation.objects.exclude(pk=call.pk).get()
        assert response.headers["Location"] == at(again, "change")
    assert (again.arguments, again.tool_name, again.door, again.requested_by) == (
        call.arguments,
        "echo",
        "admin",
        alice,
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"secret_paths": [["password"]], "arguments": {"password": "***"}}, "its arguments held secrets"),
        ({"arguments": {"guild-hall/cut": {"bytes": 9000, "beginning": "{"}}}, "too long to be kept whole"),
    ],
)
def test_what_is_not_known_any_more_is_not_called_again(
    page: Client, echo: Tool, columns: dict[str, Any], reason: str
) -> None:
    call = add(echo.member, **columns)
    text = html(page.get(at(call, "change")))
    assert reason in text
    assert at(call, "replay") not in text
    assert "?from=" in text
    (said,) = messages_of(page.post(at(call, "replay"), follow=True))
    assert reason in said
    assert Invocation.objects.count() == 1


def test_gateway_calls_without_arguments_are_not_called_again(page: Client, echo: Tool, settings: Any) -> None:
    call = add(echo.member, door="gateway")
    assert at(call, "replay") in html(page.get(at(call, "change")))
    settings.GUILD_HALL_RECORD_BYTES = 0
    assert "are not kept here" in html(page.get(at(call, "change")))


def test_a_refusal_is_said_and_nothing_is_called(page: Client, echo: Tool) -> None:
    call = add(echo.member, arguments={"text": 5})
    (said,) = messages_of(page.post(at(call, "replay"), follow=True))
    assert said.startswith("Not called: ")
    assert Invocation.objects.count() == 1


def test_only_those_who_may_call_call_again_and_by_post(client: Client, bob: User, echo: Tool) -> None:
    call = add(echo.member)
    assert at(call, "replay") not in html(client.get(at(call, "change")))
    assert client.get(at(call, "replay")).status_code == 405
    assert client.post(at(call, "replay")).status_code == 403
    assert Invocation.objects.count() == 1


@pytest.mark.parametrize("gone", [{"enabled": False}, {"removed_at": datetime(2026, 1, 1, tzinfo=UTC)}])
def test_a_member_that_is_away_is_not_offered(page: Client, echo: Tool, gone: dict[str, Any]) -> None:
    call = add(echo.member)
    GuildMember.objects.update(**gone)
    assert at(call, "replay") not in html(page.get(at(call, "change")))


# Side by side -----------------------------------------------------------------------------------------------------


def test_two_chosen_calls_stand_side_by_side(page: Client, echo: Tool) -> None:
    left = add(echo.member, arguments={"text": "a"}, result={"content": [{"type": "text", "text": f"one {EVIL}"}]})
    right = add(echo.member, arguments={"text": "b"}, result={"content": [{"type": "text", "text": "two"}]})
    chosen = {"action": "compare", "_selected_action": [right.pk, left.pk]}
    response = page.post(LIST, chosen, follow=True)
    said = words(response)
    assert f"Calls {left.pk} and {right.pk}" in said
    assert "Arguments: different" in said
    assert "≠ &quot;text&quot;: &quot;a&quot; ≠ &quot;text&quot;: &quot;b&quot;" in said
    assert EVIL not in html(response)


@pytest.mark.parametrize("number", [1, 3])
def test_other_than_two_cannot_be_compared(page: Client, anna: GuildMember, number: int) -> None:
    chosen = {"action": "compare", "_selected_action": numbered(anna, number)}
    assert messages_of(page.post(LIST, chosen, follow=True)) == ["Choose two calls to compare."]


def test_a_call_is_compared_with_the_one_before_it_of_the_same_tool(page: Client, echo: Tool) -> None:
    first = add(echo.member)
    add(echo.member, tool_name="other")
    second = add(echo.member)
    asked = parse_qs(urlsplit(page.get(at(second, "previous")).headers["Location"]).query)
    assert asked == {"left": [str(first.pk)], "right": [str(second.pk)]}
    assert messages_of(page.get(at(first, "previous"), follow=True)) == [
        "There is no earlier call of this tool to compare with."
    ]


def test_the_call_before_is_ones_own_for_who_may_see_no_others(client: Client, echo: Tool) -> None:
    carol = User.objects.create_user("carol", is_staff=True)
    carol.user_permissions.add(Permission.objects.get(codename="view_guildmember"))
    client.force_login(carol)
    first, _, latest = add(echo.member, requested_by=carol), add(echo.member), add(echo.member, requested_by=carol)
    address = client.get(at(latest, "previous")).headers["Location"]
    assert address.endswith(f"left={first.pk}&right={latest.pk}")


def test_calls_that_are_not_there_for_one_cannot_be_compared(client: Client, bob: User, echo: Tool) -> None:
    mine, other = add(echo.member, requested_by=bob), add(echo.member)
    reserve_member(echo.member, [Group.objects.create(name="others")])
    address = reverse("admin:roster_invocation_compare")
    assert client.get(address, {"left": mine.pk, "right": mine.pk}).status_code == 200
    assert client.get(address, {"left": mine.pk, "right": other.pk}).status_code == 404
    assert client.get(address, {"left": "x", "right": "9" * 40}).status_code == 404
    assert client.get(address).status_code == 404


def test_secrets_stay_masked_side_by_side(page: Client, echo: Tool) -> None:
    call = add(echo.member, status="running", arguments={"password": "hunter2"}, secret_paths=[["password"]])
    response = page.get(reverse("admin:roster_invocation_compare"), {"left": call.pk, "right": call.pk})
    assert "hunter2" not in html(response)
    assert "Arguments: equal" in words(response)


def changes(left: str, right: str) -> list[tuple[str, str, str, int]]:
    found = comparison.part("Result", left, right)
    return [(line.change, line.left, line.right, line.count) for line in found.lines]


def test_lines_that_differ_are_marked_and_equal_ones_far_away_are_counted() -> None:
    same = [str(number) for number in range(20)]
    left, right = "\n".join([*same, "a", "x"]), "\n".join([*same, "b"])
    assert changes(left, right) == [
        ("skipped", "", "", 17),
        *[("", line, line, 0) for line in same[-3:]],
        ("changed", "a", "b", 0),
        ("left", "x", "", 0),
    ]
    assert changes("a", "a\nb") == [("", "a", "a", 0), ("right", "", "b", 0)]


def test_what_is_equal_is_shown_whole() -> None:
    text = "\n".join(map(str, range(30)))
    assert len(changes(text, text)) == 30
    assert comparison.part("Result", text, text).is_equal


@pytest.mark.parametrize(
    "text", ["x\n" * 10_000, "y" * 500_000, "\n".join(str(number % 90) for number in range(5_000))]
)
def test_comparing_has_a_bound_whatever_is_compared(text: str) -> None:
    found = comparison.part("Result", text, "z\n" + text)
    assert found.is_cut
    assert len(found.lines) <= 2 * comparison.MAX_LINES
    assert sum(len(line.left) for line in found.lines) <= comparison.MAX_CHARACTERS


# As a file --------------------------------------------------------------------------------------------------------


def exported(page: Client, form: str, **asked: Any) -> str:
    response = page.get(reverse("admin:roster_invocation_export", args=[form]), asked)
    assert response.status_code == 200
    assert f'attachment; filename="calls.{form}"' == response.headers["Content-Disposition"]
    return b"".join(response.streaming_content).decode()


def test_the_filtered_list_is_written_as_csv(page: Client, anna: GuildMember) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    call = add(anna, tool_name='a,"b"', started_at=began, finished_at=began + timedelta(seconds=1.5))
    add(anna, status="failed")
    (row,) = csv.DictReader(io.StringIO(exported(page, "csv", status__exact="succeeded")))
    assert (row["id"], row["member"], row["tool"], row["seconds"]) == (str(call.pk), "anna", 'a,"b"', "1.5")
    assert row["finished_at"] == "2026-01-01T00:00:01.500000+00:00"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(page: Client, anna: GuildMember, text: str) -> None:
    add(anna, tool_name=text, requester=text, error_message=text, status="failed")
    (row,) = csv.DictReader(io.StringIO(exported(page, "csv"), newline=""))
    for column in ("tool", "requester", "error_message"):
        assert row[column] == f"'{text}"


def test_json_lines_hold_the_arguments_with_secrets_masked(page: Client, anna: GuildMember) -> None:
    arguments = {"text": "grüezi\n", "password": "hunter2"}
    add(anna, status="running", arguments=arguments, secret_paths=[["password"]])
    text = exported(page, "jsonl")
    (line,) = text.splitlines()
    assert json.loads(line)["arguments"]["text"] == "grüezi\n"
    assert "hunter2" not in text


def test_a_file_has_all_matches_in_batches_to_its_bound(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH", 20)
    monkeypatch.setattr(listing, "SCANNED", 10)
    made = numbered(anna, 90)

    def written() -> list[int]:
        return [json.loads(line)["id"] for line in exported(page, "jsonl", status__exact="succeeded").splitlines()]

    assert written() == made[::-1]
    monkeypatch.setattr(export, "MAX_EXPORTED", 50)
    assert written() == made[::-1][:50]


@pytest.mark.parametrize(("form", "reads"), [("csv", False), ("jsonl", True)])
def test_a_file_reads_no_more_than_it_writes_and_keeps_no_connection_while_it_is_read(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch, form: str, reads: bool
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(export, "BATCH_WITH_ARGUMENTS", 5)
    monkeypatch.setattr(export, "give_connection_back", lambda: given_back.append(1))
    numbered(anna, 20)
    with CaptureQueriesContext(connection) as captured:
        text = exported(page, form)
    assert len(text.splitlines()) == (20 if reads else 21)
    assert any('"arguments"' in query["sql"] for query in captured) == reads
    assert len(given_back) == (4 if reads else 1)


def test_a_file_holds_no_more_of_large_arguments_than_one_call_at_a_time(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    monkeypatch.setattr(export, "give_connection_back", lambda: reads.append(1))
    for size in (export.BATCH_CHARACTERS, 5, 5, export.BATCH_CHARACTERS):
        add(anna, arguments={"text": "x" * size})
    assert len(exported(page, "jsonl").splitlines()) == 4
    assert len(reads) == 3


def test_who_reads_many_files_slowly_leaves_some_to_others(client: Client, alice: User, bob: User, echo: Tool) -> None:
    other = Client()
    other.force_login(alice)
    address = reverse("admin:roster_invocation_export", args=["jsonl"])
    taken = []
    while (response := client.get(address)).streaming:
        taken.append(response)
        assert len(taken) < 100
    assert response.status_code == 429
    assert exported(other, "csv")
    for response in taken:
        response.close()
    assert export.exports.held == 0


def test_files_are_for_those_who_may_see_the_list_and_hold_no_more(client: Client, bob: User, echo: Tool) -> None:
    mine = add(echo.member, requested_by=bob)
    add(echo.member)
    assert len(exported(client, "jsonl").splitlines()) == 2
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert [json.loads(line)["id"] for line in exported(client, "jsonl").splitlines()] == [mine.pk]
    assert client.get(f"{LIST}export/xlsx/").status_code == 404
    bob.user_permissions.clear()
    assert client.get(f"{LIST}export/csv/").status_code == 403


# Plots beside the list --------------------------------------------------------------------------------------------


def test_plots_stand_above_the_list_when_asked_for(page: Client, anna: GuildMember) -> None:
    add(anna, finished_at=timezone.now())
    assert 'class="plot"' not in html(page.get(LIST))
    query = link(page.get(LIST, {"member__id__exact": anna.pk}), "Plots")
    text = html(page.get(LIST + query))
    assert 'class="plot"' in text
    assert "How many, how long: anna" in text
    assert link(page.get(LIST + query), "Hide plots") == f"?member__id__exact={anna.pk}"
