"""Runs agents for messages: claims due messages, runs the agents, and records their events and their ends.

One thread looks for messages. Each run has a separate thread, and only this thread writes the message's transcript.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from django.db import Error, connection

from mcp_runtime.agents import setup, transitions
from mcp_runtime.agents.process import GATEWAY, AgentProcess, Job, remove_files_of_earlier_runs, tool_rule
from mcp_runtime.agents.transcript import Transcript
from mcp_runtime.agents.transitions import MessageErrorKind, MessageOutcome, MessageStatus
from mcp_runtime.members.restarts import is_tried_slowly
from mcp_runtime.protocol.errors import AccessError, RequestRefusedError, SpawnError, describe_exit
from mcp_runtime.rows.changes import SqliteChanges
from mcp_runtime.rows.database import persistently, unit_of_work
from mcp_runtime.security.limits import Owner, Slots
from roster.models import AgentMessage, GuildMember, Tool

logger = logging.getLogger("guildhall.agent")

SWEEP_SECONDS = 3.0
SQLITE_LOOK = 0.5  # an agent takes longer to start
# PostgreSQL without a broker has no cheaper check than a query.
QUERY_LOOK = 0.5
PROBLEM_SECONDS = 5.0  # between two checks of the requirements
MEMBER_LOOK = 0.1
EVENT_LOOK = 0.2
STOP_GRACE = 5.0  # between the request to stop and SIGKILL
LAST_ENDS_SECONDS = 1.0

# The Agent SDK's error when the session to resume is not on its disk (cleaned up, or another machine's).
NO_SDK_SESSION = "No conversation found"


@dataclass
class Run:
    """A message in progress. Other threads set the flags, and its own thread reads them."""

    message: AgentMessage
    deadline: float
    stop_requested: threading.Event = field(default_factory=threading.Event)
    runtime_stopped: threading.Event = field(default_factory=threading.Event)
    process: AgentProcess | None = None
    error: str = ""  # the last error of its program


class AgentRunner:
    """Runs agents for the runtime with `lease_id`. Their environment tags begin with `tag_prefix`."""

    def __init__(
        self,
        *,
        lease_id: uuid.UUID,
        tag_prefix: str,
        directory: Path,
        concurrency: int,
        gateway_address: str,
        has_broker: bool,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._lease_id = lease_id
        self._tag_prefix = tag_prefix
        self._directory = directory
        self._slots = Slots(concurrency)  # use it only with the lock
        self._gateway_address = gateway_address
        self._has_broker = has_broker
        self._environment = environment
        self._notified = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._runs: dict[int, Run] = {}  # by message id
        self._problem: str | None = None
        self._problem_checked_at = -math.inf
        self._last_sweep = -math.inf
        self._due_messages = transitions.due_messages(lease_id)
        self._stop_requests = transitions.stop_requests(lease_id)
        self._loop = threading.Thread(target=self._run, name="agents", daemon=True)

    # The loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        remove_files_of_earlier_runs(self._directory)
        self._loop.start()

    def wake(self) -> None:
        """Look for messages soon."""
        self._last_sweep = -math.inf
        self._notified.set()

    def stop(self) -> None:
        """Start no new runs, and kill the others. The stop of the runtime ends their messages as lost."""
        self._stopping.set()
        self._notified.set()
        if self._loop.is_alive():
            self._loop.join()
        for run in self._runs_in_progress():
            run.runtime_stopped.set()
            if run.process is not None:
                run.process.kill()
        deadline = time.monotonic() + LAST_ENDS_SECONDS
        while self._runs_in_progress() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _runs_in_progress(self) -> list[Run]:
        with self._lock:
            return list(self._runs.values())

    def _run(self) -> None:
        changes = SqliteChanges(str(connection.settings_dict["NAME"])) if connection.vendor == "sqlite" else None
        while not self._stopping.is_set():
            try:
                unit_of_work(self.turn)
                self._wait(changes)
                continue
            except Error as error:
                logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
                connection.close()
            except Exception:
                logger.exception("a check for agents' messages failed; the next one follows")
            self._stopping.wait(QUERY_LOOK)
        if changes is not None:
            changes.close()
        connection.close()

    def _wait(self, changes: SqliteChanges | None) -> None:
        """Wait for a notification, for work in SQLite, or until a sweep is due."""
        look = SQLITE_LOOK if changes else SWEEP_SECONDS if self._has_broker else QUERY_LOOK
        while not self._stopping.is_set() and time.monotonic() < self._last_sweep + SWEEP_SECONDS:
            if self._notified.wait(look):
                self._notified.clear()
                return
            if changes is None:
                return
            if changes.look() and (changes.exists(self._due_messages) or changes.exists(self._stop_requests)):
                return

    def turn(self) -> None:
        """Check once for missing requirements, requests to stop, and due messages."""
        self._last_sweep = time.monotonic()
        if time.monotonic() > self._problem_checked_at + PROBLEM_SECONDS:
            self.note_problem()
        for message_id in self._stop_requests.values_list("pk", flat=True):
            with self._lock:
                run = self._runs.get(message_id)
            if run is not None:
                run.stop_requested.set()
        transitions.end_unserved_messages(self._lease_id)
        while self.claim_one():
            pass

    def note_problem(self) -> None:
        problem = setup.problem(self._environment)
        if problem != self._problem:
            transitions.note_problem(problem, self._lease_id)
        self._problem, self._problem_checked_at = problem, time.monotonic()

    def claim_one(self) -> bool:
        """Claim and run one due message. Returns whether there was one."""
        message = self._next()
        if message is None or not transitions.claim(message, self._lease_id):
            return False
        run = Run(message, time.monotonic() + message.timeout)
        with self._lock:
            self._runs[message.pk] = run
            self._slots.take(_owner(message))
        threading.Thread(target=self._work, args=(run,), name=f"message-{message.pk}", daemon=True).start()
        return True

    def _next(self) -> AgentMessage | None:
        """The oldest due message of a principal that may have one more agent."""
        messages = self._due_messages.select_related("agent", "agent__created_by")
        while (message := messages.first() if self._slots.free > 0 else None) is not None:
            owner = _owner(message)
            with self._lock:
                if self._slots.may_take(owner):
                    return message
                count = self._slots.count_of(owner)
            # An owner without slots may not take the last one if another token of the same user has some.
            messages = messages.exclude(requested_by=owner[0], **({"asked_with": owner[1]} if count else {}))
        return None

    # One run ------------------------------------------------------------------------------------------------------

    def _work(self, run: Run) -> None:
        try:
            outcome = self._outcome(run)
        except Exception as error:
            logger.exception("internal error while message %d was handled", run.message.pk)
            outcome = MessageOutcome.failed(
                MessageErrorKind.AGENT, f"internal error: the hall failed to run the agent: {error!r}"
            )
        try:
            # If the runtime's stop killed the run, that stop records its end.
            if not run.runtime_stopped.is_set():
                finish = partial(transitions.finish, run.message, outcome, self._lease_id)
                persistently(partial(unit_of_work, finish))
        except Error:
            logger.exception("the end of message %d could not be written; it ends as lost", run.message.pk)
        finally:
            with self._lock:
                self._runs.pop(run.message.pk, None)
                self._slots.give_back(_owner(run.message))
            connection.close()
            self.wake()

    def _outcome(self, run: Run) -> MessageOutcome:
        if problem := setup.problem(self._environment):
            return MessageOutcome.failed(MessageErrorKind.UNAVAILABLE, f"no agent can run: {problem}")
        if early := self._await_members(run):
            return early
        try:
            job = unit_of_work(partial(self._job, run.message))
            tag = f"{self._tag_prefix}message-{run.message.pk}/agent"
            run.process = AgentProcess.spawn(job, directory=self._directory, tag=tag, environment=self._environment)
        except (RequestRefusedError, AccessError, SpawnError) as error:
            return MessageOutcome.failed(MessageErrorKind.UNAVAILABLE, str(error))
        try:
            answer, stop_cause = self._follow(run, run.process)
        finally:
            code = run.process.close()
        if job.resume and not answer and NO_SDK_SESSION in run.error:
            unit_of_work(partial(transitions.note_sdk_session, run.message, ""))
            run.error = (
                "the Agent SDK's session of this agent is no longer on the disk; the next message begins a new one"
            )
        return _outcome_of(run, answer, stop_cause, code, run.process.tail())

    def _await_members(self, run: Run) -> MessageOutcome | None:
        """Wait until all members of the run are connected. Returns an outcome if the message ends before that."""
        while True:
            missing = unit_of_work(partial(_missing_members, run.message))
            if not missing:
                return None
            for member in missing:
                if reason := _why_not_connecting(member):
                    return MessageOutcome.failed(
                        MessageErrorKind.UNAVAILABLE, f"member {member.name!r} cannot be used: {reason}"
                    )
            if run.stop_requested.wait(MEMBER_LOOK):
                return MessageOutcome(MessageStatus.CANCELLED, error_message="stopped while its members were starting")
            if run.runtime_stopped.is_set():
                return MessageOutcome.failed(MessageErrorKind.LOST, "")
            if time.monotonic() > run.deadline:
                names = ", ".join(f"{member.name} ({member.status})" for member in missing)
                return MessageOutcome.failed(
                    MessageErrorKind.UNAVAILABLE, f"not connected within {run.message.timeout:g} s: {names}"
                )

    def _job(self, message: AgentMessage) -> Job:
        transitions.require_access(message)
        agent = message.agent
        members = list(agent.members.select_related("port_allocation").order_by("name"))
        allowed_tools: list[str] = []
        disallowed_tools: list[str] = []
        if agent.direct:
            servers: dict[str, dict[str, Any]] = {
                member.name: {"type": "http", "url": member.endpoint} for member in members
            }
            for name, tool, is_enabled, is_held in Tool.objects.filter(member__in=members, listed=True).values_list(
                "member__name", "name", "enabled", "is_held"
            ):
                (allowed_tools if is_enabled and not is_held else disallowed_tools).append(tool_rule(name, tool))
        else:
            url = f"http://{self._gateway_address}/agents/{agent.pk}/mcp"
            headers = {"Authorization": f"Bearer {transitions.make_token(message)}"}
            servers = {GATEWAY: {"type": "http", "url": url, "headers": headers}}
            allowed_tools = [tool_rule(GATEWAY)]  # the gateway offers only what the token may call
        return Job(
            prompt=message.prompt,
            servers=servers,
            allowed_tools=allowed_tools,
            disallowed_tools=disallowed_tools,
            # Read it again, because an earlier message may have made it since.
            resume=type(agent).objects.values_list("sdk_session_id", flat=True).get(pk=agent.pk),
            model=agent.model,
        )

    def _follow(self, run: Run, process: AgentProcess) -> tuple[dict[str, Any], str]:
        """Write the transcript until the agent ends. Returns its answer, and why it was stopped (empty if not)."""
        answer: dict[str, Any] = {}
        stop_cause = ""
        kill_at = 0.0
        transcript = Transcript(run.message)
        while not process.has_ended:
            event = process.next_event(EVENT_LOOK)
            now = time.monotonic()
            if event and event["kind"] == "session":
                unit_of_work(partial(transitions.note_sdk_session, run.message, str(event["data"]["id"])))
            elif event and event["kind"] == "result":
                answer = event["data"]
            elif event and not transcript.is_full:
                run.error = event["data"]["text"] if event["kind"] == "error" else run.error
                transcript.add(event["kind"], event["data"])
            transcript.write_due(is_last=process.has_ended)
            if not stop_cause and (run.stop_requested.is_set() or now > run.deadline):
                stop_cause = "stop" if run.stop_requested.is_set() else "deadline"
                kill_at = now + STOP_GRACE
                process.stop()
            if run.runtime_stopped.is_set() or (stop_cause and now > kill_at):
                process.kill()
            if stop_cause and now > kill_at + STOP_GRACE:
                break  # a process outside the group has its output; `kill_tagged` finds it by the environment tag
        return answer, stop_cause


def _owner(message: AgentMessage) -> Owner:
    return message.requested_by_id, message.asked_with_id


def _missing_members(message: AgentMessage) -> list[GuildMember]:
    return list(message.agent.members.exclude(status=GuildMember.Status.CONNECTED).order_by("name"))


def _why_not_connecting(member: GuildMember) -> str:
    """Why the member will not connect. Empty if it may."""
    if member.removed_at:
        return "its folder is gone"
    if not member.enabled:
        return "it is disabled"
    if member.desired_state != GuildMember.DesiredState.RUNNING:
        return "it was stopped"
    if member.manifest_error:
        return member.manifest_error
    has_next_try = member.restart_requested_at or (member.next_restart_at and not is_tried_slowly(member))
    return member.last_reason if member.status == GuildMember.Status.ERROR and not has_next_try else ""


def _outcome_of(run: Run, answer: dict[str, Any], stop_cause: str, code: int, tail: str) -> MessageOutcome:
    usage = answer.get("usage", {})
    if answer and not answer["is_error"]:
        return MessageOutcome(MessageStatus.SUCCEEDED, result=answer["text"], usage=usage)
    if stop_cause == "stop":
        return MessageOutcome(MessageStatus.CANCELLED, error_message="stopped", usage=usage)
    if stop_cause == "deadline":
        return MessageOutcome.failed(
            MessageErrorKind.TIMEOUT, f"the agent did not end within {run.message.timeout:g} s", usage
        )
    if answer:
        return MessageOutcome.failed(MessageErrorKind.AGENT, answer["text"] or "the agent ended with an error", usage)
    if run.error:
        return MessageOutcome.failed(MessageErrorKind.AGENT, run.error)
    detail = f": {tail}" if tail else ""
    return MessageOutcome.failed(
        MessageErrorKind.AGENT, f"the agent ended with {describe_exit(code)} without an answer{detail}"
    )
