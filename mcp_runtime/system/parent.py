"""A signal to this process when its parent dies, even by SIGKILL. The kernel sends it (Linux).

The guard, `pid_namespace` and the bridge set theirs without this module. They are separate programs that import none of
our modules. So they run, and end their children, whatever happens to the rest.
"""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def signal_when_parent_dies(number: signal.Signals) -> None:
    """Send the signal from now on. The parent may have died before, so check the parent after this call."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
