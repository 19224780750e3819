"""Load the prompts and resources of members when they connect, and store them as rows for the catalogs of all nodes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any

from django.db import Error

from mcp_runtime.client import quick_json
from mcp_runtime.gateway import catalog, envelope
from mcp_runtime.gateway.catalog import KEYS, LISTS, Entry
from mcp_runtime.gateway.messages import Answer, Client, Deadline, Request
from mcp_runtime.gateway.upstream.relay import Relay
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ClientError, ProtocolError, RemoteError
from mcp_runtime.protocol.jsonrpc import METHOD_NOT_FOUND
from mcp_runtime.rows.database import short_transaction, unit_of_work
from mcp_runtime.security.access import OPERATOR
from roster.models import MemberExtras

logger = logging.getLogger("guildhall.gateway")

LOAD_SECONDS = 10.0
RETRY_SECONDS = 30.0  # after a failure
MAX_ENTRIES = 2_000
MAX_ENTRY = 262_144  # bytes of a prompt or a resource in a list, its icons included
MAX_ENTRIES_BYTES = 2_000_000  # of one kind. No further page is requested above it
MAX_PAGES = 100


class ExtrasLoader:
    """Loads the lists of each process. Calls `on_change` when stored lists have changed.

    Use it only on the gateway's event loop.
    """

    def __init__(self, lifecycle: Lifecycle, upstream: Upstream, relay: Relay, on_change: Callable[[], None]) -> None:
        self._lifecycle = lifecycle
        self._upstream = upstream
        self._relay = relay
        self._on_change = on_change
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loaded_processes: dict[int, LiveMember] = {}  # the process whose lists were loaded last
        self._pending_reloads: set[int] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def member_changed(self, member_id: int) -> None:
        """Handle a change of the member's status. A new process may have other lists."""
        for live_member in self._lifecycle.live_members():
            if (
                live_member.member_id == member_id
                and live_member.connected_at
                and self._loaded_processes.get(member_id) is not live_member
            ):
                self.lists_changed(member_id)

    def lists_changed(self, member_id: int) -> None:
        live_member = self._lifecycle.connected_member(member_id)
        if live_member is None:
            return
        if (task := self._tasks.get(member_id)) is None or task.done():
            self._loaded_processes[member_id] = live_member
            self._tasks[member_id] = asyncio.ensure_future(self._load(live_member))
        elif member_id not in self._pending_reloads:  # the lists that are being loaded may be outdated
            self._pending_reloads.add(member_id)
            task.add_done_callback(partial(self._once_more, member_id))

    def _once_more(self, member_id: int, _: asyncio.Task[None]) -> None:
        self._pending_reloads.discard(member_id)
        self.lists_changed(member_id)

    def _load_again_later(self, member_id: int) -> None:
        if (timer := self._timers.get(member_id)) is not None:
            timer.cancel()
        self._timers[member_id] = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.lists_changed, member_id)

    async def _load(self, live_member: LiveMember) -> None:
        """Request a member's prompts and resources."""
        capabilities = live_member.client.capabilities
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                entries_by_kind = {
                    kind: await self._list_of(live_member, method, kind)
                    for method, kind in LISTS.items()
                    if kind != "tools" and ("prompts" if kind == "prompts" else "resources") in capabilities
                }
        except (ClientError, TimeoutError) as error:
            logger.warning("member %r did not list its prompts and resources: %s", live_member.name, error)
            self._load_again_later(live_member.member_id)
            return
        work = partial(self._store, live_member.member_id, entries_by_kind)
        try:
            has_changed = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
        except Error as error:
            logger.warning("prompts and resources of member %r were not stored: %s", live_member.name, error)
            self._load_again_later(live_member.member_id)
        else:
            if has_changed:
                self._on_change()

    def _store(self, member_id: int, entries_by_kind: Mapping[str, tuple[Entry, ...]]) -> bool:
        """Write the lists of an own member. Return whether they have changed."""
        parts = [[entry.own_json for entry in entries_by_kind.get(kind, ())] for kind in KEYS]
        digest = hashlib.sha256(b"\0".join(b"\0".join(part) + b"\1" for part in parts)).hexdigest()
        before = MemberExtras.objects.filter(pk=member_id).values_list("digest", flat=True).first()
        if digest == before or (before is None and not any(parts)):
            return False
        prompts, resources, templates = ([jsonrpc.storable(quick_json.decode(each)) for each in part] for part in parts)
        values = {"prompts": prompts, "resources": resources, "resource_templates": templates, "digest": digest}
        with short_transaction():
            own_row = self._lifecycle.own_row(member_id).select_for_update(no_key=True)
            if own_row.values_list("pk").first() is None:
                return False
            MemberExtras.objects.update_or_create(pk=member_id, defaults=values)
        return True

    async def _list_of(self, live_member: LiveMember, method: str, kind: str) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        size = 0
        try:
            async with contextlib.aclosing(self._pages(live_member, method, kind)) as pages:
                async for page in pages:
                    entries += page
                    size += sum(len(entry.own_json) for entry in page)
                    if size > MAX_ENTRIES_BYTES:
                        break
            return tuple(entries)
        except RemoteError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return ()  # many members with resources do not support templates

    async def _pages(self, live_member: LiveMember, method: str, kind: str) -> AsyncGenerator[list[Entry]]:
        route = self._upstream.route_to(live_member)
        meta = {"_meta": mcp.modern_meta(mcp.HALL_NAME, mcp.HALL_VERSION, {})}
        params: dict[str, Any] = meta
        count = 0
        for _ in range(MAX_PAGES):
            request = Request(f"gh-list-{method}", method, params, Client(OPERATOR, None, {}), Deadline(LOAD_SECONDS))
            reply = await self._relay.ask_at(route, request)
            body = reply.body if isinstance(reply, Answer) else b""
            if not isinstance(reply, Answer):
                async with contextlib.aclosing(reply):
                    async for event in reply.events:
                        body = event.data if event.is_last else body
            read = partial(_page, live_member.name, kind, MAX_ENTRIES - count)
            entries, more, cursor = await self._upstream.read_in_thread(OPERATOR.owner, read, body)
            yield entries
            count += more
            if not cursor or count >= MAX_ENTRIES:
                return
            params = {"cursor": cursor, **meta}


def _page(member: str, kind: str, most: int, body: bytes) -> tuple[list[Entry], int, str]:
    """Return from one page of a list: at most `most` entries, the number of all entries, and the next cursor.

    Raise RemoteError if the response is an error, and ProtocolError if it is invalid.
    """
    answer = envelope.read_opened(body)
    if (error := answer.remote_error()) is not None:
        raise error
    result = envelope.fields(answer.result)
    parts = envelope.items(result.get(kind))
    entries = []
    for part in parts[:most]:
        with contextlib.suppress(ProtocolError):  # skip only the entry that is too large
            definition = envelope.small(part, MAX_ENTRY)
            if isinstance(definition, dict) and (entry := catalog.entry(member, kind, definition)) is not None:
                entries.append(entry)
    return entries, len(parts), envelope.text(result.get("nextCursor"))
