"""Which hosts are the hall's, and which pages may ask it."""

from __future__ import annotations

import pytest

from mcp_runtime.security.origins import Origins

HOSTS = ["127.0.0.1", "hall.example"]


def fault(**headers: str) -> str:
    named = {"host": "127.0.0.1:8100", **{name.replace("_", "-"): value for name, value in headers.items()}}
    origins = Origins(HOSTS, ["http://trusted.example"])
    return origins.fault(named["host"], named.get("origin"), named.get("sec-fetch-site"))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "hall.example"},
        {"origin": "http://127.0.0.1:8100"},
        {"origin": "http://trusted.example", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-origin"},
    ],
)
def test_programs_and_the_halls_own_pages_may_ask(headers: dict[str, str]) -> None:
    assert fault(**headers) == ""


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"host": "evil.example"}, "Host 'evil.example' is not one of the hall's"),
        ({"host": ""}, "Host '' is not one of the hall's"),
        ({"host": "127.0.0.1:0"}, "is not one of the hall's"),
        ({"host": "127.0.0.1:65536"}, "is not one of the hall's"),
        ({"host": "127.0.0.1:99999999"}, "is not one of the hall's"),
        ({"host": f"127.0.0.1:{'9' * 5000}"}, "is not one of the hall's"),
        ({"origin": "http://evil.example"}, "Origin 'http://evil.example' is not allowed here"),
        ({"origin": "http://127.0.0.1:9"}, "is not allowed here"),
        ({"origin": "null"}, "is not allowed here"),
        ({"origin": "http://["}, "is not allowed here"),
        ({"origin": "http://127.0.0.1:8100/x"}, "is not allowed here"),
        ({"sec_fetch_site": "cross-site"}, "A page of another site"),
    ],
)
def test_pages_from_elsewhere_may_not(headers: dict[str, str], said: str) -> None:
    assert said in fault(**headers)
