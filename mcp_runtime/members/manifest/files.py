"""Manifests on disk: finds the folders, reads the files, and decides which folder owns a name.

It follows links with care. A folder is found only once, and a file outside the members folder is not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.manifest.parser import name_error, parse, unknown_keys
from mcp_runtime.protocol.errors import ManifestError
from mcp_runtime.protocol.jsonrpc import storable
from mcp_runtime.system.folders import sync_folder

FILE_NAME = "guild-member.json"
BUNDLE = "bundle"  # the folder with the files of a bundle, in the folder of its member
MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class ManifestFile:
    """The result for one folder: its manifest, or the error that makes it unusable, and warnings.

    All its texts can be stored and printed, whatever the file contains.
    """

    directory: str
    """The path relative to the members folder, with `/`."""
    manifest: Manifest | None
    error: ManifestError | None = None
    warnings: tuple[str, ...] = ()
    name_hint: str = ""
    """The name in a manifest with faults, if it can be read."""

    @property
    def fault(self) -> str:
        """The error, with the path of the file. Empty if there is none."""
        return f"{self.directory}/{FILE_NAME}: {self.error}" if self.error else ""

    @property
    def fault_key(self) -> str:
        """The place of the first error in the file, such as args.1. Empty if there is none."""
        return self.error.path if self.error else ""


# Reading ----------------------------------------------------------------------------------------------------------


def find(members_dir: Path, member_folders: Collection[str] = ()) -> Iterator[Path]:
    """Every folder with a manifest, up to two levels deep, by name. Links out of `members_dir` are skipped.

    A link to a member's folder is found too, and refused when it is read. A link to the members folder, or to a
    collection in it, is skipped, because all members in it would occur twice. `member_folders` are the folders of
    members, also of removed ones. They are no collections, because a member can write a manifest into them.
    """
    root = members_dir.resolve()
    for folder in _folders(members_dir, root):
        if has_manifest(folder):
            yield folder
        elif not folder.is_symlink() and folder.name not in member_folders and not _has_renamed_manifest(folder):
            yield from (inner for inner in _folders(folder, root) if has_manifest(inner))


def has_manifest(folder: Path) -> bool:
    """Whether the folder may contain a manifest. A folder that cannot be read counts, and gets that fault."""
    return os.path.lexists(folder / FILE_NAME) or not os.access(folder, os.X_OK)


def _has_renamed_manifest(folder: Path) -> bool:
    """Whether somebody switched off a member here by a new name for its manifest, such as guild-member.json.off."""
    try:
        return any(FILE_NAME in name for name in os.listdir(folder))
    except OSError:
        return False


def _folders(parent: Path, root: Path) -> list[Path]:
    try:
        entries = sorted(parent.iterdir())
    except OSError:
        return []
    return [entry for entry in entries if not entry.name.startswith((".", "_")) and _is_folder_inside(entry, root)]


def _is_folder_inside(entry: Path, root: Path) -> bool:
    try:
        return entry.is_dir() and (not entry.is_symlink() or entry.resolve().is_relative_to(root))
    except OSError:
        return False


def fingerprint(members_dir: Path) -> frozenset[tuple[str, int, int, int]]:
    """Changes when a manifest is added, removed or written. It is cheap enough for every second."""
    prints = set()
    for folder in find(members_dir):
        try:
            stat = (folder / FILE_NAME).stat()
        except OSError:
            prints.add((str(folder), 0, 0, 0))
        else:
            prints.add((str(folder), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return frozenset(prints)


def read_all(
    members_dir: Path, owners: Mapping[str, str] | None = None, member_folders: Collection[str] = ()
) -> list[ManifestFile]:
    """Every manifest under `members_dir`, also those with faults. `owners` has the earlier folder of each name.

    For `member_folders` see `find`.
    """
    folders = [(folder, folder.relative_to(members_dir).as_posix()) for folder in find(members_dir, member_folders)]
    return read_folders(folders, owners, root=members_dir)


def read_folders(
    folders: Iterable[tuple[Path, str]], owners: Mapping[str, str] | None = None, *, root: Path | None = None
) -> list[ManifestFile]:
    """The manifests of these folders, which are pairs of a path and a name. `root` is the members folder.

    If several folders use one name, it belongs to the folder that `owners` has for it, or else to the first one. So a
    copy of a member's folder does not take the place of the original.
    """
    folders = list(folders)
    originals = _originals(folders)
    files = [
        _duplicate_folder(directory, originals[folder]) if folder in originals else read_file(folder, directory, root)
        for folder, directory in folders
    ]
    claims: dict[str, list[str]] = {}
    for file in files:
        if file.manifest is not None:
            claims.setdefault(_fold(file.manifest.name), []).append(file.directory)
    owner_folders = {_fold(name): directory for name, directory in (owners or {}).items()}
    winners = {
        name: owner_folders[name] if owner_folders.get(name) in directories else directories[0]
        for name, directories in claims.items()
    }
    return [_refuse_duplicate_name(file, winners) for file in files]


def _originals(folders: list[tuple[Path, str]]) -> dict[Path, str]:
    """The original's name for each folder that is another name of it. Originals are not in the result."""
    by_target: dict[Path, tuple[Path, str]] = {}
    # A folder comes before the links to it.
    for folder, directory in sorted(folders, key=lambda pair: pair[0].is_symlink()):
        by_target.setdefault(folder.resolve(), (folder, directory))
    originals = {folder for folder, _ in by_target.values()}
    return {folder: by_target[folder.resolve()][1] for folder, _ in folders if folder not in originals}


def _duplicate_folder(directory: str, original: str) -> ManifestFile:
    reason = f"the folder {directory!r} is the folder {original!r} under another name; one folder is one member"
    return _faulty(directory, ManifestError("", reason))


def _fold(name: str) -> str:
    """Names must differ by more than case, because "Echo.log" and "echo.log" are one file on some systems."""
    return name.casefold()


def _refuse_duplicate_name(file: ManifestFile, winners: Mapping[str, str]) -> ManifestFile:
    if file.manifest is None or (winner := winners[_fold(file.manifest.name)]) == file.directory:
        return file
    reason = f"{file.manifest.name!r} is taken by the folder {winner!r}; every member needs its own name"
    return _faulty(file.directory, ManifestError("name", reason), file.warnings)


def read_file(folder: Path, directory: str, root: Path | None = None) -> ManifestFile:
    """The manifest in `folder`. Its file may be a link, but not out of `root`, which is by default the folder."""
    name_hint, key_warnings = "", []
    try:
        _require_storable(directory)
        values = load(folder / FILE_NAME, root or folder)
        name_hint = "" if name_error(values.get("name")) else values["name"]
        key_warnings = unknown_keys(values)  # with an error too, because a missing key may be misspelt
        manifest, warnings = parse(values)
    except ManifestError as error:
        return _faulty(directory, error, tuple(key_warnings), name_hint)
    return ManifestFile(directory, manifest, warnings=tuple(warnings))


def _faulty(directory: str, error: ManifestError, warnings: tuple[str, ...] = (), name_hint: str = "") -> ManifestFile:
    first, *others = [ManifestError(storable(fault.path), storable(fault.reason)) for fault in error.faults]
    harmless = ManifestError(first.path, first.reason, others)
    return ManifestFile(storable(directory), None, harmless, warnings, name_hint)


def _require_storable(directory: str) -> None:
    if storable(directory) != directory:
        raise ManifestError("", "the folder's name is not UTF-8; rename it")


def load(path: Path, root: Path) -> dict[str, Any]:
    """The content of the file, not validated. Raises ManifestError."""
    try:
        place = path.resolve(strict=True)
        if not _is_in(place, root):
            raise ManifestError("", "is a link to a file outside of the members folder; put the file itself there")
        # A pipe or a device could block the reader for ever.
        if not place.is_file():
            raise ManifestError("", "is not a file")
        with place.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError("", f"cannot be read: {error.strerror}") from error
    except RuntimeError as error:  # links that lead to each other, before Python 3.13
        raise ManifestError("", "cannot be read: too many levels of symbolic links") from error
    return decode(content)


def decode(content: bytes) -> dict[str, Any]:
    """The values in the content of a file, not validated. Raises ManifestError."""
    if len(content) > MAX_BYTES:
        raise ManifestError("", f"larger than {MAX_BYTES:,} bytes")
    try:
        text = content.decode("utf-8-sig")
        values = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except RecursionError as error:
        raise ManifestError("", "nested too deep") from error
    except ValueError as error:
        raise ManifestError("", f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ManifestError("", "must be a JSON object")
    return values


def _no_constants(name: str) -> NoReturn:
    raise ValueError(f"{name} is Python's, not JSON's")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ManifestError("", f"{key[:80]!r} is given twice")
        values[key] = value
    return values


# Writing ----------------------------------------------------------------------------------------------------------


def text_of(manifest: Mapping[str, Any]) -> str:
    """The content of the file for these JSON values. Raises ValueError for a number that JSON does not have."""
    return json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def digest_of(text: str, bundle: str = "") -> str:
    """The SHA-256 for which an approval is: that of the text, with the SHA-256 of the bundle after it, if any."""
    return hashlib.sha256(f"{text}{bundle}".encode()).hexdigest()


def create(members_dir: Path, name: str, text: str) -> str:
    """Create the folder `name` with this manifest in one step. Return why that is impossible. Empty if it is done.

    It replaces nothing. A folder that has exactly this manifest already counts as created, because another node may
    share the members folder, and this one may have ended before it noted that. Two calls for one `name` must not run at
    the same time.
    """
    draft = members_dir / f".{name}.draft"  # discovery ignores names that begin with a dot
    try:
        members_dir.mkdir(parents=True, exist_ok=True)
        if (fault := fault_of_place(members_dir, name, text)) is not None:
            return fault
        shutil.rmtree(draft, ignore_errors=True)  # a call that died left one
        draft.mkdir()
        write_manifest(draft, text)
        return put_in_place(draft, members_dir / name)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        return f"the folder {members_dir / name} cannot be created: {error.strerror}"


def fault_of_place(members_dir: Path, name: str, text: str) -> str | None:
    """None if the folder `name` can be created. Empty if it has exactly this manifest already. Otherwise the fault.

    Raises OSError.
    """
    twin = next((entry for entry in members_dir.iterdir() if _fold(entry.name) == _fold(name)), None)
    if twin is None:
        return None
    try:
        is_same = twin.name == name and (twin / FILE_NAME).read_bytes() == text.encode()
    except FileNotFoundError:
        return f"the folder {twin} exists already, without a manifest; rename or remove it"
    return "" if is_same else f"the folder {twin} exists already; rename or remove it"


def write_manifest(folder: Path, text: str) -> None:
    """Raises OSError."""
    with (folder / FILE_NAME).open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def put_in_place(draft: Path, folder: Path) -> str:
    """Give the finished draft its name. Return why that is impossible. Raises OSError."""
    if os.path.lexists(folder):  # rename would replace an empty folder
        return f"the folder {folder} exists already; rename or remove it"
    draft.rename(folder)
    sync_folder(folder.parent)
    return ""


def replace(path: Path, root: Path, content: bytes, *, read: os.stat_result, owner: str) -> None:
    """Write the manifest in one step. A link stays a link, and its target is written.

    `read` is the status of the file before it was read. If it is another one now, nothing is written. `owner` is in the
    name of the draft, because several processes may share the folder. The file keeps its mode, and its owner as far as
    this process may do that. Raises ManifestError and OSError.
    """
    place = path.resolve(strict=True)
    draft = place.with_name(f".{place.name}.{owner}.draft")  # a call that died left one too
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            with contextlib.suppress(OSError):
                os.fchown(file.fileno(), read.st_uid, read.st_gid)
            os.fchmod(file.fileno(), read.st_mode & 0o777)
            os.fsync(file.fileno())
        if _identity(path.stat()) != _identity(read) or path.resolve(strict=True) != place or not _is_in(place, root):
            raise ManifestError("", "was changed at this moment")
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(place.parent)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _is_in(place: Path, root: Path) -> bool:
    return place.is_relative_to(root.resolve())
