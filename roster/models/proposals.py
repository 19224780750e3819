"""Members that somebody wants to add, until they are approved and their folders exist."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone


class MemberProposal(models.Model):
    """A member that somebody proposes, with the manifest that it would have. It contains no secret.

    `mcp_runtime.control.proposals` writes it. Before it is approved, nothing reads it to do something with it. Then
    the runtime of each node creates the folder (`mcp_runtime.members.proposals`).
    """

    MAX_OPEN = 100
    KEEP = timedelta(days=30)

    name = models.CharField(max_length=64, editable=False)
    text = models.TextField(editable=False, help_text="The content of guild-member.json.")
    # Of the text and of its bundle, if it has one (`members.manifest.files.digest_of`).
    digest = models.CharField(max_length=64, editable=False, help_text="The SHA-256 of the text.")
    source = models.CharField(max_length=100, editable=False, help_text="What it was read from.")
    notes = models.JSONField(default=list, editable=False, help_text="Sentences for the person who approves it.")
    inputs = models.JSONField(default=list, editable=False, help_text="Secrets that somebody must still set.")
    secrets = models.JSONField(default=list, editable=False, help_text="The names of the secrets that came with it.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    approved_at = models.DateTimeField(null=True, editable=False)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    allowed_at = models.DateTimeField(
        null=True, editable=False, help_text="When the member was allowed to use its secrets."
    )
    nodes = models.JSONField(
        default=dict, editable=False, help_text="For each node that tried, why it has no folder. Empty if it has one."
    )

    class Meta:
        ordering = ["name"]
        default_permissions = ()
        permissions = [("approve_member", "Can propose members, and approve what they run")]
        constraints = [
            models.UniqueConstraint(fields=["name"], condition=Q(approved_at=None), name="one_open_proposal_for_a_name")
        ]

    def __str__(self) -> str:
        return f"proposed member {self.name}"

    @property
    def manifest(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.text)
        return values

    @property
    def has_folder(self) -> bool:
        """Whether some node has created the folder."""
        return "" in self.nodes.values()

    @property
    def faults(self) -> list[str]:
        """Why nodes have no folder, one sentence for each."""
        return [f"On node {node}: {fault}." for node, fault in sorted(self.nodes.items()) if fault]

    @classmethod
    def prune(cls) -> None:
        """Delete those that became members long ago. The secrets of others would stay without their proposal."""
        old = cls.objects.filter(approved_at__lt=timezone.now() - cls.KEEP)
        cls.objects.filter(pk__in=[row.pk for row in old if row.has_folder]).delete()
