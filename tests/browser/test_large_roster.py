"""A roster of 200 members with 20 tools each."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor, transferred_bytes

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

MEMBERS, TOOLS = 200, 20
SHOWN = 48
MAX_PAINT_MS = 1000
MAX_TRIES = 8
HEARTBEAT_SECONDS = 1.0
MAX_BYTES = 300_000
# Rows like those of a busy hall, without 200 processes. The lease names a runtime of another host.
MAKE_ROWS = f"""
import uuid
from datetime import timedelta
from django.utils import timezone
from mcp_runtime.rows import lease
from mcp_runtime.calls import statistics
from roster.models import Call, GuildMember, Node, Tool
lease_id = uuid.uuid4()
lease.hall()
values = {{"lease_id": lease_id, "host": "far-away.invalid", "pid": 1, "heartbeat_at": timezone.now()}}
node = Node.objects.create(name="far-away", **values)
lease.beat(lease_id)
schema = {{"type": "object", "properties": {{"text": {{"type": "string", "description": "What is to be done."}}}}}}
members = GuildMember.objects.bulk_create(
    GuildMember(
        name=f"member-{{number:03}}", directory=f"member-{{number:03}}", display_name=f"Member {{number}}",
        description="One of many, with something to say of itself that takes a sentence or two. " * 2,
        status=["connected", "connected", "connected", "error", "disconnected"][number % 5],
        last_error="ended with exit code 3. Last output: something went wrong in a way that takes a line to tell",
        protocol_version="2025-06-18", server_url="http://127.0.0.1:9/mcp", node=node,
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
    """The rows and the web, without a runtime, which would notice that the members folder is empty."""
    result = new_hall.manage("prepare")
    assert result.returncode == 0, result.stderr
    new_hall.run(MAKE_ROWS)
    end = threading.Event()
    thread = threading.Thread(target=write_heartbeats, args=(new_hall.data_dir / "heartbeat", end))
    thread.start()
    new_hall.serve_web()
    yield new_hall
    end.set()
    thread.join()


def write_heartbeats(heartbeat: Path, end: threading.Event) -> None:
    while not end.wait(HEARTBEAT_SECONDS):
        os.utime(heartbeat)


def test_a_large_roster_is_painted_within_a_second_and_can_be_searched(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window(traced=False)
    paint_times = []
    # The machine may be busy, so this tries several times, and one success is enough.
    while len(paint_times) < MAX_TRIES and min(paint_times, default=MAX_PAINT_MS) >= MAX_PAINT_MS:
        page.goto("/admin/")
        paint_times.append(first_paint_ms(page))
    assert min(paint_times) < MAX_PAINT_MS, paint_times
    expect(page.locator("#roster .card")).to_have_count(SHOWN)
    expect(page.locator("#roster .card svg")).to_have_count(SHOWN)
    expect(page.get_by_text("No runtime is alive")).not_to_be_attached()
    page.get_by_role("searchbox").fill("member-123")
    expect(page.locator("#roster .card")).to_have_count(1)
    page.get_by_role("searchbox").fill("tool-19")
    expect(page.get_by_text(f"{SHOWN} of {MEMBERS} members are shown.")).to_be_visible()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("link", name="Show more").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#roster .card")).to_have_count(2 * SHOWN)
    expect(page.locator("#roster .card").nth(SHOWN).get_by_role("link").first).to_be_focused()
    expect(page).to_have_url(re.compile(r"\?show=96$"))


def first_paint_ms(page: Page) -> float:
    """The time from the request to the first contentful paint."""
    milliseconds: float = page.evaluate("""() => new Promise((resolve) => {
      const take = (list) => resolve(list.getEntriesByName("first-contentful-paint")[0].startTime);
      new PerformanceObserver(take).observe({ type: "paint", buffered: true });
    })""")
    return milliseconds


def test_a_large_roster_transfers_less_than_300_kb(hall: BrowserHall, visitor: Visitor) -> None:
    assert 10_000 < transferred_bytes(visitor.window(traced=False), "/admin/") < MAX_BYTES
