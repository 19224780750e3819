"""The locks of members whose packages are installed once."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from django.db import models
from django.utils import timezone

from roster.json_field import JsonField
from roster.models.members import GuildMember


class VersionLookUp(models.Model):
    """The question which version of a member's package is the newest, and the answer.

    `mcp_runtime.control.versions` writes the question, and the node of the member the answer.
    """

    member = models.OneToOneField(GuildMember, editable=False, on_delete=models.CASCADE, related_name="version_look_up")
    package = models.CharField(max_length=300, editable=False, help_text="The name of the package.")
    asked_at = models.DateTimeField(default=timezone.now, editable=False)
    answered_at = models.DateTimeField(null=True, editable=False)
    version = models.CharField(max_length=100, blank=True, editable=False)
    fault = models.TextField(blank=True, editable=False, help_text="Why there is no answer. Empty if there is one.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"newest version of {self.package} for {self.member}"


class PackageLock(models.Model):
    """The exact packages of a member, with their hashes. All nodes install them from it.

    The first node that starts the member makes it (`mcp_runtime.members.packages.locks`), and nothing changes it.
    """

    KEEP = timedelta(days=30)

    member = models.ForeignKey(GuildMember, editable=False, on_delete=models.CASCADE, related_name="package_locks")
    specification = models.TextField(editable=False, help_text="What it is for: the packages that the manifest names.")
    key = models.CharField(max_length=64, editable=False, help_text="The SHA-256 of the specification.")
    text = models.TextField(editable=False, help_text="A package-lock.json, or requirements with hashes.")
    digest = models.CharField(max_length=64, editable=False, help_text="The SHA-256 of the text.")
    version = models.CharField(max_length=100, editable=False, help_text="The exact version of the main package.")
    count = models.PositiveIntegerField(editable=False, help_text="The number of packages.")
    scripts = JsonField(default=list, editable=False, help_text="Names of packages with install scripts.")
    made_at = models.DateTimeField(default=timezone.now, editable=False)
    node = models.CharField(max_length=200, editable=False, help_text="The name of the node that made it.")
    used_at = models.DateTimeField(default=timezone.now, editable=False, help_text="The day of its last use.")

    class Meta:
        ordering = ["-made_at"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["member", "key"], name="one_lock_for_a_specification")]

    def __str__(self) -> str:
        return f"lock of {self.specification}"

    @staticmethod
    def key_of(specification: str) -> str:
        return hashlib.sha256(specification.encode()).hexdigest()

    @property
    def is_sound(self) -> bool:
        """Whether the text is still the one of which the digest was made."""
        return hashlib.sha256(self.text.encode()).hexdigest() == self.digest
