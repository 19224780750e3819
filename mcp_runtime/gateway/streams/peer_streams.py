"""Listen to the streams of other nodes, for the streams of clients of this one.

Each node opens a stream for the client as if the client had asked it. It has only the messages of its own members.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.hop import Hop, forwarded_headers
from mcp_runtime.gateway.peers import Peer
from mcp_runtime.gateway.streams.open_stream import OpenStream
from mcp_runtime.http1.client import Response
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ClientError, HttpStatusError, ProtocolError

logger = logging.getLogger("guildhall.gateway")

AGAIN_SECONDS = 1.0  # before the stream is opened again after its end
MAX_AGAIN_SECONDS = 16.0  # the same, after failures in a row
SILENCE_SECONDS = 60.0  # a node sends a comment every 15 s
OPEN_SECONDS = 5.0


class PeerStreams:
    """Copies the messages on streams of other nodes."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop

    async def follow(self, stream: OpenStream, peer: Peer) -> None:
        """Listen to the node until the task is cancelled, because the stream was closed or the node is gone."""
        pause = AGAIN_SECONDS
        while True:
            try:
                await self._listen(stream, peer)
                pause = AGAIN_SECONDS
            except (ClientError, TimeoutError) as error:
                if pause == AGAIN_SECONDS:
                    logger.info("a stream gets no messages from node %r now: %s", peer.name, error)
                pause = min(2 * pause, MAX_AGAIN_SECONDS)
            except Exception:
                logger.exception("messages of node %r could not be forwarded; the gateway tries it again", peer.name)
            stream.ready[peer.lease].set()
            await asyncio.sleep(pause)

    async def _listen(self, stream: OpenStream, peer: Peer) -> None:
        exchange = stream.exchange
        body = None if stream.message is None else envelope.encode(stream.message)
        async with asyncio.timeout(OPEN_SECONDS):
            headers = forwarded_headers(exchange.headers)
            headers.pop(mcp.LAST_EVENT_HEADER.lower(), None)
            response = await self._hop.send(peer, exchange.verb, exchange.target, headers, body)
        try:
            if response.status != 200 or response.content_type != mcp.EVENT_STREAM:
                raise HttpStatusError(response.status)
            if stream.message is None:
                stream.ready[peer.lease].set()
            await self._copy(response, stream, peer)
        finally:
            response.close()

    @staticmethod
    async def _copy(response: Response, stream: OpenStream, peer: Peer) -> None:
        events, parts = mcp.EventStream(), response.chunks()
        async with contextlib.aclosing(parts):
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    part = await anext(parts, None)
                if part is None:
                    return
                for data in events.feed(part):
                    if data and _is_for_client(stream, peer, data):
                        stream.outbox.put(data, events.last_event_id)
                del part


def _is_for_client(stream: OpenStream, peer: Peer, data: bytes) -> bool:
    """Return whether the client gets the message. Of a modern client's stream, this node sends the two ends itself."""
    if stream.message is None:
        return True
    try:
        message = envelope.read_opened(data)
    except ProtocolError:
        return False
    if message.method == "notifications/subscriptions/acknowledged":
        stream.ready[peer.lease].set()
        return False
    return not message.is_response
