"""What every test shares. The environment is scrubbed before Django reads it: tests never see a real hall."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import django
import pytest
from django.conf import settings

from tests.machine import Stopwatch

# Ignored where a shell runs us in the background; what we start would inherit that, and be deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in [name for name in os.environ if name.startswith("GUILD_HALL_")]:
    del os.environ[name]
# Kept for the whole run; one folder per xdist worker, all removed when the run ends.
_data_dir = tempfile.TemporaryDirectory(prefix="guildhall-tests-")
os.environ["GUILD_HALL_DATA_DIR"] = _data_dir.name
# Named here and not in pyproject.toml: pytest-django would load the settings before the lines above.
os.environ["DJANGO_SETTINGS_MODULE"] = "guildhall.settings"
(Path(_data_dir.name) / "static").mkdir()  # WhiteNoise warns where there is none
django.setup()  # conftests below import models
# Tests end connections by force, and wait for nothing but what they test: each thread has its own.
settings.DATABASES["default"].get("OPTIONS", {}).pop("pool", None)

ROOT = Path(__file__).resolve().parent.parent
# Known to all xdist workers of one run, for they inherit it.
_shared = Path(os.environ.setdefault("TESTS_SHARED_DIR", _data_dir.name))


def pytest_unconfigure() -> None:
    _data_dir.cleanup()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with _turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextlib.contextmanager
def _turn(*, alone: bool) -> Iterator[None]:
    """A test marked `alone` waits until no other xdist worker runs one, and holds back the next ones.

    It measures time, so coverage is not in the processes that it starts.
    """
    with (
        (_shared / "gate").open("w") as gate,
        (_shared / "room").open("w") as room,
        pytest.MonkeyPatch.context() as patch,
    ):
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if alone:
            patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        else:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def needs_service(variable: str) -> str:
    """The address in `variable`. Without it the test is skipped at home; in CI, which has the service, it fails."""
    address = os.environ.get(variable, "")
    if not address:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{variable} is not set")
    return address


def eventually(condition: Callable[[], object], *, within: float = 10.0, what: str = "") -> object:
    """Wait for `condition` to be true, looking often; fail after `within` seconds of ours."""
    watch = Stopwatch()
    while not (value := condition()):
        if watch.elapsed > within and watch.seconds > within:
            pytest.fail(f"not within {within} s: {what or condition}")
        time.sleep(0.01)
    return value
