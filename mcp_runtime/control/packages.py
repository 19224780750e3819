"""The locks of members' packages: what a member has, and how it gets another one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mcp_runtime.control.members import record_of_member, restart_member
from mcp_runtime.members.packages.lines import locked_line
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.rows.database import short_transaction
from roster.models import AuditEntry, GuildMember, PackageLock


@dataclass(frozen=True)
class PackageReport:
    """The packages of a member that are installed from a lock. Without a lock, the values of the lock are empty."""

    specification: str
    """The packages that the manifest names."""
    runs_scripts: bool
    """Whether install scripts may run."""
    version: str = ""
    count: int = 0
    sha256: str = ""
    scripts: tuple[str, ...] = ()
    """Packages with install scripts."""
    made_at: datetime | None = None
    node: str = ""

    @property
    def summary(self) -> str:
        """One sentence for people."""
        if self.made_at is None:
            return f"{self.specification}, locked and installed at the first start"
        count = f"{self.count} package{'' if self.count == 1 else 's'}"
        return f"{self.specification}, locked at version {self.version} with {count}"

    @property
    def script_note(self) -> str:
        """What the approver should know about install scripts. Empty if there are none."""
        if not self.scripts:
            return ""
        names = ", ".join(self.scripts)
        if self.runs_scripts:
            return f"Install scripts ran of: {names}"
        return f'Install scripts did not run of: {names}. If the server needs them, write "locked-with-scripts"'


def package_report(row: GuildMember) -> PackageReport | None:
    """The report about a member. None if its packages are not installed from a lock."""
    locked = locked_line(row.manifest)
    if locked is None:
        return None
    line, runs_scripts = locked
    specification = line.specification(with_scripts=runs_scripts)
    locks = PackageLock.objects.filter(member=row.pk, key=PackageLock.key_of(specification)).defer("text")
    lock = locks.first()
    if lock is None:
        return PackageReport(specification, runs_scripts)
    return PackageReport(
        specification,
        runs_scripts,
        version=lock.version,
        count=lock.count,
        sha256=lock.digest,
        scripts=tuple(map(str, lock.scripts)),
        made_at=lock.made_at,
        node=lock.node,
    )


def relock(row: GuildMember, *, force: bool = False) -> None:
    """Delete the locks of the member, and restart it if it runs. Its next start makes another lock.

    Packages that the manifest does not pin are then the newest ones. Raises RequestRefusedError.
    """
    if locked_line(row.manifest) is None:
        raise RequestRefusedError(f'member {row.name!r} has no lock, because its manifest has no "packages": "locked"')
    with short_transaction():
        if row.enabled and row.desired_state == GuildMember.DesiredState.RUNNING:
            restart_member(row, force=force)
        locks = PackageLock.objects.filter(member=row.pk)
        before = {"locks": [f"{lock.specification}, sha256 {lock.digest}" for lock in locks.defer("text")]}
        locks.delete()
        record_of_member(row, AuditEntry.Kind.PACKAGES_UNLOCKED, before=before)
