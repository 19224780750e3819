"""The checks of the MCP conformance suite for servers, and runs against a server, directly or behind a gateway."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.conformance import bearer, suite
from tests.conformance.suite import Outcome
from tests.conftest import eventually
from tests.support.hall import Hall
from tests.support.nodes import Machine

EVERYTHING = suite.FOLDER / "everything.py"
# The members of the hall, by their era.
MEMBERS = {"both": "everything", "handshake": "everything-handshake", "modern": "everything-modern"}
MODERN = "2026-07-28"
VERSIONS = ("2025-06-18", "2025-11-25", MODERN)
SCENARIO_SECONDS = 15
RUN_SECONDS = 120

# The number of checks that a server passes in each scenario, at each version. 0 if the scenario does not apply.
CHECKS = {
    "server-initialize": (3, 3, 0),
    "server-session-lifecycle": (3, 3, 0),
    "logging-set-level": (2, 2, 0),
    "ping": (2, 2, 0),
    "completion-complete": (2, 2, 2),
    "tools-list": (2, 3, 4),
    "tools-call-simple-text": (2, 2, 2),
    "tools-call-image": (2, 2, 2),
    "tools-call-audio": (2, 2, 2),
    "tools-call-embedded-resource": (2, 2, 2),
    "tools-call-mixed-content": (2, 2, 2),
    "tools-call-with-logging": (2, 2, 0),
    "tools-call-error": (2, 2, 2),
    "tools-call-with-progress": (2, 2, 2),
    "tools-call-sampling": (2, 2, 0),
    "tools-call-elicitation": (2, 2, 0),
    "json-schema-2020-12": (0, 8, 8),
    "elicitation-sep1034-defaults": (0, 6, 0),
    "server-sse-polling": (0, 3, 0),
    "server-sse-multiple-streams": (0, 2, 1),
    "elicitation-sep1330-enums": (0, 6, 0),
    "resources-list": (2, 2, 2),
    "resources-read-text": (2, 2, 2),
    "resources-read-binary": (2, 2, 2),
    "resources-templates-read": (2, 2, 2),
    "resources-subscribe": (2, 2, 0),
    "resources-unsubscribe": (2, 2, 0),
    "prompts-list": (2, 2, 2),
    "prompts-get-simple": (2, 2, 2),
    "prompts-get-with-args": (2, 2, 2),
    "prompts-get-embedded-resource": (2, 2, 2),
    "prompts-get-with-image": (2, 2, 2),
    "dns-rebinding-protection": (0, 2, 2),
    "server-stateless": (0, 0, 30),
    "sep-2164-resource-not-found": (0, 0, 4),
    "caching": (0, 0, 8),
    "http-header-validation": (0, 0, 14),
    "http-custom-header-server-validation": (0, 0, 10),
    "input-required-result-basic-elicitation": (0, 0, 3),
    "input-required-result-basic-sampling": (0, 0, 3),
    "input-required-result-basic-list-roots": (0, 0, 3),
    "input-required-result-request-state": (0, 0, 3),
    "input-required-result-multiple-input-requests": (0, 0, 3),
    "input-required-result-multi-round": (0, 0, 4),
    "input-required-result-missing-input-response": (0, 0, 2),
    "input-required-result-non-tool-request": (0, 0, 3),
    "input-required-result-result-type": (0, 0, 2),
    "input-required-result-unsupported-methods": (0, 0, 2),
    "input-required-result-tampered-state": (0, 0, 2),
    "input-required-result-capability-check": (0, 0, 2),
    "input-required-result-ignore-extra-params": (0, 0, 2),
    "input-required-result-validate-input": (0, 0, 3),
}
DEMANDED = {
    version: {scenario: Outcome(counts[index]) for scenario, counts in CHECKS.items() if counts[index]}
    for index, version in enumerate(VERSIONS)
}
# Scenarios that the suite's requirements/*.yaml do not score, because they are newer than the version, or because the
# suite's own server fails them. 2025-06-18 has no such file, so all scenarios that apply count.
NOT_SCORED = {
    "2025-06-18": frozenset[str](),
    "2025-11-25": frozenset({"server-session-lifecycle", "json-schema-2020-12", "server-sse-polling"}),
    MODERN: frozenset({"json-schema-2020-12", "http-header-validation", "http-custom-header-server-validation"}),
}
SCORED = {
    version: {scenario: outcome for scenario, outcome in demanded.items() if scenario not in NOT_SCORED[version]}
    for version, demanded in DEMANDED.items()
}

# A check of a scenario that does not pass.
UnmetCheck = tuple[str, str]
_RESULT_FOLDER = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT")


def run(url: str, version: str, scenario: str | None = None) -> dict[str, Outcome]:
    """Run all scenarios of a version, or one, against the server at `url`, one after the other, in a few seconds."""
    scenarios = [scenario] if scenario else list(DEMANDED[version])
    selection = ("--scenario", scenario) if scenario else ("--suite", "all")
    limits = ("--spec-version", version, "--timeout", str(SCENARIO_SECONDS * 1000))
    with tempfile.TemporaryDirectory(prefix="conformance-") as results:
        exit_code, output = suite.execute(
            "server", "--url", url, *selection, *limits, "--output-dir", results, timeout=RUN_SECONDS
        )
        outcomes = {
            _scenario(checks_file): suite.outcome_of(checks_file)
            for checks_file in Path(results).glob("server-*/checks.json")
        }
    return {**{name: suite.no_results(exit_code, output) for name in scenarios}, **outcomes}


def _scenario(checks_file: Path) -> str:
    match = _RESULT_FOLDER.match(checks_file.parent.name)
    assert match, checks_file
    return match[1]


def unmet_checks(outcomes: Mapping[str, Outcome], version: str) -> dict[UnmetCheck, str]:
    """Each check that did not pass, and each scenario with too few checks, with the reason."""
    reasons: dict[UnmetCheck, str] = {}
    for scenario in dict.fromkeys([*DEMANDED[version], *outcomes]):
        outcome = outcomes.get(scenario, Outcome(0))
        demanded = DEMANDED[version].get(scenario, Outcome(0))
        reasons_of_scenario = outcome.not_passed
        if not reasons_of_scenario and outcome.passed < demanded.passed:
            reasons_of_scenario = {
                f"{outcome.passed} passed instead of {demanded.passed}": "the suite could not look closer"
            }
        reasons |= {(scenario, check): reason for check, reason in reasons_of_scenario.items()}
    return reasons


def differences(unmet: Mapping[UnmetCheck, str], expected: Mapping[UnmetCheck, str]) -> str:
    """The changes that make the list of expected failures right, as lines to copy. Empty if it is right."""
    unexpected = [f'    {_literal(key)}: "",  # {reason[:300]}' for key, reason in unmet.items() if key not in expected]
    outdated = [f"    {_literal(key)}" for key in expected if key not in unmet]
    parts = (
        ("Expected failures to add, each with its reason:", unexpected),
        ("Expected, but passed; take out:", outdated),
    )
    return "\n".join("\n".join([title, *lines]) for title, lines in parts if lines)


def _literal(key: UnmetCheck) -> str:
    return "({})".format(", ".join(f'"{part}"' for part in key))


def table(outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Scenarios by versions, in Markdown. Scenarios that are not scored come last."""
    scored = {
        version: {scenario: version_outcomes[scenario] for scenario in SCORED[version] if scenario in version_outcomes}
        for version, version_outcomes in outcomes.items()
    }
    extra = frozenset().union(*NOT_SCORED.values())
    rows = []
    for scenario in sorted(CHECKS, key=lambda scenario: scenario in extra):
        cells = (outcomes[version].get(scenario) for version in outcomes)
        rows.append([f"`{scenario}`", *("" if outcome is None else str(outcome) for outcome in cells)])
    for name, selected in (("all", outcomes), ("scored", scored)):
        rows.append([name, *(str(suite.total(selected[version])) for version in outcomes)])
    return suite.markdown(list(outcomes), rows)


@dataclass(frozen=True)
class Gateway:
    """The gateway of a hall. `port` relays to it with a token that allows everything."""

    port: int

    def url(self, era: str) -> str:
        return f"http://localhost:{self.port}/mcp/{MEMBERS[era]}"


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[Gateway]:
    """A new hall in `folder`. Its members are the everything server, once for each of `MEMBERS`."""
    with running(Hall(folder), {"DATABASE_URL": "", "REDIS_URL": ""}) as instance:
        yield instance


@contextlib.contextmanager
def gateway_of_another_node(folder: Path, database_url: str) -> Iterator[Gateway]:
    """The gateway of a node that owns no members, in a hall with two nodes. The database is empty."""
    environment = {"DATABASE_URL": database_url, "REDIS_URL": ""}
    owner, other = Machine(folder / "owner", "owner"), Machine(folder / "other", "other")
    with running(owner, environment), running(other, environment) as instance:
        yield instance


@contextlib.contextmanager
def running(hall: Hall, environment: dict[str, str]) -> Iterator[Gateway]:
    for era, name in MEMBERS.items():
        # Three servers start at the same time, and each start takes 2 s of CPU time.
        hall.add(name, args=[str(EVERYTHING), "--port", "${PORT}", "--era", era], start_timeout=60)
    try:
        for arguments in (["prepare"], ["create_token", "admin", "--name", "conformance"]):
            result = hall.manage(*arguments, env=environment)
            assert result.returncode == 0, result.stderr
        token = result.stdout.splitlines()[-1]
        hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"], **environment)
        with bearer.relay(hall.gateway_port, token) as port:
            instance = Gateway(port)
            eventually(
                lambda: all(lists_tools(instance.url(era)) for era in MEMBERS),
                within=60,
                what=f"the gateway offers the members' tools; so far:\n{hall.output()}",
            )
            yield instance
    finally:
        hall.end()


def lists_tools(url: str) -> bool:
    """Whether the server behind `url` lists its tools, in the modern era."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/list",
    }
    try:
        response = requests.post(url, json=request, headers=headers, timeout=10)
    except requests.ConnectionError:
        return False
    return "test_simple_text" in response.text
