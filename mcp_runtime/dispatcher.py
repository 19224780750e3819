"""From rows to calls: claim what is due, call the member, write the end down.

One thread writes: it claims rows, and writes down how calls ended. So a call in the pool needs no database connection,
writers do not wait for each other, and what happens together is written together. No thread waits for a free place in
a member: rows of a full member stay queued.
"""

from __future__ import annotations

import collections
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import Error, InterfaceError, OperationalError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime import invocations, protocol
from mcp_runtime.availability import Availability
from mcp_runtime.changes import SqliteChanges
from mcp_runtime.database import persistently, unit_of_work
from mcp_runtime.errors import ClientError, ConnectError
from mcp_runtime.invocations import ErrorKind, Outcome
from mcp_runtime.lifecycle import EXIT_GRACE, Lifecycle, LiveMember
from mcp_runtime.limits import Owner, Slots
from mcp_runtime.supervisor import unfulfilled
from mcp_runtime.transport import Exchange
from roster.models import GuildMember, Invocation

logger = logging.getLogger("guildhall.runtime")

Status = Invocation.Status

SWEEP_SECONDS = 1.0
# How long the dispatcher sleeps between two looks at SQLite's change counter, by how long ago there was work. Each time
# it wakes costs more than the look.
LOOKS = ((1.0, 0.0015), (5.0, 0.02), (math.inf, 0.05))
# PostgreSQL without a broker has nothing cheap to look at.
QUERY_LOOK = 0.05
CLAIM_BATCH = 32
BIG_ANSWER = 100_000  # characters
# At the stop every call was ended or aborted before; their threads need a moment to say so.
LAST_ENDS_SECONDS = 0.5
WAITING_BATCH = 500  # of one member
MAX_REQUESTERS = 250  # that a look at the queue passes over: SQLite takes no longer conditions
# A row that is running under our lease, though no thread of ours runs it, was claimed by a write whose answer got lost.
STRAY_SECONDS = 5.0

Pool = Callable[..., Any]
# Queued calls that wait for a slot: of a member, of a requester, or (neither None) of a requester in a member.
_Line = tuple[int | None, Owner | None]


class Dispatcher:
    """Claims and runs calls for the runtime that holds `lease_id`. `run_in_pool(fn, args)` hands work to the pool."""

    def __init__(
        self,
        *,
        lease_id: uuid.UUID,
        lifecycle: Lifecycle,
        run_in_pool: Pool,
        concurrency: int,
        wake_supervisor: Callable[[], None],
        has_broker: bool,
    ) -> None:
        self._lease_id = lease_id
        self._lifecycle = lifecycle
        self._run_in_pool = run_in_pool
        self._concurrency = concurrency
        self._wake_supervisor = wake_supervisor
        self._availability = Availability(lifecycle, wake_supervisor)
        self._has_broker = has_broker
        self._bell = threading.Event()
        self._claiming = True
        self._stopping = threading.Event()
        self._ended: collections.deque[tuple[Invocation, Outcome]] = collections.deque()
        self._lock = threading.Lock()
        self._running: dict[int, tuple[Invocation, LiveMember, Exchange]] = {}
        self._slots = Slots(concurrency)  # of the hall
        self._slots_in: dict[int, Slots] = {}  # of each member
        self._full: dict[_Line, tuple[int, int, Owner]] = {}  # whose rows wait for a slot -> one that does
        self._down: set[int] = set()  # members whose rows wait for them to be connected
        self._down_since: dict[int, datetime] = {}  # member id -> when calls were first seen to wait for it
        self._abandoned: set[int] = set()
        self._progress: dict[int, dict[str, Any]] = {}  # invocation id -> what was said last, and is not written yet
        self._queue_changed = True
        self._swept_at = 0.0
        self._looked_for_strays_at = -math.inf
        self._worked_at = 0.0
        self._wishes = unfulfilled()
        self._due = invocations.under_way(Status.QUEUED)
        self._calls_that_run = invocations.under_way(Status.RUNNING)
        self._cancellations = invocations.under_way(Status.RUNNING).filter(
            lease_id=lease_id, cancel_requested_at__isnull=False
        )
        self._changes: SqliteChanges | None = None
        self._loop = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    # The loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.start()

    def ring(self) -> None:
        """The doorbell: look at the queue now."""
        self._queue_changed = True
        self._bell.set()

    def member_changed(self, member_id: int) -> None:
        """Its status changed: calls that wait for it may go."""
        self._down.discard(member_id)
        if self._lifecycle.connected(member_id):
            self._down_since.pop(member_id, None)
        self.ring()

    def stop_claiming(self) -> None:
        """No new calls; the ends of those that run are still written down."""
        self._claiming = False

    def stop(self) -> None:
        """Write down what ended, and end the loop."""
        deadline = time.monotonic() + LAST_ENDS_SECONDS
        while not self.is_idle and time.monotonic() < deadline:
            time.sleep(0.005)
        self._stopping.set()
        self._bell.set()
        if self._loop.is_alive():
            self._loop.join()

    def look_everywhere(self) -> None:
        """The other doorbell: wishes and cancellations too."""
        self._swept_at = 0.0
        self._wake_supervisor()
        self.ring()

    def _run(self) -> None:
        if connection.vendor == "sqlite":
            self._changes = SqliteChanges(str(connection.settings_dict["NAME"]))
        while not self._stopping.is_set() or self._ended:
            try:
                self._wait()
                self.turn()  # its connection is its own, pool or not: one turn follows the other
                continue
            except Error as error:
                logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
                connection.close()
            except Exception:
                logger.exception("a turn of the dispatcher failed; the next one follows")
            if self._stopping.is_set():
                break  # the next runtime ends those calls as lost
            self._stopping.wait(SWEEP_SECONDS)
        if self._changes is not None:
            self._changes.close()
        connection.close()

    def _wait(self) -> None:
        """Until somebody rings, the database says there is work, or a sweep is due."""
        changes = self._changes
        while not self._stopping.is_set() and time.monotonic() < self._swept_at + SWEEP_SECONDS:
            if self._bell.wait(self._interval()):
                self._bell.clear()
                return
            if (changes is None and not self._has_broker) or (changes and changes.look() and self._is_for_us(changes)):
                self._queue_changed = True
                return

    def _is_for_us(self, changes: SqliteChanges) -> bool:
        if changes.exists(self._wishes):
            self._wake_supervisor()
        if changes.exists(self._cancellations):
            self._swept_at = 0.0
            return True
        if changes.exists(self._due):
            self._worked_at = time.monotonic()
            return True
        return False

    def _interval(self) -> float:
        """Seconds between two looks."""
        if connection.vendor != "sqlite":
            return SWEEP_SECONDS if self._has_broker else QUERY_LOOK
        idle_for = time.monotonic() - self._worked_at
        return next(look for until, look in LOOKS if idle_for < until)

    def turn(self) -> None:
        """One turn: write down what ended, run what is due; once a second also see to what no bell announces."""
        self.write_ends()
        sweep = time.monotonic() >= self._swept_at + SWEEP_SECONDS
        if self._queue_changed or (sweep and self._may_hold_any(self._due)):
            self._queue_changed = False
            self.drain()
        if sweep:
            self._swept_at = time.monotonic()
            self.sweep()

    def _may_hold_any(self, rows: QuerySet[Invocation]) -> bool:
        """False only where that is cheap to know: an idle hall asks every second."""
        return self._changes is None or self._changes.exists(rows)

    # Claiming -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Claim every queued row whose member is connected and that may have a slot, oldest first, and run it."""
        self._full = {line: waits for line, waits in self._full.items() if self._in_the_way(*waits) == line}
        while self._claiming and (free := self._concurrency - len(self._running)) > 0:
            size = min(free, CLAIM_BATCH)
            known = len(self._full) + len(self._down)
            rows = list(self._queued()[:size])
            due = self._pick(rows)
            claimed = self._claim(due)
            for invocation, live in claimed:
                self._launch(invocation, live)
            if len(rows) < size and len(due) == len(rows):
                return  # there was no more, and nothing was passed over
            if not claimed and (due or len(self._full) + len(self._down) == known):
                return  # without the lease they stay queued, or all are known to wait: looking again would never end

    def _queued(self) -> QuerySet[Invocation]:
        queued = invocations.under_way(Status.QUEUED)
        waiting: dict[Owner, set[int | None]] = {}  # requesters -> in which members; None: in all
        for member_id, requester in self._full:
            if requester is not None:
                waiting.setdefault(requester, set()).add(member_id)
        full = {member_id for member_id, requester in self._full if requester is None}
        queued = queued.exclude(member_id__in=full | self._down)
        for (user_id, token_id), members in list(waiting.items())[:MAX_REQUESTERS]:
            of_members = {} if None in members else {"member_id__in": members}
            queued = queued.exclude(requested_by_id=user_id, token_id=token_id, **of_members)
        return (
            queued.select_related("member")
            .only(
                *("tool_name", "arguments", "timeout", "secret_paths", "requested_by_id", "token_id"),
                *("member__name", "member__manifest"),
            )
            .order_by("id")
        )

    def _pick(self, rows: list[Invocation]) -> list[tuple[Invocation, LiveMember]]:
        """Those of `rows` that can run now; they have their slots. What cannot is passed over by the next look."""
        picked: list[tuple[Invocation, LiveMember]] = []
        for row in rows:
            live = self._lifecycle.connected(row.member_id)
            waits = row.member_id, int(row.member.manifest.get("max_concurrency", 16)), _requester(row)
            if live is None:
                self._down.add(row.member_id)
            elif line := self._in_the_way(*waits):
                self._full[line] = waits
            else:
                with self._lock:
                    self._slots.take(_requester(row))
                    self._slots_in[row.member_id].take(_requester(row))
                picked.append((row, live))
        return picked

    def _in_the_way(self, member_id: int, count: int, requester: Owner) -> _Line | None:
        """Whose calls must wait, if this requester's call in this member must; the member has `count` slots.

        Neither members whose calls hang nor requesters may take every slot of the hall. No member gets more than half.
        The last quarter is for members in which nothing runs, half of it also for requesters of whom nothing runs, and
        the last sixteenth of all for these requesters alone. Requesters share the slots of each member, see `Slots`.
        """
        hall, member = self._slots, self._slots_in.setdefault(member_id, Slots(0))
        member.count = min(count, max(self._concurrency // 2, 1))
        kept, last = self._concurrency // 4, max(self._concurrency // 16, int(self._concurrency > 1))
        holds = hall.held_by(requester) > 0
        if holds and hall.free <= last:
            return None, requester
        if member.free <= 0 or (member.held and hall.free <= kept // 2):
            return member_id, None
        if not member.may_take(requester) or (member.held and holds and hall.free <= kept):
            return member_id, requester
        return None

    def _claim(self, due: list[tuple[Invocation, LiveMember]]) -> list[tuple[Invocation, LiveMember]]:
        """Those of `due` that are ours now. The others give their slots back."""
        mine: set[int] = set()
        try:
            mine = self._claimed([row.pk for row, _ in due])
        finally:
            for row, _ in due:
                if row.pk not in mine:
                    self._give_back(row)
        return [(row, live) for row, live in due if row.pk in mine]

    def _claimed(self, ids: list[int]) -> set[int]:
        if not ids or invocations.claim(ids, self._lease_id) == len(ids):
            return set(ids)
        mine = Invocation.objects.filter(pk__in=ids, status=Status.RUNNING, lease_id=self._lease_id)
        return set(mine.values_list("pk", flat=True))

    def _give_back(self, invocation: Invocation) -> None:
        with self._lock:
            self._slots.give_back(_requester(invocation))
            self._slots_in[invocation.member_id].give_back(_requester(invocation))

    def _launch(self, invocation: Invocation, live: LiveMember) -> None:
        exchange = Exchange(partial(self._note_progress, invocation.pk))
        with self._lock:
            self._running[invocation.pk] = (invocation, live, exchange)
            live.calls += 1
        self._run_in_pool(self._call, (invocation, live, exchange))

    # Calling ------------------------------------------------------------------------------------------------------

    def _call(self, invocation: Invocation, live: LiveMember, exchange: Exchange) -> None:
        """In a thread of the pool: call the member, and leave the end to be written down."""
        try:
            outcome = self._outcome(invocation, live, exchange)
        except Exception as error:
            logger.exception("invocation %d failed inside the hall", invocation.pk)
            reason = self._say(invocation, f"the hall failed to call it: {error!r}")
            outcome = Outcome.failed(ErrorKind.TRANSPORT, reason)
        if outcome.size > BIG_ANSWER:
            self._end_with_big_answer(invocation, live, outcome)
        else:
            self._ended.append((invocation, outcome))
        self._bell.set()
        if outcome.error_kind == ErrorKind.TIMEOUT:
            live.client.cancel(exchange, "the deadline passed")  # the caller has its answer already

    def _outcome(self, invocation: Invocation, live: LiveMember, exchange: Exchange) -> Outcome:
        try:
            result = live.client.invoke_tool(
                invocation.tool_name, invocation.arguments, invocation.timeout, exchange=exchange
            )
        except ConnectError as error:
            if live.process.exited.wait(EXIT_GRACE):
                how = live.how_it_ended("during the call" if error.was_sent else "before it took the call")
                ended = ConnectError(how, is_refusal=not error.was_sent)
                return Outcome.of_error(ended, member=live.name, tool=invocation.tool_name)
            # A server that serves one at a time cannot take all who call: as long as others run in it, it lives.
            if error.is_refusal or self.calls_in(live.member_id) + live.relayed < 2:
                unit_of_work(partial(self._lifecycle.connection_failed, live, error))
            return Outcome.of_error(error, member=live.name, tool=invocation.tool_name)
        except ClientError as error:
            outcome = Outcome.of_error(error, member=live.name, tool=invocation.tool_name)
            if outcome.error_kind == ErrorKind.PROTOCOL:
                logger.warning("%s", outcome.error_message)  # REQ-MCP-HTTP-42
            return outcome
        return Outcome.succeeded(result)

    def write_ends(self) -> None:
        """running -> finished, for every call that ended; then their places are free."""
        ends = list(self._ended)
        if not ends:
            return
        persistently(lambda: self._write_together(ends))
        for invocation, _ in ends:
            self._ended.popleft()
            self._forget(invocation)

    def _end_with_big_answer(self, invocation: Invocation, live: LiveMember, outcome: Outcome) -> None:
        """Megabytes take long to write: here in the pool, a member's one after the other, so that nobody else waits."""
        try:
            with live.big_answers:
                unit_of_work(lambda: self._write_together([(invocation, outcome)]))
        except Error:
            self._ended.append((invocation, outcome))  # the database is away: to be written with the others
        else:
            self._forget(invocation)

    def _write_together(self, ends: list[tuple[Invocation, Outcome]]) -> None:
        try:
            if len(ends) == 1:  # a transaction of its own anyway
                self._write(*ends[0])
                return
            with transaction.atomic():
                for invocation, outcome in ends:
                    self._write(invocation, outcome)
        except (OperationalError, InterfaceError):
            raise  # the database is away: all of it again
        except Exception:  # noqa: BLE001 - said below, by the one that is the reason
            for invocation, outcome in ends:
                self._write_whatever_it_takes(invocation, outcome)

    def _write_whatever_it_takes(self, invocation: Invocation, outcome: Outcome) -> None:
        """A result that the database will not have must not keep others from ending, nor its own call."""
        try:
            self._write(invocation, outcome)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            logger.exception("the result of invocation %d cannot be stored", invocation.pk)
            reason = self._say(invocation, f"its answer cannot be stored: {error}"[:500])
            self._write(invocation, Outcome.failed(ErrorKind.PROTOCOL, reason))

    def _write(self, invocation: Invocation, outcome: Outcome) -> None:
        if invocation.pk in self._abandoned and outcome.status != Status.SUCCEEDED:
            outcome = Outcome.failed(ErrorKind.LOST, self._say(invocation, "the runtime was stopped while it ran"))
        if not invocations.finish(invocation, outcome, self._lease_id):
            logger.warning("invocation %d was ended by somebody else meanwhile", invocation.pk)

    def _forget(self, invocation: Invocation) -> None:
        with self._lock:
            self._running.pop(invocation.pk)[1].calls -= 1
            self._slots.give_back(_requester(invocation))
            self._slots_in[invocation.member_id].give_back(_requester(invocation))
            # Its place may be waited for: in its member, or in the hall. (Not `|=`: that loses a bell rung meanwhile.)
            if self._full or len(self._running) == self._concurrency - 1:
                self._queue_changed = True
            self._abandoned.discard(invocation.pk)

    @staticmethod
    def _say(invocation: Invocation, reason: str) -> str:
        return f"tool {invocation.tool_name!r} of member {invocation.member.name!r}: {reason}"

    # Sweeping -----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """What no bell announces: progress, calls that wait for a member, cancellations, rows that nobody runs."""
        self.write_progress()
        self.serve_waiting()
        self.serve_cancellations()
        if time.monotonic() >= self._looked_for_strays_at + STRAY_SECONDS:
            self._looked_for_strays_at = time.monotonic()
            if self._may_hold_any(self._calls_that_run):
                self.end_strays()

    def _note_progress(self, invocation_id: int, params: dict[str, Any]) -> None:
        if progress := protocol.progress_of(params):
            self._progress[invocation_id] = progress

    def write_progress(self) -> None:
        """What members said last of the calls that run: once a second, however often they say it."""
        said, self._progress = self._progress, {}
        if not said:
            return
        with transaction.atomic():
            for invocation_id, progress in said.items():
                invocations.note_progress(invocation_id, progress, self._lease_id)

    def serve_waiting(self) -> None:
        """Calls to members that are not connected: wait, have the member started, or fail as `unavailable`."""
        if not self._down:
            return
        down, self._down = self._down, set()
        for member in GuildMember.objects.filter(pk__in=down):
            if self._lifecycle.connected(member.pk):
                self.ring()
            elif self._serve_those_who_wait_for(member):
                self._down.add(member.pk)
        self._down_since = {pk: since for pk, since in self._down_since.items() if pk in self._down}

    def _serve_those_who_wait_for(self, member: GuildMember) -> bool:
        """Whether anybody waits for it. Its oldest calls only: one member's thousands must not delay the others'."""
        waiting = invocations.under_way(Status.QUEUED).filter(member=member).order_by("id")
        down_since = self._down_since.setdefault(member.pk, timezone.now())
        rows = list(waiting[:WAITING_BATCH])
        hopeless = []
        for invocation in rows:
            since = max(invocation.queued_at, down_since)
            if reason := self._availability.no_use_waiting(
                member, since, since + timedelta(seconds=invocation.timeout)
            ):
                hopeless.append((invocation, f"member {member.name!r} is unavailable: {reason}"))
        with transaction.atomic():
            for invocation, text in hopeless:
                invocations.refuse(invocation, Outcome.failed(ErrorKind.UNAVAILABLE, text), self._lease_id)
        return bool(rows)

    def serve_cancellations(self) -> None:
        """Tell members that running calls are not wanted any more."""
        if not self._running:
            return
        for pk in self._cancellations.values_list("pk", flat=True):
            self._cancel(pk, "cancelled by request")

    def _cancel(self, pk: int, reason: str) -> None:
        with self._lock:
            running = self._running.get(pk)
        if running is not None and not running[2].aborted:
            # Not here: telling a hung member takes as long as we let it.
            threading.Thread(target=running[1].client.cancel, args=(running[2], reason), daemon=True).start()

    def end_strays(self) -> None:
        """Rows that run under another lease, or under ours though no thread of ours knows them."""
        invocations.end_lost(self._lease_id, "the runtime ended while it ran; it is not run again by itself")
        mine = Invocation.objects.filter(status=Status.RUNNING, lease_id=self._lease_id).select_related("member")
        started_long_ago = timezone.now() - timedelta(seconds=STRAY_SECONDS)
        for invocation in mine.filter(started_at__lt=started_long_ago):
            if invocation.pk not in self._running:
                text = self._say(invocation, "it was claimed, but the database lost the answer; it was not sent")
                invocations.finish(invocation, Outcome.failed(ErrorKind.UNAVAILABLE, text), self._lease_id)

    # Stopping -----------------------------------------------------------------------------------------------------

    def calls_in(self, member_id: int) -> int:
        """How many queued calls run in the member now."""
        slots = self._slots_in.get(member_id)
        return slots.held if slots else 0

    def abandon(self, member_id: int) -> None:
        """Cancel what still runs in the member; those calls end as `lost`: the runtime is stopping."""
        with self._lock:
            pks = [pk for pk, (invocation, _, _) in self._running.items() if invocation.member_id == member_id]
            self._abandoned.update(pks)
        for pk in pks:
            self._cancel(pk, "the runtime is stopping")

    @property
    def is_idle(self) -> bool:
        return not self._running


def _requester(invocation: Invocation) -> Owner:
    return invocation.requested_by_id, invocation.token_id
