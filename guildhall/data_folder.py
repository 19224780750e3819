"""The data folder and the secret key, which no other user of the machine may read."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

from mcp_runtime.system import console

SHORTEST_SECRET_KEY = 32
# Whether this process may create the data folder and what is in it. Commands beside a hall do not, because a new folder
# in a wrong place would look like a hall.
is_created = True


def private_umask() -> int:
    """Keep the hall's files private. Returns the umask with which the hall was started. It is for the members."""
    before = os.umask(0o077)
    # A process that another process of the hall starts has the private umask from the start.
    if not re.fullmatch(r"[0-7]{3}", os.environ.get("GUILD_HALL_USER_UMASK", "")):
        os.environ["GUILD_HALL_USER_UMASK"] = f"{before:03o}"
    return int(os.environ["GUILD_HALL_USER_UMASK"], 8)


def private_folder(path: Path) -> Path:
    path = path.resolve()
    if not is_created and not path.exists():
        return path
    try:
        if is_created:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        status = path.stat()
    except OSError as error:
        raise ImproperlyConfigured(
            f"GUILD_HALL_DATA_DIR={path}: {error.strerror}. Choose a folder that you may write to."
        ) from error
    if status.st_mode & 0o077:
        close_to_others(path, status)
    return path


def close_to_others(path: Path, status: os.stat_result) -> None:
    """Make the data folder private, because it has the password hashes, the secret key and the logs."""
    if status.st_uid != os.geteuid() and os.geteuid() != 0:  # root closes it for its owner
        raise ImproperlyConfigured(
            f"GUILD_HALL_DATA_DIR={path}: it belongs to another user, and others may read it. "
            f"Run: sudo chown {os.geteuid()} {path} && sudo chmod 700 {path}. "
            f"Or choose a folder that does not exist yet, e.g. {path / 'hall'}."
        )
    with contextlib.suppress(OSError):  # a file system without modes: roster.W002 says so
        path.chmod(0o700)
    if not path.stat().st_mode & 0o077:
        message = f"other users of this machine could read the data folder {path}; it is private now (mode 0700)"
        writer = console.Writer(sys.stderr)
        writer.write(console.line("hall", message))
        writer.flush()


def secret_key_in(path: Path) -> str:
    """The secret key in `path`, made on first run. Linking a finished file is safe if two first runs race.

    Without a hall it is "", which Django refuses to use.
    """
    if not path.exists() and not is_created:
        return ""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(get_random_secret_key())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links, most likely without modes as well
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return path.read_text().strip()


def existing_secret_key(path: Path) -> str:
    """The key in the file that GUILD_HALL_SECRET_KEY_FILE names."""
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ImproperlyConfigured(
            f"GUILD_HALL_SECRET_KEY_FILE={path}: {reason}; give the path of a copy of the file secret-key in the data "
            "folder of another node."
        ) from error
    if len(key) < SHORTEST_SECRET_KEY:
        raise ImproperlyConfigured(
            f"GUILD_HALL_SECRET_KEY_FILE={path}: the key in it has fewer than {SHORTEST_SECRET_KEY} characters; give "
            "the path of a file with a longer key, e.g. of 50 random letters and digits."
        )
    return key
