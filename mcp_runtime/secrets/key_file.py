"""The file with the keys that encrypt secrets. It is not in the database, and is the same on all nodes of the hall.

Each line is a key. The first one encrypts, and all of them decrypt. Whoever has the file and the database can read all
secrets.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_runtime.protocol.errors import KeyFileError

if TYPE_CHECKING:  # a hall without secrets does not load it, so that it starts faster
    from cryptography.fernet import Fernet, MultiFernet

MAX_KEYS = 16
MAX_BYTES = 4096


@dataclass(frozen=True)
class KeyFile:
    path: Path

    def cipher(self) -> MultiFernet:
        """Encrypts with the first key and decrypts with each. Raises KeyFileError."""
        return _cipher_of(self._keys())

    def cipher_of_first(self) -> Fernet:
        """Uses only the first key. Raises KeyFileError."""
        from cryptography.fernet import Fernet

        return Fernet(self._keys()[0])

    def create(self) -> None:
        """Create the file with a new key, if it does not exist. Raises KeyFileError."""
        if not self.path.exists():
            self._write([_new_key()], is_new=True)

    def add(self) -> None:
        """Add a new key that decrypts, and does not encrypt yet. Raises KeyFileError."""
        keys = self._keys()
        if len(keys) >= MAX_KEYS:
            raise KeyFileError(f"{self.path} has {len(keys)} keys already; drop the old ones first")
        self._write([*keys, _new_key()])

    def use_last(self) -> None:
        """Let the last key encrypt. Raises KeyFileError."""
        *others, last = self._keys()
        self._write([last, *others])

    def drop_old(self) -> int:
        """Keep only the key that encrypts. Returns how many were dropped. Raises KeyFileError."""
        first, *others = self._keys()
        self._write([first])
        return len(others)

    @property
    def key_count(self) -> int:
        """Raises KeyFileError."""
        return len(self._keys())

    def _keys(self) -> tuple[str, ...]:
        try:
            with self.path.open("rb") as file:
                keys = tuple(file.read(MAX_BYTES).decode("ascii").split())
            _cipher_of(keys)
        except OSError as error:
            raise KeyFileError(f"the key file {self.path} cannot be read: {error.strerror}") from error
        except ValueError:  # also UnicodeDecodeError
            raise KeyFileError(f"the key file {self.path} does not hold keys of Fernet, one a line") from None
        return keys

    def _write(self, keys: list[str], *, is_new: bool = False) -> None:
        """Replace the file at once, so that no reader sees half of it. A new file never replaces another one."""
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                file.write("".join(f"{key}\n" for key in keys))
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.link(draft, self.path)
            else:
                draft.replace(self.path)
        except OSError as error:
            raise KeyFileError(f"the key file {self.path} cannot be written: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)


def _new_key() -> str:
    from cryptography.fernet import Fernet

    return Fernet.generate_key().decode()


@lru_cache(4)
def _cipher_of(keys: tuple[str, ...]) -> MultiFernet:
    """Raises ValueError if there are none, or if one is no key."""
    from cryptography.fernet import Fernet, MultiFernet

    return MultiFernet([Fernet(key) for key in keys])
