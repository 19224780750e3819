"""Filters of the list of calls that a user saved under a name."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models


class SavedFilter(models.Model):
    MAX_PER_USER: ClassVar[int] = 30
    MAX_NAME: ClassVar[int] = 60
    MAX_QUERY: ClassVar[int] = 2_000

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_filters")
    name = models.CharField(max_length=MAX_NAME)
    query = models.CharField(max_length=MAX_QUERY, help_text="The query of the list's address, with its filters.")

    class Meta:
        default_permissions = ()
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="saved_filter_name_is_unique_for_user")]

    def __str__(self) -> str:
        return self.name
