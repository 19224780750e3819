"""The permissions at every route of the web: the table must fit the routes, and no response may contain data of others.

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
from roster.models import Call, Hall
from tests.attack import rights_world
from tests.attack.rights_table import OWN_ROWS, ROWS, Row
from tests.attack.rights_world import PERMISSIONS, WORDS, Who, World

pytestmark = pytest.mark.django_db

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD")
SAFE = ("GET", "HEAD", "OPTIONS")
ROWS_OF_A_MEMBER = re.compile(r"<[^>]*(_id|name|pk)>")
# Values for the parameters of routes that are not ids of rows.
WORDS_OF_ROUTES = {"verb": "stop", "form": "jsonl", "content_type_id": "1", "part": "activity", "node": "main"} | {
    "file": "result",
    "secret": "word-of-secret-name",
    "proposal": "word-of-proposal",
    "tool_set": "writing",
    "issuer_path": "nowhere",
}
PARTS = {"agent": "transcript", "token": "use"}
# Without these there is nothing to see.
QUERIES = {
    "/prompt/": "?name=greet",
    "/resource/": "?uri=file:///a",
    "/template/": "?template=file:///{b}",
    "/api/agent-config/": "?for=cursor",
}
BODIES = {
    "/api/agent-config/": {"for": "cursor"},
    "/api/agents/": {"members": ["notes"]},
    "/api/agents/<int:pk>/messages/": {"prompt": "hello"},
    "/api/members/<str:name>/move/": {"node": "main"},
    "/api/members/<str:name>/contracts/approve/": {"all": True},
    "/api/members/<str:name>/groups/": {"groups": []},
    "/api/members/<str:name>/": {"manifest": {"timeout": 7}},
    "/api/members/": {"source": "npx -y word-of-source"},
    **{
        f"/api/members/<str:name>/{noun}/{verb}/": body
        for noun, verbs, body in (
            ("prompts", ("get", "enable", "disable"), {"name": "greet"}),
            ("prompts", ("complete",), {"name": "greet", "argument": "a"}),
            ("resources", ("read", "watch", "enable", "disable"), {"uri": "file:///a"}),
            ("resource-templates", ("enable", "disable"), {"uri_template": "file:///{b}"}),
            ("resource-templates", ("complete",), {"uri_template": "file:///{b}", "argument": "b"}),
        )
        for verb in verbs
    },
    "/api/proposals/<str:proposal>/approve/": {"digest": "0" * 63},
}


def routes(resolver: URLResolver | None = None, prefix: str = "/") -> Iterator[str]:
    for entry in (resolver or get_resolver()).url_patterns:
        if isinstance(entry, URLResolver):
            yield from routes(entry, prefix + str(entry.pattern))
        else:
            yield prefix + str(entry.pattern)


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    """A new route needs a decision. Write down who may use it."""
    table_routes = {row.route for row in ROWS}
    all_routes = set(routes()) | {"/api/(nowhere)"}  # it has the pattern of /api/ itself
    assert sorted(all_routes - table_routes) == []
    assert sorted(table_routes - all_routes) == []


# Asking -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path / "members"
    settings.GUILD_HALL_MEMBERS_DIR.mkdir()
    monkeypatch.setattr(principals, "TOUCH_SECONDS", 600.0)  # also on a slow machine only the first use writes
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
        return WORDS_OF_ROUTES[name] if name in WORDS_OF_ROUTES else str(ids[name])

    path = route.replace("^(?P<app_label>roster|auth)/$", "roster/").replace("(?P<url>.*)$", "nowhere/")
    address = re.sub(r"<([^>]+)>", value, path).replace("(nowhere)", "nowhere/")
    if route.endswith("/compare/"):
        return f"{address}?left={ids['call']}&right={ids['call']}"
    return address + next((query for end, query in QUERIES.items() if route.endswith(end)), "")


@dataclass(frozen=True)
class ResponseSummary:
    status: int
    text: str  # body and headers
    leads_to_login: bool

    def words(self) -> set[str]:
        return {word for word in WORDS if word in self.text}


request_count = 0


def ask(client: Client, method: str, route: str, ids: dict[str, Any]) -> ResponseSummary:
    """The response. Everything that the request changed is rolled back."""
    global request_count
    request_count += 1
    cookies, savepoint = client.cookies.copy(), transaction.savepoint()
    try:
        json_body = {"data": BODIES.get(route, {}), "content_type": "application/json"}
        options = json_body if route.startswith("/api/") and method not in SAFE else {}
        response: Any = getattr(client, method.lower())(address_of(route, ids), **options)
        body = b"".join(response.streaming_content) if response.streaming else response.content
        leads_to_login = "login" in response.headers.get("Location", "")
        return ResponseSummary(response.status_code, f"{response.headers}\n{body.decode()}", leads_to_login)
    finally:
        version = principals.version() or ""
        transaction.savepoint_rollback(savepoint)
        if principals.version() != version:  # no later version may be the one of a snapshot whose rows were rolled back
            Hall.objects.update(access_version=int(version.rpartition(":")[2]) + 1)
        client.cookies = cookies


def find_faults(row: Row, principal: Who, client: Client, ids: dict[str, Any], is_allowed: bool) -> list[str]:
    response = ask(client, row.method, row.route, ids)
    request = f"{row.method} {row.route} by {principal.name}: {response.status}"
    leaks = sorted(word for word in response.words() if not (principal.is_known and principal.may_read(word)))
    problems = [f"{request} shows {leaks}"] if leaks else []
    if principal.is_known or row.opened_by == "public":
        expected = row.statuses_if_allowed if is_allowed else row.statuses_if_denied
        if response.status not in expected or (response.leads_to_login and "login" not in row.route):
            problems.append(f"{request}, not {sorted(expected)}")
    elif row.is_api and row.route != "/api/docs/":
        problems += [] if response.status == 401 else [f"{request}, not 401"]
    elif not ((response.status == 302 and response.leads_to_login) or response.status == 401 or "logout" in row.route):
        problems.append(f"{request}, not sent to the login")
    return problems


def clients_for(row: Row, principal: Who) -> list[Client]:
    """The clients of a principal: one with a session, and for the API also one with a token."""
    return [client for client in (principal.session, principal.token if row.is_api else None) if client is not None]


def group_of(row: Row) -> str:
    """One part of the rows. A test of all rows would take long."""
    parts = row.route.split("/")
    if parts[1:3] == ["admin", "roster"]:
        return parts[3]
    return "api/members" if parts[1:3] == ["api", "members"] else parts[1]


GROUPS = sorted({group_of(row) for row in ROWS})


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.usefixtures("several_nodes")
def test_only_principals_of_the_table_are_allowed_and_no_data_of_others_is_shown(world: World, group: str) -> None:
    """Each set of permissions that opens a row opens it. All other permissions together do not."""
    people, problems = rights_world.People(world), []
    for row in (row for row in ROWS if group_of(row) == group):
        for principal in people.everybody:
            for client in clients_for(row, principal):
                problems += find_faults(row, principal, client, world.ids, row.opens_for(principal))
        for alternative in row.alternatives:
            principal = people.with_permissions(alternative)
            problems += find_faults(row, principal, clients_for(row, principal)[-1], world.ids, True)
        for missing in map(set, product(*row.alternatives) if row.alternatives else ()):
            principal = people.with_permissions(set(PERMISSIONS) - missing)
            problems += find_faults(row, principal, clients_for(row, principal)[-1], world.ids, False)
        for principal, status in zip(people.narrowed, row.narrowed, strict=False):
            narrow_row = Row(row.method, row.route, "known", frozenset([status]), frozenset())
            problems += find_faults(narrow_row, principal, clients_for(row, principal)[-1], world.ids, True)
    assert not problems, "\n".join(problems)


@pytest.mark.usefixtures("several_nodes")
def test_each_role_may_do_with_its_own_rows_what_the_table_says(world: World, tmp_path: Path) -> None:
    """Its own calls, tokens, agents and presets, and a user and a group without rights."""
    people, problems = rights_world.People(world), []
    assert {(row.method, row.route) for row in OWN_ROWS} <= {(row.method, row.route) for row in ROWS}
    for principal in people.with_all_rights_of_roles:
        ids = rights_world.own_ids(principal, tmp_path)
        for row in OWN_ROWS:
            for client in clients_for(row, principal):
                response = ask(client, row.method, row.route, ids)
                expected = row.statuses_if_allowed if row.opens_for(principal) else row.statuses_if_denied
                if response.status not in expected:
                    problems.append(f"{row.method} {row.route} by {principal.name}: {response.status}, not {expected}")
    assert not problems, "\n".join(problems)


@pytest.mark.usefixtures("several_nodes")
def test_own_rows_open_nothing_that_is_not_in_the_table(world: World, tmp_path: Path) -> None:
    people, problems = rights_world.People(world), []
    own_rows = {(row.method, row.route) for row in OWN_ROWS}
    for principal in people.with_all_rights_of_roles:
        ids = rights_world.own_ids(principal, tmp_path)
        for row in ROWS:
            if row.opens_for(principal) or (row.method, row.route) in own_rows:
                continue
            for client in clients_for(row, principal):
                response = ask(client, row.method, row.route, ids)
                if response.status not in row.statuses_if_denied:
                    problems.append(f"{row.method} {row.route} by {principal.name}: {response.status}")
    assert not problems, "\n".join(problems)


def test_methods_without_a_row_show_nothing_that_get_does_not_show(world: World) -> None:
    people, problems = rights_world.People(world), []
    rows = {(row.method, row.route) for row in ROWS}
    get_rows = {row.route: row for row in ROWS if row.method == "GET"}
    for route, method in product(dict.fromkeys(row.route for row in ROWS), METHODS):
        if (method, route) in rows or "login" in route or "logout" in route:
            continue
        for principal in (people.nothing, people.anonymous) if method in ("POST", "DELETE") else (people.nothing,):
            client = principal.token if not route.startswith("/admin") and principal.token else principal.session
            assert client is not None
            response = ask(client, method, route, world.ids)
            leaks = sorted(word for word in response.words() if not (principal.is_known and principal.may_read(word)))
            may_get = method == "OPTIONS" or (route in get_rows and get_rows[route].opens_for(principal))
            if leaks or (response.status >= 500 and route != "/readyz") or (response.status < 300 and not may_get):
                problems.append(f"{method} {route} by {principal.name}: {response.status} {leaks}")
    assert not problems, "\n".join(problems)


def test_a_reserved_member_does_not_exist_for_users_outside_its_groups(world: World) -> None:
    """Every route that names a row, with the rows of a reserved member. The user has every permission."""
    people, problems = rights_world.People(world), []
    for row in ROWS:
        if not ROWS_OF_A_MEMBER.search(row.route) or re.search("/(auth|node|secret)/", row.route):
            continue
        for client in clients_for(row, people.full):
            response = ask(client, row.method, row.route, world.hidden_ids)
            tool_page = row.route.endswith("/tools/<tool_name:tool>/invoke/")  # by names alone: 403 for any name
            if (
                response.status not in ((403, 404) if tool_page or not row.is_api else (404,))
                and response.status != 302
            ):
                problems.append(f"{row.method} {row.route}: {response.status}")
            if words := sorted(response.words() - _own_address(row, response, world)):
                problems.append(f"{row.method} {row.route} shows {words}")
    assert not problems, "\n".join(problems)


def _own_address(row: Row, response: ResponseSummary, world: World) -> set[str]:
    """A refusal may repeat the names of its own address."""
    address = address_of(row.route, world.hidden_ids)
    return {
        word for word in ("word-of-hidden-member", "word-of-hidden-tool") if word in address and response.status != 200
    }


def test_a_browser_without_the_csrf_token_changes_nothing(world: World) -> None:
    root, problems = rights_world.People(world).root, []
    assert root.session is not None
    browser = Client(enforce_csrf_checks=True, raise_request_exception=False)
    browser.cookies = root.session.cookies
    count = Call.objects.count()
    for row in ROWS:
        if row.method != "GET" and row.opened_by != "public":
            response = ask(browser, row.method, row.route, world.ids)
            if response.status != 403:
                problems.append(f"{row.method} {row.route}: {response.status}")
    assert not problems, "\n".join(problems)
    assert Call.objects.count() == count


def test_the_number_of_requests_is_printed() -> None:
    """The last test. It prints how many requests the tests above sent in this process."""
    print(f"rights of the web: {request_count:,} requests")
