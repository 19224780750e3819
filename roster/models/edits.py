"""Edits of manifests that somebody proposes in the hall, until they are written into the files of the members."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

from roster.json_field import JsonField
from roster.models.members import GuildMember


class ManifestEdit(models.Model):
    """Changed values of the manifest of one member. The row does not change after its approval, except for `nodes`.

    `mcp_runtime.control.edits` writes it. When it is approved, the runtime of each node that the hall has then changes
    its own file (`mcp_runtime.members.edits`).
    """

    MAX_OPEN = 20  # of one member
    NOT_YET = "it has not changed its file yet"
    KEEP = timedelta(days=30)

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="edits", editable=False)
    changes = JsonField(
        default=list, editable=False, help_text="For each value its path, and what it is before and after the edit."
    )
    fault = models.TextField(
        blank=True,
        editable=False,
        help_text="The fault of the file. The hall did not know its values, so they are replaced, whatever they are.",
    )
    notes = JsonField(default=list, editable=False, help_text="Sentences for the person who approves it.")
    secrets = JsonField(default=list, editable=False, help_text="The names of the secrets that came with it.")
    undoes = models.ForeignKey("self", null=True, editable=False, on_delete=models.SET_NULL, related_name="undone_by")
    needs_restart = models.BooleanField(default=False, editable=False, help_text="The member needs a new process.")
    identity_before = models.CharField(max_length=64, editable=False, help_text="What the member ran or called.")
    identity_after = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Empty if the hall does not know its other values."
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    approved_at = models.DateTimeField(null=True, editable=False)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    keeps_secrets = models.BooleanField(
        default=False, editable=False, help_text="The member may use the secrets afterwards that it could use before."
    )
    allowed_at = models.DateTimeField(
        null=True, editable=False, help_text="When the edited member was allowed to use its secrets again."
    )
    nodes = JsonField(
        default=dict,
        editable=False,
        help_text="For each node that had the file at the approval, why it is not changed. Empty if it is.",
    )

    class Meta:
        ordering = ["-pk"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"edit {self.pk} of {self.member}"

    @property
    def is_forced(self) -> bool:
        return bool(self.fault)

    @property
    def is_written(self) -> bool:
        """Whether some node has changed its file."""
        return "" in self.nodes.values()

    @property
    def faults(self) -> list[str]:
        """Why files are not changed, one sentence for each node."""
        return [f"On node {node}: {fault}." for node, fault in sorted(self.nodes.items()) if fault]

    @property
    def state(self) -> str:
        """`proposed`, `approved` or `written`."""
        if self.approved_at is None:
            return "proposed"
        return "written" if self.is_written else "approved"

    @classmethod
    def expired(cls) -> models.QuerySet[ManifestEdit]:
        """Those that were approved long ago. Proposed ones stay, because nobody has decided about them."""
        return cls.objects.filter(approved_at__lt=timezone.now() - cls.KEEP)
