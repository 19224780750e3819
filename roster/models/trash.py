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
    moved_at = models.JSONField(
        default=dict, editable=False, help_text="For each node that moved its folder to the trash, when, in Unix time."
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
        """Until when it can be restored. A node deletes the folder when it has been in the trash for as long."""
        return self.removed_at + self.KEEP

    @property
    def faults(self) -> list[str]:
        """Why the folder is not where it should be, one sentence for each node."""
        return [f"On node {node}: {fault}." for node, fault in sorted(self.nodes.items()) if fault]

    @classmethod
    def pending_names(cls) -> set[str]:
        """The members that somebody wants to be gone, and that have not come back."""
        recent = cls.objects.filter(removed_at__gt=timezone.now() - cls.KEEP)
        return set(recent.filter(is_replaced=False, restore_requested_at=None).values_list("name", flat=True))

    @classmethod
    def prune(cls) -> None:
        """Delete the rows long after the last folder could be moved, so that each node has deleted its folder."""
        cls.objects.filter(removed_at__lt=timezone.now() - 2 * cls.KEEP).delete()
