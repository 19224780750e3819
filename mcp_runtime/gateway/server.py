"""The gateway as a part of the runtime: its thread, its event loop, and the objects on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from django.db import Error, connection

from mcp_runtime.gateway import hop_seals
from mcp_runtime.gateway.app import App
from mcp_runtime.gateway.auth import AccessWatch, Principals
from mcp_runtime.gateway.awaited_sign_ins import AwaitedSignIns
from mcp_runtime.gateway.call_log import Recorder
from mcp_runtime.gateway.client_sessions import Sessions
from mcp_runtime.gateway.endpoints.answers import Rewriting
from mcp_runtime.gateway.endpoints.introductions import Introductions
from mcp_runtime.gateway.endpoints.member import MemberEndpoints
from mcp_runtime.gateway.endpoints.roster import RosterEndpoints
from mcp_runtime.gateway.endpoints.routing import Endpoints
from mcp_runtime.gateway.endpoints.search import SearchTools
from mcp_runtime.gateway.endpoints.tools import ToolCalls
from mcp_runtime.gateway.events.door import EventsDoor
from mcp_runtime.gateway.events.feed import Feed
from mcp_runtime.gateway.extras_loader import ExtrasLoader
from mcp_runtime.gateway.forwarding import Forwarding
from mcp_runtime.gateway.holds import Holds
from mcp_runtime.gateway.hop import Hop
from mcp_runtime.gateway.hop_entry import CHANGED, HopEntry
from mcp_runtime.gateway.hop_logs import HopLogs
from mcp_runtime.gateway.hop_seals import Seals
from mcp_runtime.gateway.intake import Intake
from mcp_runtime.gateway.legacy import SessionClients
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import ClientSession
from mcp_runtime.gateway.modern import ModernClients
from mcp_runtime.gateway.peers import Peer, Peers
from mcp_runtime.gateway.responder import Responder
from mcp_runtime.gateway.searcher import Searcher
from mcp_runtime.gateway.session_streams import SessionStreams
from mcp_runtime.gateway.shares import Shares
from mcp_runtime.gateway.streams.client_streams import ClientStreams
from mcp_runtime.gateway.streams.resumable import ResumableStreams
from mcp_runtime.gateway.upstream.answer_streams import AnswerStreams
from mcp_runtime.gateway.upstream.modern import ModernMembers
from mcp_runtime.gateway.upstream.questions import Questions
from mcp_runtime.gateway.upstream.relay import Relay
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSessions
from mcp_runtime.http1.listeners import Sockets
from mcp_runtime.http1.server import HttpServer
from mcp_runtime.members.availability import Availability
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.security.origins import Origins

logger = logging.getLogger("guildhall.gateway")

START_SECONDS = 10.0
STOP_SECONDS = 1.0
# For clients that are just sending: they get a response, and the notice that the connection closes.
STOP_LISTENING_SECONDS = 0.1
CHANGES_SECONDS = 0.2  # between two notes to other nodes that members have changed
RESTART_SECONDS = 10.0  # for the next runtime of a node to refuse the requests that were for the last one
SESSIONS_SECONDS = 1.0  # between two looks at the sessions that ended at other nodes


@dataclass(frozen=True)
class Options:
    """Settings of the operator."""

    allowed_hosts: list[str]
    trusted_origins: list[str]
    max_bytes: int
    record_bytes: int
    data_dir: Path
    secret_key: str  # for requests between nodes
    plain_http_hosts: list[str] = field(default_factory=list)
    certificate: Path | None = None  # with its key, for the socket on which other nodes connect
    ca: Path | None = None  # trusted by this node when it connects to others


class Gateway:
    """The gateway. The runtime's threads call `member_changed` and `lists_changed`."""

    def __init__(
        self,
        *,
        lifecycle: Lifecycle,
        sockets: Sockets,
        options: Options,
        wake_supervisor: Callable[[], None],
    ) -> None:
        self._lifecycle = lifecycle
        self._sockets = sockets
        self._options = options
        self._wake_supervisor = wake_supervisor
        self.loop = uvloop.new_event_loop()
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._recorder = Recorder(max_bytes=options.record_bytes)
        self._principals = Principals()

    # From the runtime's threads -----------------------------------------------------------------------------------

    def start(self) -> None:
        self._recorder.start()
        self._thread.start()
        self._ready.wait(START_SECONDS)
        threading.Thread(target=self._watch_access, name="gateway-access", daemon=True).start()

    def member_changed(self, member_id: int) -> None:
        """Handle a change of the member's status or tools."""
        self._call_soon(self._on_member_changed, member_id)

    def lists_changed(self, member_id: int) -> None:
        """Handle the member's notification that its prompts or resources changed."""
        self._call_soon(self._on_lists_changed, member_id)

    def stop_accepting(self) -> None:
        """Accept no new calls. Calls in progress continue, and get their responses. It takes STOP_LISTENING_SECONDS.

        New connections wait in the listening sockets for the next runtime, if `manage.py up` keeps the sockets open.
        """
        if self._ready.is_set():
            with contextlib.suppress(RuntimeError, TimeoutError):  # the event loop has ended or is busy
                asyncio.run_coroutine_threadsafe(self._stop_accepting(), self.loop).result(2 * STOP_LISTENING_SECONDS)
        self._stopping.set()

    def stop(self) -> None:
        """End the gateway, and write the last calls."""
        self._stopping.set()
        if self._thread.is_alive():
            self._call_soon(self._shut_down)
            self._thread.join(2 * STOP_SECONDS)
        self._recorder.stop()

    def _call_soon(self, work: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self.loop.call_soon_threadsafe(work, *args)

    # The loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        except Exception:
            logger.exception("the gateway ended")
        finally:
            unfinished = asyncio.all_tasks(self.loop)
            for task in unfinished:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*unfinished, return_exceptions=True))
            self.loop.close()

    async def _stop_accepting(self) -> None:
        self._server.stop_listening()
        self._hop_server.stop_listening()
        await asyncio.sleep(STOP_LISTENING_SECONDS)
        self._server.close_idle()
        self._hop_server.close_idle()

    async def _serve(self) -> None:
        self._make_servers()
        self._closing = asyncio.Event()
        self._has_changed = asyncio.Event()
        await self._members.reload()
        background_tasks = [
            asyncio.ensure_future(self._members.reload_regularly()),
            asyncio.ensure_future(self.peers.look_regularly()),
            asyncio.ensure_future(self._tell_peers_of_changes()),
            asyncio.ensure_future(self._shares.give_back_regularly()),
            asyncio.ensure_future(self._shares.reduce_regularly()),
            asyncio.ensure_future(self._end_sessions_regularly()),
            asyncio.ensure_future(self._feed.look_regularly()),
        ]
        self.loop.call_soon(self._ready.set)
        try:
            await self._hop_server.start(self._sockets.nodes, _tls_context(self._options.certificate))
            await self._server.start(self._sockets.clients)
            await self._closing.wait()
        finally:
            await asyncio.gather(self._server.stop(STOP_SECONDS), self._hop_server.stop(STOP_SECONDS))
            await self.resumable.wait_closed(STOP_SECONDS / 4)
            await self._upstream_sessions.background.close(STOP_SECONDS / 4)
            for task in background_tasks:
                task.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS / 4):
                    await self._shares.give_back()
            self._upstream.close()
            self._hop.close()

    def _make_servers(self) -> None:
        """Create the servers for clients and for other nodes, and the objects that send requests to members."""
        options, own_lease = self._options, self._lifecycle.lease_id
        self._upstream = upstream = Upstream(self._lifecycle, max_bytes=options.max_bytes)
        self._upstream_sessions = upstream_sessions = UpstreamSessions(upstream)
        self.peers = peers = Peers(own_lease)
        self._shares = Shares(peers)
        self._hop = hop = Hop(own_lease, hop_seals.key_of(options.secret_key), options.plain_http_hosts, options.ca)
        self._members = members = Members(self._lifecycle, Availability(self._lifecycle, self._wake_supervisor), peers)
        self._holds = holds = Holds(members)
        modern, questions = ModernMembers(upstream, upstream_sessions), Questions(upstream, upstream_sessions)
        answer_streams = AnswerStreams(upstream, upstream_sessions, questions)
        relay = Relay(upstream, upstream_sessions, members, holds, modern, answer_streams)
        self._extras_loader = ExtrasLoader(self._lifecycle, upstream, relay, self._load_changed_lists)
        holds.until_listed = self._extras_loader.until_listed
        self.client_streams = ClientStreams(
            upstream, upstream_sessions, modern, questions, members, hop, self._principals.principal
        )
        self._awaited_sign_ins = AwaitedSignIns()
        self.resumable = ResumableStreams()
        self._feed = Feed()
        self._sessions = Sessions(self._on_session_drop)
        app = self._app(upstream, upstream_sessions, questions, relay)
        self._server = HttpServer(app)
        self._seals = seals = Seals(hop_seals.key_of(options.secret_key))
        serve_forwarded = partial(app, is_forwarded=True)
        serve_log = HopLogs(own_lease.hex, options.data_dir)
        entry = HopEntry(own_lease, seals, peers, serve_forwarded, app, serve_log, members.reload_soon)
        self._hop_server = HttpServer(entry)
        peers.on_change = self._on_peers_changed
        members.on_reload = self.client_streams.roster_changed

    def _on_session_drop(self, session: ClientSession) -> None:
        self.resumable.give_up_all(session)
        self._awaited_sign_ins.forget(session)
        self._upstream_sessions.close_sessions_of(session)

    def _app(self, upstream: Upstream, upstream_sessions: UpstreamSessions, questions: Questions, relay: Relay) -> App:
        """Create the objects that answer clients, on top of those that send requests to members."""
        members, sessions, holds = self._members, self._sessions, self._holds
        intake, rewriting = Intake(self._shares), Rewriting(upstream)
        introductions = Introductions(members, upstream, upstream_sessions, self._recorder.programs)
        tools = ToolCalls(members, relay, self._recorder, rewriting)
        endpoints = Endpoints(
            upstream_sessions,
            members,
            introductions,
            tools,
            SearchTools(members, Searcher(), tools),
            RosterEndpoints(members, holds, relay, rewriting),
            MemberEndpoints(members, holds, upstream, relay, rewriting),
        )
        self._forwarding = forwarding = Forwarding(self._hop, members)
        responder = Responder(endpoints, self.resumable, forwarding, self._awaited_sign_ins)
        streams = SessionStreams(
            self._principals, self.client_streams, upstream_sessions, questions, responder, members, forwarding
        )
        legacy = SessionClients(intake, sessions, introductions, upstream_sessions, responder, streams, forwarding)
        return App(
            principals=self._principals,
            origins=Origins(self._options.allowed_hosts, self._options.trusted_origins),
            intake=intake,
            sessions=sessions,
            members=members,
            legacy=legacy,
            modern=ModernClients(introductions, self.client_streams, responder),
            events=EventsDoor(self._principals, self._feed, self._stopping.is_set),
            is_stopping=self._stopping.is_set,
        )

    def _on_peers_changed(self, gone: list[Peer]) -> None:
        urls = {peer.url for peer in self.peers.by_lease.values()}
        for peer in gone:
            if peer.url in urls:
                # The next runtime of this node soon answers the requests that wait at its socket for the last one.
                self.loop.call_later(RESTART_SECONDS, self._hop.drop, peer)
            else:
                self._hop.drop(peer)
        self._seals.keep_only(self.peers.by_lease)
        self.client_streams.peers_changed()

    def _shut_down(self) -> None:
        self.client_streams.close()
        self._feed.close()
        self.resumable.close()
        self._closing.set()

    async def _tell_peers_of_changes(self) -> None:
        """Let other nodes load the roster again soon after a member of this node has changed."""
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            await self._hop.tell_all(self.peers.reachable.values(), "POST", CHANGED, {})
            await asyncio.sleep(CHANGES_SECONDS)

    async def _load_changed_lists(self) -> None:
        self._has_changed.set()
        await self._members.reload()
        self._members.reload_soon()  # another load, which began before, may end after this one

    def _on_member_changed(self, member_id: int) -> None:
        self._members.member_changed(member_id)
        self._has_changed.set()
        self.client_streams.member_changed()
        self._extras_loader.member_changed(member_id)

    def _on_lists_changed(self, member_id: int) -> None:
        self._extras_loader.lists_changed(member_id)

    async def _end_sessions_regularly(self) -> None:
        """Notice the sessions that clients have ended at other nodes."""
        while True:
            await asyncio.sleep(SESSIONS_SECONDS)
            if self.peers.are_several:
                await self._sessions.end_those_ended_elsewhere()

    # Access -------------------------------------------------------------------------------------------------------

    def _watch_access(self) -> None:
        """Notice changes of permissions, and sign-ins that clients wait for. This runs in its own thread."""
        watch = AccessWatch(self._principals.cached_principals)
        while not self._stopping.wait(watch.seconds):
            try:
                if watch.look():
                    self._call_soon(self._access_changed)
                if done := self._awaited_sign_ins.look():
                    self._call_soon(self._awaited_sign_ins.finish, done)
            except Exception as error:
                if not isinstance(error, Error):  # this thread must not end: it notices revoked tokens
                    logger.exception("the gateway could not check for changed permissions; it will try again")
                time.sleep(watch.seconds)
        watch.close()
        connection.close()

    def _access_changed(self) -> None:
        self._principals.forget()
        self._members.reload_soon()
        updates = (self.client_streams.access_changed(), self._feed.access_changed(self._principals.principal))
        self._access_tasks = [asyncio.ensure_future(update) for update in updates]


def _tls_context(certificate: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate)
    return context
