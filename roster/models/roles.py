"""The groups that are roles."""

from __future__ import annotations

from django.db import models


class Role(models.Model):
    """Marks a group as a role. `roster.roles` creates these rows, and decides the permissions of their groups.

    The name identifies the role. The group usually has the same name. It has another one if a hall already had a group
    of that name when the roles came, because the users of that group must not get the rights of the role.
    """

    name = models.CharField(max_length=64, unique=True)
    group = models.OneToOneField("auth.Group", on_delete=models.PROTECT, related_name="role")

    class Meta:
        ordering = ["pk"]
        default_permissions = ()  # nobody edits these rows

    def __str__(self) -> str:
        return self.name
