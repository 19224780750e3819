"""The folders of installed packages: `packages/MEMBER/DIGEST` in the data folder. No Django.

A folder with its final name is complete, because it gets this name last. It has a list of files that must exist, for
the case that somebody or something deletes a part of it later.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from mcp_runtime.system.folders import sync_folder

logger = logging.getLogger("guildhall.runtime")

ROOT = "packages"
LIST = "installed.json"
MAX_LIST_BYTES = 50_000_000
_UNFINISHED = ".unfinished-"
# A folder that no member needs stays for so many seconds after its last use, because a start may just need it.
GRACE_SECONDS = 86_400.0


def place_of(data_dir: Path, member: str, digest: str, *, with_scripts: bool) -> Path:
    """Where the packages of a lock are installed. With scripts it is another place, because they may change files."""
    return folder_of(data_dir, member) / (f"{digest}-with-scripts" if with_scripts else digest)


def folder_of(data_dir: Path, member: str) -> Path:
    """The folder of a member, with all that is installed for it."""
    return data_dir / ROOT / member


def is_complete(place: Path) -> bool:
    """Whether the packages are installed, and no file of the list is missing. It marks the folder as used."""
    try:
        status = place.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o700
        if not is_own or status.st_uid != os.geteuid():
            return False
        files = json.loads(read(place / LIST, MAX_LIST_BYTES))
        if not isinstance(files, list) or not all((place / str(file)).exists() for file in files):
            return False
        os.utime(place)
    except (OSError, ValueError, RecursionError):
        return False
    return True


@contextlib.contextmanager
def unfinished(parent: Path) -> Iterator[Path]:
    """A folder for an installation in the folder of a member. It is deleted in the end, unless `finish` renamed it.

    It also deletes what killed installations of the member left. Only one runs for a member at a time. Raises OSError.
    """
    for folder in (parent.parent, parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    for left in parent.glob(f"{_UNFINISHED}*"):
        delete(left)
    folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=parent))
    try:
        yield folder
    finally:
        delete(folder)


def finish(folder: Path, place: Path, files: list[str]) -> None:
    """Give the folder its final name. Raises OSError."""
    delete(folder / LIST)  # an install script may have put a link there, which would lead to a file of the hall
    with open(os.open(folder / LIST, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump(files, file)
    folder.chmod(0o700)
    os.sync()  # a crash of the machine must not leave empty files under the final name
    if os.path.lexists(place):  # it is not complete
        place.rename(folder.with_name(f"{folder.name}-replaced"))
    folder.rename(place)
    sync_folder(place.parent)
    delete(folder.with_name(f"{folder.name}-replaced"))


def delete(folder: Path) -> None:
    """Delete a folder. What cannot be deleted stays, and the next attempt or housekeeping tries again."""
    if not os.path.lexists(folder):
        return
    try:
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except (OSError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "its folders are nested too deep"
        logger.warning("the folder %s of packages cannot be deleted: %s", folder, reason)


def read(file: Path, most: int) -> bytes:
    """The content of a file that packages may have written. Raises OSError if it is a link, no file or too large."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise OSError(errno.EINVAL, f"not a file of at most {most:,} bytes", str(file))
        return opened.read(most)


def delete_unused(data_dir: Path, used: Collection[Path]) -> None:
    """Delete all folders that are not among `used`, and were not used for GRACE_SECONDS."""
    for member in _entries(data_dir / ROOT):
        for folder in _entries(member):
            if folder not in used and _age(folder) > GRACE_SECONDS:
                delete(folder)
                logger.info("the packages in %s are deleted, because no member uses them", folder)
        with contextlib.suppress(OSError):  # it is not empty, or a file that somebody else has put there
            member.rmdir()


def size_of(folder: Path) -> tuple[int, int]:
    """The bytes and the number of files and folders in a folder. Files that vanish meanwhile do not count."""
    size = count = 0
    try:
        for parent, folders, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    size += os.lstat(os.path.join(parent, name)).st_size
            count += len(names) + len(folders)
    except RecursionError:  # folders in folders without end
        return size, sys.maxsize
    return size, count


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _age(folder: Path) -> float:
    try:
        return time.time() - folder.lstat().st_mtime
    except OSError:
        return 0.0
