"""The addresses that the hall shows to people."""

from __future__ import annotations

from typing import Any

import pytest

from roster.addresses import address_of_member, address_of_tool_set, gateway_address, web_address


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({}, "http://localhost:8000"),
        ({"GUILD_HALL_HOST": "0.0.0.0"}, "http://localhost:8000"),
        ({"GUILD_HALL_HOST": "fd00::1", "GUILD_HALL_PORT": 8080}, "http://[fd00::1]:8080"),
        ({"GUILD_HALL_HOST": "hall.example.com"}, "http://hall.example.com:8000"),
        ({"GUILD_HALL_WEB_URL": "https://example.com/hall"}, "https://example.com/hall"),
    ],
)
def test_the_address_of_the_web_comes_from_the_settings(settings: Any, values: dict[str, object], address: str) -> None:
    for name, value in values.items():
        setattr(settings, name, value)
    assert web_address() == address


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({}, "http://localhost:8100"),
        ({"GUILD_HALL_HOST": "0.0.0.0", "GUILD_HALL_GATEWAY_PORT": 9100}, "http://localhost:9100"),
        ({"GUILD_HALL_HOST": "hall.example.com"}, "http://hall.example.com:8100"),
        ({"GUILD_HALL_GATEWAY_URL": "https://gateway.example.com"}, "https://gateway.example.com"),
    ],
)
def test_addresses_at_the_gateway_come_from_the_settings(
    settings: Any, values: dict[str, object], address: str
) -> None:
    for name, value in values.items():
        setattr(settings, name, value)
    assert gateway_address() == address
    assert address_of_member("notes") == f"{address}/mcp/notes"
    assert address_of_tool_set("writing") == f"{address}/sets/writing/mcp"
