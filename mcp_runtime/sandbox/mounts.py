"""A view of the file system in which everything is read-only, except some folders (mount_namespaces(7)).

Landlock does not know changes of a file's mode, owner, times and attributes. In this view they fail. Root makes the
view directly. Other users need a user namespace, which some systems refuse.
"""

from __future__ import annotations

import ctypes
import os
import struct

from mcp_runtime.sandbox.landlock import libc

CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x4_0000
MOUNT_SETATTR = 442  # the same on all architectures
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY = 1


def restrict_self(writable: list[str]) -> None:
    """Let this process see all files as read-only, except those in these folders. Raises OSError.

    It needs no more privileges afterwards, and a member cannot change the view.
    """
    user, group, is_root = os.geteuid(), os.getegid(), os.geteuid() == 0
    _check(libc().unshare(CLONE_NEWNS | (0 if is_root else CLONE_NEWUSER)), "unshare")
    if not is_root:  # in the new namespace the user keeps only its own id
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _mount(None, "/", MS_REC | MS_PRIVATE)
    for folder in writable:
        _mount(folder, folder, MS_BIND)
    _set_attributes("/", MOUNT_ATTR_RDONLY, 0, AT_RECURSIVE)
    for folder in writable:
        _set_attributes(folder, 0, MOUNT_ATTR_RDONLY, 0)
    os.chdir(os.getcwd())  # the working directory is still in the old view


def _mount(source: str | None, target: str, flags: int) -> None:
    encoded_source = None if source is None else os.fsencode(source)
    result = libc().mount(encoded_source, os.fsencode(target), None, ctypes.c_ulong(flags), None)
    _check(result, f"mount of {target}")


def _set_attributes(path: str, attributes: int, cleared: int, flags: int) -> None:
    values = struct.pack("=QQQQ", attributes, cleared, 0, 0)
    numbers = [ctypes.c_long(number) for number in (MOUNT_SETATTR, AT_FDCWD, flags, len(values))]
    result = libc().syscall(numbers[0], numbers[1], os.fsencode(path), numbers[2], values, numbers[3])
    _check(result, f"mount_setattr of {path}")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
