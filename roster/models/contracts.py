"""Contracts: the versions of what members list, and which of them people agreed to."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone

from roster.json_field import JsonField
from roster.models.members import GuildMember


class Contract(models.Model):
    """What a member lists under one name. `mcp_runtime.members.contracts` writes it, and control writes approvals.

    It is held while its version waits for an approval. Then it is in no list, and nobody can use it.
    """

    class Kind(models.TextChoices):
        TOOL = "tool", "Tool"
        PROMPT = "prompt", "Prompt"
        RESOURCE_TEMPLATE = "resourceTemplate", "Resource template"
        INSTRUCTIONS = "instructions", "Instructions"

    MAX_NAME = 255

    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="contracts")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    name = models.CharField(max_length=MAX_NAME, blank=True)
    version = models.CharField(max_length=64, blank=True, help_text="The version in the last list. Empty if it left.")
    approved_version = models.CharField(max_length=64, blank=True, help_text="The version that counts as agreed.")
    is_held = models.BooleanField(default=False, help_text="The version waits for an approval.")
    grade = models.CharField(max_length=20, blank=True, help_text="The worst of the last changes.")
    reason = models.CharField(max_length=200, blank=True, help_text="Why it is held, without texts of the member.")
    changed_at = models.DateTimeField(default=timezone.now)
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    approver = models.CharField(max_length=400, blank=True, help_text="The name of who approved the version.")
    approved_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["member", "kind", "name"]
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["member", "kind", "name"], name="contract_is_unique_in_its_member")
        ]
        permissions = [("approve_contract", "Can approve changes of tools")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.name}".strip()


class ContractVersion(models.Model):
    """One version of a contract. It never changes: `version` is the SHA-256 of `definition`."""

    contract = models.ForeignKey(Contract, on_delete=models.CASCADE, related_name="versions")
    version = models.CharField(max_length=64)
    definition = models.TextField(help_text="The definition as canonical JSON (RFC 8785).")
    grade = models.CharField(
        max_length=20, blank=True, help_text="The worst change since the version that was agreed then."
    )
    findings = JsonField(default=list, help_text="Signs of poisoning: kind, place, sentence, weight, is_hard.")
    score = models.PositiveSmallIntegerField(default=0, help_text="0 to 100. From 50 on it counts as poisoned.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["contract", "version"], name="version_is_unique_in_its_contract")
        ]

    def __str__(self) -> str:
        return self.version[:12]
