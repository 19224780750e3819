"""A program of its own: a command as process 1 of a pid namespace, so that with it the kernel ends all that it started.

    python -m mcp_runtime.runtime.pid_namespace COMMAND [ARGUMENT...]

For GUILD_HALL_PID_NAMESPACE=1. This process stays outside: it passes signals on, and ends with the command's exit
code. When it is killed, process 1 is too. Inside, pids are others, and `/proc` shows those of the namespace alone.
Linux only; who is not root gets the right to it from a user namespace (pid_namespaces(7), user_namespaces(7)).
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
    """The system does not give us a pid namespace."""


def command_line(argv: list[str]) -> list[str]:
    """What to execute in the place of `argv`."""
    return [sys.executable, "-m", "mcp_runtime.runtime.pid_namespace", *argv]


def run(argv: list[str]) -> int:
    """The exit code of `argv`, 128 + n for signal n. Raises NamespaceError before it is started."""
    _leave()
    alive, ours = os.pipe()  # its other end closes when we end
    # Process 1 loses a signal that it has no handler for: the hall's programs unblock this one when they have.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if not child:
        os.close(ours)
        _become_process_one(alive, argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: _tell(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _tell(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _leave() -> None:
    """What we fork from now on is in namespaces of its own, as the user that we are."""
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


def _become_process_one(alive: int, argv: list[str]) -> None:
    """Never returns."""
    try:
        os.setsid()  # the terminal's Ctrl-C reaches the process outside alone, which passes it on once
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if select.select([alive], [], [], 0)[0]:
            os._exit(EX_UNAVAILABLE)  # it died before we asked
        os.close(alive)
        _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
        _call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
        os.environ[SETTING] = "0"  # we are in it
        os.execvp(argv[0], argv)  # noqa: S606 - a command without a shell is what is wanted
    except OSError as error:
        _complain(f"{error.strerror}, most likely in a container, which has a namespace of its own already")
    finally:
        os._exit(EX_UNAVAILABLE)


def _call(name: str, *arguments: object) -> None:
    """A function of the C library. Raises OSError."""
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
