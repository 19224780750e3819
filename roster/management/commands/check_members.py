from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from mcp_runtime.client import remote
from mcp_runtime.control.members import folders_of_names, members_of_roster
from mcp_runtime.control.nodes import live_node_ids
from mcp_runtime.members.manifest.commands import command_fault
from mcp_runtime.members.manifest.files import FILE_NAME, ManifestFile, find, has_manifest, read_folders
from mcp_runtime.protocol.errors import ManifestError
from mcp_runtime.secrets import references
from roster.management.terminal import as_json, harmless
from roster.models import GuildMember


@dataclass(frozen=True)
class Report:
    """The result for one folder."""

    folder: str
    name: str
    faults: list[dict[str, str]]
    warnings: list[str]
    process_warnings: list[str]
    """Warnings about its running process, mainly that other machines can reach it (REQ-MCP-HTTP-30)."""


class Command(BaseCommand):
    help = "Validate every member's guild-member.json, or those of the given folders. Starts and changes nothing."
    # It is for authors of members, so it also works without a hall.
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a member, or a folder of members")
        parser.add_argument("--json", action="store_true", help="a JSON list instead of text")

    def handle(self, *args: Any, **options: Any) -> None:
        reports = check(options["folders"] or [settings.GUILD_HALL_MEMBERS_DIR])
        if options["json"]:
            self.stdout.write(as_json([asdict(report) for report in reports]))
        else:
            self.show(reports)
        faulty = sum(bool(report.faults) for report in reports)
        if faulty:
            raise CommandError(f"{faulty} of {_members(len(reports))} cannot be used")
        if not options["json"]:
            self.stdout.write(self.style.SUCCESS(f"{_members(len(reports))} checked, no faults."))

    def show(self, reports: list[Report]) -> None:
        for report in reports:
            self.stdout.write(harmless(f"{report.folder}: {'faulty' if report.faults else 'ok'}"))
            for fault in report.faults:
                text = f"{fault['path']}: {fault['reason']}" if fault["path"] else fault["reason"]
                self.stdout.write(self.style.ERROR(harmless(f"  fault: {text}")))
            for warning in report.warnings:
                self.stdout.write(self.style.WARNING(harmless(f"  warning: {warning}")))
            for warning in report.process_warnings:
                self.stdout.write(self.style.WARNING(harmless(f"  warning of the running process: {warning}")))


def check(places: list[Path]) -> list[Report]:
    """Every member in these places. Raises CommandError for a place that is no folder."""
    folders: dict[Path, str] = {}
    for place in places:
        if not place.is_dir():
            raise CommandError(f"{place} is not a folder")
        for folder in _member_folders(place):
            folders.setdefault(folder.resolve(), _folder_name(folder, place))
    of_processes = _process_warnings()
    files = read_folders(folders.items(), _owners())
    return [_report(folder, file, of_processes) for folder, file in zip(folders, files, strict=True)]


def _member_folders(place: Path) -> list[Path]:
    if has_manifest(place):
        return [place]
    folders = list(find(place))
    if not folders and place != settings.GUILD_HALL_MEMBERS_DIR:
        raise CommandError(f"{place} holds no {FILE_NAME}, nor do the folders in it")
    return folders


def _folder_name(folder: Path, place: Path) -> str:
    """The name of the folder. In the members folder it is that of the roster."""
    members_dir = settings.GUILD_HALL_MEMBERS_DIR.resolve()
    resolved = folder.resolve()
    if resolved != members_dir and resolved.is_relative_to(members_dir):
        return resolved.relative_to(members_dir).as_posix()
    return str(folder)


def _report(folder: Path, file: ManifestFile, of_processes: dict[str, list[str]]) -> Report:
    return Report(
        folder=file.directory,
        name=file.manifest.name if file.manifest else file.name_hint,
        faults=[{"path": fault.path, "reason": fault.reason} for fault in _faults(folder, file)],
        warnings=[*file.warnings, *_missing_secrets(folder, file)],
        process_warnings=of_processes.get(file.directory, []),
    )


def _faults(folder: Path, file: ManifestFile) -> Iterator[ManifestError]:
    if file.error:
        yield from file.error.faults
    elif file.manifest and (fault := remote.plain_http_fault(file.manifest.url, settings.GUILD_HALL_PLAIN_HTTP_HOSTS)):
        yield ManifestError("url", fault)
    elif file.manifest and (fault := command_fault(file.manifest, folder)):
        yield ManifestError("command", fault)


def _missing_secrets(folder: Path, file: ManifestFile) -> Iterator[str]:
    """Warnings, not faults, because the runtime may have another environment than this command."""
    if file.manifest is None:
        return iter(())
    sources = references.Sources(
        folder,
        private=tuple(settings.PRIVATE_PLACES),
        files=settings.GUILD_HALL_SECRET_FILES_DIR,
        secret=lambda name: name,  # the database knows them, and the hall may have none yet
    )
    args = {str(place): value for place, value in enumerate(file.manifest.args)}
    parts = {"headers": file.manifest.headers, "env": file.manifest.env, "args": args}
    sentences = (sentence for key, values in parts.items() for sentence in references.faults(values, sources, key))
    return (f"{sentence}; the runtime needs it" for sentence in sentences)


def _process_warnings() -> dict[str, list[str]]:
    """The warnings about running members, by directory. Empty without a hall that runs."""
    try:
        if not _has_database():
            return {}
        connected = members_of_roster().filter(status=GuildMember.Status.CONNECTED, node__in=live_node_ids())
        return {member.directory: member.warnings for member in connected}
    except DatabaseError:
        return {}


def _owners() -> dict[str, str]:
    """The owner of each name, so that of a folder and its copy the same one is faulty as in the roster."""
    try:
        return folders_of_names() if _has_database() else {}
    except DatabaseError:
        return {}


def _has_database() -> bool:
    """Check the file first, because a query to SQLite would create it."""
    return connection.vendor != "sqlite" or Path(connection.settings_dict["NAME"]).exists()


def _members(count: int) -> str:
    return "1 member" if count == 1 else f"{count} members"
