"""The gateway as a part of the runtime: a thread with a loop of its own, and what keeps its memory up to date."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from django.db import Error, connection
from django.utils import timezone

from mcp_runtime import protocol
from mcp_runtime.access import OPERATOR
from mcp_runtime.availability import Availability
from mcp_runtime.database import unit_of_work
from mcp_runtime.errors import ClientError, ProtocolError, RemoteError
from mcp_runtime.gateway import envelope, offers, session_file
from mcp_runtime.gateway.app import App
from mcp_runtime.gateway.callers import AccessWatch, Callers, Origins
from mcp_runtime.gateway.conversations import Conversations
from mcp_runtime.gateway.endpoints import LISTS, Endpoints
from mcp_runtime.gateway.listening import Listening
from mcp_runtime.gateway.messages import Answer, Deadline, Request, unavailable
from mcp_runtime.gateway.offers import Entry, Extras, OfferedMember, Roster
from mcp_runtime.gateway.owed import Owed
from mcp_runtime.gateway.records import Recorder
from mcp_runtime.gateway.relay import Relay
from mcp_runtime.gateway.sessions import Caller, CallerSession, Sessions
from mcp_runtime.gateway.wire import Wire
from mcp_runtime.http_server import HttpServer
from mcp_runtime.jsonrpc import METHOD_NOT_FOUND
from mcp_runtime.lifecycle import Lifecycle, LiveMember
from mcp_runtime.limits import Limiter
from roster.models import GuildMember

logger = logging.getLogger("guildhall.gateway")

START_SECONDS = 10.0
STOP_SECONDS = 1.0
SESSIONS_SECONDS = 5.0  # between two looks whether more is known of sessions than their ids say
RELOAD_SECONDS = 10.0  # rows are the truth: looked at this often even when nobody told of a change
SHORTEST_RELOAD = 0.05
LOOK_AGAIN = 0.1  # between two looks because of a name that nobody knows
AVAILABLE_LOOK = 0.2  # how often who waits for a member asks whether there is any use
LEARN_SECONDS = 10.0
LEARN_AGAIN_SECONDS = 30.0  # after a failure
MAX_LEARNED = 2_000
MAX_ENTRY = 262_144  # bytes of a prompt or a resource in a list, its icons included
MAX_LEARNED_BYTES = 2_000_000  # of one kind; with the page that goes beyond it, no other page is asked for
MAX_PAGES = 100


@dataclass(frozen=True)
class Options:
    """What the operator chose."""

    allowed_hosts: list[str]
    trusted_origins: list[str]
    max_bytes: int
    record_bytes: int
    data_dir: Path


class Gateway:
    """`member_changed` and `lists_changed` come from the runtime's threads."""

    def __init__(
        self,
        *,
        lifecycle: Lifecycle,
        sockets: list[socket.socket],
        options: Options,
        wake_supervisor: Callable[[], None],
    ) -> None:
        self._lifecycle = lifecycle
        self._sockets = sockets
        self._options = options
        self._availability = Availability(lifecycle, wake_supervisor)
        self._loop = uvloop.new_event_loop()
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._recorder = Recorder(max_bytes=options.record_bytes)
        self._callers = Callers()
        self._roster = Roster()
        self._looked_at = 0.0
        self._extras: dict[str, Extras] = {}
        self._learning: dict[int, asyncio.Task[None]] = {}
        self._learned: dict[int, LiveMember] = {}
        self._learn_again: set[int] = set()
        self._learn_timers: dict[int, asyncio.TimerHandle] = {}

    # From the runtime's threads -----------------------------------------------------------------------------------

    def start(self) -> None:
        self._recorder.start()
        self._thread.start()
        self._ready.wait(START_SECONDS)
        threading.Thread(target=self._watch_access, name="gateway-access", daemon=True).start()

    def member_changed(self, member_id: int) -> None:
        """Its status or its tools changed."""
        self._soon(self._on_member_changed, member_id)

    def lists_changed(self, member_id: int) -> None:
        """The member said that its prompts or resources changed."""
        self._soon(self._learn_anew, member_id)

    def close_doors(self) -> None:
        """No new calls; those under way go on."""
        self._stopping.set()

    def stop(self) -> None:
        """The end of it, and the last calls written down."""
        self._stopping.set()
        if self._thread.is_alive():
            self._soon(self._shut_down)
            self._thread.join(2 * STOP_SECONDS)
        self._recorder.stop()

    def _soon(self, work: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is over
            self._loop.call_soon_threadsafe(work, *args)

    # The loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            logger.exception("the gateway ended")
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

    async def _serve(self) -> None:
        self._stale = asyncio.Event()
        self._changed: dict[int, asyncio.Event] = {}
        self._wire = Wire(self._lifecycle, max_bytes=self._options.max_bytes)
        conversations = Conversations(self._wire)
        self._relay = relay = Relay(self._wire, conversations)
        self._listening = Listening(self._wire, conversations, relay, lambda: self._roster, self._connected)
        self._owed = owed = Owed()

        def session_dropped(session: CallerSession) -> None:
            owed.give_up_all(session)
            conversations.say_goodbye(session)

        self._sessions = sessions = Sessions(session_dropped)
        self._recall_sessions()
        app = App(
            callers=self._callers,
            origins=Origins(self._options.allowed_hosts, self._options.trusted_origins),
            limiter=Limiter(),
            sessions=sessions,
            clients=self._recorder.clients,
            endpoints=Endpoints(
                self._wire,
                conversations,
                relay,
                self._recorder,
                lambda: self._roster,
                self._live,
                self._connected,
                self._lifecycle.connected,
                self._look_again,
            ),
            listening=self._listening,
            conversations=conversations,
            relay=relay,
            owed=owed,
            roster=lambda: self._roster,
            is_stopping=self._stopping.is_set,
        )
        server = HttpServer(app)
        self._closing = asyncio.Event()
        await self._reload()
        keeping = [asyncio.ensure_future(self._keep_roster()), asyncio.ensure_future(self._keep_sessions())]
        self._loop.call_soon(self._ready.set)
        try:
            await server.start(self._sockets)
            await self._closing.wait()
        finally:
            await server.stop(STOP_SECONDS)
            await owed.closed(STOP_SECONDS / 4)
            await conversations.close(STOP_SECONDS / 4)
            for task in keeping:
                task.cancel()
            session_file.save(self._options.data_dir, self._sessions.beyond_ids())
            self._wire.close()

    def _shut_down(self) -> None:
        self._listening.close()
        self._owed.close()
        self._closing.set()

    # Sessions that outlive the runtime ----------------------------------------------------------------------------

    def _recall_sessions(self) -> None:
        if known := session_file.load(self._options.data_dir):
            try:
                self._sessions.restore(known)
            except (AttributeError, LookupError, TypeError, ValueError):
                logger.warning("%s is not what was written: sessions go on without it", session_file.NAME)

    async def _keep_sessions(self) -> None:
        """Now and then, for a runtime that is killed."""
        written = self._sessions.beyond_ids()
        while True:
            await asyncio.sleep(SESSIONS_SECONDS)
            if (now := self._sessions.beyond_ids()) != written:
                written = now
                await self._loop.run_in_executor(None, session_file.save, self._options.data_dir, now)

    # The roster in memory -----------------------------------------------------------------------------------------

    async def _keep_roster(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_SECONDS):
                    await self._stale.wait()
            self._stale.clear()
            await self._reload()
            await asyncio.sleep(SHORTEST_RELOAD)

    async def _reload(self) -> None:
        extras = dict(self._extras)
        load = partial(offers.load, extras)
        try:
            self._roster = await self._loop.run_in_executor(None, unit_of_work, load)
        except Error as error:
            logger.warning("the roster cannot be read (%s); the one in memory serves", str(error).strip())
            return
        except Exception:
            logger.exception("the roster cannot be read; the one in memory serves")
            return
        await self._listening.roster_changed()

    async def _look_again(self) -> None:
        """Somebody knows of something that is not in memory: it may be that young."""
        if self._loop.time() > self._looked_at + LOOK_AGAIN:
            self._looked_at = self._loop.time()
            await self._reload()

    def _on_member_changed(self, member_id: int) -> None:
        self._stale.set()
        self._listening.member_changed()
        if (event := self._changed.pop(member_id, None)) is not None:
            event.set()
        for live in self._lifecycle.live_members():
            if live.member_id == member_id and live.connected_at and self._learned.get(member_id) is not live:
                self._learn_anew(member_id)

    def _learn_anew(self, member_id: int) -> None:
        live = self._lifecycle.connected(member_id)
        if live is None:
            return
        if (task := self._learning.get(member_id)) is None or task.done():
            self._learned[member_id] = live
            self._learning[member_id] = asyncio.ensure_future(self._learn(live))
        elif member_id not in self._learn_again:  # what is being learned may be old already
            self._learn_again.add(member_id)
            task.add_done_callback(partial(self._learn_once_more, member_id))

    def _learn_once_more(self, member_id: int, _: asyncio.Task[None]) -> None:
        self._learn_again.discard(member_id)
        self._learn_anew(member_id)

    async def _learn(self, live: LiveMember) -> None:
        """Ask a member for its prompts and resources."""
        capabilities = live.client.capabilities
        try:
            async with asyncio.timeout(LEARN_SECONDS):
                found = {
                    kind: await self._list_of(live, method, kind)
                    for method, kind in LISTS.items()
                    if kind != "tools" and ("prompts" if kind == "prompts" else "resources") in capabilities
                }
        except (ClientError, TimeoutError) as error:
            logger.warning("member %r did not list its prompts and resources: %s", live.name, error)
            if (timer := self._learn_timers.get(live.member_id)) is not None:
                timer.cancel()
            again = self._loop.call_later(LEARN_AGAIN_SECONDS, self._learn_anew, live.member_id)
            self._learn_timers[live.member_id] = again
            return
        extras = Extras(found.get("prompts", ()), found.get("resources", ()), found.get("resourceTemplates", ()))
        if extras != self._extras.get(live.name, Extras()):
            self._extras[live.name] = extras
            self._stale.set()

    async def _list_of(self, live: LiveMember, method: str, kind: str) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        size = 0
        try:
            async with contextlib.aclosing(self._pages(live, method, kind)) as pages:
                async for page in pages:
                    entries += page
                    size += sum(len(entry.own) for entry in page)
                    if size > MAX_LEARNED_BYTES:
                        break
            return tuple(entries)
        except RemoteError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            return ()  # many that have resources know nothing of templates

    async def _pages(self, live: LiveMember, method: str, kind: str) -> AsyncGenerator[list[Entry]]:
        route = self._wire.route_to(live)
        meta = {"_meta": protocol.modern_meta(protocol.HALL_NAME, protocol.HALL_VERSION, {})}
        params: dict[str, Any] = meta
        count = 0
        for _ in range(MAX_PAGES):
            request = Request(f"gh-list-{method}", method, params, Caller(OPERATOR, None, {}), Deadline(LEARN_SECONDS))
            reply = await self._relay.ask(route, request)
            body = reply.body if isinstance(reply, Answer) else b""
            if not isinstance(reply, Answer):
                async with contextlib.aclosing(reply):
                    async for event in reply.events:
                        body = event.data if event.is_last else body
            read = partial(_page, live.name, kind, MAX_LEARNED - count)
            entries, more, cursor = await self._wire.in_thread(OPERATOR.owner, read, body)
            yield entries
            count += more
            if not cursor or count >= MAX_LEARNED:
                return
            params = {"cursor": cursor, **meta}

    # Members ------------------------------------------------------------------------------------------------------

    def _connected(self, member: OfferedMember) -> LiveMember | None:
        live = self._lifecycle.connected(member.pk)
        return None if live is None or live.process.is_over else live  # its status hears of an exit a bit later

    async def _live(self, member: OfferedMember, request: Request) -> LiveMember:
        """The member, as soon as it may be called: it is started if need be (REQ-MCP-HTTP-19)."""
        since, seconds = timezone.now(), request.deadline.seconds
        request.not_sent = late = f"it was not connected within {seconds:g} s"
        look = partial(self._no_use_waiting, member.pk, since, since + timedelta(seconds=seconds))
        while True:
            event = self._changed.setdefault(member.pk, asyncio.Event())
            if (live := self._connected(member)) is not None:
                return live
            reason, last_reason = await self._loop.run_in_executor(None, unit_of_work, look)
            if reason:
                raise unavailable(member.name, reason)
            request.not_sent = late + (f": {last_reason}" if last_reason else "")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AVAILABLE_LOOK):
                    await event.wait()

    def _no_use_waiting(self, member_id: int, since: datetime, deadline: datetime) -> tuple[str, str]:
        """Why not, empty while there is some use; and why a member failed that waits for its restart."""
        self._availability.wish(member_id)
        row = GuildMember.objects.get(pk=member_id)
        last_reason = row.last_reason if row.status == GuildMember.Status.ERROR else ""
        return self._availability.no_use_waiting(row, since, deadline), last_reason

    # Access -------------------------------------------------------------------------------------------------------

    def _watch_access(self) -> None:
        """In a thread of its own: notice when somebody may do other things than before."""
        watch = AccessWatch(self._callers.kept)
        while not self._stopping.wait(watch.seconds):
            try:
                if watch.look():
                    self._soon(self._access_changed)
            except Exception as error:
                if not isinstance(error, Error):  # this thread must not end: it is what tells of revoked tokens
                    logger.exception("the gateway's look at who may do what failed; the next one follows")
                time.sleep(watch.seconds)
        watch.close()
        connection.close()

    def _access_changed(self) -> None:
        self._callers.forget()
        self._stale.set()
        self._looking_again = asyncio.ensure_future(self._listening.look_again(self._callers.principal))


def _page(member: str, kind: str, most: int, body: bytes) -> tuple[list[Entry], int, str]:
    """Of a member's answer with a page of a list: the entries, `most` at most; how many it has; and its cursor.

    Raises ProtocolError, and RemoteError for an error.
    """
    answer = envelope.read_opened(body)
    if (error := answer.remote_error()) is not None:
        raise error
    result = envelope.fields(answer.result)
    parts = envelope.items(result.get(kind))
    entries = []
    for part in parts[:most]:
        with contextlib.suppress(ProtocolError):  # one that is too large costs the member nothing but itself
            definition = envelope.small(part, MAX_ENTRY)
            if isinstance(definition, dict) and (entry := offers.entry(member, kind, definition)) is not None:
                entries.append(entry)
    return entries, len(parts), envelope.text(result.get("nextCursor"))
