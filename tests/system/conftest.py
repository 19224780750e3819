"""Real runtimes with real members on the test database. All processes that are started here are ended here, by pid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from pytest_django import DjangoDbBlocker

from tests.support.hall import Hall, hall_in
from tests.support.nodes import Machine


@pytest.fixture
def hall(transactional_db: None, tmp_path: Path) -> Iterator[Hall]:
    with hall_in(tmp_path) as hall:
        yield hall


@pytest.fixture(scope="module")
def shared_hall(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hall]:
    """One hall for all tests of a module, which kill no part of it. Rows remain from one test to the next.

    pytest-django runs the tests with their own `hall` first, so none of them empties the tables in between.
    """
    with django_db_blocker.unblock():
        with hall_in(tmp_path_factory.mktemp("hall")) as hall:
            yield hall
        call_command("flush", interactive=False, verbosity=0)


@pytest.fixture
def make_node(hall: Hall, tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    """Makes nodes of the hall. All have the members that the first `add_everywhere` calls give them."""
    machines: list[Machine] = []

    def make(name: str) -> Machine:
        machines.append(Machine(tmp_path / name, name))
        return machines[-1]

    yield make
    for machine in machines:
        machine.end()
