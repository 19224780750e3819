"""Writes the files of an approved member with a bundle: everything into a draft folder, which then gets its name.

The zip is checked again in full, because the row may not be what was checked before. A draft of a process that was
killed stays, under a name that discovery ignores, until the node begins again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from mcp_runtime.members.archives import Archive
from mcp_runtime.members.manifest.files import BUNDLE, FILE_NAME, write_manifest
from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.system.folders import sync_folder

DIGEST_FILE = "bundle.sha256"
_MANIFEST_OF_BUNDLE = "manifest.json"


def draft_of(members_dir: Path, name: str, node: str) -> Path:
    """The draft folder. Nodes may share the members folder, so each has its own."""
    return members_dir / f".{name}.{node}.draft"


def drafts_of(members_dir: Path, node: str) -> list[Path]:
    """The drafts that processes of this node have left."""
    pattern = re.compile(rf"\.[A-Za-z0-9][A-Za-z0-9_-]{{0,63}}\.{re.escape(node)}\.draft")
    try:
        return [entry for entry in members_dir.iterdir() if pattern.fullmatch(entry.name) and not entry.is_symlink()]
    except OSError:  # there is no members folder yet
        return []


def write_draft(draft: Path, text: str, command: str, stream: BinaryIO, digest: str) -> None:
    """Create the draft folder with the manifest `text` and the files of the zip, and make all of it durable.

    The files of a bundle are in a folder of their own. Those of a template are beside the manifest. `command` is the
    program in the manifest, which becomes executable. Raises SourceError and OSError.
    """
    archive = Archive(stream)
    is_bundle = _MANIFEST_OF_BUNDLE in archive.files
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    write_manifest(draft, text)
    top = draft / BUNDLE if is_bundle else draft
    if is_bundle:
        top.mkdir()
        _write(draft / DIGEST_FILE, [f"{digest}\n".encode()], mode=0o644)
    elif names := [name for name in (*archive.files, *archive.folders) if name.casefold() == FILE_NAME]:
        raise SourceError(names[0], "is the manifest, which is not in the zip of a template")
    for folder in archive.folders:  # those above others come first
        (top / folder).mkdir(mode=0o755)
    program = PurePosixPath(command)
    for file in archive.files.values():
        is_program = program == PurePosixPath(BUNDLE, file.name)
        mode = 0o755 if file.is_executable or is_program else 0o644
        _write(top / file.name, archive.blocks(file), mode=mode)
    for folder in reversed(archive.folders):
        sync_folder(top / folder)
    sync_folder(top)
    sync_folder(draft)


def has_bundle(folder: Path, digest: str) -> bool:
    """Whether the folder was made from this bundle, or has files of no bundle. Raises OSError."""
    try:
        return (folder / DIGEST_FILE).read_text(encoding="ascii", errors="replace").strip() == digest
    except FileNotFoundError:
        return not (folder / BUNDLE).exists()


def _write(path: Path, blocks: Iterable[bytes], *, mode: int) -> None:
    """`mode` has no more rights than 755. The umask of the hall takes those of others away."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
