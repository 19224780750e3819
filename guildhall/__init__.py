"""The composition root: settings, addresses, the Celery app. It names things by string and holds no behaviour."""

import os
import signal
import sys

if os.getpid() == 1:
    # Of a container. The kernel ignores what process 1 does not handle, and imports and migrations take seconds: until
    # the program handles SIGTERM in its own way, a stop ends it as it would end any other process.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # see mcp_runtime/runtime/pid_namespace.py
