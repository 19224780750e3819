"""From rows to calls: claim what is due, call the member, write the end down.

One thread writes: it claims rows, and writes down how calls ended. So a call in the pool needs no database connection,
writers do not wait for each other, and what happens together is written together.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import Error, connection

from mcp_runtime.calls import invocations, statements
from mcp_runtime.calls.ends import BIG_ANSWER, Ends, explain
from mcp_runtime.calls.invocations import ErrorKind, Outcome
from mcp_runtime.calls.patience import Patience
from mcp_runtime.calls.queue_watch import QueueWatch, cancellations
from mcp_runtime.calls.running import RunningCalls
from mcp_runtime.calls.slots import CallSlots, requester_of
from mcp_runtime.calls.statements import under_way
from mcp_runtime.client.transport import Exchange
from mcp_runtime.members.availability import Availability
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import EXIT_GRACE, LiveMember
from mcp_runtime.protocol.errors import ClientError, ConnectError, RequestCancelledError, RequestTimeoutError
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security.limits import in_turn
from roster.models import Invocation

logger = logging.getLogger("guildhall.runtime")

Status = Invocation.Status

CLAIM_BATCH = 32
RETRY_SECONDS = 1.0  # after a turn that failed
# At the stop every call was ended or aborted before; their threads need a moment to say so.
LAST_ENDS_SECONDS = 0.5
# A row that is running under our lease, though no thread of ours runs it, was claimed by a write whose answer got lost.
STRAY_SECONDS = 5.0

Pool = Callable[..., Any]


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
        watch: QueueWatch,
    ) -> None:
        self._lease_id = lease_id
        self._lifecycle = lifecycle
        self._run_in_pool = run_in_pool
        self._concurrency = concurrency
        self._wake_supervisor = wake_supervisor
        self._watch = watch
        self._claiming = True
        self._stopping = threading.Event()
        self._running = RunningCalls(lease_id)
        self._slots = CallSlots(concurrency)
        self._ends = Ends(lease_id, self._forget_call)
        self._patience = Patience(
            lease_id=lease_id,
            lifecycle=lifecycle,
            availability=Availability(lifecycle, wake_supervisor),
            notify_queue=self.notify,
        )
        self._last_stray_search = -math.inf
        self._strays: set[int] = set()  # rows that nobody ran at the last look
        self._calls_that_run = under_way(Status.RUNNING)
        self._cancellations = cancellations(lease_id)
        self._loop = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    # The loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.start()

    def notify(self) -> None:
        """Look at the queue now."""
        self._watch.note_queue_change()
        self._watch.notify()

    def member_changed(self, member_id: int) -> None:
        """Its status changed: calls that wait for it may go."""
        self._patience.member_changed(member_id)
        self.notify()

    def stop_claiming(self) -> None:
        """No new calls; the ends of those that run are still written down."""
        self._claiming = False

    def stop(self) -> None:
        """Write down what ended, and end the loop."""
        deadline = time.monotonic() + LAST_ENDS_SECONDS
        while not self.is_idle and time.monotonic() < deadline:
            time.sleep(0.005)
        self._stopping.set()
        self._watch.notify()
        if self._loop.is_alive():
            self._loop.join()

    def look_everywhere(self) -> None:
        """The other notification: changed members and cancellations too."""
        self._watch.sweep_soon()
        self._wake_supervisor()
        self.notify()

    def _run(self) -> None:
        self._watch.open()
        while not self._stopping.is_set() or self._ends:
            try:
                self._watch.wait(self._stopping.is_set)
                self.turn()  # its connection is its own, pool or not: one turn follows the other
                continue
            except Error as error:
                logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
                connection.close()
            except Exception:
                logger.exception("a turn of the dispatcher failed; the next one follows")
            if self._stopping.is_set():
                break  # the next runtime ends those calls as lost
            self._stopping.wait(RETRY_SECONDS)
        self._watch.close()
        connection.close()

    def turn(self) -> None:
        """One turn: write down what ended, run what is due; once a second look at all that nobody announces."""
        self.write_ends()
        is_sweep = self._watch.sweep_is_due
        if self._watch.take_queue_change() or (is_sweep and self._watch.queue_may_hold_any()):
            self.drain()
        if is_sweep:
            self._watch.note_sweep()
            self.sweep()

    # Claiming -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Claim every queued row whose member is connected and that may have a slot, oldest first, and run it."""
        self._slots.look_again()
        while self._claiming and (free := self._concurrency - len(self._running)) > 0:
            size = min(free, CLAIM_BATCH)
            waiting_before = self._waiting
            rows = statements.find_queued(self._slots.exclusions(self._patience.members), size)
            candidates = self._pick(rows)
            calls = self._claim(candidates)
            for invocation, live in in_turn(calls, lambda one: requester_of(one[0])):
                exchange = self._running.begin(invocation, live)
                self._run_in_pool(self._call, (invocation, live, exchange))
            if len(rows) < size and len(candidates) == len(rows):
                return  # there was no more, and all can run
            if not calls and (candidates or self._waiting == waiting_before):
                return  # without the lease they stay queued, or all wait: looking again would never end

    @property
    def _waiting(self) -> int:
        """How many members and requesters there are whose calls cannot run now."""
        return self._slots.lines + len(self._patience.members)

    def _pick(self, rows: list[Invocation]) -> list[tuple[Invocation, LiveMember]]:
        """Those of `rows` that can run now, with their slots. The next look excludes the others."""
        picked: list[tuple[Invocation, LiveMember]] = []
        for row in rows:
            live = self._lifecycle.connected_member(row.member_id)
            if live is None:
                self._patience.begin(row.member_id)
            elif self._slots.try_take(row):
                picked.append((row, live))
        return picked

    def _claim(self, candidates: list[tuple[Invocation, LiveMember]]) -> list[tuple[Invocation, LiveMember]]:
        """Those of `candidates` that are ours now. The others give their slots back."""
        own_ids: set[int] = set()
        try:
            own_ids = self._claimed_ids([row.pk for row, _ in candidates])
        finally:
            for row, _ in candidates:
                if row.pk not in own_ids:
                    self._slots.give_back(row)
        return [(row, live) for row, live in candidates if row.pk in own_ids]

    def _claimed_ids(self, ids: list[int]) -> set[int]:
        if not ids or statements.claim(ids, self._lease_id) == len(ids):
            return set(ids)
        own_rows = Invocation.objects.filter(pk__in=ids, status=Status.RUNNING, lease_id=self._lease_id)
        return set(own_rows.values_list("pk", flat=True))

    # Calling ------------------------------------------------------------------------------------------------------

    def _call(self, invocation: Invocation, live: LiveMember, exchange: Exchange) -> None:
        """In a thread of the pool: call the member, and leave the end to be written down."""
        try:
            outcome = self._outcome(invocation, live, exchange)
        except Exception as error:
            logger.exception("internal error during invocation %d", invocation.pk)
            reason = explain(invocation, f"internal error: the hall failed to call it: {error!r}")
            outcome = Outcome.failed(ErrorKind.TRANSPORT, reason)
        if outcome.size > BIG_ANSWER:
            self._ends.write_big(invocation, outcome, live.big_answers)
        else:
            self._ends.add(invocation, outcome)
        self._watch.notify()
        if outcome.error_kind == ErrorKind.TIMEOUT:
            live.client.cancel(exchange, "the deadline passed")  # the caller has its answer already

    def _outcome(self, invocation: Invocation, live: LiveMember, exchange: Exchange) -> Outcome:
        try:
            result = live.client.invoke_tool(
                invocation.tool_name, invocation.arguments, invocation.timeout, exchange=exchange
            )
        except ConnectError as error:
            if live.process.exited.wait(EXIT_GRACE):
                reason = live.describe_end("during the call" if error.was_sent else "before it took the call")
                end_error = ConnectError(reason, is_refusal=not error.was_sent)
                return Outcome.of_error(end_error, member=live.name, tool=invocation.tool_name)
            # A server that serves one at a time cannot take all who call: as long as others run in it, it lives.
            if error.is_refusal or self.calls_in(live.member_id) + live.relayed_calls < 2:
                unit_of_work(partial(self._lifecycle.handle_connection_failure, live, error))
            return Outcome.of_error(error, member=live.name, tool=invocation.tool_name)
        except ClientError as error:
            if isinstance(error, RequestTimeoutError):
                live.silence.note_timeout(invocation.timeout)
            elif not isinstance(error, RequestCancelledError):
                live.silence.note_answer()
            outcome = Outcome.of_error(error, member=live.name, tool=invocation.tool_name)
            if outcome.error_kind == ErrorKind.PROTOCOL:
                logger.warning("%s", outcome.error_message)  # REQ-MCP-HTTP-42
            return outcome
        live.silence.note_answer()
        return Outcome.succeeded(result)

    def write_ends(self) -> None:
        """running -> finished, for calls that ended. Then their slots are free. The next turn writes the rest."""
        self._ends.write()
        if self._ends:
            self._watch.notify()

    def _forget_call(self, invocation: Invocation) -> None:
        running_count = self._running.end(invocation)
        self._slots.give_back(invocation)
        # A call of its member, or of the hall, may wait for its slot.
        if self._slots.lines or running_count == self._concurrency - 1:
            self._watch.note_queue_change()

    # Sweeping -----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """What nobody announces: progress, calls that wait for a member, cancellations, rows that nobody runs."""
        self._running.write_progress()
        self._patience.serve()
        self.serve_cancellations()
        if time.monotonic() >= self._last_stray_search + STRAY_SECONDS:
            self._last_stray_search = time.monotonic()
            if self._watch.may_hold_any(self._calls_that_run):
                self.end_strays()

    def serve_cancellations(self) -> None:
        """Cancel running calls in their members."""
        if not self._running:
            return
        for pk in self._cancellations.values_list("pk", flat=True):
            self._running.cancel(pk, "cancelled by request")

    def end_strays(self) -> None:
        """Rows that run under another lease, or under ours though no thread of ours knows them."""
        invocations.end_lost(self._lease_id, "the runtime ended while it ran; it is not run again automatically")
        own_rows = Invocation.objects.filter(status=Status.RUNNING, lease_id=self._lease_id).select_related("member")
        strays = {invocation.pk: invocation for invocation in own_rows if invocation.pk not in self._running}
        for pk in self._strays & set(strays):  # at two looks, STRAY_SECONDS apart
            text = explain(strays[pk], "it was claimed, but the database lost the answer; it was not sent")
            invocations.finish(strays[pk], Outcome.failed(ErrorKind.UNAVAILABLE, text), self._lease_id)
        self._strays = set(strays)

    # Stopping -----------------------------------------------------------------------------------------------------

    def calls_in(self, member_id: int) -> int:
        """How many queued calls run in the member now."""
        return self._slots.calls_in(member_id)

    def abandon(self, member_id: int) -> None:
        """Cancel what still runs in the member; those calls end as `lost`: the runtime is stopping."""
        pks = self._running.in_member(member_id)
        self._ends.abandon(pks)
        for pk in pks:
            self._running.cancel(pk, "the runtime is stopping")

    @property
    def is_idle(self) -> bool:
        return not self._running
