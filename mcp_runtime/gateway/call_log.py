"""Write the calls that clients made through the gateway to the database.

A background thread writes their records in batches, so no call waits for the database. It writes a record after the end
of the call, so the records of calls that end shortly before a SIGKILL are lost. When the database fails, the thread
keeps the records and tries again. When there are too many, or too many bytes, it drops the oldest one of the largest
token of the user who has the most, and logs how many it dropped.
"""

from __future__ import annotations

import collections
import json
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from django.db import Error, connection
from msgspec import Raw

from mcp_runtime.calls import search_texts
from mcp_runtime.calls.transitions import Outcome
from mcp_runtime.gateway import call_rows, envelope
from mcp_runtime.gateway.call_rows import Row
from mcp_runtime.gateway.programs import NAMELESS, Program, Programs
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    ClientError,
    MethodError,
    ProtocolError,
    RemoteError,
    RequestTimeoutError,
    ToolError,
)
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import give_connection_back, wait_for_locks
from mcp_runtime.schemas import schema_work, secrets
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import Owner
from roster.models import Call, Tool

logger = logging.getLogger("guildhall.gateway")

Status = Call.Status

SOURCE = Call.Source.GATEWAY.value
WRITE_SECONDS = 0.25  # in which calls are collected for one batch
IDLE_WRITE_SECONDS = 2.0  # the longest wait without calls, because client programs are written from time to time
RETRY_SECONDS = 0.2  # between two attempts to write the same calls
GIVE_UP_SECONDS = 600.0  # then a batch is dropped. Its rows may cause the error, and other calls wait
LOCK_SECONDS = 0.4  # the longest single wait for SQLite's write lock. A stop is noticed between two waits
STOP_SECONDS = 1.0  # for all remaining calls. After a failure in the second half there is no further attempt
BATCH = 500
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 64_000_000  # of requests and responses
LARGE = 65_536  # bytes of a request. Above this, only the stored part of its arguments is encoded, if it has no secrets
CUT = mcp.CUT
# CPU time to search the arguments of one call for secrets. All other records wait for it. The search pauses between its
# steps, so it takes four times as long by the clock.
SECRETS_SECONDS = 0.1
_UNKNOWN = object()


@dataclass(eq=False, slots=True)
class FinishedCall:
    """One call, from its start until it is written. Only its first end counts. Later ones are ignored."""

    recorder: Recorder
    member_id: int
    member: str
    tool: str
    arguments: Any
    schema: str | None  # as JSON. None if it was unknown at the start, empty if it marks no secrets
    principal: Principal
    timeout: float
    version: str = ""  # of the tool, if the catalog has it
    size: int = 0  # bytes of the request
    program: Program = NAMELESS
    tool_set: str = ""  # at whose address it was called
    started_at: float = field(default_factory=time.time)
    finished_at: float = 0.0
    body: bytes = b""
    outcome: Outcome | None = None

    @property
    def size_in_bytes(self) -> int:
        """Bytes of its request and response, while it waits to be written. Constant after its end."""
        return self.size + len(self.body)

    def record_response(self, body: bytes) -> None:
        """End the call with a JSON-RPC response."""
        self.body = body
        self._end()

    def record_error(self, error: ClientError) -> None:
        self._end(Outcome.of_error(error, member=self.member, tool=self.tool))

    def record_refusal(self, error: MethodError) -> None:
        """End a call that was not sent to the member."""
        self._end(replace(Outcome.failed(error.kind, str(error)), error_code=error.code))

    def record_failure(self, error: ClientError | MethodError | None) -> None:
        """End a call that failed on its way to another node. None means that its client went away."""
        if error is None:
            self.record_abandonment(timed_out=False)
        elif isinstance(error, MethodError):
            self.record_refusal(error)
        else:
            self.record_error(error)

    def record_abandonment(self, *, timed_out: bool) -> None:
        """End a call that was sent, but timed out or was cancelled."""
        if timed_out:
            self.record_error(RequestTimeoutError(self.timeout))
        else:
            about = f"tool {self.tool!r} of member {self.member!r}"
            self._end(Outcome.cancelled(f"{about}: the client cancelled it, or went away"))

    def _end(self, outcome: Outcome | None = None) -> None:
        if not self.finished_at:
            self.finished_at = time.time()
            self.outcome = outcome
            self.recorder.put(self)


class _Result(msgspec.Struct):
    """The part of a result that is always decoded. The rest is decoded only if the result is small."""

    isError: Raw = Raw(b"false")


class _Response(msgspec.Struct):
    """A response that was already read and encoded again. So it needs no second check."""

    result: Raw = Raw()
    error: Raw = Raw()


_RESULT, _RESPONSE = msgspec.json.Decoder(_Result), msgspec.json.Decoder(_Response)


@dataclass(slots=True)
class _TokenQueue:
    """Calls of one token, oldest first."""

    calls: collections.deque[FinishedCall] = field(default_factory=collections.deque)
    bytes: int = 0


class _CallQueue:
    """Calls in the order of their ends. Not thread-safe."""

    def __init__(self) -> None:
        self._calls: collections.OrderedDict[FinishedCall, None] = collections.OrderedDict()
        self._token_queues: dict[Owner, _TokenQueue] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._calls)

    def put(self, call: FinishedCall) -> int:
        """Add a call, and return how many calls were dropped to make room."""
        owner, size = call.principal.owner, call.size_in_bytes
        token_queue = self._token_queues.get(owner)
        if token_queue is None:
            token_queue = self._token_queues[owner] = _TokenQueue()
        token_queue.calls.append(call)
        token_queue.bytes += size
        self._calls[call] = None
        self._bytes += size
        lost_count = 0
        while self._bytes > MAX_WAITING_BYTES:
            self._drop_of_most(lambda token_queue: token_queue.bytes)
            lost_count += 1
        while len(self._calls) > MAX_WAITING:
            self._drop_of_most(lambda token_queue: len(token_queue.calls))
            lost_count += 1
        return lost_count

    def take(self) -> FinishedCall:
        """Remove and return the call that has waited longest."""
        call = next(iter(self._calls))
        self._drop_first_of(call.principal.owner)
        return call

    def _drop_of_most(self, weight: Callable[[_TokenQueue], int]) -> None:
        """Drop the oldest call of the largest token of the user whose tokens have the most in total."""
        of_user: collections.Counter[int | None] = collections.Counter()
        for (user, _), token_queue in self._token_queues.items():
            of_user[user] += weight(token_queue)
        user = max(of_user, key=of_user.__getitem__)
        tokens = [owner for owner in self._token_queues if owner[0] == user]
        self._drop_first_of(max(tokens, key=lambda owner: weight(self._token_queues[owner])))

    def _drop_first_of(self, owner: Owner) -> None:
        token_queue = self._token_queues[owner]
        call = token_queue.calls.popleft()
        size = call.size_in_bytes
        token_queue.bytes -= size
        if not token_queue.calls:
            del self._token_queues[owner]
        del self._calls[call]
        self._bytes -= size


class Recorder:
    """Writes calls and client programs to the database.

    Store at most `max_bytes` of the arguments and of the result of a call. 0 stores neither.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.programs = Programs()
        self._news = self.programs.news
        self._max_bytes = max_bytes
        self._queue = _CallQueue()
        self._batch_size = 0  # calls that the thread is writing
        self._lock = threading.Lock()
        self._lost_count = 0
        self._stopping = threading.Event()
        self._last_try_at = math.inf
        self._has_given_up = False
        self._may_query = True  # whether this batch may still query the database
        self._thread = threading.Thread(target=self._run, name="gateway-records", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the remaining calls, but wait no longer than STOP_SECONDS for the database."""
        self._last_try_at = time.monotonic() + STOP_SECONDS / 2
        self._stopping.set()
        self._news.set()
        self._thread.join(STOP_SECONDS)
        if unwritten_count := len(self._queue) + self._batch_size + self._lost_count:
            logger.error("%d calls of the gateway were not written: the runtime is stopping", unwritten_count)

    def put(self, call: FinishedCall) -> None:
        """Add a call that ended. Any thread may call this. If too many wait, some are dropped and logged."""
        with self._lock:
            self._lost_count += self._queue.put(call)
        if not self._news.is_set():
            self._news.set()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._news.wait(IDLE_WRITE_SECONDS)
            is_last = self._stopping.wait(WRITE_SECONDS)
            self._news.clear()
            while self._queue and not self._has_given_up:
                calls = self._next_batch()
                self._may_query = True
                for call in calls:  # not in `put`, because dropped calls do not count for their program
                    self.programs.note(call.principal.owner, call.program, calls=1)
                self.write_batch(calls, [row for call in calls if (row := self.row_or_none(call)) is not None])
                give_connection_back()
            self._note_clients(at_once=is_last)
            self._log_lost_calls()
        connection.close()

    def _note_clients(self, *, at_once: bool) -> None:
        if self._has_given_up:
            return  # the stop must not take longer
        try:
            wait_for_locks(LOCK_SECONDS)
        except Error:
            return
        self.programs.write(at_once=at_once)

    def _next_batch(self) -> list[FinishedCall]:
        with self._lock:
            calls = [self._queue.take() for _ in range(min(BATCH, len(self._queue)))]
            self._batch_size = len(calls)
        return calls

    def _log_lost_calls(self) -> None:
        with self._lock:
            lost_count, self._lost_count = self._lost_count, 0
        if lost_count:
            logger.error("%d calls of the gateway were not written: the database is too slow", lost_count)

    def write_batch(self, calls: list[FinishedCall], rows: list[Row]) -> None:
        """Insert the rows. Try again until the database takes them, or GIVE_UP_SECONDS pass, or the stop ends it.

        After GIVE_UP_SECONDS the rows themselves may be at fault.
        """
        tokens = {call.principal.token_id for call in calls if call.principal.token_id is not None}
        keep_until, is_repeated = time.monotonic() + GIVE_UP_SECONDS, False
        while True:
            try:
                wait_for_locks(LOCK_SECONDS)
                call_rows.insert(call_rows.missing_rows(rows) if is_repeated else rows)
                principals.touch(*tokens)
                break
            except Error as error:
                reason = str(error).strip()
            connection.close()
            if time.monotonic() > self._last_try_at:
                self._has_given_up = True
                return
            if time.monotonic() > keep_until:
                logger.error("%d calls of the gateway could not be written (%s)", len(calls), reason)
                break
            if not is_repeated:
                logger.warning("calls of the gateway cannot be written (%s); trying again", reason)
            is_repeated = True
            time.sleep(RETRY_SECONDS)
        self._batch_size = 0

    def row_or_none(self, call: FinishedCall) -> Row | None:
        """Return the row of a call, or None after an error. One bad call must not stop the others or this thread."""
        try:
            return self.make_row(call)
        except Exception:
            logger.exception("a call of tool %r of member %r cannot be written", call.tool, call.member)
            return None

    def make_row(self, call: FinishedCall) -> Row:
        """Return the row of a call, with its secrets masked."""
        outcome, result, error_data = call.outcome, None, None
        if outcome is None:
            outcome, result, error_data = self._outcome(call)
        principal = call.principal
        arguments, paths, masked_arguments = self._arguments(call)
        started_at, finished_at = clock.of_local(call.started_at), clock.of_local(call.finished_at)
        return {
            "member_id": call.member_id,
            "tool_name": jsonrpc.storable(call.tool[:255]),
            "tool_version": call.version,
            "tool_set": call.tool_set or None,
            "arguments": arguments,
            "timeout": call.timeout,
            "source": SOURCE,
            "requested_by_id": principal.user_id,
            "token_id": principal.token_id,
            "requester": principal.name + (f" ({principal.token_name})" if principal.token_name else ""),
            "secret_paths": json.dumps(jsonrpc.storable(paths)) if paths else "[]",
            "status": str(outcome.status),
            "queued_at": started_at,
            "started_at": started_at,
            "finished_at": finished_at,
            "result": result,
            "error_kind": str(outcome.error_kind),
            "error_message": jsonrpc.storable(outcome.error_message) if outcome.error_message else "",
            "error_code": outcome.error_code,
            "error_data": error_data,
            "search_text": self._search_text(masked_arguments, paths, outcome),
        }

    def _search_text(self, masked_arguments: Any, paths: list[list[str | int]], outcome: Outcome) -> str | None:
        """Return the words of the stored parts. If the call has secrets, the outcome may repeat them."""
        if not self._max_bytes or masked_arguments is _UNKNOWN:
            return None
        if paths:
            return search_texts.searchable(masked_arguments, "", "")
        return search_texts.searchable(
            masked_arguments, outcome.result_text[: self._max_bytes], jsonrpc.storable(outcome.error_message)
        )

    def _outcome(self, call: FinishedCall) -> tuple[Outcome, str | None, str | None]:
        """Return the outcome in the response, and the stored parts of its result and error data as JSON."""
        raw_result = raw_result_of(call.body)
        if raw_result is None:
            try:
                answer = envelope.read_opened(call.body)
                if (error := answer.remote_error()) is not None:
                    raise error
            except RemoteError as error:
                outcome = Outcome.of_error(error, member=call.member, tool=call.tool)
                return outcome, None, outcome.error_data if len(outcome.error_data or "") <= self._max_bytes else None
            except ProtocolError as error:
                return Outcome.of_error(error, member=call.member, tool=call.tool), None, None
            raw_result = answer.result or Raw()
        is_error = bool(raw_result) and _RESULT.decode(raw_result).isError == Raw(b"true")
        result, encoded = self._stored_result(raw_result, is_error)
        return self._outcome_of_result(call, result, encoded, is_error=is_error)

    def _stored_result(self, raw_result: Raw, is_error: bool) -> tuple[dict[str, Any], str]:
        """Return a result and the stored part of its JSON. The result is empty if it cannot be decoded."""
        data = bytes(raw_result)
        try:
            result: dict[str, Any] = envelope.small(raw_result)
        except ProtocolError:
            return {}, self._truncated_result(data[: self._max_bytes].decode("utf-8", "replace"), len(data), is_error)
        encoded = envelope.encode(result).decode()
        if len(encoded) > self._max_bytes:
            encoded = self._truncated_result(mcp.text_of(result)[: self._max_bytes], len(encoded), is_error)
        return result, encoded

    def _outcome_of_result(
        self, call: FinishedCall, result: dict[str, Any], encoded: str, *, is_error: bool
    ) -> tuple[Outcome, str | None, None]:
        result_json = encoded if self._max_bytes else None
        if not is_error:
            text = search_texts.text_of_result(result) if self._max_bytes else ""
            return Outcome(Status.SUCCEEDED, result_text=text), result_json, None
        error_text = mcp.text_of(result)[:2000] or "the tool reported an error"
        return Outcome.of_error(ToolError(error_text, {}), member=call.member, tool=call.tool), result_json, None

    @staticmethod
    def _truncated_result(text: str, size: int, is_error: bool) -> str:
        content = [{"type": "text", "text": jsonrpc.storable(text)}]
        truncated_result = {"content": content, "_meta": {CUT: {"bytes": size}}} | (
            {"isError": True} if is_error else {}
        )
        return jsonrpc.encode(truncated_result).decode()

    def _current_schema(self, call: FinishedCall) -> str | None:
        """Return the schema, as JSON, of a tool that was not in the catalog when the call started.

        Return None if the database does not answer or has no such tool. Then any argument may be a secret.
        """
        if not self._may_query:
            return None
        try:
            tool = Tool.objects.filter(member_id=call.member_id, name=jsonrpc.storable(call.tool[:255])).first()
        except Error:
            self._may_query = False
            connection.close()
            return None
        return None if tool is None else json.dumps(tool.input_schema)

    def _arguments(self, call: FinishedCall) -> tuple[str, list[list[str | int]], Any]:
        """Return the stored part of a call's arguments as JSON without secrets, the paths of the secrets, and its
        value for the search. That is None if they are not stored, and _UNKNOWN if they may have had secrets.
        """
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        is_large = call.size > LARGE
        if not self._max_bytes:
            return "{}", [], None
        schema = call.schema
        if schema is None and not is_large:
            schema = self._current_schema(call)
        if is_large and schema != "":
            # Do not store it. The search for secrets would take long, and the event loop could not run meanwhile.
            return jsonrpc.encode({CUT: {"bytes": call.size, "beginning": ""}}).decode(), [], _UNKNOWN
        # Most schemas mark no secrets, and the search takes as long as everything else together.
        paths: list[list[str | int]] = []
        if schema:
            with schema_work.paced(call.principal.owner):
                paths = secrets.secret_paths(schema, arguments, SECRETS_SECONDS)
        elif schema is None and arguments:
            paths = secrets.EVERYWHERE
        masked = secrets.mask(arguments, paths) if paths else arguments
        encoded = jsonrpc.beginning(masked, self._max_bytes) if is_large else envelope.encode(masked)
        if len(encoded) <= self._max_bytes and jsonrpc.is_unstorable(encoded):
            encoded = jsonrpc.encode(jsonrpc.storable(masked))
        if len(encoded) <= self._max_bytes:
            return encoded.decode(), paths, masked
        beginning = encoded[: self._max_bytes].decode("utf-8", "replace")
        size = call.size if is_large else len(encoded)
        return jsonrpc.encode({CUT: {"bytes": size, "beginning": beginning}}).decode(), paths, beginning


def raw_result_of(body: bytes) -> Raw | None:
    """Return the result in a short response. None for any other body, which `envelope` must read.

    The gateway has read the response before, and has encoded it again.
    """
    if len(body) > envelope.MAX_SMALL:
        return None
    try:
        response = _RESPONSE.decode(body)
    except msgspec.MsgspecError:
        return None
    return response.result if response.result and not response.error else None
