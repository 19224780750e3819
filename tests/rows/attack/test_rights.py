"""Who may what, at every route of the web: the table against the routes, and nothing of somebody else in any answer.

python -m pytest tests/rows/attack/test_rights.py tests/rows/attack/test_rights_gateway.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLResolver, get_resolver

from mcp_runtime.security import principals
from roster.models import Call
from tests.attack import rights_table, rights_world
from tests.attack.rights_world import PERMISSIONS, WORDS, Who, World

# Thousands of requests by ways that tests of views and API measure: to measure them here as well takes twice the time.
pytestmark = [pytest.mark.django_db, pytest.mark.no_cover]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD")
SAFE = ("GET", "HEAD", "OPTIONS")
ROWS_OF_A_MEMBER = re.compile(r"<[^>]*(_id|name|pk)>")
# What routes take beside the ids of rows.
WORDS_OF_ROUTES = {"verb": "stop", "form": "jsonl", "content_type_id": "1", "part": "activity"}
PARTS = {"agent": "transcript", "token": "use"}
BODIES = {
    "/api/agent-config/": {"for": "cursor"},
    "/api/agents/": {"members": ["notes"]},
    "/api/agents/<int:pk>/messages/": {"prompt": "hello"},
}


@dataclass(frozen=True)
class Row:
    method: str
    route: str
    opened_by: str
    granted: frozenset[int]
    refused: frozenset[int]
    narrowed: tuple[int, ...] = ()

    @classmethod
    def of(cls, line: str) -> Row:
        method, route, opened_by, granted, refused, *narrowed = line.split()
        numbers = [frozenset(int(one) for one in word.split("/") if one != "-") for word in (granted, refused)]
        return cls(method, route, opened_by, *numbers, tuple(map(int, narrowed)))

    @property
    def is_api(self) -> bool:
        return not self.route.startswith("/admin/")

    @property
    def alternatives(self) -> list[set[str]]:
        """Sets of permissions, each of which opens it."""
        if self.opened_by in ("public", "known", "none", "superuser"):
            return []
        spelt_out = self.opened_by
        if "VIEW_CALL" in spelt_out:
            spelt_out = "|".join(spelt_out.replace("VIEW_CALL", f"{verb}_call") for verb in ("view", "change"))
        return [set(alternative.split("&")) for alternative in spelt_out.split("|")]

    def opens_for(self, who: Who) -> bool:
        if self.opened_by == "public" or not who.is_known:
            return self.opened_by == "public"
        if self.opened_by == "known":
            return True
        if who.is_superuser:
            return self.opened_by != "none"
        return any(alternative <= who.permissions for alternative in self.alternatives)


ROWS = [Row.of(line) for table in (rights_table.ADMIN, rights_table.API) for line in table.splitlines() if line.strip()]


def routes(resolver: URLResolver | None = None, prefix: str = "/") -> Iterator[str]:
    for entry in (resolver or get_resolver()).url_patterns:
        if isinstance(entry, URLResolver):
            yield from routes(entry, prefix + str(entry.pattern))
        else:
            yield prefix + str(entry.pattern)


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    """A new route is a new decision: write down who may use it."""
    known = {row.route for row in ROWS}
    there = set(routes()) | {"/api/(nowhere)"}  # the pattern of that is that of /api/ itself
    assert sorted(there - known) == []
    assert sorted(known - there) == []


# Asking -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path / "members"
    settings.GUILD_HALL_MEMBERS_DIR.mkdir()
    monkeypatch.setattr(principals, "CACHE_SECONDS", -1.0)  # what is rolled back takes no snapshot along
    return rights_world.make(tmp_path)


def address_of(route: str, ids: dict[str, Any]) -> str:
    model = re.match(r"/admin/(?:roster|auth)/(\w+)/", route)
    kind = model[1] if model else ""

    def value(match: re.Match[str]) -> str:
        name = match[1].rpartition(":")[2]
        if name == "part":
            return PARTS.get(kind, WORDS_OF_ROUTES[name])
        if name == "pk":
            return str(ids[route.split("/")[2].removesuffix("s")])
        if name in ("object_id", "id"):
            return str(ids["tool_id" if kind == "tool" else kind] if kind else 1)
        return str(ids[name] if name in ids else WORDS_OF_ROUTES[name])

    plain = route.replace("^(?P<app_label>roster|auth)/$", "roster/").replace("(?P<url>.*)$", "nowhere/")
    found = re.sub(r"<([^>]+)>", value, plain).replace("(nowhere)", "nowhere/")
    if route.endswith("/compare/"):
        return f"{found}?left={ids['call']}&right={ids['call']}"
    return found + ("?for=cursor" if route == "/api/agent-config/" else "")


@dataclass(frozen=True)
class Reply:
    status: int
    text: str  # body and headers
    leads_to_login: bool

    def words(self) -> set[str]:
        return {word for word in WORDS if word in self.text}


tried = 0


def ask(client: Client, method: str, route: str, ids: dict[str, Any]) -> Reply:
    """The answer; whatever the request changed is taken back."""
    global tried
    tried += 1
    jar, point = client.cookies.copy(), transaction.savepoint()
    try:
        json_body = {"data": BODIES.get(route, {}), "content_type": "application/json"}
        more = json_body if route.startswith("/api/") and method not in SAFE else {}
        response: Any = getattr(client, method.lower())(address_of(route, ids), **more)
        body = b"".join(response.streaming_content) if response.streaming else response.content
        leads_to_login = "login" in response.headers.get("Location", "")
        return Reply(response.status_code, f"{response.headers}\n{body.decode()}", leads_to_login)
    finally:
        transaction.savepoint_rollback(point)
        client.cookies = jar


def faults(row: Row, who: Who, client: Client, ids: dict[str, Any], granted: bool) -> list[str]:
    reply = ask(client, row.method, row.route, ids)
    what = f"{row.method} {row.route} by {who.name}: {reply.status}"
    leaked = sorted(word for word in reply.words() if not (who.is_known and who.may_read(word)))
    found = [f"{what} tells {leaked}"] if leaked else []
    if who.is_known or row.opened_by == "public":
        expected = row.granted if granted else row.refused
        if reply.status not in expected or (reply.leads_to_login and "login" not in row.route):
            found.append(f"{what}, not {sorted(expected)}")
    elif row.is_api and row.route != "/api/docs/":
        found += [] if reply.status == 401 else [f"{what}, not 401"]
    elif not ((reply.status == 302 and reply.leads_to_login) or reply.status == 401 or "logout" in row.route):
        found.append(f"{what}, not sent to the login")
    return found


def clients(row: Row, who: Who) -> list[Client]:
    """How it comes: with a token to the API alone, with a session to both."""
    return [client for client in (who.session, who.token if row.is_api else None) if client is not None]


def group_of(row: Row) -> str:
    """Part of the rows: as one test they would take long."""
    parts = row.route.split("/")
    return parts[3] if parts[1:3] == ["admin", "roster"] else parts[1]


GROUPS = sorted({group_of(row) for row in ROWS})


@pytest.mark.parametrize("group", GROUPS)
def test_nobody_but_those_of_the_table_may_and_nothing_of_others_is_told(world: World, group: str) -> None:
    """Each set of permissions that opens a row opens it; every permission but those does not."""
    people, broken = rights_world.People(world), []
    for row in (row for row in ROWS if group_of(row) == group):
        for who in people.everybody:
            for client in clients(row, who):
                broken += faults(row, who, client, world.ids, row.opens_for(who))
        for alternative in row.alternatives:
            who = people.with_permissions(alternative)
            broken += faults(row, who, clients(row, who)[-1], world.ids, True)
        for missing in map(set, product(*row.alternatives) if row.alternatives else ()):
            who = people.with_permissions(set(PERMISSIONS) - missing)
            broken += faults(row, who, clients(row, who)[-1], world.ids, False)
        for who, status in zip(people.narrowed, row.narrowed, strict=False):
            narrowed = Row(row.method, row.route, "known", frozenset([status]), frozenset())
            broken += faults(narrowed, who, clients(row, who)[-1], world.ids, True)
    assert not broken, "\n".join(broken)


def test_methods_without_a_row_give_nothing_that_get_does_not_give(world: World) -> None:
    people, broken = rights_world.People(world), []
    listed = {(row.method, row.route) for row in ROWS}
    of_get = {row.route: row for row in ROWS if row.method == "GET"}
    for route, method in product(dict.fromkeys(row.route for row in ROWS), METHODS):
        if (method, route) in listed or "login" in route or "logout" in route:
            continue
        for who in (people.nothing, people.anonymous) if method in ("POST", "DELETE") else (people.nothing,):
            client = who.token if not route.startswith("/admin") and who.token else who.session
            assert client is not None
            reply = ask(client, method, route, world.ids)
            leaked = sorted(word for word in reply.words() if not (who.is_known and who.may_read(word)))
            may_get = method == "OPTIONS" or (route in of_get and of_get[route].opens_for(who))
            if leaked or (reply.status >= 500 and route != "/readyz") or (reply.status < 300 and not may_get):
                broken.append(f"{method} {route} by {who.name}: {reply.status} {leaked}")
    assert not broken, "\n".join(broken)


def test_what_is_reserved_for_a_group_is_not_there_for_others_whatever_they_may(world: World) -> None:
    """Every route that names a row, with the rows of a member that is reserved; the user has every permission."""
    people, broken = rights_world.People(world), []
    for row in ROWS:
        if not ROWS_OF_A_MEMBER.search(row.route) or "/auth/" in row.route:
            continue
        for client in clients(row, people.full):
            reply = ask(client, row.method, row.route, world.hidden_ids)
            tool_page = row.route.endswith("/tools/<tool_name:tool>/invoke/")  # by names alone: 403 for any name
            if reply.status not in ((403, 404) if tool_page or not row.is_api else (404,)) and reply.status != 302:
                broken.append(f"{row.method} {row.route}: {reply.status}")
            if words := sorted(reply.words() - _own_address(row, reply, world)):
                broken.append(f"{row.method} {row.route} tells {words}")
    assert not broken, "\n".join(broken)


def _own_address(row: Row, reply: Reply, world: World) -> set[str]:
    """A refusal may repeat the names of its own address."""
    address = address_of(row.route, world.hidden_ids)
    return {
        word for word in ("word-of-hidden-member", "word-of-hidden-tool") if word in address and reply.status != 200
    }


def test_a_browser_without_the_csrf_token_changes_nothing(world: World) -> None:
    root, broken = rights_world.People(world).root, []
    assert root.session is not None
    browser = Client(enforce_csrf_checks=True, raise_request_exception=False)
    browser.cookies = root.session.cookies
    count = Call.objects.count()
    for row in ROWS:
        if row.method != "GET" and row.opened_by != "public":
            reply = ask(browser, row.method, row.route, world.ids)
            if reply.status != 403:
                broken.append(f"{row.method} {row.route}: {reply.status}")
    assert not broken, "\n".join(broken)
    assert Call.objects.count() == count


def test_so_many_requests_were_made() -> None:
    """The last one: how much the tests above tried in this process."""
    print(f"rights of the web: {tried:,} requests")
