"""Folders of removed members. The runtime of each node moves them to `.trash` in the members folder, and back.

Discovery ignores names that begin with a dot. The trash is in the members folder, so that a move is one step. A folder
stays there for 30 days.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.utils import timezone

from mcp_runtime.members.manifest.files import sync_folder
from mcp_runtime.rows.database import short_transaction
from roster.models import Hall, TrashedMember

FOLDER = ".trash"

logger = logging.getLogger("guildhall.runtime")


def turn(members_dir: Path) -> None:
    """Move what this node has not moved yet, and delete what is in the trash for too long.

    A fault is noted in the row, and tried again each time.
    """
    node = settings.GUILD_HALL_NODE
    for row in TrashedMember.objects.all():
        if row.nodes.get(node) != "":
            _move(row.pk, members_dir, node)
        elif row.expires_at < timezone.now():
            _delete(place_of(row, members_dir))


def place_of(row: TrashedMember, members_dir: Path) -> Path:
    """Where its folder is in the trash. Each removal has its own place, because a name can be removed again."""
    return members_dir / FOLDER / f"{row.pk}-{row.name}"


def _move(pk: int, members_dir: Path, node: str) -> None:
    with short_transaction():
        # Another node may note its own fault at this moment, or a user may restore the member.
        list(Hall.objects.select_for_update())
        row = TrashedMember.objects.filter(pk=pk).first()
        if row is None:
            return
        folder, place = members_dir / row.directory, place_of(row, members_dir)
        if ".." in PurePosixPath(row.directory).parts or not folder.is_relative_to(members_dir):
            fault = "its folder is not in the members folder"
        elif row.is_restored:
            fault = _rename(place, folder)
        else:
            fault = "" if row.is_replaced else _rename(folder, place)
        if row.nodes.get(node) != fault:
            what = "restored from the trash" if row.is_restored else "moved to the trash"
            logger.log(logging.WARNING if fault else logging.INFO, "member %s: %s", row.name, fault or what)
            row.nodes[node] = fault
            row.save(update_fields=["nodes"])


def _rename(source: Path, target: Path) -> str:
    """Why the folder cannot be moved. Empty if it is moved, or if it is not on this disk."""
    if not os.path.lexists(source):
        return ""
    if os.path.lexists(target):
        return f"the folder {target} exists already; rename or remove it"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        for parent in {source.parent, target.parent}:
            sync_folder(parent)
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
    except OSError as error:
        logger.warning("the folder %s in the trash cannot be deleted: %s", place, error.strerror)
    else:
        logger.info("the folder %s was in the trash for %d days and is deleted", place, TrashedMember.KEEP.days)
