"""Free memory of this process goes back to the operating system. Standard library only."""

from __future__ import annotations

from typing import Any


def library() -> Any:
    """The C library of this process."""
    import ctypes  # late, because commands that only read must start fast

    return ctypes.CDLL(None)


def give_back() -> None:
    """Give free memory back (glibc). Elsewhere nothing happens."""
    if hasattr(library(), "malloc_trim"):
        library().malloc_trim(0)
