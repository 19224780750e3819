"""Folders of removed members. The runtime of each node moves them to `.trash` in the members folder, and back.

Discovery ignores names that begin with a dot. The trash is in the members folder, so that a move is one step. A folder
stays there for 30 days.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.utils import timezone

from mcp_runtime.members.manifest.files import read_file
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.system.folders import sync_folder
from roster.models import Hall, TrashedMember

FOLDER = ".trash"

logger = logging.getLogger("guildhall.runtime")


def turn(members_dir: Path) -> None:
    """Move what this node has not moved yet. A fault is noted in the row, and tried again each time.

    The oldest request is first, because a member may be removed, restored and removed again while a node is away.
    """
    node = settings.GUILD_HALL_NODE
    due = [pk for pk, nodes in TrashedMember.objects.order_by("pk").values_list("pk", "nodes") if nodes.get(node) != ""]
    for pk in due:
        with short_transaction():
            # Another node may note its own fault at this moment, or a user may restore the member.
            list(Hall.objects.select_for_update())
            moved = _move(TrashedMember.objects.filter(pk=pk).first(), members_dir, node)
        with contextlib.suppress(OSError):  # not while others wait for the lock
            for parent in moved:
                sync_folder(parent)


def delete_expired(members_dir: Path) -> None:
    """Delete the folders that this node moved to the trash 30 days ago."""
    now, node = timezone.now().timestamp(), settings.GUILD_HALL_NODE
    for row in TrashedMember.objects.filter(restore_requested_at=None):
        moved_at = row.moved_at.get(node)
        if moved_at is not None and now - moved_at > row.KEEP.total_seconds():
            _delete(place_of(row, members_dir))


def place_of(row: TrashedMember, members_dir: Path) -> Path:
    """Where its folder is in the trash. Each removal has its own place, because a name can be removed again."""
    return members_dir / FOLDER / f"{row.pk}-{row.name}"


def _move(row: TrashedMember | None, members_dir: Path, node: str) -> list[Path]:
    """Move one folder, and write the result to the row. The folders whose names changed, to be synced."""
    if row is None:
        return []
    folder, place = members_dir / row.directory, place_of(row, members_dir)
    source, target = (place, folder) if row.is_restored else (folder, place)
    moved: list[Path] = []
    if ".." in PurePosixPath(row.directory).parts or not folder.is_relative_to(members_dir):
        fault = "its folder is not in the members folder"
    elif not row.is_restored and not _is_meant(row, members_dir):
        fault = ""
    elif not (fault := _rename(source, target)) and os.path.lexists(target):
        moved = [source.parent, target.parent]
    if row.nodes.get(node) != fault:
        if fault:
            logger.warning("member %s: %s", row.name, fault)
        elif moved:
            what = "restored from the trash" if row.is_restored else "moved to the trash"
            logger.info("member %s is %s", row.name, what)
        row.nodes[node] = fault
        if moved and not row.is_restored:
            row.moved_at[node] = timezone.now().timestamp()
        row.save(update_fields=["nodes", "moved_at"])
    return moved


def _is_meant(row: TrashedMember, members_dir: Path) -> bool:
    """Whether the folder here is that of the removed member. Another member may have come to its path meanwhile.

    A node that was away for too long keeps its folder, so that nothing is deleted that nobody could restore.
    """
    if row.is_replaced or row.expires_at < timezone.now():
        return False
    file = read_file(members_dir / row.directory, row.directory, members_dir)
    name = file.manifest.name if file.manifest else file.name_hint
    return name in ("", row.name)


def _rename(source: Path, target: Path) -> str:
    """Why the folder cannot be moved. Empty if it is moved, or if it is not on this disk."""
    if not os.path.lexists(source):
        return ""
    if os.path.lexists(target):
        return f"the folder {target} exists already; rename or remove it"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    except OSError as error:
        return f"the folder {source} cannot be moved to {target}: {error.strerror}; move it by hand"
    return ""


def _delete(place: Path) -> None:
    if not os.path.lexists(place):
        return
    try:
        if place.is_symlink():
            place.unlink()
        else:
            shutil.rmtree(place)
    except (OSError, RecursionError) as error:  # a member can nest folders without end
        reason = getattr(error, "strerror", None) or "its folders are nested too deep"
        logger.warning("the folder %s in the trash cannot be deleted: %s; delete it by hand", place, reason)
    else:
        logger.info("the folder %s was in the trash for %d days and is deleted", place, TrashedMember.KEEP.days)
