"""The MCP conformance suite: what it asks of our client, how it is run, what it said. package.json pins it."""

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    """How many checks ended how. `complaints` are the suite's words about the others, and the client's last ones."""

    passed: int
    skipped: int = 0
    failed: int = 0
    complaints: tuple[str, ...] = ()

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
        command = [NODE, SUITE, "client", "--command", COMMAND, *chosen, "--output-dir", results]
        exit_code, said = _run(command, SCENARIO_SECONDS + 10)
        written = list(Path(results).glob("*/checks.json"))
        if not written:
            return Outcome(0, failed=1, complaints=(f"no results; exit code {exit_code}", said[-2000:]))
        checks = json.loads(written[0].read_text())
        client_said = (written[0].parent / "stderr.txt").read_text()
    counts = Counter(check["status"] for check in checks)
    complaints = [
        f"{check['name']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] in ("FAILURE", "WARNING")
    ]
    # In one scenario the suite lets a client end as it likes.
    if ended_badly := re.search(r"Client (exited with code \d+|timed out after \d+ms)", said):
        complaints.append(ended_badly[0])
    elif exit_code and not complaints:
        complaints.append(f"the suite ended with exit code {exit_code}")
    failed = len(complaints)
    if failed and client_said:
        complaints.append(client_said[-2000:])
    return Outcome(counts["SUCCESS"], counts["SKIPPED"], failed, tuple(complaints))


def _run(command: list[str | Path], timeout: float) -> tuple[int, str]:
    """Exit code, and what was said on stderr. After `timeout` seconds all that it started is killed."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=timeout)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[1]
    return process.returncode, said


def table(outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Scenarios by versions, in Markdown."""
    versions = list(DEMANDED)
    scenarios = list(dict.fromkeys(scenario for version in versions for scenario in DEMANDED[version]))
    rows = [["Scenario", *versions], ["---"] * (1 + len(versions))]
    for scenario in scenarios:
        rows.append([f"`{scenario}`", *(str(outcomes[version].get(scenario, "")) for version in versions)])
    rows.append(["all", *(str(total(outcomes[version])) for version in versions)])
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in row) + "\n" for row in rows)


def total(outcomes: Mapping[str, Outcome]) -> Outcome:
    every = outcomes.values()
    return Outcome(sum(o.passed for o in every), sum(o.skipped for o in every), sum(o.failed for o in every))
