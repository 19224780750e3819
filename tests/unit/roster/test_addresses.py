"""The addresses that the hall shows to people."""

from __future__ import annotations

from typing import Any

import pytest

from roster.addresses import web_address


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
