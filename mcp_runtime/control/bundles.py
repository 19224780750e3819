"""Uploaded bundles: checks them, and holds their bytes in the database until somebody has filled in their values.

Nothing of a bundle is started or written to a folder here.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Sum

from mcp_runtime.members.archives import MAX_SIZE, Archive
from mcp_runtime.members.bundles import content_of
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.sources.mcpb import Bundle as OpenBundle
from mcp_runtime.sources.mcpb import open_bundle
from mcp_runtime.sources.server_json import Way
from mcp_runtime.sources.user_config import ways_of
from roster.models import Bundle, BundlePart, Hall, MemberProposal

__all__ = ["MAX_SIZE", "content_of", "find_waiting", "hold", "is_zip", "ways", "zip_of"]
MAX_SHOWN = 100_000  # characters of the names of files


def is_zip(start: bytes) -> bool:
    """Whether the first bytes of a source are those of a bundle, and not of a text."""
    return start.startswith(b"PK\3\4")


def ways(file: BinaryIO) -> list[Way]:
    """The way to run a bundle, with the values that it needs. Raises SourceError."""
    return ways_of(open_bundle(file))


def hold(file: BinaryIO, by: User | None) -> Bundle:
    """Check the bundle in full, and store it without a proposal. Raises SourceError and RequestRefusedError."""
    bundle = open_bundle(file)
    _make_room(by)
    return store(file, bundle.archive, by, bundle)


def find_waiting(pk: str, by: User | None) -> Bundle:
    """A bundle that this person holds. Raises RequestRefusedError."""
    mine = Bundle.objects.filter(proposal=None, created_by=by)
    row = mine.filter(pk=int(pk)).first() if re.fullmatch("[0-9]{1,18}", pk) else None
    if row is None:
        raise RequestRefusedError("the bundle is not there any more; upload it again")
    return row


def store(file: BinaryIO, archive: Archive, by: User | None, bundle: OpenBundle | None = None) -> Bundle:
    """Store the bytes of a zip whose list of files is checked. Raises SourceError and RequestRefusedError."""
    archive.check()
    names = _first_names(archive)
    with transaction.atomic():
        row = Bundle.objects.create(
            size=archive.size,
            unpacked_size=archive.unpacked_size,
            file_count=len(archive.files),
            files=names,
            author=bundle.author if bundle else "",
            homepage=bundle.homepage if bundle else "",
            created_by=by,
        )
        digest = hashlib.sha256()
        for number, part in enumerate(_parts(file)):
            digest.update(part)
            BundlePart.objects.create(bundle=row, number=number, content=part)
        row.digest = digest.hexdigest()
        row.save(update_fields=["digest"])
        list(Hall.objects.select_for_update())  # two uploads at once must not both find room
        _require_room()
    return row


def zip_of(files: Mapping[str, str]) -> BinaryIO:
    """A zip of small texts by their names."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return content


def _make_room(by: User | None) -> None:
    """Delete what nobody needs any more, and the oldest uploads of the person that are not proposed."""
    Bundle.prune()
    mine = Bundle.objects.filter(proposal=None, created_by=by).order_by("-pk")
    Bundle.objects.filter(pk__in=list(mine.values_list("pk", flat=True)[Bundle.MAX_WAITING - 1 :])).delete()


def _require_room() -> None:
    """Raise RequestRefusedError if there are too many bytes."""
    if (Bundle.objects.aggregate(total=Sum("size"))["total"] or 0) > Bundle.MAX_STORED:
        raise RequestRefusedError(
            f"all bundles together may have {Bundle.MAX_STORED:,} bytes; discard proposals with a bundle first, or "
            f"wait until those that were approved are {MemberProposal.KEEP.days} days old"
        )


def _first_names(archive: Archive) -> list[str]:
    names, length = [], 0
    for name in list(archive.files)[: Bundle.MAX_SHOWN]:
        length += len(name)
        if length > MAX_SHOWN:
            break
        names.append(name)
    return names


def _parts(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    while part := file.read(BundlePart.SIZE):
        yield part
