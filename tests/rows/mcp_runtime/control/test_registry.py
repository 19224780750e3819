"""Questions to a registry on this machine, over real HTTP."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache

from mcp_runtime.client import exchanges
from mcp_runtime.control import proposals, registry
from mcp_runtime.control.registry import NAME
from mcp_runtime.protocol.errors import RegistryError, RequestRefusedError, SourceError, UnknownServerError
from mcp_runtime.sources.server_json import Filled
from roster.models import MemberProposal
from tests.support.registry import CLOCK, WEATHER, Registry, serve

SERVERS = "/v0.1/servers"


@pytest.fixture
def server(settings: Any) -> Iterator[Registry]:
    cache.clear()
    with serve() as running:
        settings.GUILD_HALL_REGISTRY_URL = running.url
        yield running


def refusal(question: Any) -> str:
    with pytest.raises(RegistryError) as caught:
        question()
    return str(caught.value)


def test_a_search_lists_the_newest_versions_with_what_they_need(server: Registry) -> None:
    (listed,) = registry.search("weather").servers
    assert (listed.name, listed.title, listed.version) == (WEATHER["name"], "Weather", "1.2.0")
    assert json.loads(listed.document) == WEATHER
    assert [way.number for way in listed.ways if not way.refusal] == [2, 4]
    assert "version=latest" in server.requests[0]


def test_a_list_goes_on_where_the_page_before_ended(server: Registry) -> None:
    server.page = 1
    first = registry.search("")
    assert [each.name for each in first.servers] == [CLOCK["name"]]
    second = registry.search("", first.cursor)
    assert [each.name for each in second.servers] == [WEATHER["name"]]
    assert second.cursor == ""


def test_all_versions_of_a_server_are_listed(server: Registry) -> None:
    assert [each.version for each in registry.versions(WEATHER["name"]).servers] == ["1.2.0", "1.1.0"]
    assert registry.find(WEATHER["name"], "1.1.0").version == "1.1.0"


def test_an_answer_is_remembered(server: Registry) -> None:
    registry.search("weather")
    registry.search("weather")
    registry.search("clock")
    assert len(server.requests) == 2


def test_a_fault_is_not_remembered(server: Registry) -> None:
    server.answers[SERVERS] = (500, b"")
    assert "HTTP 500" in refusal(lambda: registry.search("weather"))
    server.answers.clear()
    assert registry.search("weather").servers


def test_only_the_name_of_a_server_is_looked_up(server: Registry) -> None:
    assert json.loads(registry.resolve(f" {WEATHER['name']}@1.1.0 "))["version"] == "1.1.0"
    server.requests.clear()
    for text in ("npx -y thing", "https://a.example.com/mcp", "{}", "./io.github/x", "a/b", "io.github.anna/x y"):
        assert registry.resolve(text) == text
    assert server.requests == []


@pytest.mark.django_db
def test_the_name_of_a_server_is_proposed_with_its_values(server: Registry) -> None:
    filled = Filled(values={"folder": "/srv"})
    reading, (row,) = proposals.propose(WEATHER["name"], None, filled=filled)
    assert row.manifest["args"][-1] == "/srv"
    assert reading.source == row.source == f"server.json of {WEATHER['name']}"
    with pytest.raises(SourceError, match="folder: needs a value"):
        proposals.propose(WEATHER["name"], None, name="other")
    assert MemberProposal.objects.count() == 1


def test_an_unknown_server_is_said_to_be_unknown(server: Registry) -> None:
    for question in (lambda: registry.find("com.example/nothing"), lambda: registry.find(CLOCK["name"], "9")):
        with pytest.raises(UnknownServerError):
            question()
    with pytest.raises(UnknownServerError, match="such as"):
        registry.versions("../../etc")


def test_without_the_setting_nothing_is_asked(settings: Any) -> None:
    settings.GUILD_HALL_REGISTRY_URL = ""
    with pytest.raises(RequestRefusedError, match="GUILD_HALL_REGISTRY_URL"):
        registry.search("weather")


# A registry that lies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((302, b""), "HTTP 302"),
        ((200, b"<html>"), "something else than JSON"),
        ((200, b"[" * 100_000), "something else than JSON"),
        ((200, b"[]"), "something else than a JSON object"),
        ((200, b"{}"), "something else than a list"),
        ((200, b'{"servers": "' + b"x" * 2_000_001 + b'"}'), "larger than"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(server: Registry, answer: tuple[int, bytes], words: str) -> None:
    server.answers[SERVERS] = answer
    assert words in refusal(lambda: registry.search(""))
    assert len(server.requests) == 1  # no redirect was followed


def test_another_server_than_the_one_asked_for_is_refused(server: Registry) -> None:
    server.servers[WEATHER["name"]] = [CLOCK]
    assert "something else" in refusal(lambda: registry.find(WEATHER["name"]))


def test_entries_with_faults_do_not_hide_the_others(server: Registry) -> None:
    rows = [5, {"server": 5}, {"server": {"name": "com.example/x", "packages": 5}}, {"server": CLOCK}]
    rows.append({"server": {**CLOCK, "name": "com.example/y", "packages": [{"identifier": 5}], "title": "a\x1b[31m"}})
    server.answers[SERVERS] = (200, json.dumps({"servers": rows, "metadata": {"nextCursor": 5}}).encode())
    page = registry.search("")
    assert [each.name for each in page.servers] == ["com.example/x", CLOCK["name"], "com.example/y"]
    assert [bool(each.fault) for each in page.servers] == [True, False, True]
    assert "\x1b" not in page.servers[2].title
    assert page.cursor == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "acme/weather"},
        {"version": ""},
        {"version": "1 2"},
        {"title": "\ud800", "description": "\ud800", "version": "\ud800"},
        {"_meta": json.loads("[" * 500 + "]" * 500)},
        {"packages": [{"registryType": "npm", "identifier": "\ud800"}]},
    ],
)
def test_a_server_with_a_strange_entry_is_listed_with_its_fault(server: Registry, changes: dict[str, Any]) -> None:
    server.servers["com.example/clock"] = [{**CLOCK, **changes}]
    (listed,) = registry.search("clock").servers
    assert listed.fault or all(way.refusal for way in listed.ways)
    repr(listed).encode()  # it can be shown
    assert registry.search("weather").servers


def test_what_is_listed_without_a_fault_can_be_looked_up_under_its_name(server: Registry) -> None:
    for listed in registry.search("").servers:
        assert not listed.fault
        assert registry.resolve(f"{listed.name}@{listed.version}") == listed.document


def test_a_registry_that_never_answers_ends_at_the_deadline(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    monkeypatch.setattr(registry, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings.GUILD_HALL_REGISTRY_URL = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert "cannot be reached" in refusal(lambda: registry.search(""))


def test_more_questions_at_once_than_the_bound_are_refused(server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = []

    def fetch(url: str) -> bytes:
        if url.endswith("=outer"):
            refusals.append(refusal(lambda: registry.search("inner")))
        return b'{"servers": []}'

    monkeypatch.setattr(registry, "at_once", threading.BoundedSemaphore(1))
    monkeypatch.setattr(registry, "fetch", fetch)
    registry.search("outer")
    assert ["several questions already" in text for text in refusals] == [True]
    assert registry.search("inner").servers == ()  # the place is free again


# Its address ------------------------------------------------------------------------------------------------------


def resolve_to(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """All names have this address."""
    row = (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 1))
    monkeypatch.setattr(exchanges, "look_up", lambda host, port, timeout: [row])


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "fe80::1", "224.0.0.1"]
)
def test_a_name_with_an_address_of_this_machine_or_its_cloud_is_not_connected_to(
    settings: Any, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    cache.clear()
    settings.GUILD_HALL_REGISTRY_URL = "https://registry.example.com"
    resolve_to(monkeypatch, address)
    assert "may not be asked" in refusal(lambda: registry.search(""))


def test_another_machine_is_not_asked_in_clear(settings: Any) -> None:
    settings.GUILD_HALL_REGISTRY_URL = "http://registry.example.com"
    assert "use https" in refusal(lambda: registry.search(""))


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("io.github.anna/weather", True),
        ("com.example/a.b_c@1.0.0+build", True),
        ("anna/weather", False),
        ("@anna/weather", False),
        ("io.github.anna/a/b", False),
        ("io.github.anna/", False),
    ],
)
def test_names_of_servers_are_told_from_other_sources(text: str, is_name: bool) -> None:
    assert (NAME.fullmatch(text) is not None) is is_name
