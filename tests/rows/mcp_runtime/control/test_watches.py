"""Watches: subscriptions of people to resources."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection

from mcp_runtime.control import watches as module
from mcp_runtime.control.extras import Kind, find_extra, set_extra_enabled
from mcp_runtime.control.watches import State, Watches
from mcp_runtime.protocol.errors import ExtraDisabledError, NotAllowedError, RequestRefusedError, TooManyCallsError
from mcp_runtime.security import principals
from mcp_runtime.security.access import OPERATOR
from tests.conftest import eventually
from tests.support.extras import Updates
from tests.support.gateway_world import Member, World, in_background

URI = "file:///a.txt"


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watches]:
    """Its subscriptions end soon after the test."""
    hub = Watches()
    yield hub
    for watch in list(hub.open_watches.values()):
        watch.exchange.abort()
        eventually(lambda watch=watch: watch.is_over)


def after(state: State) -> tuple[str, int]:
    return state.id, state.updates


def test_an_update_ends_the_wait_and_has_a_time(notes: Member, watches: Watches, updates: Updates) -> None:
    first = watches.look(OPERATOR, notes.row, URI)
    assert (first.updates, first.updated_at) == (0, None)
    eventually(lambda: notes.messages("resources/subscribe"))
    updates.send("file:///b.txt")
    with in_background(lambda: updates.send(URI)):
        second = watches.look(OPERATOR, notes.row, URI, after=after(first), wait=20.0)
    assert (second.id, second.updates) == (first.id, 1)
    assert second.updated_at is not None
    third = watches.look(OPERATOR, notes.row, URI, after=after(second), wait=0.1)
    assert third.updates == 1


def test_those_who_watch_the_same_resource_as_one_user_share_a_subscription(notes: Member, watches: Watches) -> None:
    states = [watches.look(OPERATOR, notes.row, URI) for _ in range(3)]
    assert len({state.id for state in states}) == 1
    assert watches.look(OPERATOR, notes.row, "file:///b.txt").id != states[0].id


def test_a_subscription_that_nobody_asks_about_ends(
    notes: Member, watches: Watches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.5)
    state = watches.look(OPERATOR, notes.row, URI)
    (watch,) = watches.open_watches.values()
    eventually(lambda: watch.is_over)
    assert watches.look(OPERATOR, notes.row, URI).id != state.id


def test_a_subscription_ends_after_its_longest_time(
    notes: Member, watches: Watches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 1.0)
    state = watches.look(OPERATOR, notes.row, URI)
    eventually(lambda: watches.look(OPERATOR, notes.row, URI).id != state.id)


def test_a_user_and_the_process_have_a_limit(notes: Member, watches: Watches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OF_USER", 2)
    for number in range(2):
        watches.look(OPERATOR, notes.row, f"file:///{number}")
    with pytest.raises(TooManyCallsError):
        watches.look(OPERATOR, notes.row, "file:///more")
    watches.look(OPERATOR, notes.row, "file:///0")
    ann = User.objects.create_superuser("ann")
    watches.look(principals.principal_of_user(ann), notes.row, "file:///0")
    monkeypatch.setattr(module, "MAX_WATCHES", 3)
    with pytest.raises(TooManyCallsError):
        watches.look(principals.principal_of_user(ann), notes.row, "file:///1")


def test_what_is_disabled_cannot_be_watched(world: World, notes: Member, watches: Watches) -> None:
    set_extra_enabled(notes.row, find_extra(notes.row, Kind.RESOURCE, URI), False)
    world.gateway.member_changed(notes.row.pk)

    def is_refused() -> bool:
        try:
            watches.look(OPERATOR, notes.row, URI)
        except ExtraDisabledError:
            return True
        for watch in list(watches.open_watches.values()):
            watch.exchange.abort()
        return False

    eventually(is_refused)


def test_a_member_that_announces_no_updates_is_not_asked(notes: Member, watches: Watches) -> None:
    notes.row.capabilities = {"resources": {}}
    with pytest.raises(RequestRefusedError, match="does not announce updates"):
        watches.look(OPERATOR, notes.row, URI)


def test_a_subscription_ends_when_its_user_loses_the_right(notes: Member, watches: Watches) -> None:
    ann = User.objects.create_user("ann")
    ann.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    watches.look(principals.principal_of_user(ann), notes.row, URI)
    (watch,) = watches.open_watches.values()
    ann.is_active = False
    ann.save()
    eventually(lambda: watch.is_over)
    ann.is_active = True
    ann.save()
    ann.user_permissions.clear()
    with pytest.raises(NotAllowedError):
        watches.look(principals.principal_of_user(ann), notes.row, URI)


def test_a_stream_that_breaks_is_followed_by_another_with_another_id(
    world: World, notes: Member, watches: Watches
) -> None:
    state = watches.look(OPERATOR, notes.row, URI)
    (watch,) = watches.open_watches.values()
    watch.exchange.abort()
    eventually(lambda: watch.is_over)
    assert watches.look(OPERATOR, notes.row, URI, after=after(state), wait=20.0).id != state.id


def test_several_threads_open_one_subscription(notes: Member, watches: Watches) -> None:
    ids: list[str] = []

    def look() -> None:
        ids.append(watches.look(OPERATOR, notes.row, URI).id)
        connection.close()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(ids), len(set(ids))) == (4, 1)
