"""Limit each task of a member to the token that created it.

Specification: basic/utilities/tasks (25-11) and io.modelcontextprotocol/tasks (26).

A member sees the hall as its only client, so it lets any request use a task if the id is right. Therefore the gateway
seals the id of a task for the token that created it, and requires a sealed id in every request. Nobody else can read,
answer or cancel the task. The gateway stores nothing, so it does not know which tasks belong to a client. For this
reason it blocks `tasks/list` and notifications about the status of tasks.
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
METHODS = "tasks/"  # the prefix of all methods, also of later versions
NOTIFICATIONS = "notifications/tasks"
SALT = "guildhall.gateway.task"
NOT_THEIRS = "this taskId is unknown, or belongs to another token or member"
NO_LIST = "tasks/list is not available: a member cannot tell clients apart, so it would list the tasks of others"


@dataclass(frozen=True, slots=True)
class Task:
    """The id of one task: `own_id` is the member's, `sealed_id` is the client's."""

    own_id: str
    sealed_id: str


def offered_capabilities(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return a member's capabilities without the list of tasks."""
    features = capabilities.get("tasks")
    if not isinstance(features, dict) or "list" not in features:
        return dict(capabilities)
    return {**capabilities, "tasks": {key: value for key, value in features.items() if key != "list"}}


def without_extension(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a client's capabilities without tasks, for requests that must not create one."""
    extensions = object_of(capabilities.get("extensions"))
    if EXTENSION not in extensions:
        return capabilities
    return {**capabilities, "extensions": {name: value for name, value in extensions.items() if name != EXTENSION}}


def remove_related_task(params: dict[str, Any], *, is_of_mcp: bool = True) -> dict[str, Any]:
    """Return params or a result without the task that they are related to. Raise MethodError as `_meta_of` does."""
    meta = _meta_of(params, is_of_mcp=is_of_mcp)
    if RELATED not in meta:
        return params
    return {**params, "_meta": {key: value for key, value in meta.items() if key != RELATED}}


def _meta_of(part: Mapping[str, Any], *, is_of_mcp: bool) -> dict[str, Any]:
    """Return the `_meta` of params or a result.

    Raise MethodError for another spelling of a key, which a lenient member may read as a related task. With
    `is_of_mcp`, MCP defines all keys, so that `meta` can only mean `_meta`.
    """
    for key in part.keys() - USUAL:
        if mcp.folded(key) == "meta" and (is_of_mcp or key.startswith("_")):
            raise MethodError(INVALID_PARAMS, "the key _meta must be spelled exactly so and occur once")
    meta = object_of(part.get("_meta"))
    for key in meta:
        if len(key) == len(RELATED) and key != RELATED and key.casefold() == RELATED:
            raise MethodError(INVALID_PARAMS, f"the key {RELATED} must be spelled exactly so and occur once")
    return meta


# From clients -----------------------------------------------------------------------------------------------------


def open_task(owner: Owner, member_id: int, sealed_id: Any) -> Task:
    """Return the task that a client names. Raise MethodError if its id was not sealed for the same token."""
    own_id = seals.unseal(SALT, (*owner, member_id), sealed_id)
    if own_id is None:
        raise MethodError(INVALID_PARAMS, NOT_THEIRS)
    return Task(own_id, sealed_id)


def require_task_id(method: str, params: Mapping[str, Any]) -> None:
    """Raise MethodError unless a request about tasks has exactly one task id."""
    if mcp.folded(method) == f"{METHODS}list":
        raise MethodError(METHOD_NOT_FOUND, NO_LIST)
    names = [key for key in params if mcp.folded(key) == "taskid"]
    if names != ["taskId"] or not isinstance(params["taskId"], str):
        raise MethodError(INVALID_PARAMS, f"{method[:100]}: taskId must be a string and occur once")


def resolve_related_task(owner: Owner, member_id: int, params: dict[str, Any], *, is_of_mcp: bool) -> dict[str, Any]:
    """Return params with the member's own id of the related task.

    Raise MethodError for the task of another client, and as `_meta_of` does.
    """
    meta = _meta_of(params, is_of_mcp=is_of_mcp)
    if RELATED not in meta:
        return params
    task = open_task(owner, member_id, object_of(meta[RELATED]).get("taskId"))
    return {**params, "_meta": {**meta, RELATED: {"taskId": task.own_id}}}


def restore_task_id(task: Task | None, reply: dict[str, Any]) -> dict[str, Any]:
    """Return a client's answer to a question about the task, with the member's id. Remove any other task from it."""
    result = object_of(reply.get("result"))
    task_id = object_of(object_of(result.get("_meta")).get(RELATED)).get("taskId")
    unrelated_result = remove_related_task(result)
    if unrelated_result is result:
        return reply
    if task is not None and task_id == task.sealed_id:
        unrelated_result = {
            **unrelated_result,
            "_meta": {**unrelated_result["_meta"], RELATED: {"taskId": task.own_id}},
        }
    return {**reply, "result": unrelated_result}


# From members -----------------------------------------------------------------------------------------------------


def may_create_task(params: Mapping[str, Any], capabilities: Mapping[str, Any]) -> bool:
    """Return whether the client accepts a task as the result of a call. The call or its capabilities say so."""
    return "task" in params or EXTENSION in object_of(capabilities.get("extensions"))


def seal_created_task(owner: Owner, member_id: int, body: bytes, *, is_requested: bool) -> bytes:
    """Return a member's response to a call. If it is a task, its id is sealed for the client.

    `is_requested` means that the call asked for a task, as in 2025-11-25.
    """
    if b'"taskId"' not in body:
        return body
    with contextlib.suppress(ProtocolError):  # unreadable data passes unchanged: an id that is not sealed is useless
        result = envelope.fields(envelope.read(body).result)
        task_fields = envelope.fields(result.get("task")) if is_requested else {}
        if envelope.text(result.get("resultType")) == "task":
            task_fields = result
        own_id = envelope.text(task_fields.get("taskId"))
        if own_id:
            return seal_task_id(Task(own_id, seals.seal(SALT, (*owner, member_id), own_id)), body)
    return body


def find_task(message: Message, tasks: Iterable[Task | None]) -> Task | None:
    """Return the task, among those of the session's current requests, that a member's message is related to."""
    with contextlib.suppress(ProtocolError):
        meta = envelope.fields(message.fields.get("_meta"))
        own_id = envelope.text(envelope.fields(meta.get(RELATED)).get("taskId"))
        return next((task for task in tasks if task is not None and task.own_id == own_id), None)
    return None


def seal_task_id(task: Task, data: bytes) -> bytes:
    """Return a member's message with the client's id of that task."""
    if b'"taskId"' not in data:
        return data
    with contextlib.suppress(ProtocolError):
        message = envelope.read(data)
        key, part = ("params", message.params) if message.method is not None else ("result", message.result)
        if envelope.is_object(part):
            return envelope.encode({**message.parts(), key: _with_sealed_ids(task, envelope.fields(part))})
    return data


def _with_sealed_ids(task: Task, part: dict[str, Any]) -> dict[str, Any]:
    """Replace the id at each place where the protocol has one."""
    part = _with_id(task, part)
    if "task" in part:
        part = {**part, "task": _with_id(task, part["task"])}
    meta = envelope.fields(part.get("_meta"))
    return {**part, "_meta": {**meta, RELATED: _with_id(task, meta[RELATED])}} if RELATED in meta else part


def _with_id(task: Task, value: Any) -> Any:
    value_fields = envelope.fields(value)
    own_id = value_fields.get("taskId")
    return (
        {**value_fields, "taskId": task.sealed_id}
        if own_id is not None and envelope.text(own_id) == task.own_id
        else value
    )
