"""Run queued calls: claim rows, call the members, and write the outcomes.

The calls run in the threads of a pool, which hold no database connection while they wait for a member. One other thread
claims the rows and writes the outcomes. So writers do not wait for each other, and outcomes that arrive together are
written in one batch. Only an outcome larger than BIG_OUTCOME is written in the thread of its call.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import Error, connection

from mcp_runtime.calls import statements, transitions
from mcp_runtime.calls.outcomes import BIG_OUTCOME, OutcomeWriter, explain
from mcp_runtime.calls.queue_search import QueueSearch
from mcp_runtime.calls.queue_watch import QueueWatch, cancellations
from mcp_runtime.calls.running import RunningCalls, Strays
from mcp_runtime.calls.slots import CallSlots, requester_of
from mcp_runtime.calls.transitions import ErrorKind, Outcome
from mcp_runtime.calls.waiting_for_members import WaitingCalls
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.client.transport import time_left
from mcp_runtime.members.availability import Availability
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import EXIT_GRACE, LiveMember
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    RequestCancelledError,
    RequestTimeoutError,
    SignInNeededError,
)
from mcp_runtime.protocol.mcp import MODERN_VERSION
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security.limits import in_turn
from roster.models import Call

logger = logging.getLogger("guildhall.runtime")

Status = Call.Status

CLAIM_BATCH = 32  # rows claimed by one statement
RETRY_SECONDS = 1.0  # after an iteration that failed
# When the dispatcher stops, every call has ended or was aborted. The threads of these calls need a moment to hand over
# the outcomes.
LAST_OUTCOMES_SECONDS = 0.5


class Dispatcher:
    """Claim and run calls for the runtime that holds the lease `lease_id`, at most `concurrency` at the same time.

    `run_in_pool(fn, args)` calls `fn(*args)` in a thread of the pool.
    """

    def __init__(
        self,
        *,
        lease_id: uuid.UUID,
        lifecycle: Lifecycle,
        run_in_pool: Callable[..., Any],
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
        self._has_free_slot = False  # since the last look at the queue, and queued calls may wait for it
        self._stopping = threading.Event()
        self._running = RunningCalls(lease_id)
        self._slots = CallSlots(concurrency)
        self._search = QueueSearch(lease_id)
        self._outcomes = OutcomeWriter(lease_id, self._remove_call)
        self._waiting_calls = WaitingCalls(
            lease_id=lease_id,
            lifecycle=lifecycle,
            availability=Availability(lifecycle, wake_supervisor),
            notify_queue=self.notify,
        )
        self._strays = Strays(lease_id, self._running, watch)
        self._cancellations = cancellations(lease_id)
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    # The loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def notify(self) -> None:
        """Let the dispatcher look at the queue now."""
        self._watch.note_queue_change()
        self._watch.notify()

    def notify_and_sweep(self) -> None:
        """Let the dispatcher look at the queue and sweep now, and wake the supervisor."""
        self._watch.request_sweep()
        self._wake_supervisor()
        self.notify()

    def member_changed(self, member_id: int) -> None:
        """Let the dispatcher look again at the calls of this member, because its status changed."""
        self._waiting_calls.member_changed(member_id)
        self._search.forget()
        self.notify()

    def stop_claiming(self) -> None:
        """Claim no more calls. The outcomes of running calls are still written."""
        self._is_claiming = False

    def stop(self) -> None:
        """Wait a moment for the last outcomes, and end the loop when they are written."""
        deadline = time.monotonic() + LAST_OUTCOMES_SECONDS
        while not self.is_idle and time.monotonic() < deadline:
            time.sleep(0.005)
        self._stopping.set()
        self._watch.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._watch.open()
        while not self._stopping.is_set() or self._outcomes:
            try:
                self._watch.wait(self._stopping.is_set)
                self.run_once()  # not in `unit_of_work`, because this thread keeps its connection
                continue
            except Error as error:
                logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
                connection.close()
            except Exception:
                logger.exception("an iteration of the dispatcher failed; the dispatcher continues")
            if self._stopping.is_set():
                break  # calls whose outcomes are not written end as lost, now or in the next runtime
            self._stopping.wait(RETRY_SECONDS)
        self._watch.close()
        connection.close()

    def run_once(self) -> None:
        """Write outcomes and run queued calls. Once a second, sweep as well."""
        self.write_outcomes()
        sweep_is_due = self._watch.sweep_is_due
        if sweep_is_due:
            self._search.forget()
        if self._watch.pop_queue_change() or (sweep_is_due and self._watch.may_have_queued_calls()):
            self.run_queued_calls()
        elif self._has_free_slot:
            self._use_free_slots()
        if sweep_is_due:
            self._watch.note_sweep()
            self.sweep()

    # Claiming -----------------------------------------------------------------------------------------------------

    def run_queued_calls(self) -> None:
        """Claim and run the queued calls that have a connected member and free slots, oldest first."""
        self._search.note_new_calls()
        self._use_free_slots()

    def _use_free_slots(self) -> None:
        """Like `run_queued_calls`, but calls that came after the last search may be left for the next one."""
        self._has_free_slot = False
        self._slots.recheck()
        while self._is_claiming and (free_slots := self._concurrency - len(self._running)) > 0:
            size = min(free_slots, CLAIM_BATCH)
            old_exclusion_count = self._exclusion_count
            rows = self._search.find(self._slots.exclusions(self._waiting_calls.members), size)
            candidates = self._select_candidates(rows)
            calls = self._claim(candidates)
            for call, member in in_turn(calls, lambda pair: requester_of(pair[0])):
                exchange = self._running.add(call, member)
                self._run_in_pool(self._call, (call, member, exchange))
            if len(rows) < size and len(candidates) == len(rows):
                return  # there are no more rows, and each of these had free slots
            if not calls and candidates:
                return  # the lease is lost, or all candidates were cancelled
            if not calls and self._exclusion_count == old_exclusion_count:
                return  # no further row is excluded, so the next query would return the same rows

    @property
    def _exclusion_count(self) -> int:
        """The number of groups of calls and of members that the next query excludes."""
        return self._slots.waiting_group_count + len(self._waiting_calls.members)

    def _select_candidates(self, rows: list[Call]) -> list[tuple[Call, LiveMember]]:
        """Return the rows that can run now, with their members, and reserve their slots.

        The next query excludes the others.
        """
        candidates: list[tuple[Call, LiveMember]] = []
        for row in rows:
            member = self._lifecycle.connected_member(row.member_id)
            if member is None:
                self._waiting_calls.add_member(row.member_id)
            elif self._slots.try_reserve(row):
                if member.is_leaving:  # since a moment ago. Who moves it counts the reserved slots from then on
                    self._slots.release(row)
                    self._waiting_calls.add_member(row.member_id)
                else:
                    candidates.append((row, member))
        return candidates

    def _claim(self, candidates: list[tuple[Call, LiveMember]]) -> list[tuple[Call, LiveMember]]:
        """Claim the candidates, and return those whose claim succeeded. Release the slots of the others."""
        claimed_ids: set[int] = set()
        try:
            claimed_ids = self._claim_ids([row.pk for row, _ in candidates])
        finally:
            for row, _ in candidates:
                if row.pk not in claimed_ids:
                    self._slots.release(row)
        return [(row, member) for row, member in candidates if row.pk in claimed_ids]

    def _claim_ids(self, ids: list[int]) -> set[int]:
        """Claim these rows, and return the ids of those whose claim succeeded."""
        if not ids or statements.claim(ids, self._lease_id) == len(ids):
            return set(ids)
        own_rows = Call.objects.filter(pk__in=ids, status=Status.RUNNING, lease_id=self._lease_id)
        return set(own_rows.values_list("pk", flat=True))

    # Calling ------------------------------------------------------------------------------------------------------

    def _call(self, call: Call, member: LiveMember, exchange: Exchange) -> None:
        """Call the member and hand over the outcome. Runs in a thread of the pool."""
        try:
            outcome = self._outcome(call, member, exchange)
        except Exception as error:
            logger.exception("internal error during call %d", call.pk)
            reason = explain(call, f"an internal error of the hall ended the call: {error!r}")
            outcome = Outcome.failed(ErrorKind.TRANSPORT, reason)
        if outcome.size > BIG_OUTCOME:
            self._outcomes.write_big(call, outcome, member.big_outcome_lock)
        else:
            self._outcomes.add(call, outcome)
        self._watch.notify()
        if outcome.error_kind == ErrorKind.TIMEOUT:
            # Last, because the outcome must not wait for it.
            member.client_of(call.requested_by_id).cancel(exchange, "the deadline passed")

    def _outcome(self, call: Call, member: LiveMember, exchange: Exchange) -> Outcome:
        if call.tool_name in member.held_tools and (
            refusal := unit_of_work(partial(transitions.refusal_of_held, member.member_id, member.name, call.tool_name))
        ):
            return Outcome.failed(ErrorKind.UNAVAILABLE, refusal)
        try:
            result = self._invoke(call, member, exchange)
        except ConnectError as error:
            if member.process.exited.wait(EXIT_GRACE):
                reason = member.describe_end("during the call" if error.was_sent else "before it accepted the call")
                exit_error = ConnectError(reason, is_refusal=not error.was_sent)
                return Outcome.of_error(exit_error, member=member.name, tool=call.tool_name)
            # A server may accept only one connection at a time. While other calls run in it, it is probably well.
            if error.is_refusal or self.calls_in(member.member_id) + member.relayed_calls < 2:
                unit_of_work(partial(self._lifecycle.handle_connection_failure, member, error))
            return Outcome.of_error(error, member=member.name, tool=call.tool_name)
        except ClientError as error:
            if isinstance(error, RequestTimeoutError):
                member.silence.note_timeout(call.timeout)
            elif not isinstance(error, (RequestCancelledError, SignInNeededError)):
                member.silence.note_answer()
            outcome = Outcome.of_error(error, member=member.name, tool=call.tool_name)
            if outcome.error_kind == ErrorKind.PROTOCOL:
                logger.warning("%s", outcome.error_message)  # REQ-MCP-HTTP-42
            return outcome
        member.silence.note_answer()
        return Outcome.succeeded(result)

    @staticmethod
    def _invoke(call: Call, member: LiveMember, exchange: Exchange) -> dict[str, Any]:
        """The result of the tool. A member where each user has an own sign-in gets the token of the call's user."""
        client, timeout = member.client, call.timeout
        if member.users is not None:
            deadline = time.monotonic() + timeout
            version = MODERN_VERSION if member.client.is_modern else ""
            client = member.users.connected_client(call.requested_by_id, timeout, exchange, version, call.token_id)
            timeout = time_left(deadline)
        return client.invoke_tool(call.tool_name, call.arguments, timeout, exchange=exchange)

    def write_outcomes(self) -> None:
        """Write one batch of outcomes and release the slots of its calls. The next iteration writes the next batch."""
        self._outcomes.write()
        if self._outcomes:
            self._watch.notify()

    def _remove_call(self, call: Call) -> None:
        """Remove a call whose outcome is written, and release its slots. Any thread may call this."""
        running_count = self._running.remove(call)
        self._slots.release(call)
        # A queued call may wait for a slot of this member, or for one of the hall, which had no free slot.
        if self._slots.waiting_group_count or running_count == self._concurrency - 1:
            self._has_free_slot = True

    # Sweeping -----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Do the work that no notification announces reliably.

        Write progress, check the calls that wait for members, send cancellations, and end lost calls and strays.
        """
        self._running.write_progress()
        self._waiting_calls.check()
        self.send_cancellations()
        self._strays.end_if_due()

    def send_cancellations(self) -> None:
        """Tell each member which of its running calls are to be cancelled."""
        if not self._running:
            return
        for pk in self._cancellations.values_list("pk", flat=True):
            self._running.cancel(pk, "cancelled by request")

    # Stopping -----------------------------------------------------------------------------------------------------

    def calls_in(self, member_id: int) -> int:
        """Return the number of calls that run in this member, without those of the gateway."""
        return self._slots.calls_in(member_id)

    def abandon(self, member_id: int) -> None:
        """Cancel the calls that run in this member, because the runtime is stopping.

        Calls that do not succeed end as `lost`.
        """
        pks = self._running.in_member(member_id)
        self._outcomes.abandon(pks)
        for pk in pks:
            self._running.cancel(pk, "the runtime is stopping")

    @property
    def is_idle(self) -> bool:
        """Whether the outcomes of all claimed calls are written."""
        return not self._running
