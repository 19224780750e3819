"""What every test shares. The environment is scrubbed before Django reads it: tests never see a real hall."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import django
import pytest
from django.conf import settings
from django.db import connection
from django.db.backends.base import base
from django.test.utils import setup_databases, teardown_databases
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from pytest_django import DjangoDbBlocker

from roster import first_schema
from tests.support import covering, machine
from tests.support.covering import pytest_itemcollected  # noqa: F401  hook
from tests.support.machine import Stopwatch
from tests.support.scheduling import (  # noqa: F401  hooks
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

# Ignored where a shell runs us in the background; what we start would inherit that, and be deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in [name for name in os.environ if name.startswith("GUILD_HALL_")]:
    del os.environ[name]
# What tests start would compile all our modules each time: a third of the processor time of a hall's start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Kept for the whole run; one folder per xdist worker, all removed when the run ends.
_data_dir = tempfile.TemporaryDirectory(prefix="guildhall-tests-")
os.environ["GUILD_HALL_DATA_DIR"] = _data_dir.name
os.environ["GUILD_HALL_ENV_FILE"] = os.devnull  # and not the .env of this checkout
os.environ["XDG_STATE_HOME"] = f"{_data_dir.name}/state"  # halls of tests are not found by commands of this user
# Named here and not in pyproject.toml: pytest-django would load the settings before the lines above.
os.environ["DJANGO_SETTINGS_MODULE"] = "guildhall.settings"
(Path(_data_dir.name) / "static").mkdir()  # WhiteNoise warns where there is none
django.setup()  # conftests below import models
# Tests end connections by force, and wait for nothing but what they test: each thread has its own.
settings.DATABASES["default"].get("OPTIONS", {}).pop("pool", None)
# Some tests move the clock. Django asks it whether a connection is too old to keep, so a thread that works meanwhile
# would keep its connection, and end with it.
base.time = SimpleNamespace(monotonic=time.monotonic)  # type: ignore[assignment]
# A fifth of the processor time of the tests of screens and endpoints was spent on the hashes of their users' passwords.
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", *settings.PASSWORD_HASHERS]

# The same examples in each run, for what nobody changed should not fail; `--hypothesis-profile=default` tries new ones.
# However long one takes on a busy machine.
hypothesis_settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("steady")

ROOT = Path(__file__).resolve().parent.parent
# Known to all xdist workers of one run, for they inherit it.
_shared = Path(os.environ.setdefault("TESTS_SHARED_DIR", _data_dir.name))


def pytest_unconfigure() -> None:
    _data_dir.cleanup()


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: DjangoDbBlocker, django_db_modify_db_settings: None
) -> Iterator[None]:
    """As pytest-django's own, which makes no database where all tests of a run share a hall and none is marked."""
    from tests.support.emptying import FirstRows, quick_emptying  # models, which need the settings made above

    with django_db_blocker.unblock():
        is_sqlite = connection.vendor == "sqlite"
        if is_sqlite:
            _create_tables_as_a_first_start_does()
        configuration = setup_databases(verbosity=0, interactive=False, serialized_aliases=set(), keepdb=is_sqlite)
        first_rows = FirstRows()
    with quick_emptying(first_rows):
        yield
    with django_db_blocker.unblock():
        teardown_databases(configuration, verbosity=0)


def _create_tables_as_a_first_start_does() -> None:
    """Migrations of an empty database would take six seconds of each worker. test_first_schema compares both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict, "NAME", connection.settings_dict["TEST"]["NAME"])
        assert first_schema.load(), "see roster/first_schema.py for how its file is made again"
        connection.close()


# Modules in which rows are only there for a gateway or a member to start with, or in which Django alone reads them.
# Their statements run on PostgreSQL in the tests of calls, statuses, leases and records, and in those of real halls.
SAME_ON_EVERY_DATABASE = tuple(
    ROOT / "tests" / "rows" / name
    for name in (
        "attack",
        *(f"mcp_runtime/gateway/{name}" for name in ("endpoints", "streams", "upstream")),
        *(f"mcp_runtime/gateway/test_{name}.py" for name in ("endpoints", "server", "tasks")),
        *(f"mcp_runtime/test_{name}.py" for name in ("lifecycle", "lifecycle_remote", "signs_of_life")),
        *(f"roster/{name}.py" for name in ("api/test_api_docs", "test_middleware", "test_new_member")),
    )
)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end, so the garbage collector need not look at it each time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL what touches no rows, or none in a way of its own, does not run: it told the same on SQLite."""
    if "postgres" in os.environ.get("DATABASE_URL", ""):
        is_again = {item: _may_tell_more(item) or not _is_among_rows(item) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not is_again[item]])
        items[:] = [item for item in items if is_again[item]]


def _is_among_rows(item: pytest.Item) -> bool:
    return item.path.relative_to(ROOT).parts[1] in ("rows", "system")


def _may_tell_more(item: pytest.Item) -> bool:
    installs = "index" in getattr(item, "fixturenames", ())  # locks are rows in test_changes_on_nodes too
    is_same = installs or any(item.path.is_relative_to(place) for place in SAME_ON_EVERY_DATABASE)
    return _touches_rows(item) and not is_same


def _touches_rows(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    return bool(item.get_closest_marker("django_db") or fixtures & {"db", "transactional_db", "django_db_setup"})


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    measures_time = item.get_closest_marker("alone") is not None
    covering.count(item)
    with machine.Turn(_shared, may_be_alone=measures_time):
        return (yield)


# Seconds for the teardown of a test, or for one that its own timeout did not end.
HANGS = 240.0
STACKS = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STACKS] = os.dup(2)  # which tests capture from here on
    # In a worker that inherits it, pytest-django would load the settings before this file has made the worker's folder,
    # so all workers would share the folder of this process, and with it the key file, which some tests replace.
    if config.getoption("numprocesses", None):
        del os.environ["DJANGO_SETTINGS_MODULE"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _ended_when_it_hangs(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _ended_when_it_hangs(item):
        yield
    assert machine.was_ours or not item.get_closest_marker("alone"), "marked `alone`, and never called `take_alone`"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    machine.share_again()  # the end of a hall takes seconds that nobody measures
    with _ended_when_it_hangs(item):
        return (yield)


@contextlib.contextmanager
def _ended_when_it_hangs(item: pytest.Item) -> Iterator[None]:
    """Ends this process, with the stacks of all threads; xdist then names the test, and goes on in another process.

    pytest-timeout does not: it takes its alarm back when a test fails, so the teardown may take for ever, and the error
    that it raises can be caught, or come a moment before a call of the system that nothing interrupts.
    """
    marker = item.get_closest_marker("timeout")
    faulthandler.dump_traceback_later(
        HANGS + (marker.args[0] if marker else 0), exit=True, file=item.config.stash[STACKS]
    )
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def needs_service(variable: str) -> str:
    """The address in `variable`. Without it the test is skipped at home; in CI, which has the service, it fails."""
    address = os.environ.get(variable, "")
    if not address:
        skip_at_home(f"{variable} is not set")
    return address


def needs_program(name: str) -> str:
    """The path of a program. Without it the test is skipped at home; in CI, which installs it, it fails."""
    path = shutil.which(name)
    if path is None:
        skip_at_home(f"{name} is not installed")
    return path


def skip_at_home(reason: str) -> NoReturn:
    """Skip the test because this machine lacks something. In CI, where it must be there, the test fails."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def eventually(condition: Callable[[], object], *, within: float = 10.0, what: str = "") -> object:
    """Wait for `condition` to be true, looking often; fail after `within` seconds of ours.

    A test that is not marked `alone` promises no seconds, and waits longer on a machine that others use.
    """
    watch, bound = Stopwatch(), machine.patience(within)
    while not (value := condition()):
        if watch.elapsed > bound and watch.seconds > within:
            pytest.fail(f"not within {within} s: {what or condition}")
        time.sleep(0.01)
    return value
