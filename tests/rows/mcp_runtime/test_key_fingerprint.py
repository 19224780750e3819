"""Nodes of one hall have one secret key."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.conf import settings as hall_settings
from django.core.management.base import CommandError
from django.db import connection

from mcp_runtime.http1 import listeners
from mcp_runtime.protocol.errors import SecretKeyError
from mcp_runtime.rows import key_fingerprint, lease
from mcp_runtime.runtime import worker
from roster.management.commands import up
from roster.models import Hall
from tests.support.leases import add_node, current_lease_id

pytestmark = pytest.mark.django_db

needs_nodes = pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
OTHER_KEY = "k" * 50


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "bind", lambda *_: [])
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr("mcp_runtime.members.process.kill_left_behind", lambda *_: None)
    monkeypatch.setattr(worker, "turn_fence_on", lambda: False)


def start_a_runtime() -> None:
    worker.take_the_hall(threading.Event())


def stored() -> str:
    return Hall.objects.get().key_fingerprint


def test_the_first_start_of_a_runtime_stores_a_fingerprint_that_does_not_contain_the_key() -> None:
    assert lease.hall().key_fingerprint == ""
    start_a_runtime()
    assert stored() == key_fingerprint.fingerprint()
    assert len(stored()) == 64
    assert hall_settings.SECRET_KEY not in stored()


def test_a_hall_with_one_node_may_change_its_key(settings: Any) -> None:
    start_a_runtime()
    before = stored()
    lease.release(current_lease_id())  # type: ignore[arg-type]
    settings.SECRET_KEY = OTHER_KEY
    start_a_runtime()
    assert stored() == key_fingerprint.fingerprint() != before


@needs_nodes
def test_a_node_with_another_key_than_the_hall_is_refused_and_changes_nothing(settings: Any) -> None:
    add_node("b")
    start_a_runtime()
    lease.release(current_lease_id())  # type: ignore[arg-type]
    before = stored()
    settings.SECRET_KEY = OTHER_KEY
    with pytest.raises(SecretKeyError, match=r"another secret key than the hall\. .* secret-key of node 'b' into"):
        start_a_runtime()
    with pytest.raises(SecretKeyError):  # also if the other node starts at the same moment
        key_fingerprint.note()
    assert (stored(), current_lease_id()) == (before, None)


@needs_nodes
def test_nodes_of_a_hall_without_a_fingerprint_start_and_the_first_one_stores_it() -> None:
    add_node("b")
    lease.hall()
    start_a_runtime()
    assert stored() == key_fingerprint.fingerprint()


@needs_nodes
def test_up_and_the_worker_refuse_another_key_with_a_sentence(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add_node("b")
    start_a_runtime()
    settings.SECRET_KEY = OTHER_KEY
    monkeypatch.setattr(up, "require_free_address", lambda *_: None)
    monkeypatch.setattr(up.Command, "_prepare", lambda _: None)
    with pytest.raises(CommandError, match="This node has another secret key than the hall"):
        up.Command().handle()
    assert worker.run() == worker.EX_CONFIG
    assert "This node has another secret key than the hall" in caplog.text
