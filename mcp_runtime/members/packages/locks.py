"""The locks of packages as rows. Nothing changes a lock. If a manifest names other packages, it has another one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.db import IntegrityError
from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from mcp_runtime.members.packages.lines import locked_line
from mcp_runtime.members.packages.manager import LockFacts
from mcp_runtime.protocol.errors import InstallError, McpRuntimeError
from mcp_runtime.rows.database import short_transaction
from roster.models import AuditEntry, GuildMember, PackageLock

USED_INTERVAL = timedelta(days=1)  # between two writes of `used_at`


def find(member: GuildMember, specification: str) -> PackageLock | None:
    """The lock for these packages of the member. Raises InstallError if its text was changed."""
    lock = PackageLock.objects.filter(member=member.pk, key=PackageLock.key_of(specification)).first()
    if lock is None:
        return None
    if not lock.is_sound:
        raise InstallError(
            "the text of its lock does not have the digest that was stored with it; find out who changed the row, "
            f"and then let guildhall relock {member.name} delete it"
        )
    if timezone.now() - lock.used_at > USED_INTERVAL:
        PackageLock.objects.filter(pk=lock.pk).update(used_at=timezone.now())
    return lock


def store(
    member: GuildMember,
    specification: str,
    text: str,
    facts: LockFacts,
    own_row: Callable[[int], QuerySet[GuildMember]],
) -> PackageLock:
    """Store a lock, or return the one that another node has stored meanwhile. Raises McpRuntimeError."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    try:
        with short_transaction():
            if not own_row(member.pk).select_for_update(no_key=True).exists():
                raise McpRuntimeError("the runtime lost its lease while it made a lock for the packages")
            lock = PackageLock.objects.create(
                member=member,
                specification=specification,
                key=PackageLock.key_of(specification),
                text=text,
                digest=digest,
                version=facts.version,
                count=facts.count,
                scripts=list(facts.scripts),
                node=settings.GUILD_HALL_NODE,
            )
            after = {"packages": specification, "version": facts.version, "count": facts.count, "sha256": digest}
            AuditEntry.record(AuditEntry.Kind.PACKAGES_LOCKED, f"member {member.name}", member=member.name, after=after)
            return lock
    except IntegrityError:
        winner = find(member, specification)
        if winner is None:
            raise
        return winner


def used() -> list[tuple[GuildMember, PackageLock, bool]]:
    """The locks that members of the roster have now, each with its member and whether scripts may run."""
    members = GuildMember.objects.filter(removed_at=None, package_locks__isnull=False).distinct()
    found = []
    locks = Prefetch("package_locks", PackageLock.objects.defer("text"))  # which may have megabytes
    for member in members.prefetch_related(locks).only("name", "manifest"):
        if wanted := _wanted(member):
            key, with_scripts = wanted
            found += [(member, lock, with_scripts) for lock in member.package_locks.all() if lock.key == key]
    return found


def prune() -> None:
    """Delete locks that were not used for long, and whose member is removed or has other packages."""
    in_use = {lock.pk for _, lock, _ in used()}
    old = PackageLock.objects.filter(used_at__lt=timezone.now() - PackageLock.KEEP)
    old.exclude(pk__in=in_use).delete()


def _wanted(member: GuildMember) -> tuple[str, bool] | None:
    """The key of the lock that the member needs, and whether scripts may run. None if it needs none."""
    locked = locked_line(member.manifest)
    if locked is None:
        return None
    line, with_scripts = locked
    return PackageLock.key_of(line.specification(with_scripts=with_scripts)), with_scripts
