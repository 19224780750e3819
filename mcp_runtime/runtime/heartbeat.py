"""The heartbeat of a runtime. Each second it is written to the row of the lease and to the data folder."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable

from django.db import Error, connection

from mcp_runtime.rows import lease
from mcp_runtime.rows.database import damage, leave_the_pool, time_limit
from mcp_runtime.runtime import fence

logger = logging.getLogger("guildhall.runtime")

HEARTBEAT_SECONDS = 1.0
# A renewal on PostgreSQL that takes longer has failed, and the next one uses a new connection. Without the fence, a
# slow database is no reason to end anything. With the fence on, a late renewal does not help.
RENEWAL_SECONDS, FENCED_RENEWAL_SECONDS = 5.0, 1.0


class Heartbeat:
    """Writes the heartbeat until `is_over`. While another runtime has the lease, calls `on_lost()` until it is True."""

    def __init__(self, lease_id: uuid.UUID, is_over: threading.Event, on_lost: Callable[[], bool]) -> None:
        self._lease_id = lease_id
        self._is_over = is_over
        self._on_lost = on_lost

    def start(self) -> None:
        threading.Thread(target=self._keep_lease, name="lease", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _keep_lease(self) -> None:
        leave_the_pool()
        is_written, sent_at = True, fence.now()
        # However long a renewal takes, the next one is due a second after it was sent.
        while not self._is_over.wait(max(HEARTBEAT_SECONDS - (fence.now() - sent_at), 0)):
            sent_at = fence.now()
            try:
                fence_is_on = fence.is_watched()
                with time_limit(FENCED_RENEWAL_SECONDS if fence_is_on else RENEWAL_SECONDS):
                    is_ours = lease.renew(self._lease_id, fence_is_on=fence_is_on)
                if is_ours:
                    fence.note_renewal(sent_at)
            except (Error, OSError, RuntimeError) as error:  # the last one if the system gives no thread
                if is_written:
                    reason = damage(error) or str(error).strip()
                    logger.warning("the heartbeat could not be written (%s); trying every second", reason)
                is_written = False
                connection.close()
                continue
            if not is_written:
                logger.info("the heartbeat is written again")
            is_written = True
            if not is_ours and self._on_lost():
                break
        connection.close()

    def _beat(self) -> None:
        """Write to the data folder, in a thread that never waits for the database."""
        while not self._is_over.is_set():
            with contextlib.suppress(OSError):
                lease.beat(self._lease_id)
            self._is_over.wait(HEARTBEAT_SECONDS)
