"""A roster of 200 members with 20 tools each."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.end_to_end.browser.rig import BrowserHall, Visitor, transferred

pytestmark = [pytest.mark.browser, pytest.mark.processes, pytest.mark.timeout(240)]

MEMBERS, TOOLS = 200, 20
DRAWN_WITHIN_MS = 1000
LOOKS = 8
MOST_BYTES = 300_000
# Rows as of a hall in use, and no 200 processes: the runtime of another host is said to be alive for an hour.
FURNISH = f"""
import uuid
from datetime import timedelta
from django.utils import timezone
from mcp_runtime import statistics
from roster.models import GuildMember, Hall, Invocation, Tool
alive = timezone.now() + timedelta(hours=1)
Hall.objects.update_or_create(pk=1, defaults=dict(lease_id=uuid.uuid4(), lease_host="far-away.invalid", lease_pid=1,
                                                  heartbeat_at=alive))
schema = {{"type": "object", "properties": {{"text": {{"type": "string", "description": "What is to be done."}}}}}}
members = GuildMember.objects.bulk_create(
    GuildMember(
        name=f"member-{{number:03}}", directory=f"member-{{number:03}}", display_name=f"Member {{number}}",
        description="One of many, with something to say of itself that takes a sentence or two. " * 2,
        status=["connected", "connected", "connected", "error", "disconnected"][number % 5],
        last_error="ended with exit code 3. It wrote last: something went wrong in a way that takes a line to tell",
        protocol_version="2025-06-18", server_url="http://127.0.0.1:9/mcp",
    )
    for number in range({MEMBERS})
)
Tool.objects.bulk_create(
    Tool(member=member, name=f"tool-{{number}}", position=number, definition={{
        "name": f"tool-{{number}}", "description": "Does one thing and does it well.", "inputSchema": schema}})
    for member in members for number in range({TOOLS})
)
ended = [timezone.now() - timedelta(minutes=5 * ago, seconds=30) for ago in range(12)]
Invocation.objects.bulk_create(
    Invocation(member=member, tool_name="tool-1", timeout=30, door="rest", status=status, queued_at=moment,
               started_at=moment, finished_at=moment)
    for moment in reversed(ended) for member in members for status in ("succeeded", "failed")
)
statistics.sum_up()
"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """The rows, and the web alone: a runtime would find that the members' folders are not there."""
    prepared = new_hall.manage("prepare")
    assert prepared.returncode == 0, prepared.stderr
    new_hall.run(FURNISH)
    new_hall.serve_web()
    return new_hall


def test_it_is_first_drawn_within_a_second_and_found_in_by_name(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window(traced=False)
    drawn = []
    # The hall's machine may be busy with something else: it is tried again some times, and once must do.
    while len(drawn) < LOOKS and min(drawn, default=DRAWN_WITHIN_MS) >= DRAWN_WITHIN_MS:
        page.goto("/admin/")
        drawn.append(first_drawn_ms(page))
    assert min(drawn) < DRAWN_WITHIN_MS, drawn
    expect(page.locator("#roster .card")).to_have_count(MEMBERS)
    expect(page.locator("#roster .card svg")).to_have_count(MEMBERS)
    expect(page.get_by_text("No runtime is alive")).not_to_be_attached()
    page.get_by_role("searchbox").fill("member-123")
    expect(page.locator("#roster .card")).to_have_count(1)
    page.get_by_role("searchbox").fill("tool-19")
    expect(page.locator("#roster .card")).to_have_count(MEMBERS)


def first_drawn_ms(page: Page) -> float:
    """From the request to the first contentful paint."""
    moment: float = page.evaluate("""() => new Promise((resolve) => {
      const take = (list) => resolve(list.getEntriesByName("first-contentful-paint")[0].startTime);
      new PerformanceObserver(take).observe({ type: "paint", buffered: true });
    })""")
    return moment


def test_it_weighs_less_than_300_kb(hall: BrowserHall, visitor: Visitor) -> None:
    assert 10_000 < transferred(visitor.window(traced=False), "/admin/") < MOST_BYTES
