"""Load the prompts and resources of members when they connect, and store them as rows for the catalogs of all nodes.

These are the hall's own requests, so what they list is compared with the contracts of the member.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from django.db import Error

from mcp_runtime.client import quick_json
from mcp_runtime.gateway import catalog, envelope
from mcp_runtime.gateway.catalog import KEYS, LISTS, Entry
from mcp_runtime.gateway.messages import Answer, Client, Deadline, Request
from mcp_runtime.gateway.upstream.relay import Relay
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.http1.client import HALL_OWNER
from mcp_runtime.members import contracts, extras
from mcp_runtime.members.extras import ListedExtras, Lists
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ClientError, ProtocolError, RemoteError
from mcp_runtime.protocol.jsonrpc import METHOD_NOT_FOUND
from mcp_runtime.rows.database import short_transaction, unit_of_work
from mcp_runtime.security.access import OPERATOR
from roster.models import GuildMember, MemberExtras

logger = logging.getLogger("guildhall.gateway")

HALL = replace(OPERATOR, name="the hall", token_id=HALL_OWNER[1])  # may only read lists, never for a person
LOAD_SECONDS = 10.0
RETRY_SECONDS = 30.0  # after a failure
MAX_ENTRIES = 2_000
MAX_ENTRY = 262_144  # bytes of a prompt or a resource in a list, its icons included
MAX_ENTRIES_BYTES = 2_000_000  # of one kind. No further page is requested above it
MAX_PAGES = 100
STORE_SHARE = 0.1  # of the time, for comparing and storing the lists of a member, which may announce changes forever
LISTED_SECONDS = 0.2  # between two checks whether a process still runs that has not listed yet


class ExtrasLoader:
    """Loads the lists of each process. Awaits `on_change` when stored lists have changed.

    Use it only on the gateway's event loop.
    """

    def __init__(
        self, lifecycle: Lifecycle, upstream: Upstream, relay: Relay, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        self._lifecycle = lifecycle
        self._upstream = upstream
        self._relay = relay
        self._on_change = on_change
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loaded_processes: dict[int, LiveMember] = {}  # the process whose lists were loaded last
        self._listed: WeakKeyDictionary[LiveMember, asyncio.Event] = WeakKeyDictionary()
        self._pending_reloads: set[int] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._paused_until: dict[int, float] = {}  # by member, for lists of the same process

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
        task, pause = self._tasks.get(member_id), self._paused_until.get(member_id, 0.0) - time.monotonic()
        if task is not None and not task.done():
            if member_id not in self._pending_reloads:  # the lists that are being loaded may be outdated
                self._pending_reloads.add(member_id)
                task.add_done_callback(partial(self._once_more, member_id))
        elif pause > 0 and self._loaded_processes.get(member_id) is live_member:
            self._load_later(member_id, pause)
        else:
            self._loaded_processes[member_id] = live_member
            self._tasks[member_id] = asyncio.ensure_future(self._load(live_member))

    def _once_more(self, member_id: int, _: asyncio.Task[None]) -> None:
        self._pending_reloads.discard(member_id)
        self.lists_changed(member_id)

    def _load_later(self, member_id: int, seconds: float) -> None:
        if (timer := self._timers.get(member_id)) is not None:
            timer.cancel()
        self._timers[member_id] = asyncio.get_running_loop().call_later(seconds, self.lists_changed, member_id)

    async def until_listed(self, live_member: LiveMember) -> None:
        """Wait until the first lists of this process are stored and in the catalog, or could not be loaded."""
        listed = self._listed.setdefault(live_member, asyncio.Event())
        while not listed.is_set() and self._lifecycle.connected_member(live_member.member_id) is live_member:
            self.member_changed(live_member.member_id)  # the event loop may not have heard of it yet
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LISTED_SECONDS):
                    await listed.wait()

    async def _load(self, live_member: LiveMember) -> None:
        try:
            await self._load_lists(live_member)
        finally:
            self._listed.setdefault(live_member, asyncio.Event()).set()

    async def _load_lists(self, live_member: LiveMember) -> None:
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
            self._load_later(live_member.member_id, RETRY_SECONDS)
            return
        work, began_at = partial(self._store, live_member, entries_by_kind), time.monotonic()
        try:
            has_changed = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
        except Error as error:
            logger.warning("prompts and resources of member %r were not stored: %s", live_member.name, error)
            self._load_later(live_member.member_id, RETRY_SECONDS)
        else:
            ended_at = time.monotonic()
            self._paused_until[live_member.member_id] = ended_at + (ended_at - began_at) / STORE_SHARE
            if has_changed:
                await self._on_change()

    def _store(self, live_member: LiveMember, entries_by_kind: Mapping[str, tuple[Entry, ...]]) -> bool:
        """Write the lists of an own member, and their contracts. Return whether they have changed."""
        member_id = live_member.member_id
        lists: Lists = {kind: _by_key(kind, entries_by_kind.get(kind, ())) for kind in KEYS}
        digest = extras.digest_of(lists)
        before = MemberExtras.objects.filter(pk=member_id).values_list("digest", flat=True).first()
        if before is None and not any(lists.values()):
            live_member.extras = ListedExtras()
            return False
        manifest = GuildMember.objects.filter(pk=member_id).values_list("manifest", flat=True).first()
        listings = extras.contracts_of(member_id, lists, contracts.policy_of(manifest or {}))
        has_changed = digest != before or any(listing.revisions for listing in listings)
        if has_changed:
            # The contracts of long lists take seconds, so each list has its own transaction. The row comes last: until
            # it has this digest, the next load writes everything again.
            works: list[Callable[[], object]] = [partial(contracts.write, member_id, each) for each in listings]
            works.append(partial(extras.write, member_id, lists, digest))
            for work in works:
                with short_transaction():
                    own_row = self._lifecycle.own_row(member_id).select_for_update(no_key=True)
                    if own_row.values_list("pk").first() is None:
                        return False
                    work()
        live_member.extras = ListedExtras.of(lists, extras.holds_of(member_id), {})  # the catalog has the disabled ones
        return has_changed

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
            request = Request(f"gh-list-{method}", method, params, Client(HALL, None, {}), Deadline(LOAD_SECONDS))
            reply = await self._relay.ask_at(route, request)
            body = reply.body if isinstance(reply, Answer) else b""
            if not isinstance(reply, Answer):
                async with contextlib.aclosing(reply):
                    async for event in reply.events:
                        body = event.data if event.is_last else body
            read = partial(_page, live_member.name, kind, MAX_ENTRIES - count)
            entries, more, cursor = await self._upstream.read_in_thread(HALL.owner, read, body)
            yield entries
            count += more
            if not cursor or count >= MAX_ENTRIES:
                return
            params = {"cursor": cursor, **meta}


def _by_key(kind: str, entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """Return the definitions by name or URI. If a member lists one twice, the first counts, as for tools."""
    definitions: dict[str, dict[str, Any]] = {}
    contract_names = set()
    for entry in entries:
        definition = quick_json.decode(entry.own_json)
        key = definition[KEYS[kind]]
        if (name := contracts.key_of(key)) not in contract_names:
            contract_names.add(name)
            definitions[key] = definition
    return definitions


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
