"""Times on the pages of the admin: one format, with the zone, and the exact value for programs and people."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone as django_timezone

from mcp_runtime.calls import statistics
from mcp_runtime.members import tools
from mcp_runtime.members.contracts import Policy
from roster import invitations
from roster.admin import present
from roster.models import (
    Agent,
    AgentMessage,
    GuildMember,
    Hall,
    ManifestEdit,
    Role,
    Secret,
    StatusChange,
    Token,
    TokenClient,
    Tool,
    ToolSet,
    TrashedMember,
)
from roster.templatetags.hall import ago, until
from tests.support.admin import html, make_call, make_member

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 5, 1, 12, 30, 5, 250_000, tzinfo=UTC)
LINK = re.compile(r'href="(/admin/[^"#]*)')
NO_PAGES = re.compile(r"/(logout|jsi18n|export|file)/")
CLOCK = re.compile(r"\b\d{1,2}:\d\d\b|\b[ap]\.m\.")
FORMAT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|\d+ (s|min|h|days)")
EXACT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC")
# What members and users wrote stays as it is. The axis of a plot names its zone itself.
VERBATIM = {"pre", "code", "textarea", "script", "style", "svg", "option"}


class Times(HTMLParser):
    """The `<time>` elements of a page, and the texts outside of them that have a time of day."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[tuple[dict[str, str | None], str]] = []
        self.strays: list[str] = []
        self._verbatim = 0
        self._attributes: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._verbatim += tag in VERBATIM
        if tag == "time":
            self._attributes = dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        self._verbatim -= tag in VERBATIM
        if tag == "time":
            self._attributes = None

    def handle_data(self, data: str) -> None:
        if self._attributes is not None:
            self.times.append((self._attributes, data))
        elif not self._verbatim and CLOCK.search(data):
            self.strays.append(" ".join(data.split()))


def times_of(text: str) -> Times:
    times = Times()
    times.feed(text)
    return times


@pytest.fixture
def full_hall(runtime: None, example: GuildMember, echo: Tool, alice: User) -> None:
    """A row of each kind that has a time."""
    now = django_timezone.now()
    failure = {"message": "member has given no answer since 2026-05-01 12:30:05 UTC: 3 timed out"}
    for name, columns in {"broken": {"status": "error", "last_error": failure["message"]}, "gone": {}}.items():
        row = make_member(name, next_restart_at=now, **columns)
        StatusChange.objects.create(
            member=row, old="connected", new="error", cause="exit", repeats=2, repeated_at=now, **failure
        )
    GuildMember.objects.filter(name="gone").update(removed_at=now)
    GuildMember.objects.filter(name="example").update(
        no_answer_since=now - timedelta(days=2), restart_requested_at=now, refresh_requested_at=now
    )
    hold_a_change(example)
    token, _ = Token.make(user=alice, expires_at=now + timedelta(days=2))
    Token.objects.update(last_used_at=now, revoked_at=now)
    TokenClient.objects.create(token=token, name="program", first_seen_at=now, last_seen_at=now, calls=1)
    finished = {"status": "succeeded", "started_at": now, "finished_at": now, "requested_by": alice, "token": token}
    make_call(example, **finished)
    make_call(example, **finished, cancel_requested_at=now)
    make_call(example, status="running", started_at=now)
    make_call(example)
    agent = Agent.objects.create(name="talk")
    agent.members.add(example)
    AgentMessage.objects.create(agent=agent, prompt="hi", timeout=9, status="failed", finished_at=now, started_at=now)
    invitations.invite(Role.objects.all()[0], inviter=alice, note="Ada")
    ManifestEdit.objects.create(member=example, approved_at=now, created_by=alice)
    TrashedMember.objects.create(name="gone", directory="gone")
    ToolSet.objects.create(name="desk", created_by=alice)
    Secret.objects.create(name="KEY")
    User.objects.update(last_login=now)
    LogEntry.objects.log_actions(alice.pk, [example, token, alice], 2, "Changed.")
    Hall.objects.update(rolled_up_until=None)
    statistics.roll_up()


def hold_a_change(member: GuildMember) -> None:
    for description in ("Says it again.", "Says it louder."):
        definition = {"name": "echo", "description": description}
        listing = tools.contracts_of(member.pk, [definition], Policy.HOLD)
        tools.write(member.pk, tools.rows_of(member.pk, [definition]), listing)


def pages_of(page: Client, *first: str) -> dict[str, str]:
    """The text of one page of each kind, by its address. Pages are found by links, from the first page on."""
    texts: dict[str, str] = {}
    addresses, kinds = [*first], set[str]()
    while addresses:
        address = addresses.pop(0)
        kind = re.sub(r"/\d+/", "/N/", urlsplit(address).path)
        if kind in kinds or NO_PAGES.search(address):
            continue
        kinds.add(kind)
        response = page.get(address.replace("&amp;", "&"), follow=True)
        if response.status_code == 200 and response["Content-Type"].startswith("text/html"):
            texts[address] = html(response)
            addresses += LINK.findall(texts[address])
    return texts


def test_each_time_on_each_page_has_the_format_of_the_hall_and_its_exact_value(page: Client, full_hall: None) -> None:
    last_days = [f"/admin/roster/{model}/" for model in ("statuschange", "portallocation")]
    texts = pages_of(page, "/admin/", "/admin/roster/call/?q=echo", *last_days)

    faults = [
        f"{address}: {what}"
        for address, text in texts.items()
        for times in [times_of(text)]
        for what in [
            *(f"{stray!r} is not in a <time>" for stray in times.strays),
            *(f"{attributes} {shown!r}" for attributes, shown in times.times if not is_right(attributes, shown)),
        ]
    ]
    assert not faults, "\n".join(faults)
    with_times = {re.sub(r"/\d+/", "/N/", urlsplit(a).path) for a, text in texts.items() if times_of(text).times}
    assert len(with_times) > 20, sorted(with_times)


def is_right(attributes: dict[str, str | None], shown: str) -> bool:
    moment, exact = datetime.fromisoformat(attributes.get("datetime") or ""), attributes.get("title") or ""
    is_relative = "data-ago" in attributes or "data-until" in attributes
    return (
        moment.tzinfo is not None
        and bool(EXACT.fullmatch(exact) and FORMAT.fullmatch(shown))
        and exact.startswith(f"{moment:%Y-%m-%d %H:%M:%S}")
        and (is_relative or shown == f"{moment:%Y-%m-%d %H:%M:%S} UTC")
    )


# The functions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        (timedelta(hours=72) - timedelta(milliseconds=10), "3 days"),
        (timedelta(hours=24), "24 h"),
        (timedelta(seconds=61), "2 min"),
        (timedelta(seconds=1.5), "2 s"),
        (-timedelta(seconds=5), "0 s"),
    ],
)
def test_a_time_to_come_is_rounded_up(monkeypatch: pytest.MonkeyPatch, after: timedelta, shown: str) -> None:
    monkeypatch.setattr(django_timezone, "now", lambda: NOON)
    assert f">{shown}</time>" in until(NOON + after)


@pytest.mark.parametrize(
    ("age", "shown"), [(timedelta(seconds=119.9), "1 min"), (timedelta(hours=71.9), "2 days"), (-timedelta(1), "0 s")]
)
def test_an_age_is_rounded_down(monkeypatch: pytest.MonkeyPatch, age: timedelta, shown: str) -> None:
    monkeypatch.setattr(django_timezone, "now", lambda: NOON)
    assert f">{shown}</time>" in ago(NOON - age)


def test_a_time_of_another_zone_is_shown_in_utc() -> None:
    tokyo = NOON.astimezone(timezone(timedelta(hours=9)))
    element = '<time datetime="2026-05-01T12:30:05.250000+00:00" title="2026-05-01 12:30:05.250 UTC">'

    assert present.when(tokyo) == f"{element}2026-05-01 12:30:05 UTC</time>"
    assert present.when(None) == "-"


@pytest.mark.parametrize("written", ["2026-05-01 12:30:05 UTC", "2026-05-01T12:30:05+00:00", "2026-05-01T12:30:05Z"])
def test_a_time_in_a_text_of_the_hall_becomes_an_element(written: str) -> None:
    text = str(present.with_times(f"<b>no answer since {written}, {written}"))

    assert text.startswith("&lt;b&gt;no answer since <time ")
    assert times_of(text).times == 2 * [
        (
            {"datetime": "2026-05-01T12:30:05+00:00", "title": "2026-05-01 12:30:05.000 UTC"},
            "2026-05-01 12:30:05 UTC",
        )
    ]


@pytest.mark.parametrize("text", ["2026-02-31 12:30:05 UTC", "2026-05-01 25:30 UTC", "2026-05-01", "at 12:30", "&"])
def test_what_is_no_time_with_a_zone_stays_text(text: str) -> None:
    assert "<time" not in present.with_times(text)
