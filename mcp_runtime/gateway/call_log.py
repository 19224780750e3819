"""Calls through the gateway, written down like any other invocation: in batches, in a thread that no call waits for.

They are recorded, not queued: what ends in the last moment before a SIGKILL is not written. While the database cannot
take them they are kept and tried again; when too many wait, the oldest of whoever has most go, and the log says how
many.
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
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.db import Error, connection
from msgspec import Raw

from mcp_runtime.calls.invocations import Outcome
from mcp_runtime.gateway import call_rows, envelope
from mcp_runtime.gateway.call_rows import Row
from mcp_runtime.gateway.envelope import Message
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
from mcp_runtime.rows.database import give_connection_back, wait_for_locks
from mcp_runtime.schemas import schema_work, secrets
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import Owner
from roster.models import Invocation, Tool

logger = logging.getLogger("guildhall.gateway")

Status = Invocation.Status

SOURCE = Invocation.Source.GATEWAY.value
WRITE_SECONDS = 0.25  # in which calls gather, to be written together
LOOK_SECONDS = 2.0  # without any: who came is written now and then, and not at each call
AGAIN_SECONDS = 0.2  # before calls are tried again that the database did not take
KEEP_SECONDS = 600.0  # that the same calls are tried again: something may be wrong with them, and others wait
LOCK_SECONDS = 0.4  # for SQLite's write lock at a time, so that a stop is noticed
STOP_SECONDS = 1.0  # for all that is left; tries that fail in its second half are the last
BATCH = 500
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 64_000_000  # of messages that were sent and answered
LARGE = 65_536  # bytes of a request; of its arguments no more is encoded than is kept
CUT = mcp.CUT
# CPU time to look for secrets in the arguments of one call: all others wait behind it, and steps aside take four times
# as long.
SECRETS_SECONDS = 0.1


@dataclass(eq=False, slots=True)
class Call:
    """One call on its way. Ended once: what is said of it after that is not heard."""

    recorder: Recorder
    member_id: int
    member: str
    tool: str
    arguments: Any
    schema: str | None  # as JSON; None for one that was not known then, empty for one that marks no secrets
    principal: Principal
    timeout: float
    size: int = 0  # bytes of the request
    program: Program = NAMELESS
    started_at: float = field(default_factory=time.time)
    finished_at: float = 0.0
    body: bytes = b""
    outcome: Outcome | None = None

    @property
    def kept_bytes(self) -> int:
        """Of its messages, while it waits to be written down. The same from its end on."""
        return self.size + len(self.body)

    def answered(self, body: bytes) -> None:
        """With a JSON-RPC response."""
        self.body = body
        self._end()

    def failed(self, error: ClientError) -> None:
        self._end(Outcome.of_error(error, member=self.member, tool=self.tool))

    def refused(self, error: MethodError) -> None:
        """Before the member was asked, or instead of it."""
        self._end(replace(Outcome.failed(error.kind, str(error)), error_code=error.code))

    def abandoned(self, *, timed_out: bool) -> None:
        """After it was sent."""
        if timed_out:
            self.failed(RequestTimeoutError(self.timeout))
        else:
            about = f"tool {self.tool!r} of member {self.member!r}"
            self._end(Outcome.cancelled(f"{about}: the client cancelled it, or went away"))

    def _end(self, outcome: Outcome | None = None) -> None:
        if not self.finished_at:
            self.finished_at = time.time()
            self.outcome = outcome
            self.recorder.put(self)


class _Result(msgspec.Struct):
    """What is read of a result of any size: nothing else of it is built."""

    isError: Raw = Raw(b"false")


_RESULT = msgspec.json.Decoder(_Result)


@dataclass(slots=True)
class _Line:
    """Calls of one token, the oldest first."""

    calls: collections.deque[Call] = field(default_factory=collections.deque)
    bytes: int = 0


class _Waiting:
    """Calls in the order in which they ended. Not for several threads at once."""

    def __init__(self) -> None:
        self._calls: collections.OrderedDict[Call, None] = collections.OrderedDict()
        self._lines: dict[Owner, _Line] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._calls)

    def put(self, call: Call) -> int:
        """How many calls had to go for it."""
        owner, size = call.principal.owner, call.kept_bytes
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = _Line()
        line.calls.append(call)
        line.bytes += size
        self._calls[call] = None
        self._bytes += size
        lost = 0
        while self._bytes > MAX_WAITING_BYTES:
            self._drop_of_most(lambda line: line.bytes)
            lost += 1
        while len(self._calls) > MAX_WAITING:
            self._drop_of_most(lambda line: len(line.calls))
            lost += 1
        return lost

    def take(self) -> Call:
        """The one that waits longest."""
        call = next(iter(self._calls))
        self._drop_first_of(call.principal.owner)
        return call

    def _drop_of_most(self, weight: Callable[[_Line], int]) -> None:
        """The oldest call of the token that has most, of the user whose tokens have most together."""
        of_user: collections.Counter[int | None] = collections.Counter()
        for (user, _), line in self._lines.items():
            of_user[user] += weight(line)
        user = max(of_user, key=of_user.__getitem__)
        tokens = [owner for owner in self._lines if owner[0] == user]
        self._drop_first_of(max(tokens, key=lambda owner: weight(self._lines[owner])))

    def _drop_first_of(self, owner: Owner) -> None:
        line = self._lines[owner]
        call = line.calls.popleft()
        size = call.kept_bytes
        line.bytes -= size
        if not line.calls:
            del self._lines[owner]
        del self._calls[call]
        self._bytes -= size


class Recorder:
    """Writes calls down, and who made them. `max_bytes` of arguments and of results are kept; 0: neither."""

    def __init__(self, *, max_bytes: int) -> None:
        self.programs = Programs()
        self._news = self.programs.news
        self._max_bytes = max_bytes
        self._ended = _Waiting()
        self._in_hand = 0  # calls that the thread has taken, and not written yet
        self._lock = threading.Lock()
        self._lost = 0
        self._stopping = threading.Event()
        self._last_try_at = math.inf
        self._has_given_up = False
        self._may_ask = True  # the database, of this batch
        self._thread = threading.Thread(target=self._run, name="gateway-records", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, but do not wait for a database that is away: a stop has its own bound."""
        self._last_try_at = time.monotonic() + STOP_SECONDS / 2
        self._stopping.set()
        self._news.set()
        self._thread.join(STOP_SECONDS)
        if left := len(self._ended) + self._in_hand + self._lost:
            logger.error("%d calls of the gateway were not written down: the runtime stops", left)

    def put(self, call: Call) -> None:
        """From any thread. Of too many that wait some are lost, and that is said."""
        with self._lock:
            self._lost += self._ended.put(call)
        if not self._news.is_set():
            self._news.set()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._news.wait(LOOK_SECONDS)
            is_last = self._stopping.wait(WRITE_SECONDS)
            self._news.clear()
            while self._ended and not self._has_given_up:
                calls = self._next_batch()
                self._may_ask = True
                for call in calls:  # what is never written down is not counted
                    self.programs.saw(call.principal.owner, call.program, calls=1)
                self._write_down(calls, [row for call in calls if (row := self._row_or_none(call)) is not None])
                give_connection_back()
            self._note_clients(at_once=is_last)
            self._say_lost()
        connection.close()

    def _note_clients(self, *, at_once: bool) -> None:
        if self._has_given_up:
            return  # a stop has its bound
        try:
            wait_for_locks(LOCK_SECONDS)
        except Error:
            return
        self.programs.write(at_once=at_once)

    def _next_batch(self) -> list[Call]:
        with self._lock:
            calls = [self._ended.take() for _ in range(min(BATCH, len(self._ended)))]
            self._in_hand = len(calls)
        return calls

    def _say_lost(self) -> None:
        with self._lock:
            lost, self._lost = self._lost, 0
        if lost:
            logger.error("%d calls of the gateway were not written down: the database is too slow", lost)

    def _write_down(self, calls: list[Call], rows: list[Row]) -> None:
        """Until the database takes them, or for so long that it is not the database, or the stop has its bound."""
        tokens = {call.principal.token_id for call in calls if call.principal.token_id is not None}
        keep_until, is_repeated = time.monotonic() + KEEP_SECONDS, False
        while True:
            try:
                wait_for_locks(LOCK_SECONDS)
                call_rows.insert(call_rows.not_written(rows) if is_repeated else rows)
                principals.touch(*tokens)
                break
            except Error as error:
                reason = str(error).strip()
            connection.close()
            if time.monotonic() > self._last_try_at:
                self._has_given_up = True
                return
            if time.monotonic() > keep_until:
                logger.error("%d calls of the gateway could not be written down (%s)", len(calls), reason)
                break
            if not is_repeated:
                logger.warning("calls of the gateway cannot be written down (%s); trying again", reason)
            is_repeated = True
            time.sleep(AGAIN_SECONDS)
        self._in_hand = 0

    def _row_or_none(self, call: Call) -> Row | None:
        """A call that cannot be put into words must not cost the others, nor this thread."""
        try:
            return self._row(call)
        except Exception:
            logger.exception("a call of tool %r of member %r cannot be written down", call.tool, call.member)
            return None

    def _row(self, call: Call) -> Row:
        outcome, result, error_data = call.outcome, None, None
        if outcome is None:
            outcome, result, error_data = self._outcome(call)
        principal = call.principal
        arguments, paths = self._arguments(call)
        started, finished = _moment(call.started_at), _moment(call.finished_at)
        return {
            "member_id": call.member_id,
            "tool_name": jsonrpc.storable(call.tool[:255]),
            "arguments": arguments,
            "timeout": call.timeout,
            "source": SOURCE,
            "requested_by_id": principal.user_id,
            "token_id": principal.token_id,
            "requester": principal.name + (f" ({principal.token_name})" if principal.token_name else ""),
            "secret_paths": json.dumps(jsonrpc.storable(paths)) if paths else "[]",
            "status": str(outcome.status),
            "queued_at": started,
            "started_at": started,
            "finished_at": finished,
            "result": result,
            "error_kind": str(outcome.error_kind),
            "error_message": jsonrpc.storable(outcome.error_message) if outcome.error_message else "",
            "error_code": outcome.error_code,
            "error_data": error_data,
        }

    def _outcome(self, call: Call) -> tuple[Outcome, str | None, str | None]:
        """What a response says of the call; result and error data as JSON, as far as they are kept."""
        try:
            answer = envelope.read_opened(call.body)
            if (error := answer.remote_error()) is not None:
                raise error
        except RemoteError as error:
            outcome = Outcome.of_error(error, member=call.member, tool=call.tool)
            return outcome, None, outcome.error_data if len(outcome.error_data or "") <= self._max_bytes else None
        except ProtocolError as error:
            return Outcome.of_error(error, member=call.member, tool=call.tool), None, None
        is_error = answer.result is not None and _RESULT.decode(answer.result).isError == Raw(b"true")
        result, encoded = self._kept_result(answer, is_error)
        return self._of_result(call, result, encoded, is_error=is_error)

    def _kept_result(self, answer: Message, is_error: bool) -> tuple[dict[str, Any], str]:
        """A result, and its JSON as far as it is kept; empty for one that is too long, or holds what cannot be kept."""
        data = bytes(answer.result or b"")
        try:
            result: dict[str, Any] = envelope.small(answer.result)
        except ProtocolError:
            return {}, self._cut(data[: self._max_bytes].decode("utf-8", "replace"), len(data), is_error)
        encoded = jsonrpc.encode(result).decode()
        if len(encoded) > self._max_bytes:
            encoded = self._cut(mcp.text_of(result)[: self._max_bytes], len(encoded), is_error)
        return result, encoded

    def _of_result(
        self, call: Call, result: dict[str, Any], encoded: str, *, is_error: bool
    ) -> tuple[Outcome, str | None, None]:
        kept = encoded if self._max_bytes else None
        if not is_error:
            return Outcome(Status.SUCCEEDED), kept, None
        said = mcp.text_of(result)[:2000] or "the tool reported an error"
        return Outcome.of_error(ToolError(said, {}), member=call.member, tool=call.tool), kept, None

    @staticmethod
    def _cut(text: str, size: int, is_error: bool) -> str:
        content = [{"type": "text", "text": jsonrpc.storable(text)}]
        cut = {"content": content, "_meta": {CUT: {"bytes": size}}} | ({"isError": True} if is_error else {})
        return jsonrpc.encode(cut).decode()

    def _schema_by_now(self, call: Call) -> str | None:
        """As JSON, of a tool that the gateway had not seen in its member's list.

        None where the database does not say, or has no such tool: then nobody knows where its arguments hold secrets.
        """
        if not self._may_ask:
            return None
        try:
            tool = Tool.objects.filter(member_id=call.member_id, name=jsonrpc.storable(call.tool[:255])).first()
        except Error:
            self._may_ask = False
            connection.close()
            return None
        return None if tool is None else json.dumps(tool.input_schema)

    def _arguments(self, call: Call) -> tuple[str, list[list[str | int]]]:
        """Those of a call as JSON, as far as they are kept, without secrets; and where the secrets are."""
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        is_large = call.size > LARGE
        if not self._max_bytes:
            return "{}", []
        schema = call.schema
        if schema is None and not is_large:
            schema = self._schema_by_now(call)
        if is_large and schema != "":
            # Not kept: to look for secrets in it takes this thread long, and the loop waits for the interpreter.
            return jsonrpc.encode({CUT: {"bytes": call.size, "beginning": ""}}).decode(), []
        # Most schemas have none, and looking for them takes as long as all the rest.
        paths: list[list[str | int]] = []
        if schema:
            with schema_work.paced(call.principal.owner):
                paths = secrets.secret_paths(schema, arguments, SECRETS_SECONDS)
        elif schema is None and arguments:
            paths = secrets.EVERYWHERE
        kept = secrets.mask(arguments, paths) if paths else arguments
        encoded = jsonrpc.beginning(kept, self._max_bytes) if is_large else jsonrpc.encode(kept)
        if len(encoded) <= self._max_bytes and jsonrpc.is_unstorable(encoded):
            encoded = jsonrpc.encode(jsonrpc.storable(kept))
        if len(encoded) <= self._max_bytes:
            return encoded.decode(), paths
        beginning = encoded[: self._max_bytes].decode("utf-8", "replace")
        size = call.size if is_large else len(encoded)
        return jsonrpc.encode({CUT: {"bytes": size, "beginning": beginning}}).decode(), paths


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
