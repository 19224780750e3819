"""Plots in HTML: their texts, and shapes at the right places."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.template import Context, Template
from django.template.loader import render_to_string
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.calls.statistics import SPANS, Point, Series
from mcp_runtime.control.members import reserve_member
from mcp_runtime.rows import lease
from roster.admin import plots, present
from roster.models import Call, GuildMember, Tool

MIDNIGHT = datetime(2026, 3, 4, tzinfo=UTC)


Figures = tuple[int, int, "float | None", "float | None"]  # calls, failed, p50, p95


def make_series(span: str, *last: Figures) -> Series:
    """A series with calls only in the last points."""
    length = SPANS[span]
    all_figures: list[Figures] = [*[(0, 0, None, None)] * (length.points - len(last)), *last]
    times = [MIDNIGHT + timedelta(seconds=length.seconds * number) for number in range(length.points)]
    points = [Point(moment, *figures, mean=None) for moment, figures in zip(times, all_figures, strict=True)]
    calls, failed = sum(figures[0] for figures in last), sum(figures[1] for figures in last)
    return Series(length, points, Point(MIDNIGHT, calls, failed, 0.03, 2.5, None))


def render(figures: Series) -> str:
    return render_to_string("roster/plot.html", plots.plot(figures))


def path_of(html: str, name: str) -> str:
    return re.findall(rf'class="{name}" d="([^"]*)"', html)[0]


# Sparks -----------------------------------------------------------------------------------------------------------


def test_a_spark_has_a_title_with_its_numbers() -> None:
    svg = plots.spark([(0, 0)] * 10 + [(1200, 3), (34, 0)])
    assert "<title>Last hour: 1,234 calls, 3 failed</title>" in svg
    assert len(path_of(svg, "plot-calls").split("M")) - 1 == 2
    assert len(path_of(svg, "plot-failed").split("M")) - 1 == 1
    ElementTree.fromstring(svg)


def test_a_member_without_calls_has_an_empty_spark() -> None:
    svg = Template("{% load plots %}{% spark points %}").render(Context({"points": None}))
    assert "<title>Last hour: no calls</title>" in svg
    assert path_of(svg, "plot-calls") == ""


def test_the_highest_bar_has_the_full_height_and_the_lowest_is_visible() -> None:
    path = path_of(plots.spark([(1000, 0), (500, 0), (1, 0)]), "plot-calls")
    assert re.findall(r"100v-([\d.]+)h", path) == ["100", "50", "4"]


# Plots ------------------------------------------------------------------------------------------------------------


def test_a_plot_has_its_numbers_in_texts_tooltips_and_a_table() -> None:
    html = render(make_series("hour", (8, 2, 0.02, 1.5), (0, 0, None, None), (1, 0, 0.004, 0.004)))
    words = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    assert "9 calls 2 failed (22 %) median duration 30 ms 95th percentile 2.5 s" in words
    assert (
        "<title>2026-03-04 00:57 UTC: 8 calls, 2 failed, median duration 20 ms, 95th percentile 1.5 s</title>" in html
    )
    assert (
        "<title>2026-03-04 00:59 UTC: 1 call, 0 failed, median duration 4.0 ms, 95th percentile 4.0 ms</title>" in html
    )
    assert html.count('<th scope="row">') == 2
    assert re.search(r'<svg class="plot" role="img" aria-labelledby="plot-title-hour"', html)
    assert '<title id="plot-title-hour">9 calls in the last hour, 2 failed.' in html


def test_a_plot_without_calls_is_a_text_without_a_drawing() -> None:
    html = render(make_series("week"))
    assert "No calls in the last week." in " ".join(html.split())
    assert "<svg" not in html


def test_lines_have_a_gap_where_there_are_no_calls() -> None:
    html = render(make_series("hour", (1, 0, 0.5, 1.0), (1, 0, 0.5, 1.0), (0, 0, None, None), (1, 0, 1.0, 1.0)))
    assert path_of(html, "plot-p50") == "M56.5 50L57.5 50M59.5 0"
    assert path_of(html, "plot-p50 plot-dots") == "M59.5 0h0"


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        ("hour", ["00:10", "00:20", "00:30", "00:40", "00:50"]),
        ("day", ["04:00", "08:00", "12:00", "16:00", "20:00"]),
        ("week", ["Thu 5", "Fri 6", "Sat 7", "Sun 8", "Mon 9", "Tue 10"]),
    ],
)
def test_the_axis_of_time_has_round_times(span: str, labels: list[str]) -> None:
    html = render(make_series(span, (1, 0, 0.1, 0.1)))
    assert re.findall(r'text-anchor="middle">([^<]*)<', html) == labels


def test_a_plot_needs_no_inline_style_and_no_script() -> None:
    html = render(make_series("day", (8, 2, 0.02, 1.5))) + plots.spark([(1, 1)])
    assert not re.search(r"style=|<style|<script|\son\w+=", html)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        *[(None, "-"), (0.0004, "0.4 ms"), (0.0096, "10 ms"), (0.0349, "35 ms"), (0.9996, "1.0 s")],
        *[(12.34, "12.3 s"), (600.0, "10 min")],
    ],
)
def test_durations_are_shown_in_a_suitable_unit(duration: float | None, text: str) -> None:
    assert present.seconds(duration) == text


# The section of a page --------------------------------------------------------------------------------------------


@pytest.fixture
def alice() -> User:
    return User.objects.create_superuser("alice")


@pytest.fixture
def page(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


@pytest.fixture
def echo() -> Tool:
    """A tool with two recent calls, one of them failed. There is also a call of another tool."""
    lease.hall()
    member = GuildMember.objects.create(name="anna", directory="anna", manifest={})
    for name, status in (("echo", "succeeded"), ("echo", "failed"), ("other", "succeeded")):
        Call.objects.create(
            member=member, tool_name=name, timeout=1, source="rest", status=status, finished_at=timezone.now()
        )
    return Tool.objects.create(member=member, name="echo", definition={"name": "echo", "inputSchema": {}})


def text_of(response: Any) -> str:
    assert response.status_code == 200, response
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def address(**query: Any) -> str:
    return f"{reverse('admin:roster_statistics')}?{urlencode(query)}"


@pytest.mark.django_db
def test_the_page_of_a_tool_contains_its_plots_and_updates_them(page: Client, echo: Tool) -> None:
    html = page.get(reverse("admin:roster_tool_change", args=[echo.pk])).content.decode()
    (part,) = re.findall(
        r'class="statistics"[^>]* data-live="([^"]+)" data-live-every="10" data-live-etag="([^"]+)"', html
    )
    assert "<strong>2</strong> calls" in html
    url = part[0].replace("&amp;", "&")
    etag = part[1].replace("&quot;", '"')
    assert page.get(url, headers={"If-None-Match": etag}).status_code == 304
    Call.objects.create(
        member=echo.member, tool_name="echo", timeout=1, source="rest", status="succeeded", finished_at=timezone.now()
    )
    assert "3 calls" in text_of(page.get(url, headers={"If-None-Match": etag}))


@pytest.mark.django_db
def test_the_span_is_in_the_address_of_the_page(page: Client, echo: Tool) -> None:
    html = page.get(reverse("admin:roster_tool_change", args=[echo.pk]), {"span": "week"}).content.decode()
    assert 'span=week" aria-current="true">Last week</a>' in html


@pytest.mark.django_db
def test_a_part_shows_a_tool_a_member_or_the_hall(page: Client, echo: Tool) -> None:
    assert "2 calls" in text_of(page.get(address(member=echo.member_id, tool="echo")))
    assert "3 calls" in text_of(page.get(address(member=echo.member_id, span="day")))
    assert "3 calls" in text_of(page.get(address(span="week")))


@pytest.mark.django_db
@pytest.mark.parametrize("query", [{"span": "year"}, {"member": "0"}, {"member": "x"}, {"member": "9" * 30}])
def test_unknown_spans_and_members_are_404(page: Client, query: dict[str, str]) -> None:
    assert page.get(address(**query)).status_code == 404


@pytest.mark.django_db
def test_statistics_of_reserved_members_are_for_their_groups(client: Client, echo: Tool) -> None:
    bob = User.objects.create_user("bob", is_staff=True)
    client.force_login(bob)
    assert client.get(address()).status_code == 403
    bob.user_permissions.add(Permission.objects.get(codename="view_call"))
    assert "3 calls" in text_of(client.get(address()))
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert "No calls in the last hour." in text_of(client.get(address()))
    assert client.get(address(member=echo.member_id)).status_code == 404


@pytest.mark.django_db
def test_names_of_tools_are_escaped_in_addresses_too(page: Client, echo: Tool) -> None:
    evil = '"><script>alert(1)</script>&span=week'
    Tool.objects.filter(pk=echo.pk).update(name=evil)
    html = page.get(reverse("admin:roster_tool_change", args=[echo.pk])).content.decode()
    assert "<script>alert" not in html
    assert "No calls in the last hour." in " ".join(html.split())


@pytest.mark.django_db
def test_the_plots_cost_one_query(page: Client, echo: Tool) -> None:
    def count_queries(url: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            page.get(url)
        return len(queries)

    count_queries(address(span="hour"))
    # The session with the version of access, user, statistics.
    assert count_queries(address(span="week")) == count_queries(address(span="hour")) == 3
