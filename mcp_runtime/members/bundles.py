"""The bytes of bundles in the database, read into a file, and approved members with a bundle, which become folders."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from django.conf import settings

from mcp_runtime.members.archives import MAX_SIZE
from mcp_runtime.members.manifest.files import digest_of, fault_of_place, put_in_place
from mcp_runtime.members.unpacking import draft_of, drafts_of, has_bundle, write_draft
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.rows.database import short_transaction
from roster.models import Bundle, BundlePart, Hall, MemberProposal

FIRST_PAUSE = 5.0  # seconds after a fault
LONGEST_PAUSE = 300.0

logger = logging.getLogger("guildhall.runtime")


@contextlib.contextmanager
def content_of(bundle: Bundle) -> Iterator[BinaryIO]:
    """A file with the bytes of the bundle, on the disk of this node. Raises SourceError if they are not those."""
    # In the data folder, because on some machines /tmp is in memory.
    with tempfile.TemporaryFile(dir=settings.GUILD_HALL_DATA_DIR) as file:
        digest, size, number = hashlib.sha256(), 0, 0
        parts = BundlePart.objects.filter(bundle=bundle)
        while (part := parts.filter(number=number).first()) is not None:
            content, number = bytes(part.content), number + 1
            size += len(content)
            if size > MAX_SIZE:
                raise SourceError("", f"is larger than {MAX_SIZE:,} bytes")
            digest.update(content)
            file.write(content)
        if not number:
            raise SourceError("", "is not there any more; upload it again")
        if digest.hexdigest() != bundle.digest:
            raise SourceError("", "is not what was approved; discard it")
        file.seek(0)
        yield cast(BinaryIO, file)


class Unpacker:
    """Creates the folders of approved members with bundles on this node.

    A fault is noted in the row of the proposal, and tried again after longer and longer pauses.
    """

    def __init__(self, members_dir: Path) -> None:
        self._members_dir = members_dir
        self._node: str = settings.GUILD_HALL_NODE
        self._pauses: dict[int, tuple[float, float]] = {}  # proposal id -> when it is due, and the pause before that
        self._has_begun = False

    def is_due(self) -> bool:
        """Whether `turn` has something to do."""
        return bool(self._due()) or (not self._has_begun and bool(drafts_of(self._members_dir, self._node)))

    def _due(self) -> list[int]:
        """The proposals whose bundle must be unpacked here now."""
        now = time.monotonic()
        return [pk for pk in self._missing() if self._pauses.get(pk, (0.0, 0.0))[0] <= now]

    def _missing(self) -> list[int]:
        rows = MemberProposal.objects.filter(approved_at__isnull=False, bundle__isnull=False)
        return [pk for pk, nodes in rows.values_list("pk", "nodes") if nodes.get(self._node) != ""]

    def turn(self) -> None:
        """Unpack what is due. It may take minutes, so it holds no lock meanwhile."""
        if not self._has_begun:
            for left in drafts_of(self._members_dir, self._node):
                shutil.rmtree(left, ignore_errors=True)
            self._has_begun = True
        missing = self._missing()
        self._pauses = {pk: pause for pk, pause in self._pauses.items() if pk in missing}
        for pk in self._due():
            row = MemberProposal.objects.select_related("bundle").filter(pk=pk).first()
            if row is None:
                continue
            draft = draft_of(self._members_dir, row.name, self._node)
            try:
                self._finish(row, draft, self._prepare(row, draft))
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    def _prepare(self, row: MemberProposal, draft: Path) -> str | None:
        """Write the draft. The result is None, or empty if the folder exists already, or the fault."""
        if digest_of(row.text, row.bundle.digest) != row.digest:
            return "its row is not what was approved; discard it"
        try:
            self._members_dir.mkdir(parents=True, exist_ok=True)
            if (fault := self._fault_of_place(row)) is not None:
                return fault
            with content_of(row.bundle) as file:
                write_draft(draft, row.text, row.manifest.get("command", ""), file, row.bundle.digest)
        except SourceError as error:
            return f"its bundle cannot be unpacked: {error}"
        except (OSError, ValueError) as error:  # a file system that cannot have a name raises ValueError
            reason = error.strerror if isinstance(error, OSError) else error
            return f"the folder {self._members_dir / row.name} cannot be created: {reason}"
        return None

    def _finish(self, row: MemberProposal, draft: Path, fault: str | None) -> None:
        """Give the draft its name, if the approval is still there, and note the result."""
        with short_transaction():
            # Another node may do the same in a shared members folder, or a user may discard the proposal.
            list(Hall.objects.select_for_update())
            current = MemberProposal.objects.filter(pk=row.pk, digest=row.digest, approved_at__isnull=False).first()
            if current is None:
                return
            if fault is None:
                fault = self._put_in_place(row, draft)
            if current.nodes.get(self._node) != fault:
                level = logging.WARNING if fault else logging.INFO
                logger.log(level, "approved member %s: %s", row.name, fault or "ok")
                current.nodes[self._node] = fault
                current.save(update_fields=["nodes"])
        if fault:
            pause = min(self._pauses.get(row.pk, (0.0, FIRST_PAUSE / 2))[1] * 2, LONGEST_PAUSE)
            self._pauses[row.pk] = (time.monotonic() + pause, pause)

    def _put_in_place(self, row: MemberProposal, draft: Path) -> str:
        try:
            fault = self._fault_of_place(row)
            return put_in_place(draft, self._members_dir / row.name) if fault is None else fault
        except OSError as error:
            return f"the folder {self._members_dir / row.name} cannot be created: {error.strerror}"

    def _fault_of_place(self, row: MemberProposal) -> str | None:
        """As `fault_of_place`, for a folder with this bundle. Raises OSError."""
        fault = fault_of_place(self._members_dir, row.name, row.text)
        folder = self._members_dir / row.name
        if fault == "" and not has_bundle(folder, row.bundle.digest):
            return f"the folder {folder} has the files of another bundle; rename or remove it"
        return fault
