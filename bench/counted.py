"""A part of the hall that makes or serves calls in one process, for callgrind: `counted.py PART CALLS SERVER_URL`.

It runs on the database of a prepared hall. `rest` queues calls over REST, and claims, ends and reads them. `client`
calls the server. `gateway` prints a token, serves until its standard input is closed, and calls the server for clients.
`search` does the same with 1,000 tools.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "guildhall.settings"
django.setup()

from django.conf import settings  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.db.models import QuerySet  # noqa: E402

from bench.loads import CORPUS  # noqa: E402
from mcp_runtime.calls import queue_search, statements, transitions  # noqa: E402
from mcp_runtime.client.client import JsonRpcClient  # noqa: E402
from mcp_runtime.members.live import LiveMember  # noqa: E402
from mcp_runtime.members.process import NoProcess  # noqa: E402
from mcp_runtime.members.restarts import Restarts  # noqa: E402
from mcp_runtime.rows import lease, ownership  # noqa: E402
from mcp_runtime.security import principals  # noqa: E402
from roster.models import GuildMember, Token, Tool  # noqa: E402

TOOLS = 1_000
principals.CACHE_SECONDS = 1e9  # how often a principal is read again depends on the time, and valgrind takes much of it


def make_rows() -> tuple[GuildMember, str]:
    """A member with the tool `echo`, and a token without limits."""
    member = GuildMember.objects.create(
        name="echo", directory="echo", status="connected", desired_state="running", capabilities={"tools": {}}
    )
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    Tool.objects.create(member=member, name="echo", position=0, definition={"name": "echo", "inputSchema": schema})
    user = User.objects.create(username="bench", is_superuser=True, is_staff=True)
    return member, Token.make(user=user, **Token.UNLIMITED, max_in_flight=4096)[1]


# REST -------------------------------------------------------------------------------------------------------------


def rest(calls: int, url: str) -> None:
    """What web and runtime ask of Django for a call that is queued, run and read."""
    from guildhall.wsgi import application

    _, token = make_rows()
    lease_id = lease.take(ownership.take_over_own)

    def ask(method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "8000",
            "HTTP_HOST": "127.0.0.1",
            "HTTP_AUTHORIZATION": f"Bearer {token}",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.url_scheme": "http",
            "wsgi.multithread": True,
        }
        return dict(json.loads(b"".join(application(environ, lambda *_: None))))

    for _ in range(calls):
        path = ask("POST", "/api/members/echo/tools/echo/invoke/", b'{"arguments": {"text": "hello"}}')["url"]
        (call,) = queue_search.find_queued(lease_id, queue_search.Exclusions(), 10)
        assert statements.claim([call.pk], lease_id) == 1
        outcome = transitions.Outcome.succeeded({"content": [{"type": "text", "text": "hello"}]})
        assert transitions.finish(call, outcome, lease_id)
        assert ask("GET", path)["status"] == "succeeded"


# Client -----------------------------------------------------------------------------------------------------------


def client(calls: int, url: str) -> None:
    server = JsonRpcClient(url)
    server.connect(30)
    for _ in range(calls):
        assert server.invoke_tool("echo", {"text": "hello"}, timeout=30)["content"]
    server.close()


# Gateway ----------------------------------------------------------------------------------------------------------


class OneMember:
    """What the gateway asks of the lifecycle, for a member that is always connected."""

    def __init__(self, row: GuildMember, url: str) -> None:
        connection = JsonRpcClient(url)
        connection.connect(30)
        self.live_member = LiveMember(row.pk, row.name, 0, connection, NoProcess(), url)
        self.live_member.connected_at = 1.0
        self.lease_id = uuid.uuid4()
        self.restarts = Restarts()
        self.awaited_ids: set[int] = set()

    def connected_member(self, member_id: int) -> LiveMember | None:
        return self.live_member if member_id == self.live_member.member_id else None

    def live_members(self) -> list[LiveMember]:
        return [self.live_member]

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        return GuildMember.objects.filter(pk=member_id)

    def handle_connection_failure(self, live_member: LiveMember, error: Exception) -> None:
        sys.exit(f"the server failed: {error}")


def search(calls: int, url: str) -> None:
    row, token = make_rows()
    definitions, tools = json.loads(CORPUS.read_text())["tools"], []
    for number in range(TOOLS - 1):
        round_number, position = divmod(number, len(definitions))
        own = definitions[position]
        properties = {name: {"type": "string"} for name in own["parameters"]}
        name = own["name"] + (f"_{round_number}" if round_number else "")
        schema = {"type": "object", "properties": properties}
        definition = {"name": name, "description": own["description"], "inputSchema": schema}
        tools.append(Tool(member=row, name=name, position=number + 1, definition=definition))
    Tool.objects.bulk_create(tools)
    serve(row, token, url)


def gateway(calls: int, url: str) -> None:
    serve(*make_rows(), url)


def serve(row: GuildMember, token: str, url: str) -> None:
    from mcp_runtime.gateway import members
    from mcp_runtime.gateway.server import Gateway, Options
    from mcp_runtime.http1 import listeners

    members.RELOAD_SECONDS = 1e9  # how often the tools are read again depends on the time too

    server = Gateway(
        lifecycle=OneMember(row, url),  # type: ignore[arg-type]
        sockets=listeners.Sockets(listeners.bind("127.0.0.1", settings.GUILD_HALL_GATEWAY_PORT)),
        options=Options(["127.0.0.1"], [], 4_000_000, 4096, Path(settings.GUILD_HALL_DATA_DIR), settings.SECRET_KEY),
        wake_supervisor=lambda: None,
    )
    server.start()
    print(token, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    gc.disable()  # when it runs is chance
    {"rest": rest, "client": client, "gateway": gateway, "search": search}[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
