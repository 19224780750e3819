"""The verbs in progress, such as the start of a member: one at a time for a member, each in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from django.db import connections

from mcp_runtime.members.live import LiveMember
from mcp_runtime.rows.database import unit_of_work

logger = logging.getLogger("guildhall.runtime")

# How long a start may use its slot, because a start that hangs must not delay others.
START_SLOT_SECONDS = 5.0
# A start whose process sleeps, or waits for a download, needs no CPU, so others start meanwhile.
IDLE_START_SLOT_SECONDS = 1.0
# A start that computes keeps its slot, because more of them than CPUs would only make each other slower.
LONGEST_START_SLOT_SECONDS = 30.0
# Verbs in progress, each in a thread that ends with it. The others wait for the next turn. Starts may take minutes, so
# there are fewer of them, and some threads remain for stops.
MAX_VERBS = 64
MAX_STARTS = 48
START = "start"
ABORTED_START = "aborted start"


class Threads:
    """One for each piece of work, which ends with it: verbs are rare, and come by the hundred."""

    def submit(self, work: Callable[..., None], *args: Any) -> None:
        """Raises RuntimeError if the system gives no thread."""
        threading.Thread(target=work, args=args, name="lifecycle", daemon=True).start()


class Verbs:
    """Runs verbs, and limits how many starts use the CPU at the same time.

    `on_end()` is called after the end of each verb. The ids of members are keys. Work for no single member has a key
    that no member has.
    """

    def __init__(self, start_concurrency: int, on_end: Callable[[], None], threads: Threads) -> None:
        self._start_concurrency = start_concurrency
        self._on_end = on_end
        self._threads = threads
        self._lock = threading.Lock()
        self._busy: dict[int, str] = {}  # by member id
        self._slots: dict[int, float] = {}  # member id -> when its start began

    def run(self, member_id: int, name: str, verb: str, work: Callable[[], None]) -> bool:
        """Run `work` in a thread. Return False if a verb of this member, or too many verbs, are in progress."""
        with self._lock:
            if member_id in self._busy or len(self._busy) >= MAX_VERBS:
                return False
            self._busy[member_id] = verb
        try:
            self._threads.submit(self._run, member_id, name, verb, work)
        except RuntimeError:  # the system gives no more threads
            self._end(member_id)
            raise
        return True

    def _run(self, member_id: int, name: str, verb: str, work: Callable[[], None]) -> None:
        try:
            unit_of_work(work)
        except Exception:
            logger.exception("%s of member %r failed", verb, name)
        finally:
            connections.close_all()  # the thread ends here
            self._end(member_id)
            self._on_end()

    def _end(self, member_id: int) -> None:
        with self._lock:
            self._busy.pop(member_id, None)
            self._slots.pop(member_id, None)

    def of(self, member_id: int) -> str | None:
        """The verb that is in progress for the member."""
        with self._lock:
            return self._busy.get(member_id)

    def count(self, verb: str) -> int:
        with self._lock:
            return sum(each == verb for each in self._busy.values())

    def abort_start(self, member_id: int, name: str, abort: Callable[[], None]) -> bool:
        """Run `abort` beside the start of the member. Return False if no start, or an aborted one, is in progress."""
        with self._lock:
            if self._busy.get(member_id) != START:
                return False
            self._busy[member_id] = ABORTED_START
        self._threads.submit(_abort, name, abort)
        return True

    # Slots --------------------------------------------------------------------------------------------------------

    def take_slot(self, member_id: int) -> bool:
        """Take a slot for the start of a member. Its end, or `give_slot_back`, gives it back."""
        with self._lock:
            starts = sum(verb in (START, ABORTED_START) for verb in self._busy.values())
            if member_id in self._busy or starts >= MAX_STARTS or len(self._slots) >= self._start_concurrency:
                return False
            self._slots[member_id] = time.monotonic()
            return True

    def give_slot_back(self, member_id: int) -> None:
        with self._lock:
            self._slots.pop(member_id, None)

    def free_slots(self, live_members: Collection[LiveMember]) -> None:
        """Free the slots of starts that have used them for long, and do not compute."""
        now, by_id = time.monotonic(), {live_member.member_id: live_member for live_member in live_members}
        with self._lock:
            durations = {member_id: now - began_at for member_id, began_at in self._slots.items()}
        for member_id, seconds in durations.items():
            if _should_free_slot(seconds, by_id.get(member_id)):
                self.give_slot_back(member_id)

    def slot_ends(self) -> list[float]:
        """When starts give their slots back, by the monotonic clock. Those in the past are not among them."""
        with self._lock:
            moments = [began_at + START_SLOT_SECONDS for began_at in self._slots.values()]
        now = time.monotonic()
        return [moment for moment in moments if moment > now]


def _abort(name: str, abort: Callable[[], None]) -> None:
    try:
        abort()
    except Exception:
        logger.exception("the start of member %r could not be ended", name)
    finally:
        connections.close_all()


def _should_free_slot(seconds: float, live_member: LiveMember | None) -> bool:
    """Whether a start gives its slot back after this many seconds.

    `live_member` is None if the member has no process and no connection.
    """
    if live_member is None or seconds > LONGEST_START_SLOT_SECONDS:
        return seconds > START_SLOT_SECONDS
    return seconds > min(IDLE_START_SLOT_SECONDS, START_SLOT_SECONDS) and not live_member.is_computing
