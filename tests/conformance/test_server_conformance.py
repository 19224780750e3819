"""The MCP conformance suite against a server behind the hall's gateway (docs/conformance.md)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests

from tests.conformance import bearer, server_suite, suite
from tests.conformance.server_suite import EVERYTHING, MODERN, VERSIONS, Gateway, UnmetCheck
from tests.conformance.suite import Outcome
from tests.conftest import eventually
from tests.support.member_process import free_port

pytestmark = pytest.mark.timeout(server_suite.RUN_SECONDS + 60)

# The checks that cannot pass if a member has another era than the client, by era and version, each with its reason.
# The tests print the lines to add or to remove.
UNDECLARED = "what a caller has declared is checked by the member, and this one goes by the session alone"
ONE_QUESTION = "a member with sessions asks one question after the other, and none of them has a name"
NO_EVENT_IDS = "streams of a modern member have no event ids: there is nothing to resume"
EXPECTED_FAILURES: dict[tuple[str, str], dict[UnmetCheck, str]] = {
    ("handshake", MODERN): {
        ("server-stateless", "sep-2575-server-rejects-undeclared-capability"): UNDECLARED,
        ("server-stateless", "sep-2575-missing-capability-http-400"): UNDECLARED,
        ("input-required-result-basic-elicitation", "sep-2322-elicitation-incomplete"): ONE_QUESTION,
        ("input-required-result-multiple-input-requests", "sep-2322-multiple-inputs-incomplete"): ONE_QUESTION,
        ("input-required-result-ignore-extra-params", "sep-2322-ignore-unexpected-params"): ONE_QUESTION,
    },
    ("modern", "2025-11-25"): {
        ("server-sse-polling", "0 passed instead of 3"): NO_EVENT_IDS,
        ("server-sse-multiple-streams", "1 passed instead of 2"): NO_EVENT_IDS,
    },
    ("modern", "2025-06-18"): {},
}


@contextlib.contextmanager
def run_everything_server(era: str) -> Iterator[str]:
    """Run the everything server, without a hall. Yields its URL."""
    port = free_port()
    process = subprocess.Popen([sys.executable, EVERYTHING, "--port", str(port), "--era", era])
    url = f"http://localhost:{port}/mcp"
    try:
        eventually(lambda: responds(url), within=30, what="the everything server responds")
        assert process.poll() is None
        yield url
    finally:
        process.terminate()
        process.wait(10)


def responds(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).status_code < 500
    except requests.ConnectionError:
        return False


@pytest.fixture(scope="module")
def direct_url(require_suite: None) -> Iterator[str]:
    with run_everything_server("both") as url:
        yield url


@pytest.fixture(scope="module")
def gateway(require_suite: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with server_suite.gateway(tmp_path_factory.mktemp("hall")) as gateway:
        yield gateway


@pytest.mark.parametrize("version", VERSIONS)
def test_the_everything_server_passes(direct_url: str, version: str) -> None:
    unmet = server_suite.unmet_checks(server_suite.run(direct_url, version), version)
    assert not unmet, server_suite.differences(unmet, {})


def test_the_everything_server_passes_behind_the_relay(direct_url: str) -> None:
    with bearer.relay(urlsplit(direct_url).port or 0, "secret") as port:
        outcomes = server_suite.run(f"http://localhost:{port}/mcp", MODERN)
    unmet = server_suite.unmet_checks(outcomes, MODERN)
    assert not unmet, server_suite.differences(unmet, {})


@pytest.mark.parametrize("version", VERSIONS)
def test_the_everything_server_passes_behind_the_gateway(gateway: Gateway, version: str) -> None:
    unmet = server_suite.unmet_checks(server_suite.run(gateway.url("both"), version), version)
    assert not unmet, server_suite.differences(unmet, {})


@pytest.mark.parametrize(("era", "version"), EXPECTED_FAILURES)
def test_a_member_of_the_other_era_fails_only_what_is_expected(gateway: Gateway, era: str, version: str) -> None:
    unmet = server_suite.unmet_checks(server_suite.run(gateway.url(era), version), version)
    difference = server_suite.differences(unmet, EXPECTED_FAILURES[era, version])
    assert not difference, f"EXPECTED_FAILURES[{era!r}, {version!r}] is not what was found.\n{difference}"


@pytest.mark.parametrize(
    ("era", "version", "method", "code"),
    [
        ("handshake", MODERN, "server/discover", -32000),
        ("modern", "2025-11-25", "tools/list", -32022),
        ("modern", None, "initialize", -32022),
    ],
)
def test_a_server_of_one_era_rejects_clients_of_the_other_era(
    era: str, version: str | None, method: str, code: int
) -> None:
    request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"protocolVersion": "2025-11-25"}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version}
    with run_everything_server(era) as url:
        response = requests.post(url, json=request, headers=headers, timeout=10)
    assert (response.status_code, response.json()["id"], response.json()["error"]["code"]) == (400, 7, code)


def test_the_demanded_checks_have_the_totals_of_each_version() -> None:
    totals = {
        version: (str(suite.total(server_suite.DEMANDED[version])), str(suite.total(server_suite.SCORED[version])))
        for version in VERSIONS
    }
    assert totals == {
        "2025-06-18": ("56 passed", "56 passed"),
        "2025-11-25": ("84 passed", "70 passed"),
        "2026-07-28": ("152 passed", "120 passed"),
    }


def test_new_failures_and_outdated_expectations_are_both_reported() -> None:
    outcomes = {
        **server_suite.DEMANDED[MODERN],
        "tools-list": Outcome(3, failed=1, not_passed={"tools-list": "ToolsList: no tools"}),
        "caching": Outcome(7),
    }
    unmet = server_suite.unmet_checks(outcomes, MODERN)
    text = server_suite.differences(unmet, {("caching", "7 passed instead of 8"): "old", ("ping", "ping"): "old"})
    assert text.splitlines() == [
        "Expected failures to add, each with its reason:",
        '    ("tools-list", "tools-list"): "",  # ToolsList: no tools',
        "Expected, but passed; take out:",
        '    ("ping", "ping")',
    ]
    assert not server_suite.differences(unmet, dict.fromkeys(unmet, "a reason"))
