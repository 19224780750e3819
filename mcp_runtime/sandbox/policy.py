"""What a member may use, as JSON values."""

from __future__ import annotations

from typing import TypedDict


class Policy(TypedDict):
    """The rules for one process. A protection whose value is 0 or false is left out."""

    landlock: int
    """The version of Landlock whose rights are used. With 0, files, ports and signals are not protected."""
    has_filter: bool
    """Whether system calls are filtered."""
    read: list[str]
    """Files and folders that it may read and execute. Those that do not exist are skipped."""
    write: list[str]
    """Files and folders that it may also change. A symbolic link counts as missing."""
    mounts: list[str]
    """Folders in which it may also change modes, owners and times of files. Empty without this protection."""
    port: int
    """The TCP port on which it may listen, beside those that the kernel chooses."""
    ruleset: int
    """The descriptor of `landlock.create_port_ruleset`, which says where it may connect to. -1 without one."""
    limits: dict[str, int]
    """By the names of the module resource, such as RLIMIT_NOFILE. Soft and hard limit are the same."""
    group: str
    """The control group that it joins. Empty without one."""
    temporary: str
    """The folder for temporary files, which is emptied first. Empty without one."""
