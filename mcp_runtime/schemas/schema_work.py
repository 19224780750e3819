"""What work on schemas and arguments may cost, and how it leaves the interpreter to others. No Django, no I/O.

The threads of a process share one interpreter: one that computes makes each request of the others several times as
long. So work that takes long steps aside: it sleeps most of the time, and all such work of a process together takes no
more than one of it would.
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

# CPU time after which work steps aside. Nearly all honest work ends before, and never sleeps.
QUICK_SECONDS = 0.02
# CPU time between two pauses: about as long as others wait for the interpreter because of it.
STEP_SECONDS = 0.001
# Of one CPU, for all work of the process that steps aside, divided among those for whom it is done.
SHARE = 0.25
# From the first pause on, for one piece of work and all that it consists of: a client waits for the answer. While
# nobody else's work steps aside, the budgets of a validation and of a search for secrets end before.
PATIENCE_SECONDS = 4.0
# For which a step waits while others compute: about as long as one request of theirs does.
YIELD_SECONDS = 0.02
# and for a piece of work in all, or what a busy moment refuses would be what a calm one takes.
MAX_YIELDED_SECONDS = 1.0
# Errors that one validation may hold at a time, those of alternatives included. Each is 2 to 3 kB in twenty objects:
# the garbage collector walks through all of them while it holds the interpreter.
MAX_ERRORS = 2000
# Of the message of an error.
MAX_REASON = 500
MAX_SCHEMA_CHARACTERS = 200_000
# A verdict that depends on how fast the machine was is forgotten after so long. Forgotten at once it would cost its
# budget with each call of a hostile tool.
RETRY_SECONDS = 60.0
MAX_SLOW = 1024  # such verdicts, kept by a hash of the schema

# As read, or its JSON text: what is known of a long one is found by the text, without reading or writing it again.
Schema = dict[str, Any] | str


class TooMuchWorkError(Exception):
    pass


class _Turns:
    """When work that steps aside goes on: all of it together takes SHARE of one CPU, and each owner as much of that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at: dict[Hashable, float] = {}  # by owner: when the next step may begin; of those under way alone

    def next(self, owner: Hashable, overdrawn: float) -> float:
        """Seconds until the owner's next step of STEP_SECONDS; `overdrawn` is what the last one took more, in CPU."""
        now = time.monotonic()
        with self._lock:
            under_way = {who: at for who, at in self._free_at.items() if at > now}
            begin = under_way.get(owner, now)
            share = share_of(owner, under_way.keys() | {owner})
            begin += overdrawn / share
            self._free_at = {**under_way, owner: begin + STEP_SECONDS / share}
        return begin - now


def share_of(owner: Hashable, owners: Set[Hashable]) -> float:
    """Of one CPU. Users share it, and what a user has its tokens share: one user can have any number of them."""
    of_same = sum(_user_of(other) == _user_of(owner) for other in owners)
    return SHARE / len({_user_of(other) for other in owners}) / of_same


def _user_of(owner: Hashable) -> Hashable:
    return owner[0] if isinstance(owner, tuple) and not isinstance(owner[0], str) else owner


_turns = _Turns()


class _Pace:
    """One piece of work: when it has to step aside."""

    def __init__(self, owner: Hashable) -> None:
        self._owner = owner
        self._until = 0.0
        self._courtesy = MAX_YIELDED_SECONDS
        self.step_end = time.thread_time() + QUICK_SECONDS

    def step_aside(self, now: float) -> None:
        """Raises TooMuchWorkError when that would try the patience of whoever waits."""
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
    """How long it waited. They would be late by the step, and as long again where the machine takes the CPU from it."""
    began = time.monotonic()
    while others_compute.get()() and time.monotonic() < began + at_most:
        time.sleep(STEP_SECONDS)
    return time.monotonic() - began


_pace: ContextVar[_Pace | None] = ContextVar("pace", default=None)
# Called by work that is about to step aside, once: a server may have others at work meanwhile.
about_to_wait: ContextVar[Callable[[], None]] = ContextVar("about_to_wait", default=lambda: None)
# Asked by work that steps aside: whether a request of others computes now, in a server that knows.
others_compute: ContextVar[Callable[[], bool]] = ContextVar("others_compute", default=lambda: False)


@contextmanager
def paced(owner: Hashable = None) -> Iterator[None]:
    """All work on schemas inside is one piece of work, of one thread: together it steps aside after QUICK_SECONDS.

    `owner` is for whom it is done: work of one owner does not make that of others wait.
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
    """What one validation, or one search for secrets, may cost: `seconds` of the thread's CPU time, and MAX_ERRORS.

    The current one while it is entered.
    """

    def __init__(self, seconds: float) -> None:
        now = time.thread_time()
        self._end = now + seconds
        self._pace = _pace.get() or _Pace(None)
        self._next = min(self._end, self._pace.step_end)
        self._trifles = 0
        self.errors = 0  # that are held

    def __enter__(self) -> Work:
        self._token = _work.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _work.reset(self._token)
        if kind is not None and kind.__name__ == "PanicException":
            # Dictionaries of the library are of Rust, where a RecursionError becomes what is no Exception.
            raise RecursionError from error

    def look(self, expected: float = 0.0) -> None:
        """Raises TooMuchWorkError when the time is over, or will be after `expected` seconds more."""
        now = time.thread_time()
        if now + expected > self._next:
            self._pause(now, expected)

    def _pause(self, now: float, expected: float) -> None:
        if now + expected > self._end:
            raise TooMuchWorkError
        if now > self._pace.step_end:
            self._pace.step_aside(now)
        self._next = min(self._end, self._pace.step_end)

    def trifle(self) -> None:
        """As `look`, for what takes less than a look at the clock does."""
        self._trifles += 1
        if self._trifles % 32 == 0:
            self.look()

    def noted(self, error: jsonschema.ValidationError) -> jsonschema.ValidationError:
        """The error, shortened: its message quotes the value, which may be megabytes, and is kept in `args` as well."""
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


# What was too slow ------------------------------------------------------------------------------------------------


class _Verdicts:
    """What was too slow, for RETRY_SECONDS each; MAX_SLOW at most."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[float, str]] = {}

    def get(self, key: Hashable) -> str:
        """Empty when there is none."""
        until, verdict = self._kept.get(key, (0.0, ""))
        return verdict if time.monotonic() < until else ""

    def put(self, key: Hashable, verdict: str) -> None:
        if len(self._kept) >= MAX_SLOW:
            self._kept = {}
        self._kept[key] = time.monotonic() + RETRY_SECONDS, verdict


too_slow = _Verdicts()
