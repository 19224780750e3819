"""Which runtime owns a member, and what that allows it."""

from __future__ import annotations

import threading
import uuid

import pytest
from django.contrib.auth.models import Group, User
from django.db import Error, OperationalError, connection, transaction

from mcp_runtime.calls import statements
from mcp_runtime.calls.queue_search import Exclusions, find_queued
from mcp_runtime.members.status import Statuses
from mcp_runtime.rows import database, lease, ownership
from roster.models import Call, GuildMember, Hall, Node, PortAllocation, StatusChange
from tests.conftest import eventually
from tests.support.lifecycle_stage import in_thread

pytestmark = pytest.mark.django_db(transaction=True)

needs_nodes = pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
needs_row_locks = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")


@pytest.fixture
def node() -> Node:
    return Node.objects.create(name="one", lease_id=uuid.uuid4())


@pytest.fixture
def other_node() -> Node:
    return Node.objects.create(name="two", lease_id=uuid.uuid4())


def add(name: str = "anna", **columns: object) -> GuildMember:
    return GuildMember.objects.create(name=name, directory=name, **columns)


def row_of(member: GuildMember) -> GuildMember:
    return GuildMember.objects.get(pk=member.pk)


def owned_by(node: Node, name: str = "anna", **columns: object) -> GuildMember:
    return add(name, node=node, lease_id=node.lease_id, **columns)


def queue_call(member: GuildMember) -> Call:
    return Call.objects.create(member=member, tool_name="echo", timeout=5, source=Call.Source.REST)


# Taking over ------------------------------------------------------------------------------------------------------


def test_a_runtime_that_starts_owns_all_members_and_none_has_a_process_or_a_port(node: Node) -> None:
    last_lease_id = uuid.uuid4()
    anna = add(node=node, lease_id=last_lease_id, status="connected", pid=7, restarts=3, warnings=["late"])
    new_member = add("new")
    PortAllocation.objects.create(member=anna, port=20000, lease_id=last_lease_id)
    with transaction.atomic():
        ownership.take_over_own(node)
    anna = row_of(anna)
    assert (anna.node, anna.lease_id) == (node, node.lease_id)
    assert (anna.status, anna.pid, anna.restarts, anna.warnings, anna.port) == ("disconnected", None, 0, [], None)
    assert (row_of(new_member).node, row_of(new_member).lease_id) == (node, node.lease_id)
    changes = [(change.member, change.old, change.new, change.cause) for change in StatusChange.objects.all()]
    assert changes == [(anna, "connected", "disconnected", "runtime start")]


def test_a_new_member_goes_to_the_runtime_that_has_the_lease(node: Node) -> None:
    member = add()
    ownership.claim_new(node.lease_id)
    assert (row_of(member).node, row_of(member).lease_id) == (node, node.lease_id)


def test_a_runtime_without_its_lease_gets_no_new_member(node: Node) -> None:
    member = add()
    ownership.claim_new(uuid.uuid4())
    assert (row_of(member).node, row_of(member).lease_id) == (None, None)


def test_a_member_that_has_an_owner_is_not_new(node: Node, other_node: Node) -> None:
    member = owned_by(other_node, status="connected")
    ownership.claim_new(node.lease_id)
    assert (row_of(member).lease_id, row_of(member).status) == (other_node.lease_id, "connected")


def test_a_member_stays_if_its_node_is_deleted(node: Node) -> None:
    member = owned_by(node)
    node.delete()
    assert row_of(member).node is None


def test_a_member_without_an_owner_has_no_process_and_no_port_and_can_be_claimed(node: Node, other_node: Node) -> None:
    member = owned_by(node, status="connected", pid=7, requested_node=other_node)
    PortAllocation.objects.create(member=member, port=20000, lease_id=node.lease_id)
    with transaction.atomic():
        assert ownership.remove_owner(GuildMember.objects.filter(node=node), "node removed") == 1
    row = row_of(member)
    assert (row.node, row.lease_id, row.requested_node) == (None, None, None)
    assert (row.status, row.pid, row.port, row.epoch) == ("disconnected", None, None, member.epoch + 1)
    assert StatusChange.objects.get().cause == "node removed"
    assert ownership.claim([member], other_node.lease_id) == []  # it has changed since it was read
    assert ownership.claim([row], other_node.lease_id) == [row.name]


# What only the owner may do ---------------------------------------------------------------------------------------


def test_only_the_owner_writes_the_status(node: Node, other_node: Node) -> None:
    member = owned_by(node)
    assert not Statuses(other_node.lease_id).to_starting(member, automatic=False)
    assert (row_of(member).status, StatusChange.objects.count()) == ("disconnected", 0)
    assert Statuses(node.lease_id).to_starting(member, automatic=False)
    assert row_of(member).status == "starting"


def test_only_the_owner_frees_the_port_of_a_member(node: Node, other_node: Node) -> None:
    member = owned_by(node, status="connected")
    PortAllocation.objects.create(member=member, port=20000, lease_id=node.lease_id)
    Statuses(other_node.lease_id).to_error(member.pk, ["connected"], "exit", "it ended")
    assert row_of(member).port == 20000
    Statuses(node.lease_id).to_error(member.pk, ["connected"], "exit", "it ended")
    assert row_of(member).port is None


def test_two_runtimes_may_use_the_same_port(node: Node, other_node: Node) -> None:
    PortAllocation.objects.create(member=owned_by(node), port=20000, lease_id=node.lease_id)
    bob = owned_by(other_node, "bob")
    PortAllocation.objects.create(member=bob, port=20000, lease_id=other_node.lease_id)
    assert row_of(bob).port == 20000


def test_a_runtime_finds_and_claims_only_calls_of_its_own_members(node: Node, other_node: Node) -> None:
    own_call, other_call = queue_call(owned_by(node)), queue_call(owned_by(other_node, "bob"))
    assert find_queued(node.lease_id, Exclusions(), 10) == [own_call]
    assert statements.claim([own_call.pk, other_call.pk], node.lease_id) == 1
    own_call.refresh_from_db()
    other_call.refresh_from_db()
    assert (own_call.status, own_call.lease_id) == ("running", node.lease_id)
    assert (other_call.status, other_call.lease_id) == ("queued", None)


# Races, which only PostgreSQL has ---------------------------------------------------------------------------------


def a_statement_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@needs_nodes
def test_a_runtime_that_starts_beside_another_node_owns_only_the_members_of_its_own(
    node: Node, other_node: Node
) -> None:
    own, others, new = owned_by(node), owned_by(other_node, "bob", status="connected"), add("new")
    last_lease_id, node.lease_id = node.lease_id, uuid.uuid4()
    with transaction.atomic():
        ownership.take_over_own(node)
    assert row_of(own).lease_id == node.lease_id != last_lease_id
    assert (row_of(others).lease_id, row_of(others).status) == (other_node.lease_id, "connected")
    assert row_of(new).node is None


@needs_nodes
def test_members_of_a_node_are_taken_only_after_its_lease_was_revoked(node: Node, other_node: Node) -> None:
    member = owned_by(other_node)
    assert ownership.claim([member], node.lease_id) == []
    Node.objects.filter(pk=other_node.pk).update(lease_id=None)
    assert ownership.claim([member], node.lease_id) == ["anna"]
    assert (row_of(member).node, row_of(member).epoch) == (node, member.epoch + 1)


@needs_nodes
def test_of_two_nodes_that_take_the_same_member_one_gets_it(node: Node, other_node: Node) -> None:
    member = add()
    assert [ownership.claim([member], each.lease_id) for each in (node, other_node)] == [["anna"], []]
    assert row_of(member).node == node


@needs_nodes
def test_a_member_goes_only_to_the_runtime_that_its_owner_has_seen(node: Node, other_node: Node) -> None:
    member = owned_by(node, requested_node=other_node)
    Node.objects.filter(pk=other_node.pk).update(lease_id=uuid.uuid4())
    assert not ownership.give_away(member, node.lease_id, other_node)
    other_node.refresh_from_db()
    assert ownership.give_away(member, node.lease_id, other_node)
    assert (row_of(member).node, row_of(member).requested_node) == (other_node, None)


@needs_nodes
def test_a_member_that_was_started_again_is_not_given_away_by_a_late_change(node: Node, other_node: Node) -> None:
    member = owned_by(node)
    assert Statuses(node.lease_id).to_starting(member, automatic=False)
    assert not ownership.give_away(member, node.lease_id, other_node)
    assert row_of(member).node == node


@needs_row_locks
def test_a_member_that_somebody_changes_now_is_left_and_the_others_are_taken(node: Node, other_node: Node) -> None:
    locked, free = owned_by(other_node), owned_by(other_node, "bob")
    Node.objects.filter(pk=other_node.pk).update(lease_id=None)
    names: list[list[str]] = []
    with transaction.atomic():
        list(GuildMember.objects.select_for_update().filter(pk=locked.pk))
        in_thread(lambda: names.append(ownership.claim([locked, free], node.lease_id))).join(10)
    assert names == [["bob"]]


@needs_row_locks
def test_a_change_of_the_owner_delays_no_heartbeat_and_keeps_both_leases(node: Node, other_node: Node) -> None:
    member = owned_by(node)
    results: list[bool] = []
    with transaction.atomic():
        assert ownership.give_away(member, node.lease_id, other_node)
        in_thread(lambda: results.append(lease.renew(other_node.lease_id))).join(10)
        assert results == [True]
        revocation = in_thread(lambda: Node.objects.filter(pk=other_node.pk).update(lease_id=None))
        eventually(a_statement_waits_for_a_lock)
    revocation.join(10)
    assert row_of(member).lease_id == other_node.lease_id


@needs_row_locks
def test_the_locks_of_a_web_that_froze_while_it_saved_rights_are_freed_by_the_database(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hall, "IDLE_LIMIT", "300ms")
    lease.hall()
    is_frozen, may_end = threading.Event(), threading.Event()
    errors: list[type[Exception]] = []

    def freeze() -> None:
        try:
            with transaction.atomic():  # as a form of the admin does
                User.objects.create_user("bob").groups.add(Group.objects.create(name="readers"))
                is_frozen.set()
                may_end.wait(20)
        except Error as error:
            errors.append(type(error))

    frozen = in_thread(freeze)
    is_frozen.wait(10)
    Hall.note_access_change()
    may_end.set()
    frozen.join(10)
    assert errors
    assert not User.objects.exists()


@needs_row_locks
def test_the_locks_of_a_node_that_froze_are_freed_by_the_database(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    member = owned_by(node)
    monkeypatch.setattr(Hall, "IDLE_LIMIT", "300ms")
    is_frozen, may_end = threading.Event(), threading.Event()

    errors: list[Exception] = []

    def freeze() -> None:
        try:
            lock_and_wait()
        except Error as error:
            errors.append(error)

    def lock_and_wait() -> None:
        with database.short_transaction():
            list(GuildMember.objects.select_for_update().filter(pk=member.pk))
            is_frozen.set()
            may_end.wait(20)

    frozen = in_thread(freeze)
    is_frozen.wait(10)
    GuildMember.objects.filter(pk=member.pk).update(description="changed while the other node is frozen")
    assert row_of(member).description
    may_end.set()
    frozen.join(10)
    assert [type(error) for error in errors] == [OperationalError]  # whose work `persistently` repeats


@needs_row_locks
def test_a_change_of_the_owner_waits_for_no_lock_for_long(
    node: Node, other_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = owned_by(node)
    monkeypatch.setattr(database, "LOCK_LIMIT", "100ms")
    errors: list[Exception] = []

    def give_away() -> None:
        try:
            ownership.give_away(member, node.lease_id, other_node)
        except OperationalError as error:
            errors.append(error)

    with transaction.atomic():
        list(GuildMember.objects.select_for_update().filter(pk=member.pk))
        in_thread(give_away).join(10)
    assert "lock timeout" in str(errors[0])


@needs_row_locks
def test_a_claim_that_waits_for_a_change_of_the_owner_claims_nothing(node: Node, other_node: Node) -> None:
    call = queue_call(owned_by(node))
    counts: list[int] = []
    with transaction.atomic():
        ownership.take_over(GuildMember.objects.all(), other_node, "moved")
        thread = in_thread(lambda: counts.append(statements.claim([call.pk], node.lease_id)))
        eventually(a_statement_waits_for_a_lock)
    thread.join(10)
    call.refresh_from_db()
    assert (counts, call.status) == ([0], "queued")


@needs_row_locks
def test_a_claim_does_not_wait_for_another_change_of_the_member(node: Node) -> None:
    member = owned_by(node)
    call = queue_call(member)
    counts: list[int] = []
    with transaction.atomic():
        GuildMember.objects.filter(pk=member.pk).update(desired_state="stopped")
        in_thread(lambda: counts.append(statements.claim([call.pk], node.lease_id))).join(10)
        assert counts == [1]


@needs_row_locks
def test_a_late_status_of_the_last_owner_is_not_written(node: Node, other_node: Node) -> None:
    member = owned_by(node, status="connected")
    results: list[bool] = []
    with transaction.atomic():
        ownership.take_over(GuildMember.objects.all(), other_node, "moved")
        late_write = Statuses(node.lease_id)
        thread = in_thread(lambda: results.append(late_write.to_error(member.pk, ["connected"], "exit", "it ended")))
        eventually(a_statement_waits_for_a_lock)
    thread.join(10)
    assert results == [False]
    assert (row_of(member).status, row_of(member).last_error) == ("disconnected", "")


@needs_row_locks
def test_the_owner_cannot_change_while_a_claim_is_not_committed(node: Node, other_node: Node) -> None:
    member = owned_by(node)
    call = queue_call(member)

    def take_over() -> None:
        with transaction.atomic():
            ownership.take_over(GuildMember.objects.all(), other_node, "moved")

    with transaction.atomic():
        assert statements.claim([call.pk], node.lease_id) == 1
        thread = in_thread(take_over)
        eventually(a_statement_waits_for_a_lock)
        assert row_of(member).lease_id == node.lease_id
    thread.join(10)
    assert row_of(member).lease_id == other_node.lease_id
