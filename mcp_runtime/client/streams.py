"""From a response to the message that answers: a JSON body, or a stream of events that may end early and go on."""

from __future__ import annotations

import reprlib
import threading
from typing import Any

import requests

from mcp_runtime.client import quick_json
from mcp_runtime.client.incoming import Incoming
from mcp_runtime.client.transport import Exchange, Transport, time_left, translated
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ClientError, ConnectError, HttpStatusError, ProtocolError, RemoteError
from mcp_runtime.protocol.jsonrpc import same_id

RETRY_SECONDS = 0.5  # before a stream is gone on with, unless the server says how long
SHORTEST_RETRY = 0.1
READ_BYTES = 65_536
LARGE_ANSWER = 250_000
STREAM_ENDED = "the event stream ended without the answer"


class SessionOverError(HttpStatusError):
    """The server does not know the session any more."""

    def __init__(self, session_id: str, excerpt: str) -> None:
        super().__init__(404, excerpt)
        self.session_id = session_id


class Answers:
    """Of one server; what else comes on their streams is taken in by `incoming`."""

    def __init__(self, transport: Transport, incoming: Incoming) -> None:
        self._transport = transport
        self._incoming = incoming
        self._reading_large = threading.Lock()

    def read(self, response: requests.Response, request_id: int, exchange: Exchange, stream: mcp.EventStream) -> Any:
        """The message that answers `request_id`, from a JSON body or an event stream; None: the stream can go on."""
        kind = kind_of(response)
        if response.status_code == 200 and kind == mcp.EVENT_STREAM:
            message = self.read_stream(response, request_id, exchange, stream)
            if message is None and not can_go_on(stream, exchange):
                raise ProtocolError(STREAM_ENDED)
            return message
        body = self._transport.body(response)
        session_id = response.request.headers.get(mcp.SESSION_HEADER)
        if response.status_code == 404 and session_id:
            raise SessionOverError(str(session_id), jsonrpc.excerpt(body))
        if response.status_code != 200:
            raise _status_error(response.status_code, kind, body)
        if kind != mcp.JSON:
            raise ProtocolError(f"answered with {kind or 'no content type'} instead of JSON: {jsonrpc.excerpt(body)}")
        message = self._decoded(body, exchange)
        if isinstance(message, list):  # 2025-03-26 allows an answer to come as a batch of one
            message = next((part for part in message if _answers(part, request_id)), None)
        if message is None:
            raise ProtocolError("the answer is not a JSON-RPC 2.0 response")
        answered = message.get("id") if isinstance(message, dict) else None
        # An error that came before the id could be read has none.
        is_anonymous_error = isinstance(message, dict) and answered is None and "error" in message
        if isinstance(message, dict) and not is_anonymous_error and not same_id(answered, request_id):
            # What it answers may be the request before on this connection, and our answer is still to come there.
            self._transport.close()
            raise ProtocolError(f"answered request {reprlib.repr(answered)}, but {request_id} was asked")
        return message

    def read_stream(
        self, response: requests.Response, request_id: int | None, exchange: Exchange, stream: mcp.EventStream
    ) -> Any:
        """The message that answers `request_id`; None when the stream ends without it."""
        taken = 0
        while chunk := response.raw.read1(READ_BYTES):
            taken += len(chunk)
            if taken > self._transport.max_bytes:
                raise ProtocolError(f"the answer is larger than {self._transport.max_bytes:,} bytes")
            for data in stream.feed(chunk):
                value = self._decoded(data, exchange)
                for message in value if isinstance(value, list) else [value]:
                    exchange.require_time()
                    if _answers(message, request_id):
                        return message
                    self._incoming.take_in(message, exchange)
        return None

    def go_on(self, request_id: int, timeout: float, exchange: Exchange, stream: mcp.EventStream) -> Any:
        """The rest of a stream that ended early, from the server that gave its events ids (25-11: basic/transports).

        Raises ConnectError when nobody listens any more: then there is nothing to go on with.
        """
        wait = RETRY_SECONDS if stream.retry_ms is None else max(stream.retry_ms / 1000, SHORTEST_RETRY)
        with translated(timeout, exchange, self._transport.headers.secrets):
            exchange.pause(wait)
        # A header is sent as Latin-1: so its bytes are those of UTF-8.
        last = stream.last_event_id.encode().decode("latin-1")
        headers = {"Accept": mcp.EVENT_STREAM, mcp.LAST_EVENT_HEADER: last}
        stream.go_on()
        try:
            with self._transport.send("GET", time_left(exchange.deadline), exchange, headers) as response:
                if response.status_code != 200 or kind_of(response) != mcp.EVENT_STREAM:
                    raise ProtocolError(STREAM_ENDED)
                return self.read_stream(response, request_id, exchange, stream)
        except ConnectError as error:
            if error.is_refusal:
                raise
        return None

    def _decoded(self, data: bytes, exchange: Exchange) -> Any:
        """Large answers of one member are read one after the other: as objects each takes ten times its bytes, and it
        holds the interpreter for tens of milliseconds. Waiting for that ends at the deadline.
        """
        if len(data) <= LARGE_ANSWER:
            return quick_json.decode(data)
        while not self._reading_large.acquire(timeout=0.05):
            exchange.require_time()
        try:
            return quick_json.decode(data)
        finally:
            self._reading_large.release()


def kind_of(response: requests.Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def can_go_on(stream: mcp.EventStream, exchange: Exchange) -> bool:
    return bool(stream.last_event_id) and not exchange.session.is_modern


def _answers(message: Any, request_id: int | None) -> bool:
    return (
        isinstance(message, dict)
        and "method" not in message
        and request_id is not None
        and same_id(message.get("id"), request_id)
    )


def _status_error(status: int, kind: str, body: bytes) -> ClientError:
    """A JSON-RPC error object under an HTTP error status is the better explanation."""
    if kind == mcp.JSON:
        try:
            jsonrpc.result_of(jsonrpc.decode(body))
        except RemoteError as error:
            return error
        except ProtocolError:
            pass
    return HttpStatusError(status, jsonrpc.excerpt(body) if body else "")
