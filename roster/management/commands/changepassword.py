from __future__ import annotations

from typing import Any

from django.contrib.auth.management.commands import changepassword
from django.db import transaction


class Command(changepassword.Command):
    """Django's command, in one transaction with the entry in the audit log."""

    help = "Set another password of a user, which is asked for."

    def handle(self, *args: Any, **options: Any) -> Any:
        with transaction.atomic():
            return super().handle(*args, **options)
