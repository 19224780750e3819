"""Landlock, a protection that a process gives itself (landlock(7)). No privileges are needed.

The numbers are those of linux/landlock.h. There is no library that is kept up and small: the packages on PyPI are
development versions, and this program starts without site-packages.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on all architectures
VERSION_FLAG = 1
PATH_BENEATH, NET_PORT = 1, 2
PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
REFER, TRUNCATE = 1 << 13, 1 << 14
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE  # the others are only for folders
READ = EXECUTE | READ_FILE | READ_DIR
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
SCOPES = 1 << 0 | 1 << 1  # abstract Unix sockets, and signals
# The number of rights for files that each version knows: REFER came with 2, TRUNCATE with 3, IOCTL_DEV with 5.
RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
NEWEST_RIGHTS = 16
PORTS_SINCE, SCOPES_SINCE = 4, 6
PORTS = 65_536


def version() -> int:
    """The version of Landlock in this kernel. 0 if there is none, or if it is off or refused."""
    if sys.platform != "linux":
        return 0
    return max(_call(CREATE_RULESET, None, 0, VERSION_FLAG), 0)


def restrict_self(landlock: int, read: list[str], write: list[str], port: int) -> None:
    """Allow this process only these files and, if the kernel can, only `port` for TCP. Raises OSError."""
    rights = all_rights(landlock)
    has_ports, has_scopes = landlock >= PORTS_SINCE, landlock >= SCOPES_SINCE
    ruleset = _create(rights, BIND_TCP if has_ports else 0, SCOPES if has_scopes else 0)
    try:
        for path in read:
            _allow_path(ruleset, path, READ & rights)
        for path in write:
            _allow_path(ruleset, path, rights & ~(MAKE_CHAR | MAKE_BLOCK), follow=False)
        if has_ports:
            for allowed_port in {0, port}:  # 0 stands for a port that the kernel chooses
                _allow_port(ruleset, BIND_TCP, allowed_port)
        enforce(ruleset)
    finally:
        os.close(ruleset)


def all_rights(landlock: int) -> int:
    """All rights for files that this version knows."""
    return (1 << RIGHTS_OF_VERSION.get(landlock, NEWEST_RIGHTS)) - 1


def create_port_ruleset(refused: list[tuple[int, int]]) -> int:
    """The descriptor of a ruleset that allows connections to all TCP ports except these ranges. Raises OSError.

    Landlock can only allow, so it has a rule for each allowed port. That takes a fifth of a second, so the runtime
    makes it once. A process needs 25 ms to enforce it.
    """
    # Every ruleset refuses to move files between folders, unless a rule allows it. Here the whole system is allowed,
    # because the other ruleset of the process decides about files.
    ruleset = _create(REFER, CONNECT_TCP, 0)
    refused_ports = {port for first, last in refused for port in range(first, last + 1)}
    try:
        _allow_path(ruleset, "/", REFER)
        for port in range(PORTS):
            if port not in refused_ports:
                _allow_port(ruleset, CONNECT_TCP, port)
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


def enforce(ruleset: int) -> None:
    """Let the rules hold for this process from now on, in addition to earlier ones. Raises OSError."""
    _checked(libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _checked(_call(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")


def _create(files: int, ports: int, scopes: int) -> int:
    # The kernel accepts a longer structure than it knows, if the rest is zero.
    attributes = struct.pack("=QQQ", files, ports, scopes)
    size = 24 if scopes else 16 if ports else 8
    return _checked(_call(CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")


def _allow_path(ruleset: int, path: str, rights: int, *, follow: bool = True) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError:
        return  # it does not exist, or this user cannot reach it anyway
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            return
        allowed = rights if stat.S_ISDIR(mode) else rights & FILE_RIGHTS
        _checked(_call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", allowed, descriptor), 0), path)
    finally:
        os.close(descriptor)


def _allow_port(ruleset: int, rights: int, port: int) -> None:
    _checked(_call(ADD_RULE, ruleset, NET_PORT, struct.pack("=QQ", rights, port), 0), f"port {port}")


_loaded: list[ctypes.CDLL] = []


def libc() -> ctypes.CDLL:
    """The C library, loaded once."""
    if not _loaded:
        _loaded.append(ctypes.CDLL(None, use_errno=True))
    return _loaded[0]


def _call(number: int, *arguments: int | bytes | None) -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(libc().syscall(ctypes.c_long(number), *values))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
