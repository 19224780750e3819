"""References in a manifest: `${secret:NAME}`, `${env:NAME}` and `${file:PATH}` stand for secrets.

The manifest, the database and every screen have only the references. The secret itself is read when a process or a
connection begins. Only the process, or the client that sends it, has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mcp_runtime.protocol.errors import SecretError

REFERENCE = re.compile(r"\$\{(?:secret:([A-Za-z0-9_.-]{1,64})|env:([A-Za-z_][A-Za-z0-9_]*)|file:([^{}]+))\}")
BEGINNING = re.compile(r"\$\{(?:secret|env|file):")
SECRET_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# The only variables that a manifest may refer to. The hall's other variables have its settings, its database's password
# and the keys of its agents.
MEMBER_VARIABLE = re.compile(r"GUILD_HALL_MEMBER_[A-Za-z0-9_]+")
# The kernel shows processes here, with their environment.
KERNEL_FOLDERS = (Path("/proc"), Path("/sys"))
MAX_SECRET = 65_536  # characters, and bytes of a file
MAX_LINES = 200  # of a secret. Logs are searched for each of them
HEADER_VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")  # visible ASCII, spaces inside
MAX_HEADER_VALUE = 8192
SECRET_PREFIX = 8  # so many first characters of a longer secret are masked too
SHORTEST_SECRET = 4  # masking "1" would make every text unreadable
SHORTEST_LINE = 8  # of a secret with several lines, whose lines are masked one by one
MASK = "********"  # in place of a value that could be a secret, wherever people see values
# The keys of `oauth` whose values are references.
OF_OAUTH = ("client_secret", "private_key", "assertion", "subject_token", "idp_client_secret")
HINT = "write ${secret:NAME} in its place, and set the secret in the admin"
KINDS = "${secret:NAME}, ${env:NAME} and ${file:PATH}"


def reference_fault(value: str) -> str:
    """Why the references in a value cannot be used, whatever they refer to. Empty if they can."""
    if BEGINNING.search(REFERENCE.sub("", value)):
        return f"a reference is one of {KINDS}"
    for _, variable, _ in REFERENCE.findall(value):
        if variable and not MEMBER_VARIABLE.fullmatch(variable):
            return f"{variable} is not for members: the names of their variables begin with GUILD_HALL_MEMBER_"
    return ""


def is_reference(value: str) -> bool:
    """Whether the value is one reference and nothing else, so that everybody may see it."""
    return REFERENCE.fullmatch(value) is not None


def secret_names(values: Collection[str]) -> set[str]:
    """The names of the secrets to which these values refer."""
    return {name for value in values for name, _, _ in REFERENCE.findall(value) if name}


# Reading ----------------------------------------------------------------------------------------------------------


def _no_secret(name: str) -> str:
    raise SecretError(f"the secret {name!r} does not exist")


@dataclass(frozen=True)
class Sources:
    """Where references are read from.

    folder       the member's folder. Relative paths of files begin there
    private      files and folders of the hall, whose content no member gets
    files        the folder with files for members, outside of their folders. None if there is none
    environment  the variables of the hall's runtime
    secret       returns the value of a secret by its name. Raises SecretError
    """

    folder: Path
    private: tuple[Path, ...] = ()
    files: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    secret: Callable[[str], str] = field(default=_no_secret, repr=False)

    def read(self, reference: re.Match[str], key: str) -> str:
        """The value for a reference under this key of the manifest.

        Raises SecretError, which names the place and never the value.
        """
        name, variable, path = reference.groups()
        if name:
            text, place = self.secret(name), f"the secret {name!r}"
        elif variable:
            place = f"the environment variable {variable}"
            text = self._variable(variable, place)
        else:
            place = f"the file {path}"
            text = self._content(self.folder / path, place).strip()
        if not text:
            raise SecretError(f"{place} is empty")
        if key == "headers" and (len(text) > MAX_HEADER_VALUE or not HEADER_VALUE.fullmatch(text)):
            raise SecretError(f"{place} holds what no header can: it must be one line of visible ASCII")
        if "\0" in text or len(text) > MAX_SECRET or text.count("\n") >= MAX_LINES:
            limits = f"{MAX_SECRET:,} characters or {MAX_LINES} lines"
            raise SecretError(f"{place} holds a NUL character, or more than {limits}")
        return text

    def _variable(self, name: str, place: str) -> str:
        if not MEMBER_VARIABLE.fullmatch(name):
            raise SecretError(f"{place} is not for members: the names of theirs begin with GUILD_HALL_MEMBER_")
        if name not in self.environment:
            raise SecretError(f"{place} is not set")
        return self.environment[name].strip()

    def _content(self, path: Path, place: str) -> str:
        try:
            if path.exists() and not path.is_file():
                raise SecretError(f"{place} is not a file")
            # The file may have changed since, so check the open one. O_NONBLOCK: do not wait for the writer of a pipe.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise SecretError(f"{place} is not a file")
                real_path = path.resolve()
                self._require_open(real_path, status, place)
                # A link may have been replaced since, so that the path is not that of the open file.
                if not os.path.samestat(status, real_path.lstat()):
                    raise SecretError(f"{place} was replaced while it was read")
                return file.read(MAX_SECRET + 1).decode("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise SecretError(f"{place} does not exist") from None
        except UnicodeDecodeError:
            raise SecretError(f"{place} holds no text in UTF-8") from None
        except ValueError:  # a NUL in the path
            raise SecretError(f"{place} is no path") from None
        except OSError as error:
            raise SecretError(f"{place} cannot be read: {error.strerror}") from error

    def _require_open(self, path: Path, status: os.stat_result, place: str) -> None:
        """Raise SecretError if the file is not for this member. A link counts as the file to which it leads."""
        own_folder = self.folder.resolve()
        is_in_files = self.files is not None and path.is_relative_to(self.files.resolve())
        if not path.is_relative_to(own_folder) and not is_in_files:
            where = f"or in {self.files}" if self.files else "because GUILD_HALL_SECRET_FILES_DIR names no other folder"
            raise SecretError(f"{place} is not for members: it must be in the member's folder, {where}")
        # The members folder, or the folder with files, may be inside the data folder.
        folders = [] if path.is_relative_to(own_folder) or is_in_files else self.private
        is_private = any(path.is_relative_to(folder.resolve()) for folder in (*KERNEL_FOLDERS, *folders))
        if is_private or _is_one_of(status, self.private):
            raise SecretError(f"{place} is not for members: it is a file of the hall")


def _is_one_of(status: os.stat_result, places: Collection[Path]) -> bool:
    """Whether a file is one of these, or directly in one of these folders. A hard link counts too."""
    for place in places:
        files = place.iterdir() if place.is_dir() else [place]
        for file in files:
            with contextlib.suppress(OSError):
                if os.path.samestat(status, file.stat()):
                    return True
    return False


@dataclass(frozen=True)
class Resolved:
    """Values with their references filled in. Never show them in a log, an error, or the locals of a traceback."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The secrets in the values. The hall masks them in texts of the server."""


def resolve(values: Mapping[str, str], sources: Sources, key: str) -> Resolved:
    """Fill in the references of values under this key of the manifest.

    Raises SecretError, which names the place and never the value.
    """
    secrets: list[str] = []

    def fill_in(match: re.Match[str]) -> str:
        secrets.append(sources.read(match, key))
        return secrets[-1]

    resolved = {}
    for name, value in values.items():
        try:
            resolved[name] = REFERENCE.sub(fill_in, value)
        except SecretError as error:
            raise SecretError(f"{key}.{name}: {error}") from error
    return Resolved(resolved, tuple(secrets))


def faults(values: Mapping[str, str], sources: Sources, key: str) -> Iterator[str]:
    """All references that `resolve` could not fill in, one sentence for each."""
    for name, value in values.items():
        for match in REFERENCE.finditer(value):
            try:
                sources.read(match, key)
            except SecretError as error:
                yield f"{key}.{name}: {error}"


# Masking ----------------------------------------------------------------------------------------------------------


class Mask:
    """Replaces secrets by `***`. Servers quote a token that they refuse, and print their configuration.

    `longest` is the length of the longest secret, in UTF-8. `cost` is proportional to the time that it takes.
    """

    def __init__(self, secrets: Collection[str]) -> None:
        lines = {line.strip() for secret in secrets if "\n" in secret for line in secret.splitlines()}
        texts = {*secrets, *(line for line in lines if len(line) >= SHORTEST_LINE)}
        forms = {form for text in texts if len(text) >= SHORTEST_SECRET for form in (text, json.dumps(text)[1:-1])}
        # The longest first, because a secret may contain another one.
        self._forms = [(form, form[:SECRET_PREFIX]) for form in sorted(forms, key=len, reverse=True)]
        self.longest = max((len(form.encode()) for form in forms), default=0)
        self.cost = len(self._forms)

    def apply(self, text: str) -> str:
        present = [form for form, prefix in self._forms if prefix in text]
        for form in present:
            text = text.replace(form, "***")
        for form in present:  # after all whole secrets, because several may begin in the same way
            text = _mask_prefixes(text, form)
        return text


def mask_secrets(text: str, secrets: Collection[str]) -> str:
    """Replace secrets by `***` in one text."""
    return Mask(secrets).apply(text)


def _mask_prefixes(text: str, secret: str) -> str:
    """Mask a secret of which `text` has only the beginning, because a quote was cut off."""
    if len(secret) <= SECRET_PREFIX:
        return text
    first, *parts = text.split(secret[:SECRET_PREFIX])
    return first + "".join("***" + part[_common(part, secret[SECRET_PREFIX:]) :] for part in parts)


def _common(text: str, other: str) -> int:
    """How many characters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
