"""Where a second terminal finds a running hall, without its variables.

A hall that starts writes its variables into the file `hall.json` of its data folder, and holds a lock on this file
while it runs. So a file that was left behind means nothing. A symbolic link in the state folder of the user, which is
`~/.local/state/guildhall/halls`, leads to the data folder. The links contain no secrets. `hall.json` may contain the
password of the database. Only its owner can read it, like all other files of the data folder.

Only files that belong to this user, and that nobody else can write, count.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

FILE = "hall.json"
MAX_BYTES = 256_000  # of the file
MAX_HALLS = 256  # links that are looked at
PREFIXES = ("GUILD_HALL_", "PG")  # libpq reads the second ones
NAMES = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "SSL_CERT_FILE", "SSL_CERT_DIR", "CLAUDE_CONFIG_DIR")
# The first password has no use after the first start. The others are for the processes of the hall.
OMITTED = ("GUILD_HALL_ADMIN_PASSWORD", "GUILD_HALL_USER_UMASK", "GUILD_HALL_UP_STATE", "GUILD_HALL_END_WITH_PARENT")
SECRETS = "GUILD_HALL_MEMBER_"  # of members. They are in the environment of the hall, and in none of its files
PATHS = ("_DIR", "_FILE", "_CERTIFICATE", "_CA")  # endings of variables with a path
SQLITE = "sqlite:///"
CHOOSING = ("GUILD_HALL_DATA_DIR", "DATABASE_URL")  # a terminal with one of them has chosen its hall


class RunningHall:
    """No dataclass, because its decorator takes a hundredth of the time of a command."""

    def __init__(self, data_dir: Path, project: Path, variables: Mapping[str, str]) -> None:
        self.data_dir = data_dir
        self.project = project  # the folder of the version that it runs
        self.variables = variables


class HallChoiceError(Exception):
    """It is not clear which hall a command is for. The message says what to do."""


# The hall ---------------------------------------------------------------------------------------------------------


def announce(data_dir: Path, project: Path) -> None:
    """Let other terminals find this hall while this process, or the program that it becomes, runs.

    Nothing happens if that is not possible, for example without a home folder, because a hall works without it. Nothing
    happens either if the hall runs already. The second runtime then ends, and the first one must stay to be found.
    """
    if _is_locked(data_dir / FILE):
        return
    draft = data_dir / f"{FILE}.{os.getpid()}"
    try:
        # A process that was killed may have left a draft, which may have the password of the database.
        for left in data_dir.glob(f"{FILE}.*"):
            if not _is_locked(left):
                left.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            content = {"data_dir": str(data_dir), "project": str(project), "variables": _variables()}
            os.write(descriptor, json.dumps(content).encode(errors="surrogateescape"))
            draft.replace(data_dir / FILE)
        except BaseException:
            os.close(descriptor)
            raise
        os.set_inheritable(descriptor, True)  # until the program ends that this process becomes
        _link(data_dir)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)  # it may have the password of the database


def _variables() -> dict[str, str]:
    names = [name for name in os.environ if _is_of_hall(name) and name not in OMITTED and not name.startswith(SECRETS)]
    return {name: _absolute(name, os.environ[name]) for name in names}


def _absolute(name: str, value: str) -> str:
    """The value with an absolute path, because other terminals have other current folders."""
    if name.endswith(PATHS) and value.strip():
        return str((Path.cwd() / Path(value.strip()).expanduser()).resolve())
    if value.startswith(SQLITE) and not value.startswith(f"{SQLITE}/"):
        return f"{SQLITE}{Path.cwd() / value.removeprefix(SQLITE)}"
    return value


def _is_of_hall(name: str) -> bool:
    return name.startswith(PREFIXES) or name in NAMES


def _link(data_dir: Path) -> None:
    folder = links_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = folder / hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    draft = link.with_suffix(f".{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(data_dir)
    draft.replace(link)


def links_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state if os.path.isabs(state) else Path.home() / ".local" / "state", "guildhall", "halls")


# Other terminals --------------------------------------------------------------------------------------------------


def choose(folder: str, project: Path) -> None:
    """Give this process the variables of the hall that a command is for. Raises HallChoiceError.

    `folder` is the data folder that the user names. Without one, the variables of this terminal decide. If they name no
    hall, it is the running hall of this user with this version's folder.
    """
    if folder:
        _take_folder((Path.cwd() / Path(folder).expanduser()).resolve())
        return
    if any(os.environ.get(name, "").strip() for name in CHOOSING):
        return
    halls = [hall for hall in running_halls() if hall.project == project]
    if len(halls) > 1:
        folders = ", ".join(sorted(str(hall.data_dir) for hall in halls))
        raise HallChoiceError(f"Several halls are running: {folders}. Choose one: guildhall --hall FOLDER COMMAND.")
    for hall in halls:
        _take(hall.data_dir, hall.variables)


def running_halls() -> list[RunningHall]:
    """The running halls of this user. Links to halls that are gone are deleted."""
    halls = {}
    for link in _links():
        data_dir = link.resolve()
        if (hall := _read(data_dir)) and _is_locked(data_dir / FILE):
            halls[data_dir] = hall
        elif not (data_dir / FILE).exists():
            with contextlib.suppress(OSError):
                link.unlink()
    return list(halls.values())


def _links() -> Iterator[Path]:
    try:
        folder = links_folder()
        if not _is_private(folder.stat(), writable_only=True):
            return
        entries = sorted(folder.iterdir())[:MAX_HALLS]
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return
    yield from (entry for entry in entries if entry.is_symlink() and not entry.suffix)


def _read(data_dir: Path) -> RunningHall | None:
    """What the file says. None if it is not there, or not to be trusted."""
    try:
        if not _is_private(data_dir.stat(), writable_only=True):
            return None
        with open(os.open(data_dir / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_private(status):
                return None
            content = json.loads(file.read(MAX_BYTES).decode(errors="surrogateescape"))
        values = {str(name): str(value) for name, value in content["variables"].items() if _is_of_hall(name)}
        return RunningHall(data_dir, Path(content["project"]), values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _is_private(status: os.stat_result, *, writable_only: bool = False) -> bool:
    """Whether it belongs to this user, and nobody else can read it, or with `writable_only` write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (0o022 if writable_only else 0o077)


def _is_locked(path: Path) -> bool:
    """Whether a hall holds its lock on the file. Several can look at the same time, because they share the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _take_folder(data_dir: Path) -> None:
    if not data_dir.is_dir():
        raise HallChoiceError(f"--hall {data_dir}: there is no such folder. Give the data folder of a hall.")
    hall = _read(data_dir)
    if hall is None and (data_dir / FILE).exists():
        raise HallChoiceError(
            f"--hall {data_dir}: {FILE} in it is not yours alone, or it is damaged. "
            "Run the command as the user of the hall."
        )
    # A hall that never ran has no variables. Those of this terminal may be of another hall.
    _take(data_dir, hall.variables if hall else {})


def _take(data_dir: Path, variables: Mapping[str, str]) -> None:
    """Replace the hall's variables of this process, so that those of several halls are not mixed."""
    for name in [name for name in os.environ if _is_of_hall(name)]:
        del os.environ[name]
    os.environ.update(variables)
    os.environ["GUILD_HALL_ENV_FILE"] = (
        os.devnull
    )  # the hall has read its own. That of this folder may be of another hall
    os.environ["GUILD_HALL_DATA_DIR"] = str(data_dir)
