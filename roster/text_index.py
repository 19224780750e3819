"""SQLite's index of the texts of calls is made after migrations, because a new table of calls has no triggers."""

from __future__ import annotations

from typing import Any

from django.db.models.signals import post_migrate
from django.dispatch import receiver


@receiver(post_migrate)
def prepare(sender: Any, **_: Any) -> None:
    if sender.label == "roster":
        from mcp_runtime.control import call_search  # late, because every command imports this module

        call_search.prepare_database()
