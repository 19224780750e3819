"""The loop that keeps members as wished: read the folder, compare wanted with seen, call the lifecycle.

`tick()` is one turn and can be called alone. It never blocks on a member: each verb runs in a thread of its own,
one at a time for a member, and at most so many starts at a time that slow servers do not starve each other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

from django.db import Error
from django.db.models import Min, Q, QuerySet
from django.utils import timezone

from mcp_runtime import discovery, manifest
from mcp_runtime.database import unit_of_work
from mcp_runtime.lifecycle import Lifecycle
from roster.models import GuildMember

logger = logging.getLogger("guildhall.runtime")

Status = GuildMember.Status

TICK_SECONDS = 1.0
# Wishes often come in handfuls; a loop that is woken for each of them would do nothing else.
SHORTEST_PAUSE = 0.02
# A start holds its place this long at most: a server that hangs, or imports for a minute, must not keep others out.
START_SLOT_SECONDS = 5.0
MAX_THREADS = 512
UNTRACKED_SECONDS = 5.0
# A server elsewhere leaves without a word: its tools are listed anew this often, to see that it is there.
REMOTE_CHECK_SECONDS = 30.0

WISHED_RUNNING = Q(enabled=True, wanted=GuildMember.Wanted.RUNNING, removed_at=None)
MAY_START = WISHED_RUNNING & Q(manifest_error="")
ALIVE = (Status.STARTING, Status.CONNECTED)


def unfulfilled() -> QuerySet[GuildMember]:
    """Members whose wishes differ from what is seen, restarts that are due included."""
    return GuildMember.objects.filter(
        Q(restart_requested_at__isnull=False)
        | Q(refresh_requested_at__isnull=False)
        | MAY_START & Q(status=Status.DISCONNECTED)
        | MAY_START & Q(status=Status.ERROR, next_restart_at__lte=timezone.now())
        | ~WISHED_RUNNING & ~Q(status__in=(Status.DISCONNECTED, Status.STOPPING))
    ).order_by("name")


def _restart_is_due(member: GuildMember) -> bool:
    due = member.next_restart_at
    return member.restart_requested_at is not None or (due is not None and due <= timezone.now())


class Supervisor:
    """Owns the turn-taking. `lifecycle` does the work."""

    def __init__(self, *, lifecycle: Lifecycle, members_dir: Path, start_concurrency: int) -> None:
        self._lifecycle = lifecycle
        self._members_dir = members_dir
        self._start_concurrency = start_concurrency
        self._fingerprint: object = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._busy: dict[int, str] = {}  # member id -> the verb that is under way
        self._next_restart_at: datetime | None = None
        self._untracked_since: dict[int, float] = {}
        self._checked_at: dict[int, float] = {}  # member id -> when a server elsewhere was last looked at
        self._slots: dict[int, float] = {}  # member id -> when its start began
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="lifecycle")
        self._loop = threading.Thread(target=self._run, name="supervisor", daemon=True)

    # The loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """Have a turn soon."""
        self._wake.set()

    def stop(self) -> None:
        """No more turns; verbs under way go on."""
        self._stopping.set()
        self._wake.set()
        if self._loop.is_alive():
            self._loop.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                unit_of_work(self.tick)
            except Error as error:
                logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
            except Exception:
                logger.exception("a turn of the supervisor failed; the next one follows")
            self._wake.wait(self._pause())
            self._wake.clear()
            self._stopping.wait(SHORTEST_PAUSE)

    def _pause(self) -> float:
        """Seconds to the next turn: one, or less when a restart is due or a start gives its place back sooner."""
        with self._lock:
            given_back = [began + START_SLOT_SECONDS - time.monotonic() for began in self._slots.values()]
        dues = [due for due in given_back if due > 0]  # the others gave theirs back before
        if self._next_restart_at is not None:
            dues.append((self._next_restart_at - timezone.now()).total_seconds())
        return min([TICK_SECONDS, *(max(due, SHORTEST_PAUSE) for due in dues)])

    # One turn -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One turn: the folder, then every member whose wishes are not fulfilled."""
        self.sync_if_changed()
        self._lifecycle.wish_refreshes()
        for member in unfulfilled():
            self._serve(member)
        self.find_untracked()
        self._lifecycle.note_progress()
        self.check_remotes()
        restarts = GuildMember.objects.filter(MAY_START, status=Status.ERROR)
        self._next_restart_at = restarts.aggregate(due=Min("next_restart_at"))["due"]

    def find_untracked(self) -> None:
        """Rows that claim a process of ours that is not there: a write that failed for good left them."""
        claimed = list(GuildMember.objects.filter(status__in=(*ALIVE, Status.STOPPING)).only("name"))
        live = {member.member_id for member in self._lifecycle.live_members() if not member.process.exited.is_set()}
        now = time.monotonic()
        with self._lock:
            untracked = [row for row in claimed if row.pk not in live and row.pk not in self._busy]
        self._untracked_since = {row.pk: self._untracked_since.get(row.pk, now) for row in untracked}
        for row in untracked:
            if now - self._untracked_since[row.pk] > UNTRACKED_SECONDS:
                self._submit(row, "look", partial(self._lifecycle.lost_track, row.pk))

    def check_remotes(self) -> None:
        """List the tools of connected servers elsewhere whose last look is long past; a failure is their error."""
        now = time.monotonic()
        checked, self._checked_at = self._checked_at, {}
        for live in self._lifecycle.live_members():
            if live.is_remote and live.connected_at:
                seen = max(checked.get(live.member_id, 0), live.connected_at)
                look = partial(self._lifecycle.refresh, live.member_id)
                is_due = now - seen >= REMOTE_CHECK_SECONDS
                if is_due and self._run_apart(live.member_id, live.name, "refresh", look):
                    seen = now
                self._checked_at[live.member_id] = seen

    def sync_if_changed(self) -> None:
        fingerprint = manifest.fingerprint(self._members_dir)
        if fingerprint != self._fingerprint:
            report = discovery.sync(self._members_dir)
            self._fingerprint = fingerprint
            logger.info("members folder: %s", report)

    def _serve(self, member: GuildMember) -> None:
        wished_running = member.enabled and member.wanted == GuildMember.Wanted.RUNNING and member.removed_at is None
        if member.status in ALIVE and (not wished_running or member.restart_requested_at):
            self._stop(member)
        elif member.status == Status.ERROR and not wished_running:
            self._submit(member, "stop", lambda: self._lifecycle.stop(member.pk))
        elif member.status == Status.CONNECTED:
            self._refresh(member)
        elif not wished_running or member.manifest_error:
            self._lifecycle.own_row(member.pk).update(restart_requested_at=None, refresh_requested_at=None)
        elif member.status == Status.DISCONNECTED or (member.status == Status.ERROR and _restart_is_due(member)):
            self._start(member)

    def _stop(self, member: GuildMember) -> None:
        with self._lock:
            verb = self._busy.get(member.pk)
            if verb == "start":
                self._busy[member.pk] = "aborted start"
        if verb == "start":
            self._threads.submit(self._lifecycle.abort_start, member.pk)
        elif verb == "refresh":
            self._lifecycle.abort_refresh(member.pk)  # the turn after its end stops the member
        else:
            cause = "restart" if member.restart_requested_at else "stop"
            self._submit(member, "stop", lambda: self._lifecycle.stop(member.pk, cause=cause))

    def _start(self, member: GuildMember) -> None:
        if not self._take_slot(member.pk):
            return
        asked = member.restart_requested_at
        automatic = member.status == Status.ERROR and asked is None
        if asked:
            wishes = self._lifecycle.own_row(member.pk).filter(restart_requested_at=asked)
            wishes.update(restart_requested_at=None, restarts=0)
        if not self._submit(member, "start", lambda: self._lifecycle.start(member.pk, automatic=automatic)):
            self._give_slot_back(member.pk)

    def _refresh(self, member: GuildMember) -> None:
        wish = self._lifecycle.own_row(member.pk).filter(refresh_requested_at=member.refresh_requested_at)

        def refresh() -> None:
            try:
                self._lifecycle.refresh(member.pk)
            finally:
                wish.update(refresh_requested_at=None)  # only now: whoever waits for it wants the new tools

        self._submit(member, "refresh", refresh)

    # Threads and places -------------------------------------------------------------------------------------------

    def _submit(self, member: GuildMember, verb: str, work: Callable[[], None]) -> bool:
        """Run `work` in a thread, unless a verb is under way for this member: the next turn looks again."""
        return self._run_apart(member.pk, member.name, verb, work)

    def _run_apart(self, member_id: int, name: str, verb: str, work: Callable[[], None]) -> bool:
        with self._lock:
            if member_id in self._busy:
                return False
            self._busy[member_id] = verb
        self._threads.submit(self._run_verb, member_id, name, verb, work)
        return True

    def _run_verb(self, member_id: int, name: str, verb: str, work: Callable[[], None]) -> None:
        try:
            unit_of_work(work)
        except Exception:
            logger.exception("%s of member %r failed", verb, name)
        finally:
            with self._lock:
                self._busy.pop(member_id, None)
                self._slots.pop(member_id, None)
            self.wake()

    def _take_slot(self, member_id: int) -> bool:
        overdue = time.monotonic() - START_SLOT_SECONDS
        with self._lock:
            holding = sum(began > overdue for began in self._slots.values())
            if member_id in self._busy or holding >= self._start_concurrency:
                return False
            self._slots = {other: began for other, began in self._slots.items() if began > overdue}
            self._slots[member_id] = time.monotonic()
            return True

    def _give_slot_back(self, member_id: int) -> None:
        with self._lock:
            self._slots.pop(member_id, None)
