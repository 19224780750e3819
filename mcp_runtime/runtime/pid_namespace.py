"""A separate program that runs a command as process 1 of a pid namespace. The kernel ends all other processes with it.

    python -m mcp_runtime.runtime.pid_namespace COMMAND [ARGUMENT...]

It is for GUILD_HALL_PID_NAMESPACE=1. This process stays outside, passes signals on, and ends with the command's exit
code. If it is killed, the kernel kills process 1 too. Inside the namespace pids are different, and `/proc` shows only
the processes of the namespace. Linux only. Users other than root need a user namespace for it (pid_namespaces(7),
user_namespaces(7)).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 0x2, 0x4, 0x8, 0x4000, 0x80000
PR_SET_PDEATHSIG = 1
SETTING = "GUILD_HALL_PID_NAMESPACE"
EX_UNAVAILABLE = 69


class NamespaceError(Exception):
    """The system does not allow a pid namespace."""


def command_line(argv: list[str]) -> list[str]:
    """The command to execute in place of `argv`."""
    return [sys.executable, "-m", "mcp_runtime.runtime.pid_namespace", *argv]


def run(argv: list[str]) -> int:
    """Run `argv`. Returns its exit code, 128 + n for signal n. Raises NamespaceError before it is started."""
    _enter_namespaces()
    reader, writer = os.pipe()  # the writer closes when this process ends
    # Process 1 loses a signal without a handler, so the signal is blocked until the hall's program has its handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if not child:
        os.close(writer)
        _become_process_one(reader, argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: _send_signal(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _send_signal(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _enter_namespaces() -> None:
    """Create namespaces for the children that are forked from now on. They run as the same user."""
    if sys.platform != "linux":
        raise NamespaceError("there are none on this system")
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", CLONE_NEWPID | CLONE_NEWNS)
    except PermissionError:
        try:
            _call("unshare", CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUSER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        except OSError as error:
            raise NamespaceError(f"user namespaces are closed ({error.strerror})") from error
    except OSError as error:
        raise NamespaceError(str(error.strerror)) from error


def _become_process_one(reader: int, argv: list[str]) -> None:
    """Execute `argv` as process 1. Never returns. `reader` is readable if the process outside has ended."""
    try:
        os.setsid()  # the terminal's Ctrl-C reaches only the process outside, which passes it on once
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if select.select([reader], [], [], 0)[0]:
            os._exit(EX_UNAVAILABLE)  # it died before `prctl`
        os.close(reader)
        _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
        _call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
        os.environ[SETTING] = "0"  # the command is in the namespace already
        os.execvp(argv[0], argv)  # noqa: S606 - it must not use a shell
    except OSError as error:
        _complain(f"{error.strerror}, most likely in a container, which has a namespace of its own already")
    finally:
        os._exit(EX_UNAVAILABLE)


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    values = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    if getattr(library, name)(*values) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _complain(reason: str) -> None:
    sys.stderr.write(f"{SETTING}=1: no pid namespace can be had here: {reason}. Set it to 0, or open them.\n")
    sys.stderr.flush()


def main() -> int:
    try:
        return run(sys.argv[1:])
    except NamespaceError as error:
        _complain(str(error))
        return EX_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
