"""Plots as they are drawn: what they say in words, and shapes that are where the numbers are."""

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


def series(span: str, *last: Figures) -> Series:
    """Without calls but for the last points."""
    length = SPANS[span]
    every: list[Figures] = [*[(0, 0, None, None)] * (length.points - len(last)), *last]
    begins = [MIDNIGHT + timedelta(seconds=length.seconds * number) for number in range(length.points)]
    points = [Point(moment, *figures, mean=None) for moment, figures in zip(begins, every, strict=True)]
    calls, failed = sum(figures[0] for figures in last), sum(figures[1] for figures in last)
    return Series(length, points, Point(MIDNIGHT, calls, failed, 0.03, 2.5, None))


def drawn(figures: Series) -> str:
    return render_to_string("roster/plot.html", plots.plot(figures))


def paths(html: str, name: str) -> str:
    return re.findall(rf'class="{name}" d="([^"]*)"', html)[0]


# Sparks -----------------------------------------------------------------------------------------------------------


def test_a_spark_says_in_words_what_it_draws() -> None:
    found = plots.spark([(0, 0)] * 10 + [(1200, 3), (34, 0)])
    assert "<title>Last hour: 1,234 calls, 3 failed</title>" in found
    assert len(paths(found, "plot-calls").split("M")) - 1 == 2
    assert len(paths(found, "plot-failed").split("M")) - 1 == 1
    ElementTree.fromstring(found)


def test_a_member_without_calls_has_a_spark_too() -> None:
    found = Template("{% load plots %}{% spark points %}").render(Context({"points": None}))
    assert "<title>Last hour: no calls</title>" in found
    assert paths(found, "plot-calls") == ""


def test_the_highest_bar_fills_the_height_and_the_least_is_seen() -> None:
    path = paths(plots.spark([(1000, 0), (500, 0), (1, 0)]), "plot-calls")
    assert re.findall(r"100v-([\d.]+)h", path) == ["100", "50", "4"]


# Plots ------------------------------------------------------------------------------------------------------------


def test_a_plot_tells_its_numbers_in_words_in_tooltips_and_in_a_table() -> None:
    html = drawn(series("hour", (8, 2, 0.02, 1.5), (0, 0, None, None), (1, 0, 0.004, 0.004)))
    words = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    assert "9 calls 2 failed (22 %) median duration 30 ms 95th percentile 2.5 s" in words
    assert "<title>00:57: 8 calls, 2 failed, median duration 20 ms, 95th percentile 1.5 s</title>" in html
    assert "<title>00:59: 1 call, 0 failed, median duration 4.0 ms, 95th percentile 4.0 ms</title>" in html
    assert html.count('<th scope="row">') == 2
    assert re.search(r'<svg class="plot" role="img" aria-labelledby="plot-title-hour"', html)
    assert '<title id="plot-title-hour">9 calls in the last hour, 2 failed.' in html


def test_a_plot_without_calls_says_so_and_draws_nothing() -> None:
    html = drawn(series("week"))
    assert "No calls in the last week." in " ".join(html.split())
    assert "<svg" not in html


def test_lines_break_where_nothing_was_called() -> None:
    html = drawn(series("hour", (1, 0, 0.5, 1.0), (1, 0, 0.5, 1.0), (0, 0, None, None), (1, 0, 1.0, 1.0)))
    assert paths(html, "plot-p50") == "M56.5 50L57.5 50M59.5 0"
    assert paths(html, "plot-p50 plot-dots") == "M59.5 0h0"


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        ("hour", ["00:10", "00:20", "00:30", "00:40", "00:50"]),
        ("day", ["04:00", "08:00", "12:00", "16:00", "20:00"]),
        ("week", ["Thu 5", "Fri 6", "Sat 7", "Sun 8", "Mon 9", "Tue 10"]),
    ],
)
def test_the_axis_of_time_has_round_times(span: str, labels: list[str]) -> None:
    html = drawn(series(span, (1, 0, 0.1, 0.1)))
    assert re.findall(r'text-anchor="middle">([^<]*)<', html) == labels


def test_nothing_in_a_plot_needs_a_style_or_a_script() -> None:
    html = drawn(series("day", (8, 2, 0.02, 1.5))) + plots.spark([(1, 1)])
    assert not re.search(r"style=|<style|<script|\son\w+=", html)


@pytest.mark.parametrize(
    ("length", "said"),
    [
        *[(None, "-"), (0.0004, "0.4 ms"), (0.0096, "10 ms"), (0.0349, "35 ms"), (0.9996, "1.0 s")],
        *[(12.34, "12.3 s"), (600.0, "10 min")],
    ],
)
def test_lengths_are_told_in_the_unit_that_suits_them(length: float | None, said: str) -> None:
    assert present.seconds(length) == said


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
    """With two calls of a moment ago, one of them failed; and a call of another tool."""
    lease.hall()
    member = GuildMember.objects.create(name="anna", directory="anna", manifest={})
    for name, status in (("echo", "succeeded"), ("echo", "failed"), ("other", "succeeded")):
        Call.objects.create(
            member=member, tool_name=name, timeout=1, source="rest", status=status, finished_at=timezone.now()
        )
    return Tool.objects.create(member=member, name="echo", definition={"name": "echo", "inputSchema": {}})


def words(response: Any) -> str:
    assert response.status_code == 200, response
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def address(**asked: Any) -> str:
    return f"{reverse('admin:roster_statistics')}?{urlencode(asked)}"


@pytest.mark.django_db
def test_the_page_of_a_tool_holds_its_plots_and_they_stay_true(page: Client, echo: Tool) -> None:
    html = page.get(reverse("admin:roster_tool_change", args=[echo.pk])).content.decode()
    (part,) = re.findall(
        r'class="statistics"[^>]* data-live="([^"]+)" data-live-every="10" data-live-etag="([^"]+)"', html
    )
    assert "<strong>2</strong> calls" in html
    asked = part[0].replace("&amp;", "&")
    etag = part[1].replace("&quot;", '"')
    assert page.get(asked, headers={"If-None-Match": etag}).status_code == 304
    Call.objects.create(
        member=echo.member, tool_name="echo", timeout=1, source="rest", status="succeeded", finished_at=timezone.now()
    )
    assert "3 calls" in words(page.get(asked, headers={"If-None-Match": etag}))


@pytest.mark.django_db
def test_the_address_of_the_page_says_the_span(page: Client, echo: Tool) -> None:
    html = page.get(reverse("admin:roster_tool_change", args=[echo.pk]), {"span": "week"}).content.decode()
    assert 'span=week" aria-current="true">Last week</a>' in html


@pytest.mark.django_db
def test_a_part_tells_of_a_tool_a_member_or_the_hall(page: Client, echo: Tool) -> None:
    assert "2 calls" in words(page.get(address(member=echo.member_id, tool="echo")))
    assert "3 calls" in words(page.get(address(member=echo.member_id, span="day")))
    assert "3 calls" in words(page.get(address(span="week")))


@pytest.mark.django_db
@pytest.mark.parametrize("asked", [{"span": "year"}, {"member": "0"}, {"member": "x"}, {"member": "9" * 30}])
def test_what_there_is_not_is_not_found(page: Client, asked: dict[str, str]) -> None:
    assert page.get(address(**asked)).status_code == 404


@pytest.mark.django_db
def test_figures_of_reserved_members_are_for_their_groups(client: Client, echo: Tool) -> None:
    bob = User.objects.create_user("bob", is_staff=True)
    client.force_login(bob)
    assert client.get(address()).status_code == 403
    bob.user_permissions.add(Permission.objects.get(codename="view_call"))
    assert "3 calls" in words(client.get(address()))
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert "No calls in the last hour." in words(client.get(address()))
    assert client.get(address(member=echo.member_id)).status_code == 404


@pytest.mark.django_db
def test_names_from_members_are_text_in_addresses_too(page: Client, echo: Tool) -> None:
    evil = '"><script>alert(1)</script>&span=week'
    Tool.objects.filter(pk=echo.pk).update(name=evil)
    html = page.get(reverse("admin:roster_tool_change", args=[echo.pk])).content.decode()
    assert "<script>alert" not in html
    assert "No calls in the last hour." in " ".join(html.split())


@pytest.mark.django_db
def test_plots_cost_one_query(page: Client, echo: Tool) -> None:
    def queries(asked: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            page.get(asked)
        return len(captured)

    queries(address(span="hour"))
    assert queries(address(span="week")) == queries(address(span="hour")) == 4  # session, user, access, figures
