"""Receive requests of other nodes, and of the web on other machines, on a socket of their own.

Only this hall gets in: a node has a seal, and the web a pass.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable

from mcp_runtime.gateway import hop_seals
from mcp_runtime.gateway.hop import MISDIRECTED
from mcp_runtime.gateway.hop_logs import PREFIX
from mcp_runtime.gateway.hop_seals import SealError, Seals
from mcp_runtime.gateway.intake import MAX_TOTAL_BODY_BYTES, read_body
from mcp_runtime.gateway.peers import Peers
from mcp_runtime.gateway.replies import JSON_HEADERS, Refusal
from mcp_runtime.http1.client import HALL_OWNER
from mcp_runtime.http1.server import ClientDisconnectedError, HttpExchange
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR
from mcp_runtime.security import passes
from mcp_runtime.security.limits import BudgetError, ByteBudget

logger = logging.getLogger("guildhall.gateway")

CHANGED = b"/changed"  # the address of the note that the lists of a member have changed


class HopEntry:
    """Answers the requests of other nodes with `serve`, after their seals were checked.

    `serve_client` answers those with a pass, and checks it as it checks a token.
    """

    def __init__(
        self,
        own_lease: uuid.UUID,
        seals: Seals,
        peers: Peers,
        serve: Callable[[HttpExchange], Awaitable[None]],
        serve_client: Callable[[HttpExchange], Awaitable[None]],
        serve_log: Callable[[HttpExchange], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self._own_lease = own_lease.hex
        self._seals = seals
        self._peers = peers
        self._serve = serve
        self._serve_client = serve_client
        self._serve_log = serve_log
        self._on_change = on_change
        # Bodies of requests whose seal is not checked yet.
        self._bytes = ByteBudget(
            of_token=MAX_TOTAL_BODY_BYTES, of_user=MAX_TOTAL_BODY_BYTES, in_all=MAX_TOTAL_BODY_BYTES
        )

    async def __call__(self, exchange: HttpExchange) -> None:
        try:
            if exchange.verb == "GET" and exchange.path.startswith(PREFIX):
                await self._serve_log(exchange)
                return
            if _has_pass(exchange):
                await self._serve_client(exchange)
                return
            await self._check(exchange)
        except Refusal as refusal:
            exchange.reply(refusal.status, refusal.body, JSON_HEADERS)
        except ClientDisconnectedError:
            pass
        else:
            if exchange.target == CHANGED:
                self._on_change()
                exchange.reply(204)
            else:
                await self._serve(exchange)

    async def _check(self, exchange: HttpExchange) -> None:
        """Check the seal. Raise Refusal. The sender may send a refused request again, because nothing acted on it."""
        sender = hop_seals.sender_of(exchange.headers.get(hop_seals.HEADER.encode(), b"").decode("latin-1"))
        if sender not in self._peers.by_lease:
            await self._peers.look()  # it may have started a moment ago
        if sender not in self._peers.by_lease:
            raise _refusal("no node that runs now has this seal")
        body = await self._read(exchange)
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in exchange.headers.items()
            if name.decode("latin-1") not in hop_seals.OF_THE_CONNECTION
        }
        own = self._own_lease
        request = hop_seals.Request(sender, own, exchange.verb, exchange.target, headers, body)
        try:
            self._seals.open(request)
        except SealError as error:
            logger.warning("refused a request of %s to the address for other nodes: %s", exchange.address[0], error)
            raise _refusal(str(error)) from error
        exchange.put_back(body)

    async def _read(self, exchange: HttpExchange) -> bytes:
        reserved_bytes = 0

        def reserve(size: int) -> None:
            nonlocal reserved_bytes
            try:
                self._bytes.take(HALL_OWNER, size - reserved_bytes)
            except BudgetError as error:
                raise _refusal(f"too many bytes of forwarded requests: {error}") from None
            reserved_bytes = size

        try:
            return await read_body(exchange, reserve)
        finally:
            self._bytes.give_back(HALL_OWNER, reserved_bytes)


def _has_pass(exchange: HttpExchange) -> bool:
    """Whether it is a request of the web or a command. Requests that a node forwards for them have a seal too."""
    scheme = exchange.headers.get(b"authorization", b"").partition(b" ")[0].decode("latin-1")
    return scheme.lower() == passes.SCHEME and hop_seals.HEADER.encode() not in exchange.headers


def _refusal(text: str) -> Refusal:
    return Refusal(MISDIRECTED, MethodError(INTERNAL_ERROR, text))
