"""Tools that a user has pinned. The search of all pages shows them first."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from roster.models.members import Tool


class PinnedTool(models.Model):
    MAX_PER_USER: ClassVar[int] = 20

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="pinned_tools")
    tool = models.ForeignKey(Tool, on_delete=models.CASCADE, related_name="+")
    pinned_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "tool"], name="tool_is_pinned_once_by_a_user")]

    def __str__(self) -> str:
        return f"{self.tool} of {self.user}"
