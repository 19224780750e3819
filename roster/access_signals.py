"""Increase `Hall.access_version` after each change of a row that decides access.

QuerySet.update sends no signals. Code that uses it on such rows must call `Hall.note_access_change()` as well.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, User
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete
from django.dispatch import receiver

from roster.models import Call, GuildMember, Hall, MemberGroup, Token, ToolSet, ToolSetGroup

# A login saves only the field `last_login` of the user, which changes no access.
USER_FIELDS = {"is_active", "is_superuser", "username"}
LINKS = (
    User.groups.through,
    User.user_permissions.through,
    Group.permissions.through,
    GuildMember.groups.through,
    Token.members.through,
    Token.tools.through,
    ToolSet.groups.through,
)


@receiver([post_save, post_delete], sender=Token)
@receiver([post_save, post_delete], sender=MemberGroup)
@receiver([post_save, post_delete], sender=ToolSet)
@receiver([post_save, post_delete], sender=ToolSetGroup)
@receiver([post_delete], sender=User)
@receiver([post_delete], sender=Group)
@receiver([pre_delete], sender=GuildMember)  # before the deletion, see Hall.note_access_change
def _note_row_change(**_: Any) -> None:
    Hall.note_access_change()


@receiver(pre_delete, sender=Token)
def _keys_end_with_their_token(instance: Token, **_: Any) -> None:
    # Its calls stay, without the token. Their idempotency keys would then belong to the user, and could collide.
    Call.objects.filter(token=instance, idempotency_key__isnull=False).update(idempotency_key=None)


@receiver(post_save, sender=User)
def _note_user_change(update_fields: frozenset[str] | None = None, **_: Any) -> None:
    if update_fields is None or USER_FIELDS & update_fields:
        Hall.note_access_change()


def _note_link_change(action: str, **_: Any) -> None:
    if action.startswith("post_"):
        Hall.note_access_change()


for _through in LINKS:
    m2m_changed.connect(_note_link_change, sender=_through, dispatch_uid=f"access_version:{_through.__name__}")
