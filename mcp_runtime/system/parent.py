"""A signal to this process when its parent dies, of SIGKILL too: the kernel sends it (Linux).

The guard, `pid_namespace` and the bridge ask for theirs themselves. They are programs of their own that import nothing
of ours, so that they run, and end what is below them, whatever became of the rest.
"""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def signal_when_parent_dies(number: signal.Signals) -> None:
    """From now on; it may have died before, so ask who the parent is afterwards."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
