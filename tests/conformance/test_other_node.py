"""The MCP conformance suite at the gateway of a node that owns no member: the same result as at the owner's gateway."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tests.conformance import server_suite
from tests.conformance.server_suite import VERSIONS, Gateway
from tests.conformance.test_server_conformance import EXPECTED_FAILURES
from tests.conftest import needs_service

pytestmark = pytest.mark.timeout(server_suite.RUN_SECONDS + 60)


@pytest.fixture(scope="module")
def database_url(require_suite: None) -> Iterator[str]:
    """An empty database on the server of DATABASE_URL."""
    address, name = needs_service("DATABASE_URL"), f"conformance_{uuid.uuid4().hex[:8]}"
    server = address.rpartition("/")[0]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield f"{server}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def gateway(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with server_suite.gateway_of_another_node(tmp_path_factory.mktemp("nodes"), database_url) as gateway:
        yield gateway


@pytest.mark.parametrize("version", VERSIONS)
def test_the_everything_server_passes_behind_the_gateway_of_another_node(gateway: Gateway, version: str) -> None:
    unmet = server_suite.unmet_checks(server_suite.run(gateway.url("both"), version), version)
    assert not unmet, server_suite.differences(unmet, {})


@pytest.mark.parametrize(("era", "version"), EXPECTED_FAILURES)
def test_a_member_of_the_other_era_fails_the_same_checks_behind_another_node(
    gateway: Gateway, era: str, version: str
) -> None:
    unmet = server_suite.unmet_checks(server_suite.run(gateway.url(era), version), version)
    difference = server_suite.differences(unmet, EXPECTED_FAILURES[era, version])
    assert not difference, difference
