"""`make bench ARGS=statistics`: a million calls, and what it takes to sum them, to plot them and to list them."""

from __future__ import annotations

import re
import statistics as figures
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import requests

from bench.figures import Figure, percentile
from bench.hall import BenchHall, bench_hall, cpu_seconds, family

CALLS = 1_000_000
MEMBERS, TOOLS = 20, 20
# Of the gateway at its fastest: what one minute may hold.
BUSY_MINUTE = 48_000
PASSWORD = "bench-password"
SPANS = ("hour", "day", "week")

# Calls that end evenly over some seconds from then on, made in the database. `{{` and `}}` are braces.
FILL = f"""
from datetime import timedelta
from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone
from roster.models import GuildMember, Tool
names = [f"s{{n:02}}" for n in range({MEMBERS})]
if not GuildMember.objects.exists():
    members = GuildMember.objects.bulk_create(GuildMember(name=name, directory=name, version="1") for name in names)
    Tool.objects.bulk_create(
        Tool(member=member, name=f"tool{{n}}", definition={{"name": f"tool{{n}}"}})
        for member in members for n in range({TOOLS})
    )
    user, _ = get_user_model().objects.get_or_create(username="looker", is_superuser=True, is_staff=True)
    user.set_password("{PASSWORD}")
    user.save()
first = GuildMember.objects.order_by("id").values_list("id", flat=True)[0]
calls, ago, seconds = CALLS_AGO_SECONDS
begin = (timezone.now() - timedelta(seconds=ago)).strftime("%Y-%m-%d %H:%M:%S")
moment = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', %s, {{}} || ' seconds')"
with connection.cursor() as cursor:
    cursor.execute(f'''
        WITH RECURSIVE counted(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n < %s - 1)
        INSERT INTO roster_call (member_id, tool_name, arguments, timeout, source, requester, secret_paths,
            status, queued_at, started_at, finished_at, result, error_kind, error_message)
        SELECT %s + abs(random()) %% {MEMBERS}, 'tool' || abs(random()) %% {TOOLS}, '{{{{"text": "hello"}}}}', 30,
            'gateway', 'bench', '[]', status, began, began, ended,
            '{{{{"content": [{{{{"type": "text", "text": "' || hex(zeroblob(200)) || '"}}}}]}}}}',
            CASE WHEN status = 'failed' THEN 'tool' ELSE '' END, CASE WHEN status = 'failed' THEN 'it broke' ELSE '' END
        FROM (SELECT CASE WHEN abs(random()) %% 50 = 0 THEN 'failed' ELSE 'succeeded' END AS status,
            {{moment.format("(n * %s - 0.002 * (1 + abs(random()) %% 900))")}} AS began,
            {{moment.format("(n * %s)")}} AS ended FROM counted)
    ''', [calls, first, begin, seconds / calls, begin, seconds / calls])
"""
# To so many seconds ago: what is filled in afterwards has to lie behind it.
SUM = """
import time
from datetime import timedelta
from django.utils import timezone
from mcp_runtime.calls import statistics
began = time.monotonic()
added = statistics.roll_up(timezone.now() - timedelta(seconds=AGO))
print(added, time.monotonic() - began)
"""


def statistics(request_count: int) -> list[Figure]:
    """A week of a million calls: catching up, a busy minute, and reading."""
    with bench_hall(0) as hall:
        _fill(hall, CALLS, ago=7 * 86400, seconds=7 * 86400 - 300)
        caught_up = _sum(hall, CALLS, ago=130)
        _fill(hall, BUSY_MINUTE, ago=100, seconds=60)
        minute = _sum(hall, BUSY_MINUTE, ago=5)
        _fill(hall, 600, ago=4, seconds=3)  # what a reader has to count by itself
        api, parts, lists, search = _reads(hall, hall.start_web(), request_count)
    return [
        Figure(f"summing a week of {CALLS:,} calls, after a stop", caught_up, "s"),
        Figure(f"summing a minute of {BUSY_MINUTE:,} calls", 1000 * minute, "ms", 1000),
        *_read_figures("GET a member's statistics, hour, day and week in turn", api, 100),
        *_read_figures("plots of the whole hall as a part of a page, in turn", parts, 250),
        *_read_figures("first page of the calls", lists, 150),
        *_read_figures("search among the calls that finds nothing", search, 500),
    ]


@dataclass(frozen=True)
class Reads:
    """Milliseconds of each answer, and of the web's CPU for one."""

    took: list[float]
    cpu: float


def _read_figures(subject: str, reads: Reads, bound: float) -> list[Figure]:
    return [
        Figure(f"{subject}, median", figures.median(reads.took), "ms"),
        Figure("  95th percentile", percentile(reads.took, 0.95), "ms", bound),
        Figure("  CPU of the web for one", reads.cpu, "ms"),
    ]


def _fill(hall: BenchHall, calls: int, *, ago: int, seconds: int) -> None:
    hall.manage("shell", "-v0", "-c", FILL.replace("CALLS_AGO_SECONDS", f"{calls}, {ago}, {seconds}"))


def _sum(hall: BenchHall, calls: int, *, ago: int) -> float:
    """Seconds. That all of them were summed is checked."""
    added, seconds = hall.manage("shell", "-v0", "-c", SUM.replace("AGO", str(ago))).split()
    if int(added) != calls:
        raise SystemExit(f"bench: {added} of {calls} calls were summed")
    return float(seconds)


def _reads(hall: BenchHall, web: psutil.Process, number: int) -> tuple[Reads, ...]:
    base, token = f"http://127.0.0.1:{hall.port}", hall.token()
    program, person = requests.Session(), _logged_in(base)
    program.headers["Authorization"] = f"Bearer {token}"
    members = [f"s{n:02}" for n in range(MEMBERS)]

    def api(turn: int) -> str:
        return f"{base}/api/members/{members[turn % MEMBERS]}/statistics/?span={SPANS[turn % 3]}"

    def part(turn: int) -> str:
        return f"{base}/admin/roster/call/statistics/?span={SPANS[turn % 3]}"

    calls = f"{base}/admin/roster/call/"
    return (
        _timed(web, program, api, number),
        _timed(web, person, part, number),
        _timed(web, person, lambda _: calls, number),
        _timed(web, person, lambda turn: f"{calls}?q=nothing{turn}", number // 4),
    )


def _timed(web: psutil.Process, session: requests.Session, address: Callable[[int], str], number: int) -> Reads:
    took = []
    before = cpu_seconds(family(web))
    for turn in range(number):
        began = time.monotonic()
        answer = session.get(address(turn), timeout=20)
        took.append((time.monotonic() - began) * 1000)
        if answer.status_code != 200 or answer.history:
            raise SystemExit(f"bench: {answer.status_code} for {address(turn)}")
    return Reads(took, (cpu_seconds(family(web)) - before) / number * 1000)


def _logged_in(base: str) -> requests.Session:
    session = requests.Session()
    address = f"{base}/admin/login/?next=/admin/"
    match = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', session.get(address, timeout=20).text)
    form = {"username": "looker", "password": PASSWORD, "csrfmiddlewaretoken": match[1] if match else ""}
    answer = session.post(address, form, headers={"Referer": address}, timeout=20)
    if "/login/" in answer.url:
        raise SystemExit("bench: cannot log in")
    return session
