"""The composition root: settings, addresses, the Celery app. It names things by string and has no behaviour."""

import os
import signal
import sys

if os.getpid() == 1:
    # In a container. The kernel ignores signals that process 1 does not handle, and imports and migrations take
    # seconds. Until the program handles SIGTERM itself, a stop ends it as it would end any other process.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # see mcp_runtime/runtime/pid_namespace.py
