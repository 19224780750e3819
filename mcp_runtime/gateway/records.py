"""Calls through the gateway, written down like any other invocation: in batches, in a thread that no call waits for.

They are recorded, not queued: what ends in the last moment before a SIGKILL is not written.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.db import Error, IntegrityError, connection, transaction

from mcp_runtime import access, jsonrpc, protocol, schemas
from mcp_runtime.access import Principal
from mcp_runtime.database import give_connection_back, persistently
from mcp_runtime.errors import ClientError, MethodError, ProtocolError, RemoteError, ToolError
from mcp_runtime.invocations import Outcome
from roster.models import Invocation

logger = logging.getLogger("guildhall.gateway")

Row = dict[str, Any]
Status = Invocation.Status
ErrorKind = Invocation.ErrorKind

WRITE_SECONDS = 0.25
STOP_SECONDS = 1.0
BATCH = 500
MAX_WAITING = 20_000
MAX_WAITING_BYTES = 64_000_000
READ_WHOLE = 65_536  # bytes: longer answers are not taken apart
CUT = f"{protocol.HALL_NAME}/cut"
_COLUMNS = (
    *("member_id", "tool_name", "arguments", "timeout", "door", "requested_by_id", "token_id", "requester"),
    *("secret_paths", "status", "queued_at", "started_at", "finished_at", "result", "error_kind", "error_message"),
    *("error_code", "error_data"),
)
_TABLE = Invocation._meta.db_table
_SQL = f"INSERT INTO {_TABLE} ({', '.join(_COLUMNS)}) VALUES ({', '.join(['%s'] * len(_COLUMNS))})"  # noqa: S608
_IS_ERROR = re.compile(rb'"isError"\s*:\s*true')


@dataclass(eq=False, slots=True)
class Call:
    """One call on its way. Ended once: what is said of it after that is not heard."""

    recorder: Recorder
    member_id: int
    member: str
    tool: str
    arguments: Any
    schema: Mapping[str, Any]
    may_hold_secrets: bool
    principal: Principal
    timeout: float
    started_at: float = field(default_factory=time.time)
    finished_at: float = 0.0
    body: bytes = b""
    outcome: Outcome | None = None

    def answered(self, body: bytes) -> None:
        """With a JSON-RPC response."""
        self.body = body
        self._end()

    def failed(self, error: ClientError) -> None:
        self._end(Outcome.of_error(error, member=self.member, tool=self.tool))

    def refused(self, error: MethodError) -> None:
        """Before the member was asked, or instead of it."""
        is_away = isinstance(error.data, dict) and error.data.get("kind") == "unavailable"
        outcome = Outcome.failed(ErrorKind.UNAVAILABLE if is_away else ErrorKind.PROTOCOL, str(error))
        self._end(replace(outcome, error_code=error.code))

    def abandoned(self, *, timed_out: bool) -> None:
        about = f"tool {self.tool!r} of member {self.member!r}"
        if timed_out:
            self._end(Outcome.failed(ErrorKind.TIMEOUT, f"{about}: no complete answer within {self.timeout:g} s"))
        else:
            self._end(Outcome.cancelled(f"{about}: the caller cancelled it, or went away"))

    def _end(self, outcome: Outcome | None = None) -> None:
        if not self.finished_at:
            self.finished_at = time.time()
            self.outcome = outcome
            self.recorder.put(self)


class Recorder:
    """Writes calls down. `max_bytes` of arguments and of results are kept; 0: neither."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._ended: collections.deque[Call] = collections.deque()
        self._bytes = 0  # of answers that are not written yet
        self._lock = threading.Lock()
        self._lost = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-records", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, but do not wait for a database that is away: a stop has its own bound."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def put(self, call: Call) -> None:
        """From any thread. When the database is away for long, the newest are lost, and that is said."""
        if len(self._ended) < MAX_WAITING and self._bytes < MAX_WAITING_BYTES:
            self._ended.append(call)
            with self._lock:
                self._bytes += len(call.body)
        else:
            self._lost += 1

    def _run(self) -> None:
        while not self._stopping.wait(WRITE_SECONDS) or self._ended:
            while calls := self._next_batch():
                self._write_down(calls)
                with self._lock:
                    self._bytes -= sum(len(call.body) for call in calls)
                give_connection_back()
            if self._lost:
                logger.error("%d calls of the gateway were not written down: the database is too slow", self._lost)
                self._lost = 0
        connection.close()

    def _next_batch(self) -> list[Call]:
        """Taken out one by one: the loop's thread adds more meanwhile, which no iteration outlives."""
        return [self._ended.popleft() for _ in range(min(BATCH, len(self._ended)))]

    def _write_down(self, calls: list[Call]) -> None:
        try:
            rows = [row for call in calls if (row := self._row_or_none(call)) is not None]
            persistently(lambda: _insert(rows))
            access.touch(*{call.principal.token_id for call in calls if call.principal.token_id is not None})
        except Error as error:
            logger.error("%d calls of the gateway could not be written down (%s)", len(calls), str(error).strip())
            connection.close()

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
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        # Most schemas have none, and looking for them takes as long as all the rest.
        paths = schemas.secret_paths(dict(call.schema), arguments) if call.may_hold_secrets else []
        started, finished = _moment(call.started_at), _moment(call.finished_at)
        return {
            "member_id": call.member_id,
            "tool_name": call.tool[:255],
            "arguments": self._kept_arguments(schemas.mask(arguments, paths) if paths else arguments),
            "timeout": call.timeout,
            "door": Invocation.Door.GATEWAY.value,
            "requested_by_id": principal.user_id,
            "token_id": principal.token_id,
            "requester": principal.name + (f" ({principal.token_name})" if principal.token_name else ""),
            "secret_paths": json.dumps(paths),
            "status": outcome.status.value,
            "queued_at": started,
            "started_at": started,
            "finished_at": finished,
            "result": result,
            "error_kind": str(outcome.error_kind),
            "error_message": jsonrpc.storable(outcome.error_message),
            "error_code": outcome.error_code,
            "error_data": error_data,
        }

    def _outcome(self, call: Call) -> tuple[Outcome, str | None, str | None]:
        """What a response says of the call; result and error data as JSON, as far as they are kept."""
        if len(call.body) > READ_WHOLE:
            text = call.body[: self._max_bytes].decode("utf-8", "replace")
            is_error = bool(_IS_ERROR.search(call.body))
            return self._of_result(call, {}, self._cut(text, len(call.body), is_error), is_error=is_error)
        try:
            result = jsonrpc.result_of(jsonrpc.decode(call.body))
        except RemoteError as error:
            outcome = Outcome.of_error(error, member=call.member, tool=call.tool)
            return outcome, None, outcome.error_data if len(outcome.error_data or "") <= self._max_bytes else None
        except ProtocolError as error:
            return Outcome.of_error(error, member=call.member, tool=call.tool), None, None
        is_error = result.get("isError") is True
        encoded = jsonrpc.encode(result).decode()
        if len(encoded) > self._max_bytes:
            encoded = self._cut(protocol.text_of(result)[: self._max_bytes], len(encoded), is_error)
        return self._of_result(call, result, encoded, is_error=is_error)

    def _of_result(
        self, call: Call, result: dict[str, Any], encoded: str, *, is_error: bool
    ) -> tuple[Outcome, str | None, None]:
        kept = encoded if self._max_bytes else None
        if not is_error:
            return Outcome(Status.SUCCEEDED), kept, None
        said = protocol.text_of(result)[:2000] or "the tool reported an error"
        return Outcome.of_error(ToolError(said, {}), member=call.member, tool=call.tool), kept, None

    @staticmethod
    def _cut(text: str, size: int, is_error: bool) -> str:
        content = [{"type": "text", "text": jsonrpc.storable(text)}]
        cut = {"content": content, "_meta": {CUT: {"bytes": size}}} | ({"isError": True} if is_error else {})
        return jsonrpc.encode(cut).decode()

    def _kept_arguments(self, arguments: dict[str, Any]) -> str:
        if not self._max_bytes:
            return "{}"
        encoded = jsonrpc.encode(arguments)
        if len(encoded) <= self._max_bytes:
            return encoded.decode()
        beginning = encoded[: self._max_bytes].decode("utf-8", "replace")
        return jsonrpc.encode({CUT: {"bytes": len(encoded), "beginning": beginning}}).decode()


def _insert(rows: list[Row]) -> None:
    try:
        with transaction.atomic():
            _execute(rows)
    except IntegrityError:
        for row in rows:
            _insert_what_is_left(row)


def _insert_what_is_left(row: Row) -> None:
    """Without what is gone meanwhile: an agent's token goes with its run, and users go. (Members take all along.)"""
    for gone in ({}, {"token_id": None}, {"token_id": None, "requested_by_id": None}):
        with contextlib.suppress(IntegrityError), transaction.atomic():
            _execute([{**row, **gone}])
            return


def _execute(rows: list[Row]) -> None:
    """In SQL: through the ORM it takes three times as long, and the gateway shares the interpreter."""
    with connection.cursor() as cursor:
        cursor.executemany(_SQL, [[_adapted(row[column]) for column in _COLUMNS] for row in rows])


def _adapted(value: Any) -> Any:
    return connection.ops.adapt_datetimefield_value(value) if isinstance(value, datetime) else value


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
