"""Newer versions of members' packages: ask for the newest one, and propose to edit the member to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control import edits
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.control.packages import package_report
from mcp_runtime.members.packages.lines import LineError, PackageLine, package_line, with_version
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.rows.database import short_transaction
from roster.models import GuildMember, ManifestEdit, VersionLookUp

PATIENCE = timedelta(minutes=3)  # after which a question without an answer may be asked again


@dataclass(frozen=True)
class VersionReport:
    """What the hall knows about the version of a member's package."""

    package: str
    version: str
    """The exact version in the manifest, or else in its lock. Empty if there is none."""
    is_asked: bool = False
    """Whether a question has no answer yet."""
    newest: str = ""
    """The answer. Empty if there is none."""
    fault: str = ""
    """Why there is no answer."""
    answered_at: datetime | None = None

    @property
    def is_newer(self) -> bool:
        """Whether the newest version is newer than that of the manifest, as far as their numbers say."""
        return bool(self.newest) and (not self.version or _numbers(self.newest) > _numbers(self.version))


def version_report(row: GuildMember) -> VersionReport | None:
    """The report about a member. None if it runs no package that the hall can install."""
    line = _line(row)
    if line is None:
        return None
    version = line.exact_version or getattr(package_report(row), "version", "")
    look_up = VersionLookUp.objects.filter(member=row.pk, package=line.name).first()
    if look_up is None:
        return VersionReport(line.name, version)
    is_asked = look_up.answered_at is None and timezone.now() - look_up.asked_at < PATIENCE
    fault = look_up.fault
    if look_up.answered_at is None and not is_asked:
        fault = "the runtime of its node gave no answer"
    return VersionReport(line.name, version, is_asked, look_up.version, fault, look_up.answered_at)


def ask_for_newest(row: GuildMember) -> VersionReport:
    """Let the node of the member find out the newest version of its package. The answer comes later.

    Raises RequestRefusedError.
    """
    line = _require_line(row)
    with short_transaction():
        report = version_report(row)
        if report is None or not report.is_asked:
            columns = {
                "package": line.name,
                "asked_at": timezone.now(),
                "answered_at": None,
                "version": "",
                "fault": "",
            }
            VersionLookUp.objects.update_or_create(member=row, defaults=columns)
    notify_runtime(members=True)
    return VersionReport(line.name, line.exact_version, is_asked=True)


def propose_newest(row: GuildMember, by: User | None) -> ManifestEdit:
    """Propose to edit the member so that its manifest names the newest version. Raises RequestRefusedError."""
    line, report = _require_line(row), version_report(row)
    if report is None or not report.newest:
        raise RequestRefusedError(f"the newest version of {line.name} is not known; ask for it first")
    if not report.is_newer:
        raise RequestRefusedError(f"member {row.name!r} has the newest version of {line.name} already")
    manifest = row.manifest
    try:
        args = with_version(manifest["command"], manifest["args"], manifest["env"], report.newest)
    except LineError as error:
        raise RequestRefusedError(f"member {row.name!r}: {error}") from None
    patch: dict[str, Any] = {"args": args}
    if manifest["version"] in (line.exact_version, "unpinned"):
        patch["version"] = report.newest
    return edits.propose_edit(row, patch, by)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers before anything else in a version, such as (1, 2, 0) for 1.2.0-beta. Both npm and PyPI have them."""
    release = re.match(r"v?(\d{1,9}(?:\.\d{1,9}){0,9})", version)
    return tuple(map(int, release[1].split("."))) if release else ()


def _line(row: GuildMember) -> PackageLine | None:
    manifest = row.manifest
    try:
        return package_line(manifest["command"], manifest["args"], manifest["env"]) if manifest.get("command") else None
    except LineError:
        return None


def _require_line(row: GuildMember) -> PackageLine:
    line = _line(row)
    if line is None:
        reason = f"member {row.name!r} runs no package of npm or PyPI by npx or uvx that the hall could install"
        raise RequestRefusedError(reason)
    return line
