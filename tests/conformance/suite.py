"""The MCP conformance suite: how it runs, its outcomes, and its checks for our client. package.json pins its version.

The checks for servers are in server_suite.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
MODULES = FOLDER / "node_modules"
NODE = MODULES / ".bin" / "node"  # the suite needs a newer Node than Debian has
SUITE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
HOW_TO_INSTALL = "make conformance-suite (needs npm)"
VERSION: str = json.loads((FOLDER / "package.json").read_text())["dependencies"]["@modelcontextprotocol/conformance"]

# The suite splits the command at spaces, puts it together again, adds the server's address and gives all to a shell.
COMMAND = shlex.join([sys.executable, str(FOLDER / "client.py")])
SCENARIO_SECONDS = 25


@dataclass(frozen=True)
class Outcome:
    """The numbers of checks by status. `problems` are the suite's texts about failures, and the client's last output.

    `not_passed` has the checks that failed, warned or were skipped, by id ("id x2" for two of them), with the reasons.
    """

    passed: int
    skipped: int = 0
    failed: int = 0
    problems: tuple[str, ...] = ()
    not_passed: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}
        return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing checked"


EXTENSIONS = "extensions"  # in place of a version: extensions of the protocol belong to none

# The scenarios of each version for clients, and the outcome if all pass. The suite counts a
# check as skipped if the client sends no such request, because the hall reads no resources and gets no prompts.
DEMANDED: dict[str, dict[str, Outcome]] = {
    "2025-06-18": {
        "initialize": Outcome(1),
        "tools_call": Outcome(2),
    },
    "2025-11-25": {
        "initialize": Outcome(1),
        "tools_call": Outcome(2),
        "elicitation-sep1034-client-defaults": Outcome(5),
        "sse-retry": Outcome(3),
        "auth/metadata-default": Outcome(18),
        "auth/metadata-var1": Outcome(18),
        "auth/metadata-var2": Outcome(18),
        "auth/metadata-var3": Outcome(18),
        "auth/basic-cimd": Outcome(13),
        "auth/scope-from-www-authenticate": Outcome(14),
        "auth/scope-from-scopes-supported": Outcome(14),
        "auth/scope-omitted-when-undefined": Outcome(14),
        "auth/scope-step-up": Outcome(22),
        "auth/token-endpoint-auth-basic": Outcome(19),
        "auth/token-endpoint-auth-post": Outcome(19),
        "auth/token-endpoint-auth-none": Outcome(19),
        "auth/pre-registration": Outcome(13),
        "auth/scope-retry-limit": Outcome(10),
    },
    "2026-07-28": {
        "tools_call": Outcome(2),
        "request-metadata": Outcome(8),
        "http-standard-headers": Outcome(3, skipped=8),
        "http-custom-headers": Outcome(18),
        "http-invalid-tool-headers": Outcome(12),
        "sep-2322-client-request-state": Outcome(5),
        "json-schema-ref-no-deref": Outcome(1),
        "auth/metadata-default": Outcome(18),
        "auth/metadata-var1": Outcome(18),
        "auth/metadata-var2": Outcome(18),
        "auth/metadata-var3": Outcome(18),
        "auth/basic-cimd": Outcome(12),
        "auth/scope-from-www-authenticate": Outcome(14),
        "auth/scope-from-scopes-supported": Outcome(14),
        "auth/scope-omitted-when-undefined": Outcome(14),
        "auth/scope-step-up": Outcome(25),
        "auth/token-endpoint-auth-basic": Outcome(19),
        "auth/token-endpoint-auth-post": Outcome(19),
        "auth/token-endpoint-auth-none": Outcome(19),
        "auth/pre-registration": Outcome(12),
        "auth/iss-supported": Outcome(14),
        "auth/iss-not-advertised": Outcome(14),
        "auth/iss-supported-missing": Outcome(8),
        "auth/iss-wrong-issuer": Outcome(8),
        "auth/iss-unexpected": Outcome(8),
        "auth/iss-normalized": Outcome(8),
        "auth/offline-access-scope": Outcome(12),
        "auth/offline-access-not-supported": Outcome(14),
        "auth/authorization-server-migration": Outcome(27),
        "auth/scope-retry-limit": Outcome(11),
        "auth/resource-mismatch": Outcome(2),
        "auth/metadata-issuer-mismatch": Outcome(3),
    },
    EXTENSIONS: {
        "auth/client-credentials-basic": Outcome(8),
        "auth/client-credentials-jwt": Outcome(8),
        "auth/dpop": Outcome(12),
        "auth/dpop-nonce": Outcome(14),
        "auth/enterprise-managed-authorization": Outcome(9),
        "auth/wif-jwt-bearer": Outcome(8),
    },
}


def is_installed() -> bool:
    return NODE.exists() and SUITE.exists()


def run(version: str, scenario: str) -> Outcome:
    """Run one scenario at one protocol version, in a few seconds. A client with a bad exit is a failed check."""
    selection = ("--scenario", scenario, "--timeout", str(SCENARIO_SECONDS * 1000))
    selection += () if version == EXTENSIONS else ("--spec-version", version)
    with tempfile.TemporaryDirectory(prefix="conformance-") as results:
        exit_code, output = execute(
            "client", "--command", COMMAND, *selection, "--output-dir", results, timeout=SCENARIO_SECONDS + 10
        )
        check_files = list(Path(results).rglob("checks.json"))  # scenarios of auth have a folder
        if not check_files:
            return no_results(exit_code, output)
        outcome = outcome_of(check_files[0])
        client_output = (check_files[0].parent / "stderr.txt").read_text()
    problems = list(outcome.problems)
    # In one scenario the suite allows any exit of the client.
    if match := re.search(r"Client (exited with code \d+|timed out after \d+ms)", output):
        problems.append(match[0])
    elif exit_code and not problems:
        problems.append(f"the suite ended with exit code {exit_code}")
    failed = len(problems)
    if failed and client_output:
        problems.append(client_output[-2000:])
    return replace(outcome, failed=failed, problems=tuple(problems))


def outcome_of(checks_file: Path) -> Outcome:
    """The outcome of one scenario, from the file of the suite."""
    checks = json.loads(checks_file.read_text())
    counts = Counter(check["status"] for check in checks)
    problems = tuple(_describe(check) for check in checks if check["status"] in ("FAILURE", "WARNING"))
    not_passed: dict[str, list[str]] = {}
    for check in checks:
        if check["status"] in ("FAILURE", "WARNING", "SKIPPED"):
            not_passed.setdefault(check["id"], []).append(_describe(check))
    reasons = {
        check if len(words) == 1 else f"{check} x{len(words)}": " | ".join(words) for check, words in not_passed.items()
    }
    return Outcome(counts["SUCCESS"], counts["SKIPPED"], len(problems), problems, reasons)


def _describe(check: dict[str, Any]) -> str:
    return f"{check['name']}: {check.get('errorMessage') or check['description']}"


def no_results(exit_code: int, output: str) -> Outcome:
    problems = (f"no results; exit code {exit_code}", output[-2000:])
    return Outcome(0, failed=1, problems=problems, not_passed={"no results": problems[0]})


def execute(*arguments: str, timeout: float) -> tuple[int, str]:
    """Exit code and stderr of the suite. After `timeout` seconds its process group is killed."""
    with subprocess.Popen(
        [NODE, SUITE, *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output = process.communicate(timeout=timeout)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[1]
    return process.returncode, output


def table(outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Scenarios by versions, in Markdown. Scenarios come in the order of the first version that has them."""
    versions = list(outcomes)
    rows = [
        [f"`{scenario}`", *(str(outcomes[version].get(scenario, "")) for version in versions)]
        for scenario in dict.fromkeys(scenario for version in versions for scenario in outcomes[version])
    ]
    return markdown(versions, [*rows, ["all", *(str(total(outcomes[version])) for version in versions)]])


def markdown(versions: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [["Scenario", *versions], ["---"] * (1 + len(versions)), *rows]
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) + "\n" for line in lines)


def total(outcomes: Mapping[str, Outcome]) -> Outcome:
    all_outcomes = outcomes.values()
    return Outcome(
        sum(o.passed for o in all_outcomes), sum(o.skipped for o in all_outcomes), sum(o.failed for o in all_outcomes)
    )
