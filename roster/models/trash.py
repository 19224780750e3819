"""Members that somebody removed, while their folders are in the trash."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone


class TrashedMember(models.Model):
    """A member that somebody removed. The runtime of each node moves its folder to the trash, and back.

    `mcp_runtime.control.trash` writes the requests, and `mcp_runtime.members.trash` does what they ask for. The row of
    the member itself stays, with its calls.
    """

    KEEP = timedelta(days=30)
    MAX = 500

    name = models.CharField(max_length=64, editable=False)
    directory = models.CharField(max_length=1000, editable=False, help_text="The path relative to the members folder.")
    removed_at = models.DateTimeField(default=timezone.now, editable=False)
    removed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    is_replaced = models.BooleanField(
        default=False,
        editable=False,
        help_text="A member of this name came back. No node moves its folder to the trash any more.",
    )
    restore_requested_at = models.DateTimeField(null=True, editable=False)
    nodes = models.JSONField(
        default=dict,
        editable=False,
        help_text="For each node that tried, why its folder is not where it should be. Empty if it is.",
    )

    class Meta:
        ordering = ["-pk"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"member {self.name} in the trash"

    @property
    def is_restored(self) -> bool:
        return self.restore_requested_at is not None

    @property
    def expires_at(self) -> datetime:
        """When the runtime deletes the folder."""
        return self.removed_at + self.KEEP

    @property
    def faults(self) -> list[str]:
        """Why the folder is not where it should be, one sentence for each node."""
        return [f"On node {node}: {fault}." for node, fault in sorted(self.nodes.items()) if fault]

    @classmethod
    def prune(cls) -> None:
        """Delete the rows long after their folders, because a node that was away must still learn of the removal."""
        cls.objects.filter(removed_at__lt=timezone.now() - 2 * cls.KEEP).delete()
