"""What the MCP conformance suite finds in a server behind the hall's gateway (docs/conformance.md)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests

from tests.conformance import bearer, server_suite, suite
from tests.conformance.server_suite import EVERYTHING, MODERN, VERSIONS, Gateway, Unmet
from tests.conformance.suite import Outcome
from tests.conftest import eventually
from tests.support.member_process import free_port

pytestmark = pytest.mark.timeout(server_suite.RUN_SECONDS + 60)

# A member that speaks the one era, asked in the other: what cannot pass, by era and version, each with its reason.
# The tests print what is to be added or taken out.
UNDECLARED = "what a caller has declared is checked by the member, and this one goes by the session alone"
ONE_QUESTION = "a member with sessions asks one question after the other, and none of them has a name"
NO_EVENT_IDS = "streams of a modern member have no event ids: there is nothing to resume"
EXPECTED_FAILURES: dict[tuple[str, str], dict[Unmet, str]] = {
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
def everything(era: str) -> Iterator[str]:
    """The url of the everything server, straight."""
    port = free_port()
    process = subprocess.Popen([sys.executable, EVERYTHING, "--port", str(port), "--era", era])
    url = f"http://localhost:{port}/mcp"
    try:
        eventually(lambda: answers(url), within=30, what="the everything server answers")
        assert process.poll() is None
        yield url
    finally:
        process.terminate()
        process.wait(10)


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).status_code < 500
    except requests.ConnectionError:
        return False


@pytest.fixture(scope="module")
def straight(installed: None) -> Iterator[str]:
    with everything("both") as url:
        yield url


@pytest.fixture(scope="module")
def gateway(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with server_suite.gateway(tmp_path_factory.mktemp("hall")) as gateway:
        yield gateway


@pytest.mark.parametrize("version", VERSIONS)
def test_the_everything_server_passes(straight: str, version: str) -> None:
    found = server_suite.unmet(server_suite.run(straight, version), version)
    assert not found, server_suite.surprises(found, {})


def test_it_passes_behind_the_relay_that_adds_the_token(straight: str) -> None:
    with bearer.relay(urlsplit(straight).port or 0, "secret") as port:
        outcomes = server_suite.run(f"http://localhost:{port}/mcp", MODERN)
    found = server_suite.unmet(outcomes, MODERN)
    assert not found, server_suite.surprises(found, {})


@pytest.mark.parametrize("version", VERSIONS)
def test_the_everything_server_passes_behind_the_gateway(gateway: Gateway, version: str) -> None:
    found = server_suite.unmet(server_suite.run(gateway.url("both"), version), version)
    assert not found, server_suite.surprises(found, {})


@pytest.mark.parametrize(("era", "version"), EXPECTED_FAILURES)
def test_a_member_of_the_other_era_fails_only_what_is_expected(gateway: Gateway, era: str, version: str) -> None:
    found = server_suite.unmet(server_suite.run(gateway.url(era), version), version)
    difference = server_suite.surprises(found, EXPECTED_FAILURES[era, version])
    assert not difference, f"EXPECTED_FAILURES[{era!r}, {version!r}] is not what was found.\n{difference}"


@pytest.mark.parametrize(
    ("era", "version", "method", "code"),
    [
        ("handshake", MODERN, "server/discover", -32000),
        ("modern", "2025-11-25", "tools/list", -32022),
        ("modern", None, "initialize", -32022),
    ],
)
def test_a_server_of_one_era_turns_the_other_away(era: str, version: str | None, method: str, code: int) -> None:
    request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"protocolVersion": "2025-11-25"}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version}
    with everything(era) as url:
        answer = requests.post(url, json=request, headers=headers, timeout=10)
    assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (400, 7, code)


def test_the_demanded_checks_add_up_to_what_each_version_has() -> None:
    totals = {
        version: (str(suite.total(server_suite.DEMANDED[version])), str(suite.total(server_suite.SCORED[version])))
        for version in VERSIONS
    }
    assert totals == {
        "2025-06-18": ("56 passed", "56 passed"),
        "2025-11-25": ("84 passed", "70 passed"),
        "2026-07-28": ("152 passed", "120 passed"),
    }


def test_a_failure_that_is_new_and_one_that_is_gone_are_both_told() -> None:
    outcomes = {
        **server_suite.DEMANDED[MODERN],
        "tools-list": Outcome(3, failed=1, not_passed={"tools-list": "ToolsList: no tools"}),
        "caching": Outcome(7),
    }
    found = server_suite.unmet(outcomes, MODERN)
    told = server_suite.surprises(found, {("caching", "7 passed instead of 8"): "old", ("ping", "ping"): "old"})
    assert told.splitlines() == [
        "Expected failures to add, each with its reason:",
        '    ("tools-list", "tools-list"): "",  # ToolsList: no tools',
        "Expected, but passed; take out:",
        '    ("ping", "ping")',
    ]
    assert not server_suite.surprises(found, dict.fromkeys(found, "a reason"))
