from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import DjangoAssertNumQueries

from mcp_runtime.rows import lease
from mcp_runtime.security import principals
from roster.models import Call, CallTotal, GuildMember, Token, Tool
from tests.support.leases import add_node, current_lease_id, own_node
from tests.support.machine import Stopwatch

Figures = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(autouse=True)
def _static_root() -> None:
    # WhiteNoise warns about a missing folder, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)


def make_viewer() -> User:
    """A user who may view members."""
    user = User.objects.create_user("bob")
    user.user_permissions.add(Permission.objects.get(codename="view_guildmember"))
    return user


@pytest.fixture
def as_bob(db: None) -> Client:
    lease.hall()
    token = Token.make(user=make_viewer())[1]
    principals.principal_of_token(token)  # the first use of a token needs more queries
    return Client(headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
def live_runtime(db: None) -> None:
    lease.take()


def get_figures(client: Client) -> Figures:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
    }


def add_calls(member: GuildMember, count: int, **values: Any) -> None:
    for _ in range(count):
        Call.objects.create(member=member, tool_name="echo", timeout=30, source="rest", **values)


# Health -----------------------------------------------------------------------------------------------------------


def test_healthz_needs_no_database(django_assert_num_queries: DjangoAssertNumQueries, db: None) -> None:
    with django_assert_num_queries(0):
        response = Client().get("/healthz")
    assert (response.status_code, response.content) == (200, b"ok\n")


# Readiness --------------------------------------------------------------------------------------------------------


@pytest.fixture
def live_hall(transactional_db: None) -> None:
    """The lease is committed, because readyz uses its own connection."""
    lease.take()


def test_readyz_is_200_with_a_live_runtime(live_hall: None) -> None:
    response = Client().get("/readyz")
    assert response.status_code == 200
    assert response.json() == {"ready": True, "database": True, "runtime": True}


def test_readyz_is_503_without_a_runtime(transactional_db: None) -> None:
    response = Client().get("/readyz")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "database": True, "runtime": False}


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one runtime, on any node")
def test_readyz_is_about_the_node_of_this_machine(live_hall: None) -> None:
    lease.release(current_lease_id())  # type: ignore[arg-type]
    add_node("b")
    assert Client().get("/readyz").json() == {"ready": False, "database": True, "runtime": False}


def test_readyz_is_about_all_nodes_on_a_machine_that_runs_only_the_web(transactional_db: None) -> None:
    add_node("b")
    assert Client().get("/readyz").json() == {"ready": True, "database": True, "runtime": True}


def test_readyz_is_503_without_a_database_and_shows_no_details(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OperationalError('connection to server at "db.internal" failed')

    monkeypatch.setattr("roster.monitoring.own_live_runtime", fail)
    response = Client().get("/readyz")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "database": False, "runtime": False}


@pytest.fixture(params=["redis", "amqp"])
def silent_broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"{request.param}://127.0.0.1:{server.getsockname()[1]}/0"


def test_a_silent_broker_is_reported_within_its_timeout(live_hall: None, silent_broker: str, settings: Any) -> None:
    settings.BROKER_URL = silent_broker
    watch = Stopwatch()
    response = Client().get("/readyz")
    assert watch.seconds < 0.5
    assert response.status_code == 503
    assert response.json() == {"ready": False, "database": True, "runtime": True, "broker": False}


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_an_unreachable_broker_is_503(live_hall: None, settings: Any, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings.BROKER_URL = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/0"
    assert Client().get("/readyz").json()["broker"] is False


# Metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_are_refused_without_a_login(db: None) -> None:
    response = Client().get("/metrics")
    assert response.status_code == 401
    assert "WWW-Authenticate" in response


def test_metrics_are_open_to_a_session(db: None) -> None:
    client = Client()
    client.force_login(make_viewer())
    assert ("guildhall_runtime_alive", ()) in get_figures(client)


def test_metrics_are_refused_to_users_who_may_view_neither_members_nor_calls(db: None) -> None:
    """Metrics are about the calls of all users, as the statistics of members are."""
    lease.hall()
    add_calls(GuildMember.objects.create(name="example", directory="example"), 3, status="succeeded")
    response = Client(headers={"Authorization": f"Bearer {make_token(User.objects.create_user('charlie'))}"}).get(
        "/metrics"
    )
    assert response.status_code == 403
    assert "roster.view_guildmember" in response.json()["detail"]
    assert "example" not in response.content.decode()


def make_token(user: User, **scope: Any) -> str:
    return Token.make(user=user, **scope)[1]


def test_metrics_for_a_narrow_token_contain_only_its_members(db: None) -> None:
    lease.hall()
    members = [GuildMember.objects.create(name=name, directory=name, status="error") for name in ("a", "b", "c")]
    for member in members:
        add_calls(member, 2, status="queued")
        add_calls(member, 1, status="succeeded")
    members[2].groups.add(Group.objects.create(name="others"))
    bob = make_viewer()
    full_token, narrow_token = make_token(bob), make_token(bob, scope="members", members=[members[0]])
    for token, count in ((full_token, 2), (narrow_token, 1)):
        figures = get_figures(Client(headers={"Authorization": f"Bearer {token}"}))
        assert figures["guildhall_queue_depth", ("queued",)] == 2 * count
        assert {labels[0] for name, labels in figures if name == "guildhall_calls_total"} == set("ab"[:count])
    tool = Tool.objects.create(member=members[0], name="add", definition={})
    client = Client(headers={"Authorization": f"Bearer {make_token(bob, scope='tools', tools=[tool])}"})
    assert client.get("/metrics").status_code == 403


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text;version=1.0.0,text/plain;q=0.3", "*/*"])
def test_metrics_are_sent_for_every_accept_header(as_bob: Client, accept: str) -> None:
    assert as_bob.get("/metrics", headers={"Accept": accept}).status_code == 200


def test_members_are_counted_by_the_status_that_is_shown(as_bob: Client, live_runtime: None) -> None:
    for name, status in [("a", "connected"), ("b", "connected"), ("c", "error")]:
        GuildMember.objects.create(name=name, directory=name, status=status, node=own_node())
    GuildMember.objects.create(name="gone", directory="gone", status="connected", removed_at=timezone.now())
    figures = get_figures(as_bob)
    counts = {status: figures["guildhall_members", (status,)] for status in GuildMember.Status.values}
    assert counts == {"connected": 2, "error": 1, "disconnected": 0, "starting": 0, "stopping": 0}
    assert figures["guildhall_runtime_alive", ()] == 1


def test_a_member_whose_node_is_dead_is_not_counted_as_connected(as_bob: Client, live_runtime: None) -> None:
    GuildMember.objects.create(name="a", directory="a", status="connected", node=add_node("b", is_alive=False))
    figures = get_figures(as_bob)
    assert figures["guildhall_members", ("connected",)] == 0
    assert figures["guildhall_runtime_alive", ()] == 1


def test_without_a_runtime_no_member_is_counted_as_connected(as_bob: Client) -> None:
    GuildMember.objects.create(name="a", directory="a", status="connected")
    figures = get_figures(as_bob)
    assert figures["guildhall_members", ("connected",)] == 0
    assert figures["guildhall_members", ("disconnected",)] == 1
    assert figures["guildhall_runtime_alive", ()] == 0


def test_calls_are_counted_by_member_and_outcome_including_deleted_ones(as_bob: Client) -> None:
    example = GuildMember.objects.create(name="example", directory="example")
    add_calls(example, 3, status="succeeded")
    add_calls(example, 2, status="failed", error_kind="timeout")
    add_calls(example, 1, status="cancelled")
    add_calls(example, 4, status="queued")
    add_calls(example, 1, status="running")
    CallTotal.objects.create(member=example, outcome="succeeded", count=100)
    figures = get_figures(as_bob)
    assert figures["guildhall_calls_total", ("example", "succeeded")] == 103
    assert figures["guildhall_calls_total", ("example", "timeout")] == 2
    assert figures["guildhall_calls_total", ("example", "cancelled")] == 1
    assert figures["guildhall_queue_depth", ("queued",)] == 4
    assert figures["guildhall_queue_depth", ("running",)] == 1


def test_an_empty_queue_is_a_metric_too(as_bob: Client) -> None:
    figures = get_figures(as_bob)
    assert figures["guildhall_queue_depth", ("queued",)] == figures["guildhall_queue_depth", ("running",)] == 0


def test_restarts_are_counted_by_member(as_bob: Client) -> None:
    GuildMember.objects.create(name="example", directory="example", restarts_total=7)
    assert get_figures(as_bob)["guildhall_member_restarts_total", ("example",)] == 7


def test_many_members_need_no_more_queries_than_one(
    as_bob: Client, live_runtime: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(5):
        add_calls(GuildMember.objects.create(name=f"member-{number}", directory=f"{number}"), 2, status="succeeded")
    # The token, the nodes, the members, the calls, the queue.
    with django_assert_num_queries(5):
        as_bob.get("/metrics")
