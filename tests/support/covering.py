"""Which tests count for `coverage`: those that would only repeat what others run do not, for it makes them slower.

Started by `coverage run -m pytest`. It then runs in each worker of pytest-xdist too, and in the processes of tests.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from pathlib import Path

import pytest
from coverage import Coverage

TESTS = Path(__file__).resolve().parent.parent
# They run the same lines thousands of times (as every test with generated examples), or start processes that only
# import. Coverage would take most of their time, and other tests run these lines too.
WITHOUT = tuple(
    TESTS / name
    for name in (
        "rows/attack",
        "unit/bench",
        "unit/mcp_runtime/nodes",
        *(f"unit/mcp_runtime/test_{name}.py" for name in ("hostile_schemas", "layers", "quick_checks", "schemas")),
        *(f"unit/test_{name}.py" for name in ("packaging", "settings_documented")),
    )
)
# Further sets of parameters of a test mostly run the same lines, so what is reported as covered is covered at least.
MAX_SETS = 2
_sets = Counter[str]()
_counts = pytest.StashKey[bool]()

_coverage = Coverage.current()
_is_on = _coverage is not None


def pytest_itemcollected(item: pytest.Item) -> None:
    function = item.nodeid.partition("[")[0]
    _sets[function] += 1
    is_further = _sets[function] > MAX_SETS
    has_generated_examples = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    is_marked = any(item.get_closest_marker(name) for name in ("no_cover", "alone"))
    item.stash[_counts] = not (has_generated_examples or is_marked or is_further or _is_without(item.path))


@functools.cache
def _is_without(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in WITHOUT)


def count(item: pytest.Item) -> None:
    """Starts or stops coverage before a test and its fixtures, also for the processes that they start."""
    global _is_on
    if _coverage is None or _is_on == item.stash[_counts]:
        return
    _is_on = item.stash[_counts]
    if _is_on:
        _coverage.start()
    else:
        _coverage.stop()
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
