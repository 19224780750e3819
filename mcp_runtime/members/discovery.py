"""Makes the rows of the roster match the members folder. Writes only rows whose folder changed.

With several nodes, `disk` decides about which rows this machine's folder decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.members import edits
from mcp_runtime.members.disk import Disk
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.manifest.files import ManifestFile, read_all
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.rows.lease import has_other_nodes
from roster.models import AuditEntry, GuildMember, Hall, MemberProposal, TrashedMember


@dataclass
class SyncReport:
    """The changes of a sync, by member name."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    faulty: list[str] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)
    """Members whose folder is only on other nodes now. They go to one of these."""

    def __str__(self) -> str:
        parts = [f"{len(names)} {word}: {', '.join(names)}" for word, names in vars(self).items() if names]
        return "; ".join(parts) or "nothing changed"


def owners() -> dict[str, str]:
    """The folder of each name at the last sync, by name, because a copy must not take a member's place."""
    return dict(GuildMember.objects.filter(removed_at=None, manifest_error="").values_list("name", "directory"))


def member_folders() -> set[str]:
    """The folders that are or were those of members, without those that have become collections of members."""
    folders = GuildMember.objects.exclude(manifest={}).values_list("directory", "removed_at")
    collections = {directory.rpartition("/")[0] for directory, removed_at in folders if removed_at is None}
    return {directory for directory, _ in folders} - collections


def sync(members_dir: Path) -> SyncReport:
    """Read every manifest under `members_dir`, and add, change or mark rows as removed to match.

    A member whose manifest became unusable keeps its last valid manifest, and shows the fault. If it runs, it continues
    to run.
    """
    report = _sync_once(members_dir)
    while report is None:  # once more at most, because the hall is not alone then
        report = _sync_once(members_dir)
    return report


def _sync_once(members_dir: Path) -> SyncReport | None:
    """Make the rows match. None if the hall got its second node meanwhile, because now this disk decides about less."""
    files = read_all(members_dir, owners(), member_folders())
    disk = Disk.read(members_dir, files)
    with short_transaction():
        # One sync at a time, because two that see the same new folder would both create its row.
        list(Hall.objects.select_for_update())
        if disk.is_outdated():
            return None
        disk.read_nodes()
        # A folder that went to the trash since it was read must not come back as a member.
        files = [file for file in files if file.manifest is None or (members_dir / file.directory).exists()]
        current_sync = _Sync(disk)
        names_on_disk = current_sync.apply(files)
        current_sync.remove_all_but(names_on_disk)
    disk.note_folders(names_on_disk)
    return current_sync.report


def note_folders(members_dir: Path) -> SyncReport | None:
    """Compare the files of all members again, in a hall with several nodes. None if there is one node.

    `sync` sees only manifests, and only when one of them changes here. Another file, another node or a new owner can
    change what the roster must show too.
    """
    return sync(members_dir) if has_other_nodes() else None


class _Sync:
    """One comparison of the rows with the disk, in a transaction."""

    def __init__(self, disk: Disk) -> None:
        self.report = SyncReport()
        self._disk = disk
        self._rows = {row.name: row for row in GuildMember.objects.all()}

    def apply(self, files: list[ManifestFile]) -> set[str]:
        """Add and change members, and return the names of all that are on the disk."""
        # Good manifests first, because a faulty folder must not take the name of a good one.
        names_on_disk = {self._apply_good(file, file.manifest) for file in files if file.manifest is not None}
        for file in files:
            if file.manifest is None:
                names_on_disk.add(self._apply_fault(file, names_on_disk))
        return names_on_disk

    def remove_all_but(self, names_on_disk: set[str]) -> None:
        unwanted = TrashedMember.pending_names()
        for row in self._rows.values():
            if row.name in names_on_disk or row.removed_at is not None:
                continue
            # Other nodes move their folders too, as soon as they can.
            is_unwanted = row.name in unwanted and not self._disk.is_foreign(row)
            if is_unwanted or self._disk.may_remove(row):
                self._members(row).update(removed_at=timezone.now())
                self.report.removed.append(row.name)
                _record(AuditEntry.Kind.MEMBER_REMOVED, row.name, row.directory)
            elif node := self._disk.new_node(row):
                self._members(row).update(requested_node=node)
                self.report.leaving.append(row.name)
        if self.report.removed:
            # Otherwise a node that was away would create the folders again.
            MemberProposal.objects.filter(name__in=self.report.removed, approved_at__isnull=False).delete()
            edits.forget_removed(self.report.removed)
            Hall.note_access_change()

    def _apply_good(self, file: ManifestFile, manifest: Manifest) -> str:
        row = self._rows.get(manifest.name)
        if row is not None and self._disk.is_foreign(row):
            return manifest.name
        values: dict[str, Any] = {
            "directory": file.directory,
            "manifest": manifest.as_json(),
            "manifest_error": "",
            "manifest_error_key": "",
            "manifest_warnings": list(file.warnings),
            "display_name": manifest.display_name,
            "version": manifest.version,
            "description": manifest.description,
            "server_url": manifest.url,
            "removed_at": None,
        }
        if digest := self._disk.digests.get(manifest.name):
            values["digest"] = digest.text
            values["manifest_warnings"] += [digest.fault] if digest.fault else []
        # The manifest's `enabled` counts when it is new or edited. Otherwise the operator's switch counts.
        if row is None or row.manifest.get("enabled", True) != manifest.enabled:
            values["enabled"] = manifest.enabled
        if row is not None and row.manifest and _wants_new_process(row, manifest, file.directory):
            values["restart_requested_at"] = timezone.now()
        self._write(manifest.name, row, values)
        return manifest.name

    def _apply_fault(self, file: ManifestFile, names_on_disk: set[str]) -> str:
        """Write a row for a folder that cannot be used. It is shown with its fault, instead of being missing."""
        rows_of_folder = [
            row for row in self._rows.values() if row.directory == file.directory and row.name not in names_on_disk
        ]

        # A folder whose member was renamed also has an older row, of a member that was removed. A folder of another
        # node can have the same path.
        def order(row: GuildMember) -> tuple[bool, bool]:
            return not self._disk.may_note_fault(row), row.removed_at is not None

        row = min(rows_of_folder, key=order, default=None)
        if row is not None and not self._disk.may_note_fault(row):
            return row.name
        name = row.name if row else _free_name(file.name_hint or file.directory, set(self._rows) | names_on_disk)
        values: dict[str, Any] = {
            "directory": file.directory,
            "manifest_error": file.fault,
            "manifest_error_key": file.fault_key,
            "manifest_warnings": list(file.warnings),
            "removed_at": None,
        }
        if self._write(name, row, values):
            self.report.faulty.append(name)
        return name

    def _write(self, name: str, row: GuildMember | None, values: dict[str, Any]) -> bool:
        """Write the values of a member, if they changed. Returns whether it wrote anything."""
        if row is None:
            self._rows[name] = GuildMember.objects.create(name=name, **values)
            Hall.note_access_change()
            self.report.added.append(name)
            self._note_added(name, values["directory"])
            return True
        changes = {key: value for key, value in values.items() if getattr(row, key) != value}
        if not changes:
            return False
        self._members(row).update(**changes)
        if {"enabled", "removed_at"} & changes.keys():
            Hall.note_access_change()
        (self.report.added if row.removed_at else self.report.changed).append(name)
        if row.removed_at:
            self._note_added(name, values["directory"])
        return True

    @staticmethod
    def _note_added(name: str, directory: str) -> None:
        _record(AuditEntry.Kind.MEMBER_ADDED, name, directory)
        TrashedMember.objects.filter(name=name, is_replaced=False).update(is_replaced=True)

    def _members(self, row: GuildMember) -> QuerySet[GuildMember]:
        return GuildMember.objects.filter(self._disk.writable, pk=row.pk)


def _record(kind: AuditEntry.Kind, name: str, directory: str) -> None:
    details = {"folder": directory}
    is_new = kind == AuditEntry.Kind.MEMBER_ADDED
    before, after = (None, details) if is_new else (details, None)
    AuditEntry.record(kind, f"member {name}", member=name, before=before, after=after)


def _wants_new_process(row: GuildMember, manifest: Manifest, directory: str) -> bool:
    """Whether the change needs a new process. New texts and limits do not."""
    if row.status == GuildMember.Status.DISCONNECTED:
        return False
    return row.directory != directory or Manifest.from_json(row.manifest).process_digest != manifest.process_digest


def _free_name(base_name: str, names: set[str]) -> str:
    used_names = {name.casefold() for name in names}
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", base_name).strip("-_")[:58] or "member"
    candidates = [base, *(f"{base}-{number}" for number in range(2, len(used_names) + 3))]
    return next(name for name in candidates if name.casefold() not in used_names)
