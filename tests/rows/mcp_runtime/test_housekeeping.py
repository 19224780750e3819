"""The regular work of the runtime for the audit log."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcp_runtime.calls import statistics
from mcp_runtime.runtime import housekeeping
from roster.models import AuditEntry, AuditOverflow
from tests.conftest import eventually

Kind = AuditEntry.Kind


@pytest.mark.django_db(transaction=True)
def test_old_entries_are_deleted_and_counted_ones_become_an_entry(
    monkeypatch: pytest.MonkeyPatch, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(statistics, "ROLLUP_SECONDS", 0.01)
    monkeypatch.setattr(housekeeping, "PRUNE_SECONDS", 0.0)
    settings.GUILD_HALL_KEEP_AUDIT_DAYS = 90
    for days in (89, 91):
        at = timezone.now() - timedelta(days=days)
        AuditEntry.objects.create(kind=Kind.LOGIN, source="web", actor="bob", target=f"{days} days", at=at)
    hour = AuditOverflow.this_hour() - timedelta(hours=2)
    AuditOverflow.objects.create(kind=Kind.LOGIN_FAILED, hour=hour, count=5)
    is_over = threading.Event()
    thread = threading.Thread(target=housekeeping.keep_house, args=(is_over, uuid.uuid4()))
    with caplog.at_level("INFO", logger="guildhall.runtime"):
        thread.start()
        try:
            eventually(lambda: "pruned 1 entries of the audit log" in caplog.text)
            eventually(lambda: not AuditOverflow.objects.exists())
        finally:
            is_over.set()
            thread.join()
    targets = list(AuditEntry.objects.order_by("at").values_list("target", flat=True))
    assert targets == ["89 days", "5 more, which have no entries of their own"]
