"""Run queued calls: claim rows, call the members, and write the outcomes.

One thread claims rows and writes outcomes. The calls run in the threads of a pool and need no database connection, so
writers do not wait for each other, and outcomes that arrive together are written together. Only results larger than
BIG_ANSWER are written in the pool.
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
from mcp_runtime.calls.invocations import ErrorKind, Outcome
from mcp_runtime.calls.outcomes import BIG_ANSWER, OutcomeWriter, explain
from mcp_runtime.calls.queue_watch import QueueWatch, cancellations
from mcp_runtime.calls.running import RunningCalls
from mcp_runtime.calls.slots import CallSlots, requester_of
from mcp_runtime.calls.statements import active_calls
from mcp_runtime.calls.waiting_for_members import WaitingCalls
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
RETRY_SECONDS = 1.0  # after an iteration that failed
# Before the stop, every call has ended or was aborted. Their threads need a moment to hand over the outcomes.
LAST_OUTCOMES_SECONDS = 0.5
# A stray is a row that is running under our lease although no thread runs the call. The database committed the claim,
# but its response was lost.
STRAY_SECONDS = 5.0

Pool = Callable[..., Any]


class Dispatcher:
    """Claim and run calls for the runtime that holds `lease_id`. `run_in_pool(fn, args)` runs `fn` in the pool."""

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
        self._is_claiming = True
        self._stopping = threading.Event()
        self._running = RunningCalls(lease_id)
        self._slots = CallSlots(concurrency)
        self._outcomes = OutcomeWriter(lease_id, self._release_call)
        self._waiting_calls = WaitingCalls(
            lease_id=lease_id,
            lifecycle=lifecycle,
            availability=Availability(lifecycle, wake_supervisor),
            notify_queue=self.notify,
        )
        self._last_stray_check = -math.inf
        self._strays: set[int] = set()  # ids at the last check
        self._running_rows = active_calls(Status.RUNNING)
        self._cancellations = cancellations(lease_id)
        self._loop = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    # The loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.start()

    def notify(self) -> None:
        """Look at the queue now."""
        self._watch.note_queue_change()
        self._watch.notify()

    def notify_all(self) -> None:
        """Look at the queue and the cancellations now, and wake the supervisor."""
        self._watch.request_sweep()
        self._wake_supervisor()
        self.notify()

    def member_changed(self, member_id: int) -> None:
        """Look again at the calls of a member whose status changed."""
        self._waiting_calls.member_changed(member_id)
        self.notify()

    def stop_claiming(self) -> None:
        """Claim no more calls. The outcomes of running calls are still written."""
        self._is_claiming = False

    def stop(self) -> None:
        """Write the remaining outcomes, and end the loop."""
        deadline = time.monotonic() + LAST_OUTCOMES_SECONDS
        while not self.is_idle and time.monotonic() < deadline:
            time.sleep(0.005)
        self._stopping.set()
        self._watch.notify()
        if self._loop.is_alive():
            self._loop.join()

    def _run(self) -> None:
        self._watch.open()
        while not self._stopping.is_set() or self._outcomes:
            try:
                self._watch.wait(self._stopping.is_set)
                self.run_once()  # not as a unit of work, because this thread keeps its connection
                continue
            except Error as error:
                logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
                connection.close()
            except Exception:
                logger.exception("an iteration of the dispatcher failed; the next one follows")
            if self._stopping.is_set():
                break  # the next runtime ends these calls as lost
            self._stopping.wait(RETRY_SECONDS)
        self._watch.close()
        connection.close()

    def run_once(self) -> None:
        """Write outcomes and run queued calls. Once a second, sweep as well."""
        self.write_outcomes()
        is_sweep = self._watch.sweep_is_due
        if self._watch.pop_queue_change() or (is_sweep and self._watch.may_have_queued_calls()):
            self.drain()
        if is_sweep:
            self._watch.note_sweep()
            self.sweep()

    # Claiming -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Claim and run the queued calls that have a connected member and a free slot, oldest first."""
        self._slots.recheck()
        while self._is_claiming and (free := self._concurrency - len(self._running)) > 0:
            size = min(free, CLAIM_BATCH)
            old_exclusion_count = self._exclusion_count
            rows = statements.find_queued(self._slots.exclusions(self._waiting_calls.members), size)
            candidates = self._select_candidates(rows)
            calls = self._claim(candidates)
            for invocation, live in in_turn(calls, lambda call: requester_of(call[0])):
                exchange = self._running.add(invocation, live)
                self._run_in_pool(self._call, (invocation, live, exchange))
            if len(rows) < size and len(candidates) == len(rows):
                return  # these were all, and all of them can run
            if not calls and (candidates or self._exclusion_count == old_exclusion_count):
                return  # the lease is lost, or no further row was excluded: the next query would return the same rows

    @property
    def _exclusion_count(self) -> int:
        """The number of groups and members whose calls are excluded."""
        return self._slots.waiting_group_count + len(self._waiting_calls.members)

    def _select_candidates(self, rows: list[Invocation]) -> list[tuple[Invocation, LiveMember]]:
        """Return the rows that can run now, and reserve their slots. The next query excludes the others."""
        candidates: list[tuple[Invocation, LiveMember]] = []
        for row in rows:
            live = self._lifecycle.connected_member(row.member_id)
            if live is None:
                self._waiting_calls.add_member(row.member_id)
            elif self._slots.try_reserve(row):
                candidates.append((row, live))
        return candidates

    def _claim(self, candidates: list[tuple[Invocation, LiveMember]]) -> list[tuple[Invocation, LiveMember]]:
        """Claim the candidates, and return those that are claimed. Release the slots of the others."""
        claimed_ids: set[int] = set()
        try:
            claimed_ids = self._claim_ids([row.pk for row, _ in candidates])
        finally:
            for row, _ in candidates:
                if row.pk not in claimed_ids:
                    self._slots.release(row)
        return [(row, live) for row, live in candidates if row.pk in claimed_ids]

    def _claim_ids(self, ids: list[int]) -> set[int]:
        if not ids or statements.claim(ids, self._lease_id) == len(ids):
            return set(ids)
        own_rows = Invocation.objects.filter(pk__in=ids, status=Status.RUNNING, lease_id=self._lease_id)
        return set(own_rows.values_list("pk", flat=True))

    # Calling ------------------------------------------------------------------------------------------------------

    def _call(self, invocation: Invocation, live: LiveMember, exchange: Exchange) -> None:
        """Call the member and hand over the outcome. Runs in a thread of the pool."""
        try:
            outcome = self._outcome(invocation, live, exchange)
        except Exception as error:
            logger.exception("internal error during invocation %d", invocation.pk)
            reason = explain(invocation, f"internal error: the hall could not complete the call: {error!r}")
            outcome = Outcome.failed(ErrorKind.TRANSPORT, reason)
        if outcome.size > BIG_ANSWER:
            self._outcomes.write_big(invocation, outcome, live.big_answers)
        else:
            self._outcomes.add(invocation, outcome)
        self._watch.notify()
        if outcome.error_kind == ErrorKind.TIMEOUT:
            live.client.cancel(exchange, "the deadline passed")  # after the outcome, which must not wait for it

    def _outcome(self, invocation: Invocation, live: LiveMember, exchange: Exchange) -> Outcome:
        try:
            result = live.client.invoke_tool(
                invocation.tool_name, invocation.arguments, invocation.timeout, exchange=exchange
            )
        except ConnectError as error:
            if live.process.exited.wait(EXIT_GRACE):
                reason = live.describe_end("during the call" if error.was_sent else "before it accepted the call")
                end_error = ConnectError(reason, is_refusal=not error.was_sent)
                return Outcome.of_error(end_error, member=live.name, tool=invocation.tool_name)
            # A server may accept only one connection at a time. It is alive while other calls run in it.
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

    def write_outcomes(self) -> None:
        """Write a batch of outcomes and release the slots of these calls. The next iteration writes the rest."""
        self._outcomes.write()
        if self._outcomes:
            self._watch.notify()

    def _release_call(self, invocation: Invocation) -> None:
        running_count = self._running.remove(invocation)
        self._slots.release(invocation)
        # Another call may wait for this slot of the member or of the hall.
        if self._slots.waiting_group_count or running_count == self._concurrency - 1:
            self._watch.note_queue_change()

    # Sweeping -----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Write progress, check the calls that wait for members, send cancellations, and end strays.

        None of these is certain to be notified.
        """
        self._running.write_progress()
        self._waiting_calls.check()
        self.send_cancellations()
        if time.monotonic() >= self._last_stray_check + STRAY_SECONDS:
            self._last_stray_check = time.monotonic()
            if self._watch.may_exist(self._running_rows):
                self.end_strays()

    def send_cancellations(self) -> None:
        """Tell members which of their calls are cancelled."""
        if not self._running:
            return
        for pk in self._cancellations.values_list("pk", flat=True):
            self._running.cancel(pk, "cancelled by request")

    def end_strays(self) -> None:
        """End the calls that run under another lease, and the strays of this one."""
        invocations.end_lost(self._lease_id, invocations.RUNTIME_ENDED)
        own_rows = Invocation.objects.filter(status=Status.RUNNING, lease_id=self._lease_id).select_related("member")
        strays = {invocation.pk: invocation for invocation in own_rows if invocation.pk not in self._running}
        for pk in self._strays & set(strays):  # a stray in two checks, STRAY_SECONDS apart
            reason = "the call was claimed, but the response of the database was lost; the call was not sent"
            outcome = Outcome.failed(ErrorKind.UNAVAILABLE, explain(strays[pk], reason))
            invocations.finish(strays[pk], outcome, self._lease_id)
        self._strays = set(strays)

    # Stopping -----------------------------------------------------------------------------------------------------

    def calls_in(self, member_id: int) -> int:
        """Return the number of queued calls that run in this member now."""
        return self._slots.calls_in(member_id)

    def abandon(self, member_id: int) -> None:
        """Cancel the calls that run in this member. They end as `lost`, because the runtime is stopping."""
        pks = self._running.in_member(member_id)
        self._outcomes.abandon(pks)
        for pk in pks:
            self._running.cancel(pk, "the runtime is stopping")

    @property
    def is_idle(self) -> bool:
        return not self._running
