"""How the pages of the admin grow with the hall: 100 members with 20 tools each and 100,000 calls, beside a hundredth.

In one process for each size, without a server: the time of the processor is that of the web for one request.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

from bench.figures import Figure
from bench.hall import ROOT

SIZES = {"large": (100, 100_000), "small": (1, 1_000)}  # members of 20 tools, and calls
TOOLS = 20
BOUND = 1.5
MAX_SCREENS = 80
LINK = re.compile(r'<a\s[^>]*?href="(/[^"#]*)"')
LEFT_OUT = re.compile(r"/logout/|/jsi18n/|/export/|/static/|/history/|/delete/|/api/|/audit")


def pages(rounds: int) -> list[Figure]:
    """The ratio of each page: its processor time and its queries in the large hall, in those of the small one."""
    large, small = (_measure(*SIZES[name], rounds) for name in ("large", "small"))
    figures = []
    for page in sorted(large.keys() & small.keys()):
        time, queries = (large[page][key] / max(small[page][key], 1e-9) for key in ("ms", "queries"))
        label = f"{page}: {large[page]['ms']:.0f} ms, {large[page]['queries']} queries"
        figures += [
            Figure(f"{label}, time", time, "x", BOUND),
            Figure("  queries", queries, "x", BOUND),
        ]
    return figures


def _measure(members: int, calls: int, rounds: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        names = ("GUILD_HALL_DATA_DIR", "GUILD_HALL_MEMBERS_DIR")
        environment = {**os.environ, **{name: f"{folder}/{name}" for name in names}, "GUILD_HALL_ENV_FILE": os.devnull}
        environment |= {"DATABASE_URL": "", "PYTHONPATH": str(ROOT), "GUILD_HALL_KEEP_CALLS": "1000000"}
        for name in names:
            os.mkdir(environment[name], 0o700)
        argv = [sys.executable, "-m", "bench.pages", str(members), str(calls), str(rounds)]
        result = subprocess.run(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        measured: dict[str, dict[str, float]] = json.loads(result.stdout.splitlines()[-1])
        return measured


class Count:
    """Counts queries. Django clears its own list of them at each request."""

    queries = 0

    def __call__(self, execute: Any, *arguments: Any) -> Any:
        self.queries += 1
        return execute(*arguments)


# In the process of one hall ---------------------------------------------------------------------------------------


def _fill(members: int, calls: int) -> None:
    from datetime import timedelta

    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.utils import timezone

    from mcp_runtime.calls import statistics
    from roster.models import Call, GuildMember, Token, Tool

    call_command("migrate", verbosity=0)
    call_command("collectstatic", verbosity=0, interactive=False)
    root = User.objects.create_superuser("root", password="x")
    token, _ = Token.make(user=root, name="bench")
    rows = GuildMember.objects.bulk_create(
        GuildMember(name=f"member-{number:03}", directory=f"member-{number:03}", version="1", status="connected")
        for number in range(members)
    )
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "What to say."}}}
    Tool.objects.bulk_create(
        Tool(
            member=row,
            name=f"tool-{number}",
            position=number,
            version=hashlib.sha256(f"{row.name} {number}".encode()).hexdigest(),
            definition={
                "name": f"tool-{number}",
                "description": "Does one thing, and does it well.",
                "inputSchema": schema,
            },
        )
        for row in rows
        for number in range(TOOLS)
    )
    now = timezone.now()
    Call.objects.bulk_create(
        (
            Call(
                member=rows[number % members],
                tool_name=f"tool-{number % TOOLS}",
                timeout=30,
                source="rest",
                status="failed" if number % 10 == 0 else "succeeded",
                token=token if number % 2 else None,
                requested_by=root,
                requester="root",
                arguments={"text": f"call {number}"},
                queued_at=(moment := now - timedelta(seconds=20 * (calls - number))),
                started_at=moment,
                finished_at=moment,
            )
            for number in range(calls)
        ),
        batch_size=2_000,
    )
    while statistics.roll_up():
        pass


def _screens(client: Any) -> list[str]:
    """One address of each kind, found by following links."""
    kinds: dict[str, str] = {}
    to_visit = ["/admin/"]
    while to_visit and len(kinds) < MAX_SCREENS:
        path = to_visit.pop(0)
        kind = re.sub(r"\d+", "N", path.split("?")[0])
        if kind in kinds or LEFT_OUT.search(path):
            continue
        response = client.get(path)
        if response.status_code != 200 or "text/html" not in response.headers["Content-Type"]:
            continue
        kinds[kind] = path
        to_visit += LINK.findall(response.content.decode())
    return list(kinds.values())


def _measure_here(members: int, calls: int, rounds: int) -> dict[str, dict[str, float]]:
    import time

    from django.db import connection
    from django.test import Client

    _fill(members, calls)
    from django.contrib.auth.models import User

    client = Client(HTTP_HOST="127.0.0.1")
    client.force_login(User.objects.get())
    measured = {}
    for path in _screens(client):
        count = Count()
        with connection.execute_wrapper(count):
            client.get(path)
        took = []
        for _ in range(rounds):
            began = time.process_time()
            client.get(path)
            took.append(time.process_time() - began)
        kind = re.sub(r"\d+", "N", path.split("?")[0])
        measured[kind] = {"ms": min(took) * 1000, "queries": count.queries}
    return measured


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "guildhall.settings"
    import django

    django.setup()
    print(json.dumps(_measure_here(*(int(word) for word in sys.argv[1:]))))
