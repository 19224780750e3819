"""Bundles of proposed members: the bytes of a zip, until each node has unpacked it."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

from roster.models.proposals import MemberProposal


class Bundle(models.Model):
    """A zip whose files come into the folder of a member. `mcp_runtime.control.bundles` writes it.

    It has no proposal yet while the person who uploaded it fills in values. It is deleted with its proposal.
    """

    MAX_STORED = 1_000_000_000  # bytes of all bundles
    MAX_WAITING = 3  # of one person, without a proposal
    KEEP_WAITING = timedelta(hours=1)
    MAX_SHOWN = 1000  # names of files

    proposal = models.OneToOneField(MemberProposal, null=True, editable=False, on_delete=models.CASCADE)
    digest = models.CharField(max_length=64, editable=False, help_text="The SHA-256 of its bytes.")
    size = models.BigIntegerField(editable=False, help_text="Of the zip, in bytes.")
    unpacked_size = models.BigIntegerField(editable=False, help_text="Of all its files together, in bytes.")
    file_count = models.IntegerField(editable=False)
    files = models.JSONField(default=list, editable=False, help_text="The names of its first files.")
    author = models.CharField(max_length=200, editable=False, help_text="As the bundle claims.")
    homepage = models.CharField(max_length=500, editable=False, help_text="As the bundle claims.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["pk"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"bundle {self.digest[:12]}"

    @classmethod
    def prune(cls) -> None:
        """Delete those that waited too long for the values of a person."""
        cls.objects.filter(proposal=None, created_at__lt=timezone.now() - cls.KEEP_WAITING).delete()


class BundlePart(models.Model):
    """A part of the bytes of a bundle. It is small, so that no process has a whole bundle in memory."""

    SIZE = 1_000_000  # bytes of each part but the last

    bundle = models.ForeignKey(Bundle, editable=False, on_delete=models.CASCADE, related_name="parts")
    number = models.IntegerField(editable=False, help_text="Counted from 0.")
    content = models.BinaryField(editable=False)

    class Meta:
        ordering = ["number"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["bundle", "number"], name="one_part_of_a_bundle_for_a_number")]

    def __str__(self) -> str:
        return f"part {self.number} of {self.bundle}"
