"""`sandbox POLICY VARIABLES -- COMMAND...` applies the policy to its own process, and then becomes COMMAND.

VARIABLES is the descriptor of a file with the environment of COMMAND (`variables`).

Nothing of the member runs before the policy holds. If the kernel refuses a part of it, the command is not started.
`sandbox --probe` writes what this machine can enforce, as JSON with the fields of `capabilities.Capabilities`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

from mcp_runtime.sandbox import landlock, mounts, system_calls, variables
from mcp_runtime.sandbox.command import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_NOT_PROTECTED, EXIT_USAGE

if TYPE_CHECKING:
    from mcp_runtime.sandbox.policy import Policy

PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
# What root keeps: it works with the files that it may use (capabilities(7)).
KEPT_CAPABILITIES = {0, 1, 3, 4}  # CHOWN, DAC_OVERRIDE, FOWNER, FSETID


def main(argv: list[str]) -> int:
    match argv:
        case ["--probe"]:
            sys.stdout.write(json.dumps(probe()))
            return 0
        case [text, descriptor, "--", *command] if command:
            policy: Policy = json.loads(text)
        case _:
            complain("usage: sandbox POLICY VARIABLES -- COMMAND [ARGUMENT...]")
            return EXIT_USAGE
    try:
        environment = variables.take(int(descriptor))
        apply(policy)
    except (OSError, ValueError) as error:
        complain(f"the kernel refused a part of the sandbox, so the command was not started: {error}")
        return EXIT_NOT_PROTECTED
    return execute(command, environment)


def apply(policy: Policy) -> None:
    """Let the policy hold for this process. Raises OSError or ValueError if a part of it does not."""
    if policy["group"]:
        with open(os.path.join(policy["group"], "cgroup.procs"), "w") as file:
            file.write("0")  # this process
    for name, limit in policy["limits"].items():
        set_limit(getattr(resource, name), limit)
    if policy["mounts"]:
        mounts.restrict_self(policy["mounts"])
    if policy["landlock"] or policy["mounts"] or policy["has_filter"]:
        drop_capabilities()
    if policy["landlock"]:
        # Some runtimes read how much memory they have there. Other processes stay hidden, also its own children.
        read = [*policy["read"], f"/proc/{os.getpid()}"]
        landlock.restrict_self(policy["landlock"], read, policy["write"], policy["port"])
        # Last, because the kernel copies all earlier rules, and this ruleset is large.
        if policy["ruleset"] >= 0:
            landlock.enforce(policy["ruleset"])
            os.close(policy["ruleset"])
    if policy["has_filter"]:
        system_calls.restrict_self()
    if policy["temporary"]:
        empty_folder(policy["temporary"])


def probe() -> dict[str, int | bool]:
    """What this machine can enforce. It changes this process, so the process ends afterwards."""
    result = {"landlock": landlock.version(), "has_filter": system_calls.is_available(), "has_mounts": False}
    if sys.platform == "linux":
        try:
            mounts.restrict_self([])
        except OSError:
            return result
        result["has_mounts"] = True
    return result


def execute(command: list[str], environment: dict[str, str]) -> int:
    """Become the command, which is looked up in the PATH of its environment.

    Returns the exit code of a shell if that is not possible.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - it must not use a shell
    except (FileNotFoundError, NotADirectoryError):
        complain(f"command not found: {command[0]!r}")
        return EXIT_NOT_FOUND
    except PermissionError:
        complain(f"permission denied: {command[0]!r} is not executable, or the sandbox does not allow its folder")
    except OSError as error:
        complain(f"command {command[0]!r} cannot be started: {error.strerror}")
    return EXIT_NOT_EXECUTABLE


def set_limit(number: int, limit: int) -> None:
    """Set soft and hard limit. A lower hard limit of this process stays."""
    hard = resource.getrlimit(number)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(number, (limit, limit))


def drop_capabilities() -> None:
    """Take from root what is not about files. With no_new_privs, no program that it starts gets it back."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    number = 0
    while (is_present := libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0)) >= 0:
        is_surplus = is_present and os.geteuid() == 0 and number not in KEPT_CAPABILITIES
        if is_surplus and libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            raise OSError(ctypes.get_errno(), f"capability {number} cannot be dropped")
        number += 1


def empty_folder(folder: str) -> None:
    """Delete the files of the last run. It happens within the sandbox, and takes only the member's own time."""
    entries = os.listdir(folder)
    if not entries:
        return
    import shutil  # needed rarely, and large

    for entry in entries:
        path = os.path.join(folder, entry)
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        except (OSError, RecursionError):
            continue  # a file that stays does not prevent the start


def complain(text: str) -> None:
    sys.stderr.write(f"sandbox: {text}\n")
    sys.stderr.flush()
