"""Members that were approved may use their secrets. And the end of a secret."""

from __future__ import annotations

from collections.abc import Collection

from django.utils import timezone

from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from roster.models import AuditEntry, GuildMember, Secret, SecretUse


def allow(member: GuildMember, names: Collection[str], by_id: int | None) -> None:
    """Allow the member, as it is now, to use these secrets. `by_id` is the user who approved it.

    Call it in a transaction. If the member is in status `error`, perhaps because of a secret, it is tried again.
    """
    columns = {**values.fingerprints(member.manifest), "allowed_at": timezone.now(), "allowed_by_id": by_id}
    secrets = list(Secret.objects.filter(name__in=names))
    for secret in secrets:
        SecretUse.objects.update_or_create(secret=secret, member=member, defaults=columns)
        after = {"members": [member.name]}
        AuditEntry.record(AuditEntry.Kind.SECRET_ALLOWED, f"secret {secret.name}", member=member.name, after=after)
    if secrets:
        wanted = {"enabled": True, "desired_state": GuildMember.DesiredState.RUNNING, "manifest_error": ""}
        failed = GuildMember.objects.filter(pk=member.pk, status=GuildMember.Status.ERROR, **wanted)
        failed.update(restart_requested_at=timezone.now())


def delete(secret: Secret) -> None:
    """Delete it. Members that have its value keep it until they end."""
    with short_transaction():
        before = {"members": sorted(secret.uses.values_list("member__name", flat=True))}
        AuditEntry.record(AuditEntry.Kind.SECRET_DELETED, f"secret {secret.name}", before=before)
        secret.delete()
