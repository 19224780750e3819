"""Members that somebody removed: remove, list, restore. The runtime moves the folders.

The web needs no right to write in the members folder. What a removed member has done stays in the hall: its row, its
calls and its status changes.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.control.members import find_member, record_of_member, require_unneeded
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownMemberError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.security.access import Principal
from roster.models import AuditEntry, GuildMember, Hall, TrashedMember

Kind = AuditEntry.Kind


def trashed_members(principal: Principal) -> QuerySet[TrashedMember]:
    """Those that can be restored, and those whose folder is still to be moved somewhere. The newest first.

    Members that are reserved for others are not among them.
    """
    recent = TrashedMember.objects.filter(removed_at__gt=timezone.now() - TrashedMember.KEEP)
    recent = recent.exclude(name__in=principal.closed_members)
    restored = [row.pk for row in recent.exclude(restore_requested_at=None) if not row.faults]
    return recent.exclude(pk__in=restored).select_related("removed_by")


def remove_member(row: GuildMember, by: User | None, *, force: bool = False) -> TrashedMember:
    """Let the runtime of each node move the member's folder to the trash. The member then stops and leaves the roster.

    Raises MemberInUseError while an agent needs it, unless `force`. Raises UnknownMemberError and RequestRefusedError.
    """
    if not force:
        require_unneeded(row)
    with short_transaction():
        list(Hall.objects.select_for_update())
        row = find_member(row.name)
        pending = TrashedMember.objects.filter(name=row.name, is_replaced=False, restore_requested_at=None).first()
        if pending is not None and pending.expires_at > timezone.now():
            faults = " ".join(pending.faults) or "The runtime does it when it runs."
            raise RequestRefusedError(f"member {row.name!r} is being removed already. {faults}")
        recent = TrashedMember.objects.filter(removed_at__gt=timezone.now() - TrashedMember.KEEP)
        if recent.filter(restore_requested_at=None).count() >= TrashedMember.MAX:
            reason = (
                f"{TrashedMember.MAX} members were removed in {TrashedMember.KEEP.days} days; delete the folder by hand"
            )
            raise RequestRefusedError(reason)
        trashed = TrashedMember.objects.create(name=row.name, directory=row.directory, removed_by=by)
        record_of_member(row, Kind.MEMBER_TRASHED, before={"folder": row.directory})
    notify_runtime(members=True)
    return trashed


def restore_member(pk: int, principal: Principal) -> TrashedMember:
    """Let the runtime of each node move the folder back. The member is then in the roster as it was.

    Raises UnknownMemberError and RequestRefusedError.
    """
    with short_transaction():
        list(Hall.objects.select_for_update())
        trashed = TrashedMember.objects.filter(pk=pk).first()
        is_hidden = trashed is not None and trashed.name in principal.closed_members
        if trashed is None or is_hidden or trashed.expires_at < timezone.now():
            raise UnknownMemberError(f"the trash has no member with the number {pk}")
        if trashed.is_restored:
            raise RequestRefusedError(f"member {trashed.name!r} is restored already")
        others = GuildMember.objects.filter(name__iexact=trashed.name, removed_at=None)
        if not trashed.is_replaced:  # then the member of this name is still the removed one
            others = others.exclude(name=trashed.name)
        if others.exists():
            raise RequestRefusedError(
                f"the hall has another member {trashed.name!r} now; remove or rename that one first"
            )
        trashed.restore_requested_at, trashed.nodes = timezone.now(), {}
        trashed.save(update_fields=["restore_requested_at", "nodes"])
        target = f"member {trashed.name}"
        AuditEntry.record(Kind.MEMBER_RESTORED, target, member=trashed.name, after={"folder": trashed.directory})
    notify_runtime(members=True)
    return trashed
