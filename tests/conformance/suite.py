"""The MCP conformance suite: how it is run, what it said, what it asks of our client. package.json pins it.

What it asks of servers is in server_suite.py.
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODULES = HERE / "node_modules"
NODE = MODULES / ".bin" / "node"  # the suite needs a newer one than Debian has
SUITE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
HOW_TO_INSTALL = "make conformance-suite (needs npm)"
VERSION: str = json.loads((HERE / "package.json").read_text())["dependencies"]["@modelcontextprotocol/conformance"]

# The suite splits the command at spaces, puts it together again, adds the server's address and gives all to a shell.
COMMAND = shlex.join([sys.executable, str(HERE / "client.py")])
SCENARIO_SECONDS = 25


@dataclass(frozen=True)
class Outcome:
    """How many checks ended how. `complaints` are the suite's words about the others, and the client's last ones.

    `not_passed` are the checks that failed, warned or were skipped: ids ("id x2" when there are two of it) and why.
    """

    passed: int
    skipped: int = 0
    failed: int = 0
    complaints: tuple[str, ...] = ()
    not_passed: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}
        return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing checked"


# Scenarios that each version demands of a client, authorization apart, and what all passed comes to. The suite counts
# a check as skipped when the client never sent what it is about: the hall reads no resources and gets no prompts.
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
    },
    "2026-07-28": {
        "tools_call": Outcome(2),
        "request-metadata": Outcome(8),
        "http-standard-headers": Outcome(3, skipped=8),
        "http-custom-headers": Outcome(18),
        "http-invalid-tool-headers": Outcome(12),
        "sep-2322-client-request-state": Outcome(5),
        "json-schema-ref-no-deref": Outcome(1),
    },
}


def is_installed() -> bool:
    return NODE.exists() and SUITE.exists()


def run(version: str, scenario: str) -> Outcome:
    """One scenario at one protocol version, in a few seconds. A client that did not end well is a failed check."""
    chosen = ("--scenario", scenario, "--spec-version", version, "--timeout", str(SCENARIO_SECONDS * 1000))
    with tempfile.TemporaryDirectory(prefix="conformance-") as results:
        exit_code, said = execute(
            "client", "--command", COMMAND, *chosen, "--output-dir", results, timeout=SCENARIO_SECONDS + 10
        )
        written = list(Path(results).glob("*/checks.json"))
        if not written:
            return no_results(exit_code, said)
        outcome = outcome_of(written[0])
        client_said = (written[0].parent / "stderr.txt").read_text()
    complaints = list(outcome.complaints)
    # In one scenario the suite lets a client end as it likes.
    if ended_badly := re.search(r"Client (exited with code \d+|timed out after \d+ms)", said):
        complaints.append(ended_badly[0])
    elif exit_code and not complaints:
        complaints.append(f"the suite ended with exit code {exit_code}")
    failed = len(complaints)
    if failed and client_said:
        complaints.append(client_said[-2000:])
    return replace(outcome, failed=failed, complaints=tuple(complaints))


def outcome_of(written: Path) -> Outcome:
    """What the suite wrote about one scenario."""
    checks = json.loads(written.read_text())
    counts = Counter(check["status"] for check in checks)
    complaints = tuple(_words(check) for check in checks if check["status"] in ("FAILURE", "WARNING"))
    not_passed: dict[str, list[str]] = {}
    for check in checks:
        if check["status"] in ("FAILURE", "WARNING", "SKIPPED"):
            not_passed.setdefault(check["id"], []).append(_words(check))
    why = {
        check if len(words) == 1 else f"{check} x{len(words)}": " | ".join(words) for check, words in not_passed.items()
    }
    return Outcome(counts["SUCCESS"], counts["SKIPPED"], len(complaints), complaints, why)


def _words(check: dict[str, Any]) -> str:
    return f"{check['name']}: {check.get('errorMessage') or check['description']}"


def no_results(exit_code: int, said: str) -> Outcome:
    complaints = (f"no results; exit code {exit_code}", said[-2000:])
    return Outcome(0, failed=1, complaints=complaints, not_passed={"no results": complaints[0]})


def execute(*arguments: str, timeout: float) -> tuple[int, str]:
    """Exit code of the suite, and what it said on stderr. After `timeout` seconds all that it started is killed."""
    with subprocess.Popen(
        [NODE, SUITE, *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said = process.communicate(timeout=timeout)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[1]
    return process.returncode, said


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
    every = outcomes.values()
    return Outcome(sum(o.passed for o in every), sum(o.skipped for o in every), sum(o.failed for o in every))
