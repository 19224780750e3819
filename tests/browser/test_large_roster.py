"""A roster of 200 members with 20 tools each."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor, transferred

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

MEMBERS, TOOLS = 200, 20
DRAWN_WITHIN_MS = 1000
LOOKS = 8
BEAT_SECONDS = 1.0
MOST_BYTES = 300_000
# Rows as of a hall in use, and no 200 processes: a runtime of another host is said to hold the hall.
FURNISH = f"""
import uuid
from datetime import timedelta
from django.utils import timezone
from mcp_runtime.rows import lease
from mcp_runtime.calls import statistics
from roster.models import GuildMember, Hall, Call, Tool
lease_id = uuid.uuid4()
Hall.objects.update_or_create(pk=1, defaults=dict(lease_id=lease_id, lease_host="far-away.invalid", lease_pid=1,
                                                  heartbeat_at=timezone.now()))
lease.beat(lease_id)
schema = {{"type": "object", "properties": {{"text": {{"type": "string", "description": "What is to be done."}}}}}}
members = GuildMember.objects.bulk_create(
    GuildMember(
        name=f"member-{{number:03}}", directory=f"member-{{number:03}}", display_name=f"Member {{number}}",
        description="One of many, with something to say of itself that takes a sentence or two. " * 2,
        status=["connected", "connected", "connected", "error", "disconnected"][number % 5],
        last_error="ended with exit code 3. Last output: something went wrong in a way that takes a line to tell",
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
Call.objects.bulk_create(
    Call(member=member, tool_name="tool-1", timeout=30, source="rest", status=status, queued_at=moment,
               started_at=moment, finished_at=moment)
    for moment in reversed(ended) for member in members for status in ("succeeded", "failed")
)
statistics.roll_up()
"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> Iterator[BrowserHall]:
    """The rows, and the web alone: a runtime would find that the members' folders are not there."""
    prepared = new_hall.manage("prepare")
    assert prepared.returncode == 0, prepared.stderr
    new_hall.run(FURNISH)
    over = threading.Event()
    beating = threading.Thread(target=beat, args=(new_hall.data_dir / "heartbeat", over))
    beating.start()
    new_hall.serve_web()
    yield new_hall
    over.set()
    beating.join()


def beat(heartbeat: Path, over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        os.utime(heartbeat)


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
