"""Tasks of members, each for the token that made it (25-11: basic/utilities/tasks; 26: io.modelcontextprotocol/tasks).

To a member every client is the hall, so it gives a task to whoever knows the id. The client who makes a task is told
its id under a seal, and every id that comes in must have one: nobody else reads, answers or cancels the task. Nothing
is kept, so nobody can be told which tasks are theirs: `tasks/list` and notifications of their status do not pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_runtime.gateway import envelope, seals
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import MethodError, ProtocolError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, object_of
from mcp_runtime.security.limits import Owner

EXTENSION = f"{mcp.META}tasks"
RELATED = f"{mcp.META}related-task"
USUAL = frozenset(("_meta", "name", "arguments"))  # most calls have no other parameters
METHODS = "tasks/"  # all of them begin so, those of later versions as well
NOTIFICATIONS = "notifications/tasks"
SALT = "guildhall.gateway.task"
NOT_THEIRS = "this taskId is unknown, or of another token or member"
NO_LIST = "tasks/list is not offered: to a member all clients are one, and it would list the tasks of others"


@dataclass(frozen=True, slots=True)
class Task:
    """One task's id: the member's `own`, and as its client knows it."""

    own: str
    sealed: str


def offered(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """A member's capabilities, without the list of tasks."""
    told = capabilities.get("tasks")
    if not isinstance(told, dict) or "list" not in told:
        return dict(capabilities)
    return {**capabilities, "tasks": {key: value for key, value in told.items() if key != "list"}}


def without_extension(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """A client's capabilities, for where nobody may be given a task."""
    extensions = object_of(capabilities.get("extensions"))
    if EXTENSION not in extensions:
        return capabilities
    return {**capabilities, "extensions": {name: value for name, value in extensions.items() if name != EXTENSION}}


def unrelated(params: dict[str, Any], *, is_of_mcp: bool = True) -> dict[str, Any]:
    """Params, or a result, that are said to be about no task. Raises MethodError as `_meta_of` does."""
    meta = _meta_of(params, is_of_mcp=is_of_mcp)
    if RELATED not in meta:
        return params
    return {**params, "_meta": {key: value for key, value in meta.items() if key != RELATED}}


def _meta_of(part: Mapping[str, Any], *, is_of_mcp: bool) -> dict[str, Any]:
    """Raises MethodError where members may read in another spelling that the part is about a task.

    `is_of_mcp`: MCP says what is in it, so that `meta` can mean nothing else.
    """
    for key in part.keys() - USUAL:
        if mcp.folded(key) == "meta" and (is_of_mcp or key.startswith("_")):
            raise MethodError(INVALID_PARAMS, "_meta is written exactly so, and once")
    meta = object_of(part.get("_meta"))
    for key in meta:
        if len(key) == len(RELATED) and key != RELATED and key.casefold() == RELATED:
            raise MethodError(INVALID_PARAMS, f"{RELATED} is written exactly so, and once")
    return meta


# From clients -----------------------------------------------------------------------------------------------------


def opened(owner: Owner, member_id: int, told: Any) -> Task:
    """The task that a client names. Raises MethodError for one that was not told to the same token."""
    own = seals.unseal(SALT, (*owner, member_id), told)
    if own is None:
        raise MethodError(INVALID_PARAMS, NOT_THEIRS)
    return Task(own, told)


def require_one_id(method: str, params: Mapping[str, Any]) -> None:
    """Raises MethodError for a request about tasks that does not name one, and once."""
    if mcp.folded(method) == f"{METHODS}list":
        raise MethodError(METHOD_NOT_FOUND, NO_LIST)
    names = [key for key in params if mcp.folded(key) == "taskid"]
    if names != ["taskId"] or not isinstance(params["taskId"], str):
        raise MethodError(INVALID_PARAMS, f"{method[:100]}: taskId must be a string, and there once")


def related(owner: Owner, member_id: int, params: dict[str, Any], *, is_of_mcp: bool) -> dict[str, Any]:
    """Params that say which task they are about, as the member knows it.

    Raises MethodError for another's task, and as `_meta_of` does.
    """
    meta = _meta_of(params, is_of_mcp=is_of_mcp)
    if RELATED not in meta:
        return params
    task = opened(owner, member_id, object_of(meta[RELATED]).get("taskId"))
    return {**params, "_meta": {**meta, RELATED: {"taskId": task.own}}}


def restored(task: Task | None, reply: dict[str, Any]) -> dict[str, Any]:
    """A client's answer to a question that was asked for the task: it may be about that one alone."""
    result = object_of(reply.get("result"))
    told = object_of(object_of(result.get("_meta")).get(RELATED)).get("taskId")
    bare = unrelated(result)
    if bare is result:
        return reply
    if task is not None and told == task.sealed:
        bare = {**bare, "_meta": {**bare["_meta"], RELATED: {"taskId": task.own}}}
    return {**reply, "result": bare}


# From members -----------------------------------------------------------------------------------------------------


def may_be_made(params: Mapping[str, Any], capabilities: Mapping[str, Any]) -> bool:
    """Whether the client takes a task for the answer to a call: the call says so, or the client does."""
    return "task" in params or EXTENSION in object_of(capabilities.get("extensions"))


def created(owner: Owner, member_id: int, body: bytes, *, is_asked: bool) -> bytes:
    """A member's answer to a call that may be a task: where it is one, its id is sealed for the client.

    `is_asked`: the call itself was to be one, as it is said to 2025-11-25.
    """
    if b'"taskId"' not in body:
        return body
    with contextlib.suppress(ProtocolError):  # what nobody can read passes; without a seal an id is good for nothing
        result = envelope.fields(envelope.read(body).result)
        made = envelope.fields(result.get("task")) if is_asked else {}
        if envelope.text(result.get("resultType")) == "task":
            made = result
        own = envelope.text(made.get("taskId"))
        if own:
            return renamed(Task(own, seals.seal(SALT, (*owner, member_id), own)), body)
    return body


def about(message: Message, asked: Iterable[Task | None]) -> Task | None:
    """Which of those that a session asks for now a member's message says that it is about."""
    with contextlib.suppress(ProtocolError):
        meta = envelope.fields(message.fields.get("_meta"))
        own = envelope.text(envelope.fields(meta.get(RELATED)).get("taskId"))
        return next((task for task in asked if task is not None and task.own == own), None)
    return None


def renamed(task: Task, data: bytes) -> bytes:
    """A member's message, with the id of that one task as its client knows it."""
    if b'"taskId"' not in data:
        return data
    with contextlib.suppress(ProtocolError):
        message = envelope.read(data)
        key, part = ("params", message.params) if message.method is not None else ("result", message.result)
        if envelope.is_object(part):
            return envelope.encode({**message.parts(), key: _renamed(task, envelope.fields(part))})
    return data


def _renamed(task: Task, part: dict[str, Any]) -> dict[str, Any]:
    """At each place where the protocol has an id."""
    told = _with_id(task, part)
    if "task" in told:
        told = {**told, "task": _with_id(task, told["task"])}
    meta = envelope.fields(told.get("_meta"))
    return {**told, "_meta": {**meta, RELATED: _with_id(task, meta[RELATED])}} if RELATED in meta else told


def _with_id(task: Task, value: Any) -> Any:
    found = envelope.fields(value)
    own = found.get("taskId")
    return {**found, "taskId": task.sealed} if own is not None and envelope.text(own) == task.own else value
