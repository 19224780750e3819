"""The environment of the member's command, on its way from the runtime past the programs in between.

The dynamic loader obeys variables such as LD_PRELOAD before the first line of a program runs. So the member's variables
are not in the environment of the bridge and of this program. They come in a file without a name, and only the command
gets them, when the policy holds. Command lines are no place for them either, because everybody can read these.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

MAX_BYTES = 8_000_000  # Linux accepts 6 MB of arguments and variables at most
CHUNK_BYTES = 1_000_000


def write(environment: Mapping[str, str]) -> int:
    """The descriptor of a file with these variables. Raises OSError, with E2BIG above MAX_BYTES."""
    content = b"".join(os.fsencode(f"{name}={value}\0") for name, value in environment.items())
    if len(content) > MAX_BYTES:
        raise OSError(errno.E2BIG, f"its variables are larger than {MAX_BYTES:,} bytes together")
    descriptor = _unnamed_file()
    try:
        written = 0
        while written < len(content):
            written += os.pwrite(descriptor, content[written:], written)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def take(descriptor: int) -> dict[str, str]:
    """The variables in the file. Empties and closes it, because the bridge has it open too. Raises OSError."""
    content = b""
    try:
        while chunk := os.pread(descriptor, CHUNK_BYTES, len(content)):
            content += chunk
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
    pairs = (os.fsdecode(part).partition("=") for part in content.split(b"\0") if part)
    return {name: value for name, _, value in pairs}


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create("variables")
    import tempfile  # the program itself does not need it

    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    return descriptor
