"""The roster: the first page, with a card for each member. No runtime runs here. The tests write its rows."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.models import Session
from django.db import connection
from django.template.base import Template
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from mcp_runtime.control.members import reserve_member
from mcp_runtime.rows import lease
from mcp_runtime.security import principals
from roster import roles
from roster.admin.members import cards
from roster.admin.members import roster as roster_screen
from roster.models import Call, GuildMember, PortAllocation, Role, Tool
from tests.support.admin import allow
from tests.support.leases import add_node, current_lease_id, own_node

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>"


@pytest.fixture(autouse=True)
def _initial_state() -> None:
    # WhiteNoise warns about a missing folder, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)
    cards.last_hour.forget()


@pytest.fixture
def page(client: Client) -> Client:
    """A browser where a user with all permissions is logged in."""
    client.force_login(User.objects.create_superuser("alice"))
    return client


@pytest.fixture
def runtime() -> Iterator[None]:
    """As if a runtime were live."""
    lease_id = lease.take()
    yield
    lease.release(lease_id)


def make_member(name: str, **columns: Any) -> GuildMember:
    defaults = {"name": name, "directory": name, "status": "connected", "node": own_node()}
    return GuildMember.objects.create(**{**defaults, **columns})


def make_tool(member: GuildMember, name: str, **columns: Any) -> Tool:
    definition = {"name": name, "inputSchema": {}, **columns.pop("definition", {})}
    return Tool.objects.create(member=member, name=name, definition=definition, **columns)


def text_of(response: Any) -> str:
    assert response.status_code == 200
    return str(response.content.decode())


def roster(client: Client, **query: str) -> str:
    return text_of(client.get(reverse("admin:index"), query))


def get_part(client: Client, etag: str = "", **query: str) -> Any:
    return client.get(reverse("admin:roster_cards"), query, headers={"If-None-Match": etag} if etag else {})


def cards_of(page: str) -> dict[str, str]:
    """The text of each card by its heading, in order."""
    cards = re.findall(r'<li id="m\d+".*?</li>', page, re.DOTALL)
    texts = [html.unescape(" ".join(re.sub(r"<[^>]+>", " ", card).split())) for card in cards]
    return {text.split()[0]: text for text in texts}


def buttons_of(page: str, name: str) -> list[str]:
    return re.findall(rf'<button form="verbs"[^>]*aria-label="(\w+) {name}"', page)


# Content ----------------------------------------------------------------------------------------------------------


def test_the_roster_is_the_first_page(page: Client) -> None:
    make_member("weather")
    response = page.get("/", follow=True)
    assert response.redirect_chain[-1][0] == reverse("admin:index")
    assert "weather" in cards_of(text_of(response))


@pytest.mark.usefixtures("runtime")
def test_a_card_shows_the_most_important_data_of_a_member(page: Client) -> None:
    status_time = timezone.now() - timedelta(minutes=7, seconds=5)
    columns = {"display_name": "Weather", "description": "Tells it.", "protocol_version": "2025-11-25"}
    member = make_member("weather", **columns, status_changed_at=status_time)
    PortAllocation.objects.create(port=20007, member=member)
    make_tool(member, "today")
    make_tool(member, "secret", enabled=False)
    for status in ["succeeded", "succeeded", "failed"]:
        now = timezone.now()
        Call.objects.create(
            member=member, tool_name="today", timeout=1, source="rest", status=status, started_at=now, finished_at=now
        )
    text = roster(page)
    card = cards_of(text)["Weather"]

    for words in ["connected", "weather Tells it.", "port 20007", "MCP 2025-11-25", "for 7 min", "tools 1", "1 failed"]:
        assert words in card
    assert "calls in 1 h 3" in card
    assert f'datetime="{status_time.isoformat()}" title="{status_time:%Y-%m-%d %H:%M:%S}.' in text
    assert 'class="spark"' in text


@pytest.mark.usefixtures("runtime", "several_nodes")
def test_a_card_names_the_node_of_the_member_in_a_hall_with_several(page: Client) -> None:
    other = add_node("far-away")
    make_member("weather", node=other, lease_id=other.lease_id)
    make_member("homeless", node=None)
    cards = cards_of(roster(page))
    assert "node far-away" in cards["weather"]
    assert "node none" in cards["homeless"]


@pytest.mark.usefixtures("runtime")
def test_a_card_has_no_node_in_a_hall_with_one(page: Client) -> None:
    make_member("weather")
    assert "node" not in cards_of(roster(page))["weather"]


@pytest.mark.usefixtures("runtime")
def test_a_card_of_a_member_in_error_has_the_reason_the_output_and_a_hint(page: Client) -> None:
    error = "member 'weather' could not be started: ended with exit code 1 before the handshake was done"
    tail = f"ModuleNotFoundError: No module named 'httpx' {EVIL}"
    make_member(
        "weather",
        status="error",
        last_error=f"{error}. Last output:\n{tail}",
        next_restart_at=timezone.now() + timedelta(seconds=9),
    )
    text = roster(page)
    card = cards_of(text)["weather"]

    assert "Ended with exit code 1" in card
    assert "Install the Python module httpx" in card
    assert re.search(r"Next restart in \d s", card)
    assert html.escape(EVIL) in text
    assert EVIL not in text
    assert re.search(r'#log" class="helps"', text)


@pytest.mark.usefixtures("runtime")
def test_members_in_error_come_first_and_then_all_others_by_name(page: Client) -> None:
    make_member("b")
    make_member("A")
    make_member("z", status="error")
    make_member("y", status="disconnected", manifest_error="y/guild-member.json: not JSON")
    make_member("a-machine", display_name="C", status="starting")
    assert list(cards_of(roster(page))) == ["y", "z", "A", "b", "C"]


@pytest.mark.usefixtures("runtime")
def test_an_invalid_manifest_is_an_error_without_an_age(page: Client) -> None:
    make_member("broken", status="disconnected", manifest_error="not JSON")
    assert " for " not in cards_of(roster(page))["broken"]


@pytest.mark.usefixtures("runtime")
def test_the_progress_of_a_start_is_shown(page: Client) -> None:
    make_member("slow", status="starting", progress="fetching 3 of 9")
    assert "fetching 3 of 9" in cards_of(roster(page))["slow"]


def test_without_a_runtime_no_member_is_connected_and_no_process_data_is_shown(page: Client) -> None:
    member = make_member("weather", last_error="old", warnings=["old warning"])
    PortAllocation.objects.create(port=20007, member=member)
    text = roster(page)
    card = cards_of(text)["weather"]
    assert "disconnected" in card
    assert "20007" not in card
    assert "old" not in card
    assert "guildhall runtime" in text


@pytest.mark.usefixtures("runtime")
def test_a_remote_server_is_shown_with_its_host_only(page: Client) -> None:
    make_member("far", server_url="https://user:pw@mcp.example.com:8443/mcp?key=secret")
    card = cards_of(roster(page))["far"]
    assert "host mcp.example.com:8443" in card
    assert "pw" not in card
    assert "secret" not in card


def test_an_empty_roster_tells_how_to_add_the_first_member(page: Client) -> None:
    text = roster(page)
    assert "guildhall new_member hello" in text
    assert text.count("<li>") >= 3


def test_a_removed_member_is_not_in_the_roster(page: Client) -> None:
    make_member("gone", removed_at=timezone.now())
    assert "guildhall new_member hello" in roster(page)


@pytest.mark.usefixtures("runtime")
def test_a_large_roster_shows_its_first_cards_and_more_on_demand(page: Client) -> None:
    add_members(0, 100)
    text = roster(page)
    assert len(cards_of(text)) == roster_screen.CARDS_AT_A_TIME == 48
    assert "48 of 100 members are shown." in text
    assert "all <b>100</b>" in text
    assert list(cards_of(roster(page, q="m99"))) == ["m99"]
    (more,) = re.findall(r'href="(\?[^"]*)" data-show', roster(page, status="disconnected"))
    text = text_of(page.get(reverse("admin:index") + html.unescape(more)))
    assert len(cards_of(text)) == 96
    assert len(cards_of(text_of(get_part(page, show="96")))) == 96
    text = roster(page, show="144")
    assert len(cards_of(text)) == 100
    assert "members are shown" not in text


@pytest.mark.usefixtures("runtime")
def test_members_beyond_the_limit_of_a_page_are_only_counted(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_screen, "MAX_CARDS", 48)
    add_members(0, 50)
    for show in ("", "999", "x", "²", "-1", "9" * 40):
        text = roster(page, show=show)
        assert len(cards_of(text)) == 48
        assert "And 2 more." in text


# Buttons ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("columns", "buttons"),
    [
        ({"status": "connected"}, ["Stop", "Restart"]),
        ({"status": "starting"}, ["Stop", "Restart"]),
        ({"status": "error"}, ["Stop", "Restart"]),
        ({"status": "disconnected", "desired_state": "stopped"}, ["Start"]),
        ({"status": "disconnected", "enabled": False}, ["Enable"]),
        ({"status": "disconnected", "manifest_error": "not JSON"}, []),
        ({"status": "connected", "manifest_error": "not JSON"}, ["Stop"]),
    ],
)
def test_a_card_has_the_buttons_that_apply_now(page: Client, columns: dict[str, Any], buttons: list[str]) -> None:
    make_member("weather", **columns)
    assert buttons_of(roster(page), "weather") == buttons


def test_without_a_runtime_a_member_that_should_run_has_no_start_button(page: Client) -> None:
    make_member("weather")
    assert buttons_of(roster(page), "weather") == ["Stop"]


@pytest.mark.usefixtures("runtime")
def test_a_button_works_without_leaving_the_page(page: Client) -> None:
    member = make_member("weather")
    text = roster(page)
    address = re.findall(r'<button form="verbs" formaction="([^"]+)"', text)[0]
    token = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', text)[0]
    strict_client = Client(enforce_csrf_checks=True)
    strict_client.cookies = page.cookies

    assert strict_client.post(address, headers={"X-Live": "form"}).status_code == 403
    response = strict_client.post(address, {"csrfmiddlewaretoken": token}, headers={"X-Live": "form"})

    assert response.json() == {"messages": [{"level": "success", "text": "Stop requested (1): weather."}]}
    member.refresh_from_db()
    assert member.desired_state == "stopped"


# Search -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_members(runtime: None) -> None:
    weather = make_member("weather", display_name="Sky", description="Clouds and rain")
    make_tool(weather, "forecast", definition={"title": "What comes"})
    make_tool(weather, "moon", definition={"annotations": {"title": "Phases of it"}})
    make_tool(weather, "hidden", enabled=False)
    make_tool(make_member("notes", status="error"), "add_note")


@pytest.mark.usefixtures("two_members")
@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("WEATH", ["Sky"]),
        ("sky", ["Sky"]),
        ("clouds", ["Sky"]),
        ("forecast", ["Sky"]),
        ("what comes", ["Sky"]),
        ("phases", ["Sky"]),
        ("add_n", ["notes"]),
        ("sky forecast", ["Sky"]),
        ("sky add_note", []),
        ("hidden", []),
        ("%", []),
        ("   ", ["notes", "Sky"]),
    ],
)
def test_members_are_found_by_their_texts_and_their_tools(page: Client, query: str, names: list[str]) -> None:
    assert list(cards_of(roster(page, q=query))) == names
    assert list(cards_of(text_of(get_part(page, q=query)))) == names


@pytest.mark.usefixtures("two_members")
def test_a_tool_in_the_search_results_is_a_link_to_its_runner(page: Client) -> None:
    tool = Tool.objects.get(name="forecast")
    assert f'href="{reverse("admin:roster_tool_call", args=[tool.pk])}">forecast</a>' in roster(page, q="fore")


@pytest.mark.usefixtures("two_members")
def test_the_roster_can_be_filtered_by_status_and_shows_the_numbers(page: Client) -> None:
    text = roster(page, status="error")
    assert list(cards_of(text)) == ["notes"]
    chips = re.findall(r'data-status="(\w*)" class="chip[^>]*?( aria-current="true")?>\w+ <b>(\d+)<', text)
    assert chips == [("", "", "2"), ("error", ' aria-current="true"', "1"), ("connected", "", "1")]


@pytest.mark.usefixtures("two_members")
@pytest.mark.parametrize("query", [{"q": "\0"}, {"q": "x" * 5000}, {"status": "nonsense"}, {"q": EVIL}])
def test_odd_queries_do_no_harm(page: Client, query: dict[str, str]) -> None:
    text = roster(page, **query)
    assert EVIL not in text


# Live updates -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_members")
def test_the_part_in_the_page_is_not_sent_again(page: Client) -> None:
    text = roster(page, q="sky")
    etags = [html.unescape(tag) for tag in re.findall(r'data-live-etag="([^"]+)"', text)]
    assert get_part(page, etags[-1], q="sky").status_code == 304
    assert get_part(page, etags[-1]).status_code == 200
    assert page.get(reverse("admin:roster_runtime"), headers={"If-None-Match": etags[0]}).status_code == 304


def change_member(**columns: Any) -> Any:
    return lambda: GuildMember.objects.filter(name="weather").update(**columns)


CHANGES: list[Any] = [
    change_member(status="error"),
    change_member(status_changed_at=timezone.now() + timedelta(seconds=1)),
    change_member(enabled=False),
    change_member(desired_state="stopped"),
    change_member(restart_requested_at=timezone.now()),
    change_member(manifest_error="not JSON"),
    change_member(progress="half"),
    change_member(warnings=["listens everywhere"]),
    change_member(removed_at=timezone.now()),
    change_member(description="Other"),
    lambda: PortAllocation.objects.create(port=20009, member=GuildMember.objects.get(name="weather")),
    lambda: make_tool(GuildMember.objects.get(name="weather"), "another"),
    lambda: Tool.objects.filter(name="forecast").update(enabled=False),
    lambda: make_member("third"),
    lambda: lease.release(current_lease_id()),  # type: ignore[arg-type]  # the fixture took the lease
    lambda: User.objects.update(is_superuser=False),
]


@pytest.mark.usefixtures("two_members")
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_card_changes_the_version_of_the_part(page: Client, change: Any) -> None:
    etag = get_part(page).headers["ETag"]
    assert get_part(page, etag).status_code == 304
    change()
    assert get_part(page, etag).status_code != 304


@pytest.mark.usefixtures("two_members")
def test_a_call_changes_the_version_after_the_figures_are_counted_again(page: Client) -> None:
    etag = get_part(page).headers["ETag"]
    now = timezone.now()
    Call.objects.create(
        member=GuildMember.objects.get(name="weather"),
        **{"tool_name": "x", "timeout": 1, "source": "rest", "status": "failed", "started_at": now, "finished_at": now},
    )
    cards.last_hour.forget()
    assert get_part(page, etag).status_code == 200


# Access control ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bob(client: Client) -> User:
    """A user who is logged in and may only see members."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_guildmember"))
    client.force_login(user)
    return user


@pytest.mark.usefixtures("bob", "runtime")
def test_members_reserved_for_others_are_not_shown_not_counted_and_not_found(client: Client) -> None:
    hidden = make_member("hidden")
    make_tool(hidden, "treasure")
    reserve_member(hidden, [Group.objects.create(name="others")])
    make_member("open")

    for text in [roster(client), text_of(get_part(client))]:
        assert list(cards_of(text)) == ["open"]
        assert "all <b>1</b>" in text
    assert not cards_of(roster(client, q="treasure"))


@pytest.mark.usefixtures("bob", "runtime")
def test_a_user_who_may_only_view_members_has_no_buttons(client: Client) -> None:
    make_member("weather")
    assert buttons_of(roster(client), "weather") == []


@pytest.mark.usefixtures("runtime")
def test_links_and_tool_names_are_shown_only_to_users_with_the_permission(client: Client, bob: User) -> None:
    weather = make_member("weather")
    make_tool(weather, "forecast")
    now = timezone.now()
    Call.objects.create(
        member=weather, tool_name="x", timeout=1, source="rest", status="failed", started_at=now, finished_at=now
    )
    text = roster(client)
    assert "tools 1 calls in 1 h 1, 1 failed" in cards_of(text)["weather"]
    for name in ["tool", "call"]:
        assert f"/{name}/" not in text
    assert not cards_of(roster(client, q="forecast"))

    bob.user_permissions.add(*Permission.objects.filter(codename__in=["view_tool", "view_call"]))
    text = roster(client, q="forecast")
    tool = Tool.objects.get()
    for address in [
        reverse("admin:roster_tool_change", args=[tool.pk]),
        f"{reverse('admin:roster_tool_changelist')}?member__id__exact={weather.pk}",
        f"{reverse('admin:roster_call_changelist')}?member__id__exact={weather.pk}",
    ]:
        assert address in text
        assert client.get(address).status_code == 200


def test_users_with_another_permission_see_which_one_is_missing(client: Client) -> None:
    carol = User.objects.create_user("carol")
    allow(carol, "invoke_tool")
    client.force_login(carol)
    make_member("weather")
    text = roster(client)
    assert "roster.view_guildmember" in text
    assert "weather" not in text
    assert get_part(client).status_code == 403


def test_anonymous_users_are_sent_to_the_login(client: Client) -> None:
    for name in ["admin:index", "admin:roster_cards", "admin:lists"]:
        assert client.get(reverse(name)).status_code == 302


# The navigation ---------------------------------------------------------------------------------------------------


def navigation_of(page: str) -> dict[str, str]:
    nav = re.findall(r'<nav id="places".*?</nav>', page, re.DOTALL)[0]
    links = re.findall(r'<a href="[^"]+"(?: aria-current="(\w+)")?>([^<]+)</a>', nav)
    return {label: current for current, label in links}


def test_every_page_has_the_navigation_with_the_current_page_marked(page: Client) -> None:
    navigation = navigation_of(roster(page))
    assert list(navigation)[:5] == ["Roster", "Tools", "Calls", "Agents", "Tokens"]
    assert {"Users", "Groups", "Port allocations", "Status changes"} <= set(navigation)
    assert navigation["Roster"] == "page"
    assert [label for label, current in navigation.items() if current] == ["Roster"]

    weather = make_member("weather")
    member_page = text_of(page.get(reverse("admin:roster_guildmember_change", args=[weather.pk])))
    assert navigation_of(member_page)["Roster"] == "true"
    assert navigation_of(text_of(page.get(reverse("admin:roster_tool_changelist"))))["Tools"] == "page"


@pytest.mark.usefixtures("bob")
def test_the_navigation_has_no_links_that_the_user_may_not_open(client: Client) -> None:
    navigation = navigation_of(roster(client))
    assert "Users" not in navigation
    assert "Calls" not in navigation


def test_the_list_of_all_models_has_its_own_page(page: Client) -> None:
    text = text_of(page.get(reverse("admin:lists")))
    assert reverse("admin:auth_user_changelist") in text
    assert "Recent actions" in text


# Cost -------------------------------------------------------------------------------------------------------------


def add_members(begin: int, end: int) -> None:
    numbers = range(begin, end)
    members = {number: GuildMember(name=f"m{number}", directory="m", status="connected") for number in numbers}
    GuildMember.objects.bulk_create(members.values())
    PortAllocation.objects.bulk_create(
        PortAllocation(port=20000 + number, member=member) for number, member in members.items()
    )
    Tool.objects.bulk_create(
        Tool(member=member, name=f"tool-{number}", definition={"name": f"tool-{number}", "inputSchema": {}})
        for member in members.values()
        for number in range(3)
    )


def count_queries(client: Client, address: str, **headers: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        client.get(address, headers=headers)
    return len(queries)


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("query", ["", "?q=tool", "?status=connected"])
def test_the_page_costs_the_same_queries_for_two_members_and_for_forty(
    page: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    address = reverse("admin:index") + query
    add_members(0, 2)
    page.get(address)
    cards.last_hour.forget()  # the figures of the last hour are counted once in a few seconds
    monkeypatch.setattr(cards, "kept_cards", cards.KeptCards())
    query_count = count_queries(page, address)
    add_members(2, 40)
    cards.last_hour.forget()
    monkeypatch.setattr(cards, "kept_cards", cards.KeptCards())
    assert count_queries(page, address) == query_count <= 10


@pytest.fixture
def frozen_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests of a test are within the seconds for which figures and rights are kept, on every machine."""
    monkeypatch.setattr(cards.LastHour, "SECONDS", 600.0)
    monkeypatch.setattr(principals, "CACHE_SECONDS", 600.0)


def log_in(client: Client, user: User) -> None:
    """With the form, as a browser does."""
    user.set_password("a long password")
    user.save()
    values = {"username": user.username, "password": "a long password"}
    assert client.post(reverse("admin:login"), values).status_code == 302


@pytest.mark.usefixtures("runtime", "frozen_caches")
@pytest.mark.parametrize("role", ["superuser", *roles.NAMES])
def test_an_unchanged_roster_costs_three_queries_with_the_login_and_renders_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    user = User.objects.create_user("anna", is_superuser=role == "superuser")
    if role != "superuser":
        user.groups.add(Role.objects.get(name=role).group)
    log_in(client, user)
    add_members(0, 100)
    etag = get_part(client).headers["ETag"]
    assert get_part(client, etag).status_code == 304
    monkeypatch.setattr(Template, "render", lambda *_: pytest.fail("a template is rendered"))
    with CaptureQueriesContext(connection) as queries:
        assert get_part(client, etag).status_code == 304
    assert len(queries) <= 3, [query["sql"][:100] for query in queries]  # the session, the user, the members


@pytest.mark.usefixtures("runtime", "frozen_caches", "two_members")
@pytest.mark.parametrize(
    ("revoke", "status"),
    [
        (lambda user: user.groups.clear(), 403),
        (lambda user: user.groups.get().permissions.clear(), 403),
        (lambda user: User.objects.filter(pk=user.pk).update(is_active=False), 302),
        (lambda user: Session.objects.all().delete(), 302),
        (lambda user: user.set_password("another long password") or user.save(), 302),
        (lambda user: user.delete(), 302),
    ],
)
def test_the_next_request_after_a_revocation_is_refused(client: Client, revoke: Any, status: int) -> None:
    user = User.objects.create_user("anna")
    user.groups.add(Role.objects.get(name="viewer").group)
    log_in(client, user)
    etag = get_part(client).headers["ETag"]
    assert get_part(client, etag).status_code == 304
    revoke(user)
    assert get_part(client, etag).status_code == status


def without_ages(text: str) -> str:
    return re.sub(r"data-ago>[^<]*<", "", text)


# Kept cards -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_members")
@pytest.mark.parametrize("change", CHANGES)
def test_a_kept_card_is_never_older_than_its_row(page: Client, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    get_part(page)
    change()
    if (response := get_part(page)).status_code == 403:
        return
    kept = text_of(response)
    monkeypatch.setattr(cards, "kept_cards", cards.KeptCards())
    assert without_ages(kept) == without_ages(text_of(get_part(page)))


@pytest.mark.usefixtures("two_members")
@pytest.mark.parametrize("change", CHANGES[:-1])
def test_a_card_is_rendered_only_once_whatever_it_shows(
    page: Client, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    monkeypatch.setattr(cards.time, "time", lambda: 1_000_000.0)
    change()
    shown = get_part(page).content
    monkeypatch.setattr(cards, "make_card", lambda *_: pytest.fail("rendered again"))
    assert get_part(page).content == shown


@pytest.mark.usefixtures("two_members")
def test_a_card_of_a_change_while_the_page_is_made_is_not_kept_for_the_state_before(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_rows = cards.read_rows
    weather = GuildMember.objects.filter(name="weather")

    def read_after_a_change(members: Any) -> Any:
        weather.update(enabled=False)
        return read_rows(members)

    monkeypatch.setattr(cards, "kept_cards", cards.KeptCards())
    monkeypatch.setattr(cards, "read_rows", read_after_a_change)
    assert buttons_of(roster(page), "weather") == ["Enable"]
    monkeypatch.setattr(cards, "read_rows", read_rows)
    weather.update(enabled=True)
    assert "Enable" not in buttons_of(roster(page), "weather")


@pytest.mark.usefixtures("two_members")
def test_only_a_changed_card_is_rendered_again(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []
    make_card = cards.make_card
    monkeypatch.setattr(cards, "make_card", lambda *args: rendered.append(args[1].name) or make_card(*args))
    monkeypatch.setattr(cards, "kept_cards", cards.KeptCards())
    monkeypatch.setattr(cards.time, "time", lambda: 1_000_000.0)
    get_part(page)
    assert sorted(rendered) == ["notes", "weather"]
    GuildMember.objects.filter(name="weather").update(description="Wind")
    text = text_of(get_part(page))
    assert rendered[2:] == ["weather"]
    assert list(cards_of(text)) == ["notes", "Sky"]
    assert "Wind" in text


@pytest.mark.usefixtures("two_members")
def test_a_card_that_was_kept_for_an_admin_is_not_shown_to_a_viewer(page: Client, client: Client) -> None:
    assert buttons_of(roster(page), "weather")
    user = User.objects.create_user("anna")
    user.groups.add(Role.objects.get(name="viewer").group)
    client.force_login(user)
    assert buttons_of(roster(client), "weather") == []


def test_at_most_so_many_cards_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "MAX_KEPT", 2)
    kept = cards.KeptCards()
    for key in (b"a", b"b", b"c"):
        kept.put(key, SafeString(key.decode()))
        kept.get(b"a")
    assert [kept.get(key) for key in (b"a", b"b", b"c")] == ["a", None, "c"]
