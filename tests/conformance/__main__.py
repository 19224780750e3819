"""`make conformance`: the MCP conformance suite against our client and our gateway. Writes the tables of the docs."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conformance import server_suite, suite
from tests.conformance.suite import Outcome

PAGE = suite.ROOT / "docs" / "conformance.md"
TABLE = re.compile(r"^\|.*\n(?:\|.*\n)+", re.MULTILINE)
SUITE_VERSION = re.compile(r"(?<=conformance` )\d[\w.-]*\w")
Outcomes = Mapping[str, Mapping[str, Outcome]]


def fill_in_tables(page: str, client: Outcomes, server: Outcomes) -> str:
    """The page with the tables of client and server, and with the version of the suite."""
    tables = iter([suite.table(client), server_suite.table(server)])
    return SUITE_VERSION.sub(suite.VERSION, TABLE.sub(lambda _: next(tables), page))


def run_client() -> Outcomes:
    outcomes: dict[str, dict[str, Outcome]] = {version: {} for version in suite.DEMANDED}
    runs = [(version, scenario) for version, scenarios in suite.DEMANDED.items() for scenario in scenarios]
    with ThreadPoolExecutor(2) as pool:
        for (version, scenario), outcome in zip(runs, pool.map(lambda run: suite.run(*run), runs), strict=True):
            outcomes[version][scenario] = outcome
            print_outcome("client", version, scenario, outcome)
    return outcomes


def run_server() -> Outcomes:
    outcomes: dict[str, dict[str, Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder, server_suite.gateway(Path(folder)) as gateway:
        for version in server_suite.VERSIONS:
            outcomes[version] = server_suite.run(gateway.url("both"), version)
            for scenario, outcome in outcomes[version].items():
                print_outcome("server", version, scenario, outcome)
    return outcomes


def print_outcome(side: str, version: str, scenario: str, outcome: Outcome) -> None:
    print(f"{side}  {version}  {scenario:<46} {outcome}", flush=True)
    for problem in outcome.problems:
        print("    " + problem.strip().replace("\n", "\n    "))


def main() -> int:
    if not suite.is_installed():
        print(f"The suite is not installed: {suite.HOW_TO_INSTALL}", file=sys.stderr)
        return 1
    client, server = run_client(), run_server()
    PAGE.write_text(fill_in_tables(PAGE.read_text(), client, server))
    return any(suite.total(outcomes).failed for outcomes in [*client.values(), *server.values()])


if __name__ == "__main__":
    sys.exit(main())
