"""Urls and headers of remote servers. The rules for manifests are in test_manifest.py."""

from __future__ import annotations

import pytest

from mcp_runtime.client import remote


@pytest.mark.parametrize(
    "url",
    [
        "https://mcp.example.com/",
        "http://localhost:8080/mcp",
        "http://LOCALHOST/",
        "http://127.0.0.1/",
        "http://127.8.9.10/",
        "http://[::1]:1/",
        "http://inside.example/",
        "http://Inside.Example./",
        "http://[fd00::1]/",
        "http://a.below.example/",
    ],
)
def test_https_this_machine_and_named_hosts_may_be_called(url: str) -> None:
    assert remote.url_fault(url) == ""
    assert remote.plain_http_fault(url, ["inside.EXAMPLE", "[fd00::1]", ".below.example"]) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example.com/",
        "http://127.0.0.1.example.com/",
        "http://localhost.example.com/",
        "http://10.0.0.1/",
        "http://0.0.0.0/",
        "http://2130706433/",
        "http://x.inside.example/",
        "http://inside.example.com/?inside.example",
        "http://below.example/",
    ],
)
def test_other_hosts_may_not_be_called_without_tls(url: str) -> None:
    assert remote.url_fault(url) == ""
    fault = remote.plain_http_fault(url, ["inside.example", ".below.example"])
    assert "https" in fault
    assert "GUILD_HALL_PLAIN_HTTP_HOSTS" in fault


def test_the_displayed_url_has_no_query() -> None:
    assert remote.display_url("https://mcp.example.com/mcp?team=blue") == "https://mcp.example.com/mcp"


@pytest.mark.parametrize(
    "name",
    [
        *("GUILD_HALL_ADMIN_PASSWORD", "DATABASE_URL", "REDIS_URL", "PGPASSWORD", "HOME", "GUILD_HALL_MEMBER"),
        *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "GUILD_HALL_MEMBERS_DIR"),
    ],
)
def test_headers_refer_only_to_variables_for_members(name: str) -> None:
    assert remote.header_fault("X-Key", f"${{env:{name}}}").startswith(f"{name} is not for members")
    assert remote.header_fault("X-Key", "${env:GUILD_HALL_MEMBER_KEY}") == ""
