"""`make conformance`: the MCP conformance suite against our client; what it says becomes the table of the docs."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.conformance import suite

PAGE = suite.ROOT / "docs" / "conformance.md"
TABLE = re.compile(r"^\|.*\n(?:\|.*\n)+", re.MULTILINE)
SUITE_VERSION = re.compile(r"(?<=conformance` )\d[\w.-]*\w")


def written(page: str, table: str, version: str) -> str:
    """The page with this table, and the version of the suite that it comes from."""
    return SUITE_VERSION.sub(version, TABLE.sub(lambda _: table, page))


def main() -> int:
    if not suite.is_installed():
        print(f"The suite is not installed: {suite.HOW_TO_INSTALL}", file=sys.stderr)
        return 1
    outcomes: dict[str, dict[str, suite.Outcome]] = {version: {} for version in suite.DEMANDED}
    runs = [(version, scenario) for version, scenarios in suite.DEMANDED.items() for scenario in scenarios]
    with ThreadPoolExecutor(2) as pool:
        for (version, scenario), outcome in zip(runs, pool.map(lambda run: suite.run(*run), runs), strict=True):
            outcomes[version][scenario] = outcome
            print(f"{version}  {scenario:<38} {outcome}", flush=True)
            for complaint in outcome.complaints:
                print("    " + complaint.strip().replace("\n", "\n    "))
    PAGE.write_text(written(PAGE.read_text(), suite.table(outcomes), suite.VERSION))
    return any(suite.total(of_version).failed for of_version in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
