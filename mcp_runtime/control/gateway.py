"""Requests of people to members. The web and commands send them to the gateway, as an agent does.

So the same code decides what a person and what an agent may use, starts the member, finds its node, and limits the
request. The request has a pass of the user or the token in place of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from django.conf import settings

from mcp_runtime.client import remote
from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.http1 import listeners
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    ErrorKind,
    ExtraDisabledError,
    ExtraHeldError,
    GatewayUnavailableError,
    McpRuntimeError,
    MemberFailedError,
    NotAllowedError,
    RemoteError,
    TooManyCallsError,
)
from mcp_runtime.protocol.jsonrpc import object_of
from mcp_runtime.rows.database import give_connection_back
from mcp_runtime.secrets.references import Resolved
from mcp_runtime.security import passes
from mcp_runtime.security.access import Principal
from roster.models import GuildMember

if TYPE_CHECKING:
    from mcp_runtime.client.client import JsonRpcClient
    from mcp_runtime.client.exchanges import Exchange

OVERHEAD_BYTES = 200_000  # of an answer, beside the result
# The gateway accepts each of its addresses only by a name of this machine. A pass says more than a name.
HOST = "127.0.0.1"
# What MCP adds for clients that keep results.
OF_THE_PROTOCOL = ("resultType", "ttlMs", "cacheScope")


def ask(principal: Principal, row: GuildMember, method: str, params: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the result of one request to the member, within so many seconds.

    Raises GatewayUnavailableError, MemberFailedError, AccessError, ExtraHeldError and ExtraDisabledError.
    """
    way = way_to(principal, row, seconds)
    result = _at_gateway(way, row.name, lambda client: client.call(method, params, seconds))
    return {key: value for key, value in result.items() if key not in OF_THE_PROTOCOL}


def listen(
    way: Way,
    member: str,
    uri: str,
    exchange: Exchange,
    seconds: float,
    on_message: Callable[[str, dict[str, Any]], None],
) -> None:
    """Pass the member's notifications about a resource on, until nobody extends the deadline of the exchange.

    The first one is `notifications/subscriptions/acknowledged`. Makes no query, so any thread may call it. Raises the
    same errors as `ask`.
    """
    subscriptions = {"resourceSubscriptions": [uri]}
    _at_gateway(way, member, lambda client: client.listen(exchange, seconds, subscriptions), on_message)


@dataclass(frozen=True)
class Way:
    """The addresses of a member at gateways, the best one first, and the header Authorization for them."""

    urls: tuple[str, ...]
    authorization: str = field(repr=False)


def way_to(principal: Principal, row: GuildMember, seconds: float) -> Way:
    """Return the way for requests that begin within so many seconds. Raises GatewayUnavailableError.

    The gateway on this machine is the best, then that of the node with the member, which forwards nothing.
    """
    liveness = read_liveness()
    nodes = [liveness.nodes[pk] for pk in sorted(liveness.live_ids, key=lambda pk: (pk != row.node_id, pk))]
    if not nodes:
        raise GatewayUnavailableError("No runtime is alive, so nobody can ask members. Start one with: guildhall up")
    bases = [node.url for node in nodes if node.url and not _fault(node.url)]
    if any(node.name == settings.GUILD_HALL_NODE for node in nodes):
        own = listeners.own_address(settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT)
        bases.insert(0, f"http://{own}")
    if not bases:
        reasons = {_fault(node.url) if node.url else "GUILD_HALL_NODE_URL is not set there" for node in nodes}
        raise GatewayUnavailableError(f"No gateway can be reached from here: {'; '.join(sorted(reasons))}.")
    path = f"/mcp/{quote(row.name, safe='')}"
    return Way(tuple(f"{base}{path}" for base in bases), passes.authorization(principal, seconds))


def _fault(url: str) -> str:
    return remote.plain_http_fault(url, settings.GUILD_HALL_PLAIN_HTTP_HOSTS)


Result = TypeVar("Result")


def _at_gateway(
    way: Way,
    member: str,
    work: Callable[[JsonRpcClient], Result],
    on_message: Callable[[str, dict[str, Any]], None] = lambda method, params: None,
) -> Result:
    """Do the work with a client of the first gateway that accepts the connection."""
    # Megabytes that only this needs.
    from mcp_runtime.client.client import JsonRpcClient
    from mcp_runtime.client.exchanges import Session

    give_connection_back()  # a member may take long
    refusals: list[str] = []
    headers = Resolved({"Authorization": way.authorization, "Host": HOST})
    for url in way.urls:
        client = JsonRpcClient(
            url,
            connections=1,
            max_bytes=settings.GUILD_HALL_MAX_RESULT_BYTES + OVERHEAD_BYTES,
            headers=headers,
            ca=settings.GUILD_HALL_NODE_CA if url.startswith("https:") else None,
            on_notification=on_message,
        )
        client.session = Session(mcp.MODERN_VERSION)
        try:
            return work(client)
        except ConnectError as error:
            if error.was_sent:
                raise MemberFailedError(ErrorKind.TRANSPORT, f"the gateway did not answer: {error}") from error
            refusals.append(f"{url.partition('/mcp/')[0]}: {error}")
        except RemoteError as error:
            raise _refusal(error) from error
        except ClientError as error:
            raise MemberFailedError(error.kind, f"member {member!r}: {error}") from error
        finally:
            client.close()
    raise GatewayUnavailableError(f"The gateway cannot be reached ({'; '.join(refusals)}).")


def _refusal(error: RemoteError) -> McpRuntimeError:
    """The error of the gateway or of the member. Those of the gateway say their kind."""
    data = object_of(error.data)
    kind = data.get("kind")
    if kind == "held":
        return ExtraHeldError(error.message)
    if kind == "disabled":
        return ExtraDisabledError(error.message)
    if kind == "forbidden":
        return NotAllowedError(error.message)
    if kind == "limit":
        seconds = data.get("retryAfter")
        return TooManyCallsError(error.message, float(seconds) if isinstance(seconds, (int, float)) else 1.0)
    kinds = [*ErrorKind]
    return MemberFailedError(
        kinds[kinds.index(kind)] if kind in kinds else ErrorKind.PROTOCOL, error.message, error.code
    )
