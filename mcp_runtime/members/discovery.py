"""Makes the rows of the roster match the members folder. Writes only rows whose folder changed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils import timezone

from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.manifest.files import ManifestFile, read_all
from roster.models import GuildMember, Hall


@dataclass
class SyncReport:
    """The changes of a sync, by member name."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    faulty: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{len(names)} {word}: {', '.join(names)}" for word, names in vars(self).items() if names]
        return "; ".join(parts) or "nothing changed"


def owners() -> dict[str, str]:
    """The folder of each name at the last sync, by name, because a copy must not take a member's place."""
    return dict(GuildMember.objects.filter(removed_at=None, manifest_error="").values_list("name", "directory"))


def sync(members_dir: Path) -> SyncReport:
    """Read every manifest under `members_dir`, and add, change or mark rows as removed to match.

    A member whose manifest became unusable keeps its last valid manifest, and shows the fault. If it runs, it continues
    to run.
    """
    files = read_all(members_dir, owners=owners())
    report = SyncReport()
    with transaction.atomic():
        # One sync at a time, because two that see the same new folder would both create its row.
        list(Hall.objects.select_for_update())
        rows = {row.name: row for row in GuildMember.objects.all()}
        # Good manifests first, because a faulty folder must not take the name of a good one.
        names_on_disk = {_apply_good(file, file.manifest, rows, report) for file in files if file.manifest is not None}
        for file in files:
            if file.manifest is None:
                names_on_disk.add(_apply_fault(file, rows, names_on_disk, report))
        for row in rows.values():
            if row.name not in names_on_disk and row.removed_at is None:
                GuildMember.objects.filter(pk=row.pk).update(removed_at=timezone.now())
                report.removed.append(row.name)
        if report.removed:
            Hall.note_access_change()
    return report


def _apply_good(file: ManifestFile, manifest: Manifest, rows: dict[str, GuildMember], report: SyncReport) -> str:
    values: dict[str, Any] = {
        "directory": file.directory,
        "manifest": manifest.as_json(),
        "manifest_error": "",
        "manifest_warnings": list(file.warnings),
        "display_name": manifest.display_name,
        "version": manifest.version,
        "description": manifest.description,
        "server_url": manifest.url,
        "removed_at": None,
    }
    row = rows.get(manifest.name)
    # The manifest's `enabled` counts when it is new or edited. Otherwise the operator's switch counts.
    if row is None or row.manifest.get("enabled", True) != manifest.enabled:
        values["enabled"] = manifest.enabled
    if row is not None and row.manifest and _wants_new_process(row, manifest, file.directory):
        values["restart_requested_at"] = timezone.now()
    _write(manifest.name, row, values, rows, report)
    return manifest.name


def _wants_new_process(row: GuildMember, manifest: Manifest, directory: str) -> bool:
    """Whether the change needs a new process. New texts and limits do not."""
    if row.status == GuildMember.Status.DISCONNECTED:
        return False
    return row.directory != directory or Manifest.from_json(row.manifest).process_digest != manifest.process_digest


def _apply_fault(file: ManifestFile, rows: dict[str, GuildMember], names_on_disk: set[str], report: SyncReport) -> str:
    """Write a row for a folder that cannot be used. It is shown with its fault, instead of being missing."""
    rows_of_folder = [row for row in rows.values() if row.directory == file.directory and row.name not in names_on_disk]
    # A folder whose member was renamed also has an older row, of a member that was removed.
    row = min(rows_of_folder, key=lambda row: row.removed_at is not None, default=None)
    name = row.name if row else _free_name(file.name_hint or file.directory, set(rows) | names_on_disk)
    values: dict[str, Any] = {
        "directory": file.directory,
        "manifest_error": file.fault,
        "manifest_warnings": list(file.warnings),
        "removed_at": None,
    }
    if _write(name, row, values, rows, report):
        report.faulty.append(name)
    return name


def _free_name(base_name: str, names: set[str]) -> str:
    used_names = {name.casefold() for name in names}
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", base_name).strip("-_")[:58] or "member"
    candidates = [base, *(f"{base}-{number}" for number in range(2, len(used_names) + 3))]
    return next(name for name in candidates if name.casefold() not in used_names)


def _write(
    name: str, row: GuildMember | None, values: dict[str, Any], rows: dict[str, GuildMember], report: SyncReport
) -> bool:
    """Write the values of a member, if they changed. Returns whether it wrote anything."""
    if row is None:
        rows[name] = GuildMember.objects.create(name=name, **values)
        Hall.note_access_change()
        report.added.append(name)
        return True
    changes = {key: value for key, value in values.items() if getattr(row, key) != value}
    if not changes:
        return False
    GuildMember.objects.filter(pk=row.pk).update(**changes)
    if {"enabled", "removed_at"} & changes.keys():
        Hall.note_access_change()
    (report.added if row.removed_at else report.changed).append(name)
    return True
