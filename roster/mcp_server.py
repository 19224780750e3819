"""The roster as one MCP server: every tool of every member, under `member__tool`. What is served, not over which wire.

Calls are queued like all others, so they are durable, bounded and written down, and wake members that do not run.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

from mcp_runtime import control, protocol
from mcp_runtime.access import Principal
from mcp_runtime.errors import AccessError, InvalidArgumentsError, MethodError, NotCancellableError, RequestRefusedError
from mcp_runtime.invocations import Caller
from mcp_runtime.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, encode, request_id
from roster.models import Invocation, Tool

INSTRUCTIONS = "Tools of several servers, each named server__tool. A server that does not run is started by a call."
# How often a call that waits looks for progress; and what it waits for its turn, on top of the call's own deadline.
SLICE_SECONDS = 1.0
PATIENCE_SECONDS = 60.0


class RosterServer:
    """One client's conversation. `notify(method, params)` sends it a notification; calls come from many threads."""

    def __init__(self, caller: Caller, notify: Callable[[str, dict[str, Any]], None]) -> None:
        self._caller = caller
        self._notify = notify
        self._calls: dict[Any, int | None] = {}  # the client's request id -> invocation, once it is queued
        self._unwanted: set[Any] = set()  # request ids that were cancelled
        self._lock = threading.Lock()
        self.is_initialized = False
        self._told: bytes | None = None  # the digest of the list that the client knows
        self.methods: dict[str, Callable[..., Any]] = {
            "initialize": self.initialize,
            "notifications/initialized": self.initialized,
            "notifications/cancelled": self.cancelled,
            "ping": self.ping,
            "tools/list": self.list_tools,
            "tools/call": self.call_tool,
        }

    def expect(self, message: Any) -> None:
        """To be told of each message before it is served: a cancellation may come sooner than its call is queued."""
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, dict) and each.get("method") == "tools/call" and isinstance(each.get("id"), (str, int)):
                with self._lock:
                    self._calls.setdefault(each["id"], None)

    def initialize(self, protocolVersion: Any = None, **_: Any) -> dict[str, Any]:
        spoken = protocol.HANDSHAKE_VERSIONS
        return {
            "protocolVersion": protocolVersion if protocolVersion in spoken else spoken[-1],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": protocol.HALL_NAME, "version": protocol.HALL_VERSION},
            "instructions": INSTRUCTIONS,
        }

    def initialized(self, **_: Any) -> None:
        self.is_initialized = True

    def ping(self, **_: Any) -> dict[str, Any]:
        return {}

    def list_tools(self, cursor: Any = None, **_: Any) -> dict[str, Any]:
        if cursor is not None:
            raise MethodError(INVALID_PARAMS, "unknown cursor: the list has one page")
        answer = self._list()
        self._told = _digest(answer)
        return answer

    def tools_changed(self) -> bool:
        """Whether the list is another than the client was told last; true once for each change."""
        if self._told is None:
            return False
        before, self._told = self._told, _digest(self._list())
        return before != self._told

    def call_tool(self, name: Any = None, arguments: Any = None, _meta: Any = None, **_: Any) -> dict[str, Any]:
        asked_id = request_id.get()
        try:
            return self._call_tool(asked_id, name, {} if arguments is None else arguments, _meta)
        finally:
            with self._lock:
                self._calls.pop(asked_id, None)
                self._unwanted.discard(asked_id)

    def _call_tool(self, asked_id: Any, name: Any, arguments: Any, meta: Any) -> dict[str, Any]:
        tool = next((tool for tool in offered_tools(self._who(), lean=True) if _name(tool) == name), None)
        if tool is None:
            raise MethodError(INVALID_PARAMS, f"unknown tool {str(name)[:100]!r}")
        if asked_id in self._unwanted:  # not queued at all: whoever is about to exit could not take it back
            raise MethodError(
                INTERNAL_ERROR, "the call was cancelled", {"member": tool.member.name, "kind": "cancelled"}
            )
        try:
            invocation, _ = control.queue_call(tool.member.name, tool.name, arguments, caller=self._caller)
        except InvalidArgumentsError as error:
            # For the model to read, and do better: so says the specification since 2025-11-25.
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        except (AccessError, RequestRefusedError) as error:
            raise MethodError(INTERNAL_ERROR, str(error), {"member": tool.member.name}) from error
        with self._lock:
            self._calls[asked_id] = invocation.pk
            is_unwanted = asked_id in self._unwanted
        if is_unwanted:
            self._cancel(invocation.pk)
        self._wait(invocation, meta.get("progressToken") if isinstance(meta, dict) else None)
        return _answer(invocation)

    def _who(self) -> Principal:
        """As of now: what the client's user may is looked up at every turn."""
        try:
            return self._caller.who()
        except AccessError as error:
            raise MethodError(INTERNAL_ERROR, str(error)) from error

    def _list(self) -> dict[str, Any]:
        offered = offered_tools(self._who())
        return {"tools": [listed(tool) for tool in offered if not protocol.needs_task(tool.definition)]}

    def cancelled(self, requestId: Any = None, **_: Any) -> None:
        with self._lock:
            if not isinstance(requestId, (str, int)) or requestId not in self._calls:
                return
            self._unwanted.add(requestId)
            pk = self._calls[requestId]
        if pk is not None:
            self._cancel(pk)

    def end(self, grace: float) -> None:
        """The client went away: calls under way get `grace` seconds, then nobody wants them any more."""
        deadline = time.monotonic() + grace
        while self._calls and time.monotonic() < deadline:
            time.sleep(0.02)
        for asked_id in list(self._calls):
            self.cancelled(requestId=asked_id)

    @staticmethod
    def _cancel(pk: int) -> None:
        with contextlib.suppress(NotCancellableError):  # it is over: the answer is on its way
            control.cancel_call(Invocation.objects.select_related("member").get(pk=pk))

    def _wait(self, invocation: Invocation, token: Any) -> None:
        deadline = time.monotonic() + invocation.timeout + PATIENCE_SECONDS
        told: Any = None
        while not control.wait_for(invocation.pk, min(SLICE_SECONDS, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() > deadline:
                text = f"call {invocation.pk} has not begun in time; it goes on without you"
                raise MethodError(INTERNAL_ERROR, text, {"invocation": invocation.pk})
            invocation.refresh_from_db(fields=["progress"])
            if token is not None and invocation.progress and invocation.progress != told:
                told = invocation.progress
                said = {key: value for key, value in told.items() if value not in (None, "")}
                self._notify("notifications/progress", {"progressToken": token, **said})
        invocation.refresh_from_db()


def offered_tools(who: Principal, *, lean: bool = False) -> list[Tool]:
    """Every tool that `who` may call, in an order that stays; `lean`: without its definition."""
    tools = Tool.objects.filter(control.visible_tools(), member__enabled=True, member__removed_at=None)
    rows = tools.select_related("member").order_by("member__name", "position")
    rows = rows.defer("definition") if lean else rows
    return [tool for tool in rows if who.may_invoke(tool.member.name, tool.name)]


def listed(tool: Tool) -> dict[str, Any]:
    """Its definition as clients get it."""
    return protocol.offered_definition(tool.definition, _name(tool), has_schema=not tool.schema_error)


def _digest(answer: dict[str, Any]) -> bytes:
    return hashlib.sha256(encode(answer)).digest()


def _name(tool: Tool) -> str:
    return protocol.qualified_name(tool.member.name, tool.name)


def _answer(invocation: Invocation) -> dict[str, Any]:
    """The result, a tool's own failure included; whatever else went wrong is an error that names the member."""
    if invocation.result is not None:
        result: dict[str, Any] = invocation.result
        return result
    code = INTERNAL_ERROR if invocation.error_code is None else invocation.error_code
    data = {"member": invocation.member.name, "kind": invocation.error_kind or invocation.status}
    if invocation.error_data is not None:
        data["data"] = invocation.error_data
    raise MethodError(code, invocation.error_message or "the call was cancelled", data)
