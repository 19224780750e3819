"""The file with the keys that encrypt secrets. It is not in the database, and is the same on all nodes of the hall.

Each line is a key. The first one encrypts, and all of them decrypt. A line that begins with `unused` has a key that was
added and is not used yet. Whoever has the file and the database can read all secrets.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_runtime.protocol.errors import KeyFileError
from mcp_runtime.system.folders import sync_folder

if TYPE_CHECKING:  # a hall without secrets does not load it, so that it starts faster
    from cryptography.fernet import MultiFernet

MAX_KEYS = 16
MAX_BYTES = 4096
UNUSED = "unused"
COPY_OF_FILE = "put a copy of it back, or remove it and set all secrets again"


@dataclass(frozen=True)
class KeyFile:
    path: Path

    def cipher(self) -> MultiFernet:
        """Encrypts with the first key and decrypts with each. Raises KeyFileError."""
        return _cipher_of(tuple(line.split()[-1] for line in self._lines()))

    def cipher_of_first(self) -> MultiFernet:
        """Uses only the first key. Raises KeyFileError."""
        return _cipher_of((self._lines()[0],))

    def create(self) -> None:
        """Create the file with a new key, if it does not exist. Raises KeyFileError."""
        if not self.path.exists():
            self._write([_new_key()], is_new=True)

    def add(self) -> None:
        """Add a new key that decrypts, and does not encrypt yet. Raises KeyFileError."""
        lines = self._lines()
        if len(lines) >= MAX_KEYS:
            raise KeyFileError(f"{self.path} has {len(lines)} keys already; drop the old ones first")
        self._write([*lines, f"{UNUSED} {_new_key()}"])

    def use_new(self) -> bool:
        """Let the key that was added last encrypt. False if no key was added since. Raises KeyFileError."""
        lines = self._lines()
        new_lines = [line for line in lines if line.startswith(UNUSED)]
        if not new_lines:
            return False
        others = [line for line in lines if line not in new_lines]  # nothing is encrypted with an unused key
        self._write([new_lines[-1].removeprefix(f"{UNUSED} "), *others])
        return True

    def drop_old(self) -> None:
        """Keep the key that encrypts, and those that were not used yet. Raises KeyFileError."""
        first, *others = self._lines()
        self._write([first, *(line for line in others if line.startswith(UNUSED))])

    def _lines(self) -> list[str]:
        try:
            with self.path.open("rb") as file:
                lines = file.read(MAX_BYTES).decode("ascii").splitlines()
            lines = [line.strip() for line in lines if line.strip()]
            _cipher_of(tuple(line.removeprefix(f"{UNUSED} ") for line in lines))
            if lines[0].startswith(UNUSED):
                raise ValueError("no key encrypts")
        except OSError as error:
            raise KeyFileError(f"the key file {self.path} cannot be read: {error.strerror}; {COPY_OF_FILE}") from error
        except ValueError:  # also UnicodeDecodeError
            raise KeyFileError(
                f"the key file {self.path} does not hold keys of Fernet, one a line; {COPY_OF_FILE}"
            ) from None
        return lines

    def _write(self, lines: list[str], *, is_new: bool = False) -> None:
        """Replace the file at once, so that no reader sees half of it. A new file never replaces another one.

        When it returns, the file survives a power loss, because rows are encrypted with its keys right after that.
        """
        try:
            descriptor, draft = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)  # mode 0600
            try:
                with open(descriptor, "w") as file:
                    file.write("".join(f"{line}\n" for line in lines))
                    file.flush()
                    os.fsync(file.fileno())
                if is_new:
                    with contextlib.suppress(FileExistsError):  # another process was faster
                        os.link(draft, self.path)
                else:
                    os.replace(draft, self.path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)
            sync_folder(self.path.parent)
        except OSError as error:
            raise KeyFileError(f"the key file {self.path} cannot be written: {error.strerror}") from error


def _new_key() -> str:
    from cryptography.fernet import Fernet

    return Fernet.generate_key().decode()


@lru_cache(4)
def _cipher_of(keys: tuple[str, ...]) -> MultiFernet:
    """Raises ValueError if there are none, or if one is no key."""
    from cryptography.fernet import Fernet, MultiFernet

    return MultiFernet([Fernet(key) for key in keys])
