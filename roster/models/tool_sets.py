"""Tool sets: a choice of members and tools under one name, with an address of its own at the gateway."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone

from roster.models.members import GuildMember


class ToolSet(models.Model):
    """Members and tools under one name. `mcp_runtime.control.tool_sets` writes it.

    It gives no rights. A client sees through it only the tools that it may call anyway.
    """

    MAX_ENTRIES = 200
    MAX_TITLE, MAX_DESCRIPTION = 100, 2_000  # characters

    name = models.CharField(
        max_length=64,
        unique=True,
        validators=[
            RegexValidator(r"^[a-z0-9][a-z0-9_-]*\Z", "Use lower case letters, digits, '-' and '_'. Begin without '_'.")
        ],
        help_text="A part of its address: /sets/NAME/mcp.",
    )
    title = models.CharField(max_length=MAX_TITLE, blank=True, help_text="Clients may show it instead of the name.")
    description = models.CharField(
        max_length=MAX_DESCRIPTION, blank=True, help_text="Clients get it as instructions for their model."
    )
    groups = models.ManyToManyField(
        "auth.Group",
        through="ToolSetGroup",
        related_name="tool_sets",
        blank=True,
        help_text="If a tool set has groups, only their users and superusers can use it.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    changed_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ToolSetGroup(models.Model):
    """Reserve a tool set for the users of a group. A tool set without such rows is open to everybody.

    As with members, a group with such a row cannot be deleted.
    """

    tool_set = models.ForeignKey(ToolSet, on_delete=models.CASCADE)
    group = models.ForeignKey("auth.Group", on_delete=models.PROTECT)

    class Meta:
        default_permissions = ()  # those of the tool set decide
        constraints = [models.UniqueConstraint(fields=["tool_set", "group"], name="group_is_unique_in_its_tool_set")]

    def __str__(self) -> str:
        return f"{self.tool_set} is for {self.group}"


class ToolSetEntry(models.Model):
    """A member or a tool in a tool set. It names the tool, because a member may list a tool again later."""

    MAX_DESCRIPTION = 4_000  # characters

    tool_set = models.ForeignKey(ToolSet, on_delete=models.CASCADE, related_name="entries")
    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="tool_set_entries")
    tool_name = models.CharField(max_length=255, blank=True, help_text="If empty, all of the member.")
    new_name = models.CharField(max_length=64, blank=True, help_text="If empty, the name that the tool has at /mcp.")
    new_description = models.CharField(
        max_length=MAX_DESCRIPTION, blank=True, help_text="If empty, the description that the member gives."
    )
    position = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["position", "id"]
        default_permissions = ()  # those of the tool set decide
        constraints = [
            models.UniqueConstraint(fields=["tool_set", "member", "tool_name"], name="entry_is_unique_in_its_tool_set")
        ]

    def __str__(self) -> str:
        return f"{self.member}/{self.tool_name}" if self.tool_name else str(self.member)
