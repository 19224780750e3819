"""Refuse requests about prompts, resources and resource templates that are held or disabled.

Tools are in `endpoints.tools`.

Use it only on the gateway's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from mcp_runtime.gateway import failures
from mcp_runtime.gateway.catalog import Extras, OfferedMember
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Request
from mcp_runtime.members import extras
from mcp_runtime.members.extras import Block, ListedExtras
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol.errors import MethodError, sentence_of_hold, sentence_of_switch
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS
from mcp_runtime.rows.database import unit_of_work

LISTING = ("prompts/list", "resources/templates/list")
USING = ("prompts/get", "resources/read", "resources/subscribe", "completion/complete")
METHODS = frozenset((*LISTING, *USING))


class Holds:
    """`until_listed` waits until the hall has compared the lists of a process. The gateway sets it at its start."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self.until_listed: Callable[[LiveMember], Awaitable[None]] | None = None

    def listed(self, member: str) -> ListedExtras:
        """Return what the catalog knows of the member."""
        return self._members.roster.extras.get(member, Extras()).listed

    def require_usable(self, member: str, request: Request) -> None:
        """Raise MethodError if the request is about something that is held or disabled. It has own names."""
        _require_usable(member, self.listed(member), request)

    async def require_agreed(self, member: OfferedMember, live_member: LiveMember, request: Request) -> None:
        """Raise MethodError if this process has not listed what the request is about as it was agreed.

        For a member whose changes are held. Just after its start, wait until the hall has its lists.
        """
        if self.until_listed is not None:
            await self.until_listed(live_member)
        listed = live_member.extras or self.listed(member.name)
        if request.method in LISTING:
            return
        if listed.has_blocks and _block(listed, request):  # it may have been approved since
            work = partial(extras.holds_of, member.pk)
            holds = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
            listed = live_member.extras = listed.with_holds(holds)
        _require_usable(member.name, listed, request)
        kind, key = _subject(request)
        if kind == "prompt" and key not in listed.prompts:
            raise MethodError(INVALID_PARAMS, f"member {member.name!r} has no prompt {key[:100]!r}; see prompts/list")
        if request.method == "completion/complete" and kind == "resource" and not listed.has(key):
            text = f"member {member.name!r} has no resource template {key[:200]!r}; see resources/templates/list"
            raise MethodError(INVALID_PARAMS, text)


def _require_usable(member: str, listed: ListedExtras, request: Request) -> None:
    if not listed.has_blocks or (block := _block(listed, request)) is None:
        return
    word = str(block.kind.label)
    if block.hold is None:
        raise failures.disabled(member, sentence_of_switch(word, block.name, member))
    raise failures.held(member, sentence_of_hold(word, block.name, member, block.hold))


def _block(listed: ListedExtras, request: Request) -> Block | None:
    """Return why nobody can use what the request is about."""
    kind, key = _subject(request)
    if not kind:
        return None
    return listed.block_of_prompt(key) if kind == "prompt" else listed.block_of_uri(key)


def _subject(request: Request) -> tuple[str, str]:
    """Return whether a request is about a prompt or a resource, and its name or URI. Empty for other methods."""
    params = request.params
    if request.method not in USING:
        return "", ""
    if request.method == "prompts/get":
        return "prompt", params["name"]
    if request.method != "completion/complete":
        return "resource", params["uri"]
    ref = params["ref"]
    return ("prompt", ref["name"]) if ref["type"] == "ref/prompt" else ("resource", ref["uri"])
