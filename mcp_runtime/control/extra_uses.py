"""Use prompts and resources of members as a person: get, read, complete. The requests go through the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp_runtime.control import gateway
from mcp_runtime.control.extras import Extra, Kind, find_extra
from mcp_runtime.control.members import require_enabled
from mcp_runtime.protocol.errors import ErrorKind, InvalidArgumentsError, MemberFailedError, RequestRefusedError
from mcp_runtime.protocol.jsonrpc import object_of
from mcp_runtime.security import access
from mcp_runtime.security.access import Principal
from roster.models import GuildMember

MAX_SECONDS = 60.0  # of one request, if the member's own timeout is longer. A person waits for it
GRACE_SECONDS = 5.0  # for the gateway to report that the member's own timeout has passed
COMPLETION_SECONDS = 3.0  # a person types meanwhile
MAX_URI = 8_000  # characters. Each URI is also sent in a header
MAX_TEMPLATE = 2_000  # characters of a template with fields
MAX_VARIABLES = 50
MAX_VALUES = 100  # of a completion, as in MCP
MAX_VALUE = 1_000  # characters of a completed value
# Operators of RFC 6570 with which a URI without the value makes no sense.
_NEEDS_VALUE = ("", "+", "/", ".")


# Prompts ----------------------------------------------------------------------------------------------------------


def get_prompt(principal: Principal, row: GuildMember, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of `prompts/get`. Raises the errors of `gateway.ask`, and of requests that are refused."""
    _require_use(principal, row)
    extra = find_extra(row, Kind.PROMPT, name)
    known = {argument.name: argument.is_required for argument in extra.arguments}
    _check_arguments(f"prompt {name[:100]!r}", known, arguments)
    params = {"name": name, "arguments": dict(arguments)}
    result = gateway.ask(principal, row, "prompts/get", params, _seconds(row))
    if not isinstance(result.get("messages"), list):
        raise MemberFailedError(ErrorKind.PROTOCOL, f"the answer of member {row.name!r} to prompts/get has no messages")
    return result


def _check_arguments(about: str, known: Mapping[str, bool], arguments: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentsError with all faults. `known` says for each name whether it is required."""
    faults: list[tuple[tuple[str | int, ...], str]] = []
    for name, value in arguments.items():
        if name not in known:
            faults.append(((name,), f"this argument is unknown; there are {', '.join(known)[:500] or 'none'}"))
        elif not isinstance(value, str):
            faults.append(((name,), "the value must be a string"))
    faults += [
        ((name,), "this argument is required") for name, needed in known.items() if needed and name not in arguments
    ]
    if faults:
        place, reason = faults[0]
        raise InvalidArgumentsError(f"{about}: {place[0]}: {reason}", str(place[0]), reason, faults)


# Resources --------------------------------------------------------------------------------------------------------


def read_resource(principal: Principal, row: GuildMember, uri: str) -> dict[str, Any]:
    """Return the result of `resources/read`. The URI may be in no list. Raises the same errors as `get_prompt`."""
    _require_use(principal, row)
    require_uri(uri)
    result = gateway.ask(principal, row, "resources/read", {"uri": uri}, _seconds(row))
    if not isinstance(result.get("contents"), list):
        text = f"the answer of member {row.name!r} to resources/read has no contents"
        raise MemberFailedError(ErrorKind.PROTOCOL, text)
    return result


def require_uri(uri: str) -> None:
    if not 0 < len(uri) <= MAX_URI:
        reason = f"a URI has 1 to {MAX_URI:,} characters"
        raise InvalidArgumentsError(f"uri: {reason}", "uri", reason)


@dataclass(frozen=True)
class Variable:
    """A variable of a URI template."""

    name: str
    is_required: bool


def variables_of(template: str) -> list[Variable]:
    """The variables in their order, for fields. Empty for a template that is too long, or has none."""
    if len(template) > MAX_TEMPLATE:
        return []
    required: dict[str, bool] = {}
    for expression in _parsed(template).variables:
        for name in expression.variable_names:
            required[name] = required.get(name, False) or expression.operator.value in _NEEDS_VALUE
    return [Variable(name, needed) for name, needed in required.items()][:MAX_VARIABLES]


def expand(template: str, values: Mapping[str, str]) -> str:
    """The URI of a template with these values (RFC 6570). Raises InvalidArgumentsError."""
    known = {variable.name: variable.is_required for variable in variables_of(template)}
    _check_arguments(f"resource template {template[:100]!r}", known, values)
    return str(_parsed(template).expand(dict(values)))


def _parsed(template: str) -> Any:
    from uritemplate import URITemplate  # few halls need it

    return URITemplate(template)


# Completion -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Completion:
    """Values for an argument. `total` is how many the member has, if it says so."""

    values: list[str]
    total: int | None = None
    has_more: bool = False


def completes(row: GuildMember) -> bool:
    """Whether the member declares that it completes arguments."""
    return "completions" in row.capabilities


def complete(
    principal: Principal, row: GuildMember, extra: Extra, argument: str, value: str, context: Mapping[str, str]
) -> Completion:
    """Return values for an argument of a prompt, or a variable of a template, that begins with `value`.

    `context` has the values of the other arguments. Raises the same errors as `get_prompt`.
    """
    _require_use(principal, row)
    if not completes(row):
        raise RequestRefusedError(f"member {row.name!r} does not complete arguments")
    ref = {"type": "ref/prompt", "name": extra.name}
    if extra.kind != Kind.PROMPT:
        ref = {"type": "ref/resource", "uri": extra.name}
    params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
    if context:
        params["context"] = {"arguments": dict(context)}
    result = gateway.ask(principal, row, "completion/complete", params, COMPLETION_SECONDS)
    completion = object_of(result.get("completion"))
    listed, total = completion.get("values"), completion.get("total")
    values = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return Completion(
        values=[each for each in values if len(each) <= MAX_VALUE][:MAX_VALUES],
        total=total if isinstance(total, int) and not isinstance(total, bool) and total >= 0 else None,
        has_more=completion.get("hasMore") is True or len(values) > MAX_VALUES,
    )


def _require_use(principal: Principal, row: GuildMember) -> None:
    access.require_use(principal, row.name)
    require_enabled(row)


def _seconds(row: GuildMember) -> float:
    return min(row.call_timeout + GRACE_SECONDS, MAX_SECONDS)
