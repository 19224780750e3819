"""Which hosts belong to the hall, and which pages may send requests to it."""

from __future__ import annotations

import pytest

from mcp_runtime.security.origins import Origins

HOSTS = ["127.0.0.1", "hall.example"]


def fault(**headers: str) -> str:
    all_headers = {"host": "127.0.0.1:8100", **{name.replace("_", "-"): value for name, value in headers.items()}}
    origins = Origins(HOSTS, ["http://trusted.example"])
    return origins.fault(all_headers["host"], all_headers.get("origin"), all_headers.get("sec-fetch-site"))


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
def test_programs_and_the_halls_own_pages_are_allowed(headers: dict[str, str]) -> None:
    assert fault(**headers) == ""


@pytest.mark.parametrize(
    ("headers", "message"),
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
def test_other_hosts_and_pages_are_refused(headers: dict[str, str], message: str) -> None:
    assert message in fault(**headers)
