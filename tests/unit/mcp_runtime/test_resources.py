from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.security import resources


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        ("http://localhost:8100", "/mcp"),
        ("http://localhost:8100/", "/mcp"),
        ("http://localhost:8100/mcp", "/mcp"),
        ("http://localhost:8100/mcp/", "/mcp"),
        ("http://127.0.0.1:8100/mcp/notes", "/mcp/notes"),
        ("http://[::1]:8100/sets/writing/mcp", "/sets/writing/mcp"),
        ("http://localhost:8100/agents/7/mcp", "/agents/7/mcp"),
        ("http://localhost:8100/events", None),
        ("http://localhost:8100/mcp?x", None),
        ("http://localhost:81001/mcp", None),
        ("https://localhost:8100/mcp", None),
        ("http://evil.example/mcp", None),
        ("", None),
    ],
)
def test_a_local_gateway_is_known_by_its_names_on_its_machine(resource: str, path: str | None) -> None:
    assert resources.path_of(resource) == path


def test_a_gateway_with_a_setting_is_known_by_this_address_alone(settings: Any) -> None:
    settings.GUILD_HALL_GATEWAY_URL = "https://gateway.example.com/hall"
    assert resources.path_of("https://gateway.example.com/hall/mcp/notes") == "/mcp/notes"
    for other in (
        "http://localhost:8100/mcp",
        "https://gateway.example.com/mcp",
        "https://gateway.example.com/hallo/mcp",
    ):
        assert resources.path_of(other) is None
    for host in ("gateway.example.com", "localhost:8100", "evil.example"):
        assert resources.metadata_of("/mcp", host)["resource"] == "https://gateway.example.com/hall/mcp"
    metadata = "https://gateway.example.com/hall/.well-known/oauth-protected-resource/mcp/notes"
    challenge = f'resource_metadata="{metadata}", scope="mcp"'
    assert resources.challenge_of("/mcp/notes", "evil.example") == challenge


def test_a_path_that_is_no_address_is_told_about_the_whole_gateway() -> None:
    for path in ('/mcp/"', "/mcp/a/b", "/x", "/mcp/a\r\nSet-Cookie: b"):
        assert '/.well-known/oauth-protected-resource/mcp", scope' in resources.challenge_of(path, "localhost:8100")


@pytest.mark.parametrize(
    ("values", "is_on"),
    [
        ({}, True),
        ({"GUILD_HALL_SIGN_IN": 0}, False),
        ({"GUILD_HALL_WEB_URL": "https://hall.example", "GUILD_HALL_GATEWAY_URL": "https://gate.example"}, True),
        ({"GUILD_HALL_WEB_URL": "http://hall.example", "GUILD_HALL_GATEWAY_URL": "https://gate.example"}, False),
        ({"GUILD_HALL_WEB_URL": "https://hall.example", "GUILD_HALL_GATEWAY_URL": "http://gate.example"}, False),
        ({"GUILD_HALL_WEB_URL": "http://localhost.evil.example:80"}, False),
        ({"GUILD_HALL_WEB_URL": "http://127.0.0.1:9000", "GUILD_HALL_GATEWAY_URL": "http://[::1]:9100"}, True),
        ({"GUILD_HALL_HOST": "10.0.0.5"}, False),
    ],
)
def test_sign_in_is_off_where_codes_would_travel_in_clear(settings: Any, values: dict[str, Any], is_on: bool) -> None:
    for name, value in values.items():
        setattr(settings, name, value)
    assert resources.is_sign_in_on() is is_on


def test_a_resource_covers_itself_and_the_whole_gateway_covers_all() -> None:
    assert resources.covers("", "/mcp/notes")
    assert resources.covers("/mcp", "/sets/a/mcp")
    assert resources.covers("/mcp/notes", "/mcp/notes/")
    for path in ("/mcp", "/mcp/notes2", "/mcp/note", "/sets/notes/mcp", "/events", ""):
        assert not resources.covers("/mcp/notes", path)
