"""Limits the time of work on schemas and arguments, and lets other threads use the interpreter. No Django, no I/O.

The threads of a process share one interpreter. A thread that computes makes each request of the others take several
times as long. So long work steps aside, that is, it sleeps most of the time. All such work of a process together takes
no more time than one piece of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jsonschema

# CPU time after which work steps aside. Nearly all honest work ends before that, and never sleeps.
QUICK_SECONDS = 0.02
# CPU time between two pauses. Other threads wait about this long for the interpreter because of this work.
STEP_SECONDS = 0.001
# The part of one CPU for all work of the process that steps aside. Its owners share it.
SHARE = 0.25
# How long one piece of work may take from its first pause on, because a client waits for the answer. If nobody else's
# work steps aside, the budgets of a validation and of a search for secrets end before that.
PATIENCE_SECONDS = 4.0
# How long a step waits while requests of others compute. One such request takes about this long.
YIELD_SECONDS = 0.02
# How long a piece of work waits so in all. Otherwise a busy process would refuse work that a calm one accepts.
MAX_YIELDED_SECONDS = 1.0
# Errors that one validation may have at a time, with those of alternatives. Each takes 2 to 3 kB in twenty objects. The
# garbage collector goes through all of them, and blocks the interpreter meanwhile.
MAX_ERRORS = 2000
# Characters of the message of an error.
MAX_REASON = 500
MAX_SCHEMA_CHARACTERS = 200_000
# How long a verdict "too slow" is cached, because it depends on the speed of the machine. Without a cache each call of
# a hostile tool would use up its budget again.
RETRY_SECONDS = 60.0
MAX_SLOW = 1024  # cached verdicts, by a hash of the schema

# A schema as read, or its JSON text. A cache finds a long schema by its text, without reading or writing it again.
Schema = dict[str, Any] | str


class TooMuchWorkError(Exception):
    pass


class _Turns:
    """Decides when work that steps aside continues. All of it takes SHARE of one CPU, in equal parts for its owners."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at: dict[Hashable, float] = {}  # by owner: when the next step may begin. Only for work in progress

    def next(self, owner: Hashable, overdrawn: float) -> float:
        """Seconds until the owner's next step. `overdrawn` is the CPU time of the last step beyond STEP_SECONDS."""
        now = time.monotonic()
        with self._lock:
            in_progress = {other: at for other, at in self._free_at.items() if at > now}
            begin = in_progress.get(owner, now)
            share = share_of(owner, in_progress.keys() | {owner})
            begin += overdrawn / share
            self._free_at = {**in_progress, owner: begin + STEP_SECONDS / share}
        return begin - now


def share_of(owner: Hashable, owners: Set[Hashable]) -> float:
    """The owner's part of one CPU. Users share it, and each user's tokens share the part of the user."""
    same_user_count = sum(_user_of(other) == _user_of(owner) for other in owners)
    return SHARE / len({_user_of(other) for other in owners}) / same_user_count


def _user_of(owner: Hashable) -> Hashable:
    return owner[0] if isinstance(owner, tuple) and not isinstance(owner[0], str) else owner


_turns = _Turns()


class _Pace:
    """Decides when one piece of work has to step aside."""

    def __init__(self, owner: Hashable) -> None:
        self._owner = owner
        self._until = 0.0
        self._courtesy = MAX_YIELDED_SECONDS
        self.step_end = time.thread_time() + QUICK_SECONDS

    def step_aside(self, now: float) -> None:
        """Sleep until the next step. Raises TooMuchWorkError if that would take longer than PATIENCE_SECONDS in all."""
        if not self._until:
            self._until = time.monotonic() + PATIENCE_SECONDS
            about_to_wait.get()()
        pause = _turns.next(self._owner, now - self.step_end)
        if time.monotonic() + pause > self._until:
            raise TooMuchWorkError
        time.sleep(pause)
        self._courtesy -= _wait_while_others_compute(min(YIELD_SECONDS, self._courtesy))
        self.step_end = time.thread_time() + STEP_SECONDS


def _wait_while_others_compute(at_most: float) -> float:
    """Wait while others compute, and return how long that took.

    Otherwise the step would delay them, and for longer if the machine interrupts the step.
    """
    start = time.monotonic()
    while others_compute.get()() and time.monotonic() < start + at_most:
        time.sleep(STEP_SECONDS)
    return time.monotonic() - start


_pace: ContextVar[_Pace | None] = ContextVar("pace", default=None)
# Work calls this once before it steps aside for the first time. A server may let other requests work meanwhile.
about_to_wait: ContextVar[Callable[[], None]] = ContextVar("about_to_wait", default=lambda: None)
# Work that steps aside calls this: whether another request computes now. False in a server that does not know.
others_compute: ContextVar[Callable[[], bool]] = ContextVar("others_compute", default=lambda: False)


@contextmanager
def paced(owner: Hashable = None) -> Iterator[None]:
    """Treat all work on schemas inside as one piece of work. Together it steps aside after QUICK_SECONDS.

    It must be work of one thread. The work is done for `owner`, and work for one owner does not delay that for others.
    """
    if _pace.get() is not None:
        yield
        return
    token = _pace.set(_Pace(owner))
    try:
        yield
    finally:
        _pace.reset(token)


class Work:
    """The budget of one validation or one search for secrets: `seconds` of the thread's CPU time, and MAX_ERRORS.

    It is the current one while the context is entered.
    """

    def __init__(self, seconds: float) -> None:
        now = time.thread_time()
        self._end = now + seconds
        self._pace = _pace.get() or _Pace(None)
        self._next = min(self._end, self._pace.step_end)
        self._trifles = 0
        self.errors = 0  # in memory now

    def __enter__(self) -> Work:
        self._token = _work.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _work.reset(self._token)
        if kind is not None and kind.__name__ == "PanicException":
            # The library's dictionaries are written in Rust. There a RecursionError becomes a panic, not an Exception.
            raise RecursionError from error

    def look(self, expected_seconds: float = 0.0) -> None:
        """Check the time. Raises TooMuchWorkError if it is over, or will be after `expected_seconds` more seconds."""
        now = time.thread_time()
        if now + expected_seconds > self._next:
            self._pause(now, expected_seconds)

    def _pause(self, now: float, expected_seconds: float) -> None:
        if now + expected_seconds > self._end:
            raise TooMuchWorkError
        if now > self._pace.step_end:
            self._pace.step_aside(now)
        self._next = min(self._end, self._pace.step_end)

    def trifle(self) -> None:
        """As `look`, for steps that take less time than reading the clock."""
        self._trifles += 1
        if self._trifles % 32 == 0:
            self.look()

    def count_error(self, error: jsonschema.ValidationError) -> jsonschema.ValidationError:
        """Count the error and shorten its message, which quotes the value. That may be megabytes, in `args` too."""
        if error.args:
            error.args = ()
            error.message = error.message[:MAX_REASON]
            self.errors += 1
            if self.errors > MAX_ERRORS:
                raise TooMuchWorkError
            self.look()
        return error


_work: ContextVar[Work] = ContextVar("work")
current = _work.get


# Schemas that were too slow ---------------------------------------------------------------------------------------


class _Verdicts:
    """A cache of schemas that were too slow, for RETRY_SECONDS each. At most MAX_SLOW of them."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[float, str]] = {}

    def get(self, key: Hashable) -> str:
        """The verdict. Empty if there is none."""
        until, verdict = self._entries.get(key, (0.0, ""))
        return verdict if time.monotonic() < until else ""

    def put(self, key: Hashable, verdict: str) -> None:
        if len(self._entries) >= MAX_SLOW:
            self._entries = {}
        self._entries[key] = time.monotonic() + RETRY_SECONDS, verdict


too_slow = _Verdicts()
