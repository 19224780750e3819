"""Reads the answer to a request from a response: a JSON body, or an event stream that may break off and be resumed."""

from __future__ import annotations

import reprlib
import threading
from typing import Any

import requests

from mcp_runtime.client import quick_json
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.client.incoming import Incoming
from mcp_runtime.client.transport import Transport, time_left, translate_errors
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    ChallengeError,
    ClientError,
    ConnectError,
    HttpStatusError,
    ProtocolError,
    RemoteError,
)
from mcp_runtime.protocol.jsonrpc import same_id

RETRY_SECONDS = 0.5  # before a stream is resumed, unless the server sets the time
SHORTEST_RETRY = 0.1
READ_BYTES = 65_536
LARGE_ANSWER = 250_000
STREAM_ENDED = "the event stream ended without the answer"


class SessionExpiredError(HttpStatusError):
    """The server does not have the session any more."""

    def __init__(self, session_id: str, excerpt: str) -> None:
        super().__init__(404, excerpt)
        self.session_id = session_id


def challenge_of(response: requests.Response, excerpt: str = "") -> ChallengeError | None:
    """The error of an answer that asks for other credentials. None for any other answer."""
    challenge = response.headers.get("WWW-Authenticate")
    if challenge is None or response.status_code not in (401, 403):
        return None
    return ChallengeError(response.status_code, excerpt, str(challenge))


class AnswerReader:
    """Reads the answers of one server. Other messages on its streams go to `incoming`."""

    def __init__(self, transport: Transport, incoming: Incoming) -> None:
        self._transport = transport
        self._incoming = incoming
        self._large_answer_lock = threading.Lock()

    def read(self, response: requests.Response, request_id: int, exchange: Exchange, stream: mcp.EventStream) -> Any:
        """The answer to `request_id`. None if the event stream ended before it and can be resumed."""
        kind = content_type(response)
        if response.status_code == 200 and kind == mcp.EVENT_STREAM:
            message = self.read_stream(response, request_id, exchange, stream)
            if message is None and not can_resume(stream, exchange):
                raise ProtocolError(STREAM_ENDED)
            return message
        body = self._transport.read_body(response)
        session_id = response.request.headers.get(mcp.SESSION_HEADER)
        if response.status_code == 404 and session_id:
            raise SessionExpiredError(str(session_id), jsonrpc.excerpt(body))
        if response.status_code != 200:
            raise challenge_of(response, jsonrpc.excerpt(body)) or _status_error(response.status_code, kind, body)
        if kind != mcp.JSON:
            raise ProtocolError(
                f"answered with {kind[:100] or 'no content type'} instead of JSON: {jsonrpc.excerpt(body)}"
            )
        message = self._decode(body, exchange)
        if isinstance(message, list):  # 2025-03-26 allows an answer as a batch of one
            message = next((part for part in message if _is_answer(part, request_id)), None)
        if message is None:
            raise ProtocolError("the answer is not a JSON-RPC 2.0 response")
        if isinstance(message, dict) and "jsonrpc" not in message:
            raise ProtocolError("the answer is not a JSON-RPC 2.0 response")
        answer_id = message.get("id") if isinstance(message, dict) else None
        # An error has no id if the server could not read the id of the request.
        is_anonymous_error = isinstance(message, dict) and answer_id is None and "error" in message
        if isinstance(message, dict) and not is_anonymous_error and not same_id(answer_id, request_id):
            # It may answer the previous request on this connection. Then our answer is still to come there.
            self._transport.close()
            raise ProtocolError(f"answered request {reprlib.repr(answer_id)}, but {request_id} was asked")
        return message

    def read_stream(
        self, response: requests.Response, request_id: int | None, exchange: Exchange, stream: mcp.EventStream
    ) -> Any:
        """The answer to `request_id`. None if the stream ends without it."""
        size = 0
        while chunk := response.raw.read1(READ_BYTES):
            size += len(chunk)
            if size > self._transport.max_bytes:
                raise ProtocolError(f"the response is larger than {self._transport.max_bytes:,} bytes")
            for data in stream.feed(chunk):
                value = self._decode(data, exchange)
                for message in value if isinstance(value, list) else [value]:
                    exchange.require_active()
                    if _is_answer(message, request_id):
                        return message
                    self._incoming.handle(message, exchange)
        return None

    def resume(self, request_id: int, timeout: float, exchange: Exchange, stream: mcp.EventStream) -> Any:
        """Read the rest of a stream that broke off. Its events have ids (2025-11-25: basic/transports).

        Raises ConnectError if the server refuses connections, because then nothing can be resumed.
        """
        wait = RETRY_SECONDS if stream.retry_ms is None else max(stream.retry_ms / 1000, SHORTEST_RETRY)
        with translate_errors(timeout, exchange, self._transport.secrets):
            exchange.pause(wait)
        # A header is sent as Latin-1. This way its bytes are those of UTF-8.
        last_id = stream.last_event_id.encode().decode("latin-1")
        headers = {"Accept": mcp.EVENT_STREAM, mcp.LAST_EVENT_HEADER: last_id}
        stream.go_on()
        try:
            with self._transport.send("GET", time_left(exchange.deadline), exchange, headers) as response:
                if response.status_code != 200 or content_type(response) != mcp.EVENT_STREAM:
                    raise ProtocolError(STREAM_ENDED)
                return self.read_stream(response, request_id, exchange, stream)
        except ConnectError as error:
            if error.is_refusal:
                raise
        return None

    def _decode(self, data: bytes, exchange: Exchange) -> Any:
        """Decode large answers of one member one after the other.

        As objects an answer takes ten times its bytes, and decoding blocks the interpreter for tens of milliseconds.
        The wait ends at the deadline.
        """
        if len(data) <= LARGE_ANSWER:
            return quick_json.decode(data)
        while not self._large_answer_lock.acquire(timeout=0.05):
            exchange.require_active()
        try:
            return quick_json.decode(data)
        finally:
            self._large_answer_lock.release()


def content_type(response: requests.Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def can_resume(stream: mcp.EventStream, exchange: Exchange) -> bool:
    return bool(stream.last_event_id) and not exchange.session.is_modern


def _is_answer(message: Any, request_id: int | None) -> bool:
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
