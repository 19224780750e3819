"""Clients of three kinds that call during the storm. Each writes the outcome of each call to its own ledger."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.attack.client import Client, Reply
from tests.storm.hall import CALL_SECONDS, CLIENTS, StormHall
from tests.storm.ledger import BROKEN, GONE, REFUSED, SILENT, CallRecord, Ledger

SOURCES = ("rest", "session", "modern")
# Seconds that a client waits: the deadline of the call, and time for a restart of the hall on a busy machine.
PATIENCE = CALL_SECONDS + 30.0
WAIT = 5  # seconds, in Prefer
RETRY_SECONDS = 0.2  # before a request without a response is repeated
FINISHED = ("succeeded", "failed", "cancelled")


class Call:
    """One running call. `end()` returns the record for the ledger."""

    def __init__(self, key: str, member: str, source: str) -> None:
        self.key, self.member, self.source = key, member, source
        self.called_at = time.monotonic()

    def end(self, end: str, **values: Any) -> CallRecord:
        return CallRecord(self.key, self.member, self.source, self.called_at, time.monotonic(), end, **values)


# REST -----------------------------------------------------------------------------------------------------------------


def over_rest(client: Client, call: Call, stop_event: threading.Event) -> CallRecord:
    """Call with an idempotency key, so that a repeated request is safe. Then read its address until the call ends.

    If the storm ends first, the call stays unfinished, because `settle` reads its outcome later.
    """
    path = f"/api/members/{call.member}/tools/effect/invoke/"
    url, refusal, deadline = "", "", call.called_at + PATIENCE
    while time.monotonic() < deadline and not (stop_event.is_set() and url):
        try:
            if url:
                reply = client.rest("GET", url, Prefer=f"wait={WAIT}")
            else:
                headers = {"Idempotency-Key": call.key, "Prefer": f"wait={WAIT}"}
                reply = client.rest("POST", path, {"arguments": {"key": call.key}}, **headers)
        except (OSError, http.client.HTTPException):
            stop_event.wait(RETRY_SECONDS)
            continue
        if reply.status in (200, 202):
            row = json.loads(reply.body)
            url, refusal = row["url"], ""
            if row["status"] in FINISHED:
                return record_of_row(call, row)
        elif url and reply.status == 404:
            return call.end(GONE, kind="404", url=url)
        elif reply.status < 500 and reply.status != 429:
            return call.end(REFUSED, kind=str(reply.status), text=reply.body.decode()[:200], url=url)
        else:
            refusal = str(reply.status)
            stop_event.wait(RETRY_SECONDS)
    if url:
        return call.end(SILENT, url=url)
    return call.end(REFUSED, kind=refusal) if refusal else call.end(BROKEN)


def record_of_row(call: Call, row: dict[str, Any]) -> CallRecord:
    return call.end(
        row["status"], kind=(row["error"] or {}).get("kind", ""), text=text_of(row["result"]), url=row["url"]
    )


def text_of(result: Any) -> str:
    """The text of a tool's result."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        return str(result["content"][0]["text"])
    return ""


# Gateway --------------------------------------------------------------------------------------------------------------


def with_session(client: Client, call: Call, stop_event: threading.Event) -> CallRecord:
    try:
        if "Mcp-Session-Id" not in client.headers:
            client.begin()
    except TimeoutError:
        return call.end(SILENT, kind="initialize", sent=False)
    except (OSError, http.client.HTTPException, KeyError) as error:
        client.headers.pop("Mcp-Session-Id", None)
        return call.end(REFUSED, kind=f"initialize: {type(error).__name__}", sent=False)
    record = through_gateway(client, call, modern=False)
    if record.end == REFUSED and record.kind == "404":
        del client.headers["Mcp-Session-Id"]  # the session has ended, and the next call begins a new one
    return record


def without_session(client: Client, call: Call, stop_event: threading.Event) -> CallRecord:
    return through_gateway(client, call, modern=True)


def through_gateway(client: Client, call: Call, *, modern: bool) -> CallRecord:
    try:
        reply = client.call(f"{call.member}__effect", {"key": call.key}, modern=modern)
    except TimeoutError:
        return call.end(SILENT)
    except ConnectionRefusedError:
        return call.end(REFUSED, kind="nobody listens", sent=False)
    except (OSError, http.client.HTTPException) as error:
        return call.end(BROKEN, kind=type(error).__name__)
    try:
        return record_of_reply(call, reply)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        if reply.status >= 400:
            return call.end(REFUSED, kind=str(reply.status), text=reply.body.decode(errors="replace")[:200])
        return call.end(BROKEN, kind="no MCP", text=reply.body.decode(errors="replace")[:200])


def record_of_reply(call: Call, reply: Reply) -> CallRecord:
    """Raises several kinds of errors if the reply is no JSON-RPC response."""
    message = reply.messages[-1]
    if "result" in message:
        result = message["result"]
        if result.get("isError"):
            return call.end("failed", kind="tool", text=text_of(result))
        return call.end("succeeded", text=text_of(result))
    error = message["error"]
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    if reply.status >= 400 and "kind" not in data:
        return call.end(REFUSED, kind=str(reply.status), sent=data.get("sent"), text=error["message"][:200])
    return call.end("failed", kind=data.get("kind", "protocol"), sent=data.get("sent"), text=error["message"][:200])


# All together ---------------------------------------------------------------------------------------------------------

CALL_FUNCTIONS: dict[str, Callable[[Client, Call, threading.Event], CallRecord]] = {
    "rest": over_rest,
    "session": with_session,
    "modern": without_session,
}


class Load:
    """`rate`: the maximal calls a second of all clients. Each client makes one call at a time."""

    def __init__(self, hall: StormHall, folder: Path, seed: int, rate: float) -> None:
        self._hall, self._folder, self._seed = hall, folder, seed
        self._pause = CLIENTS / rate
        self._stop_event = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(CLIENTS)]
        self.faults: list[str] = []  # of the clients themselves

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the clients. Running calls end first, or `settle` reads their outcome later."""
        self._stop_event.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        source = SOURCES[number % len(SOURCES)]
        rng = random.Random(f"{self._seed} {number}")
        ledger = Ledger(self._folder / f"{source}-{number}.jsonl")
        try:
            with self._client(source, number) as client:
                for turn in self._turns(rng):
                    call = Call(f"{source}-{number}-{turn}", rng.choice(self._hall.names), source)
                    ledger.add(CALL_FUNCTIONS[source](client, call, self._stop_event))
        except Exception as error:  # noqa: BLE001 - a client that ends early is a fault of the storm
            self.faults.append(f"client {number} ({source}) ended with {type(error).__name__}: {error}")
        finally:
            ledger.close()

    def _client(self, source: str, number: int) -> Client:
        name = str(number)
        return self._hall.web(name, PATIENCE) if source == "rest" else self._hall.agent(name, PATIENCE)

    def _turns(self, rng: random.Random) -> Iterator[int]:
        """Count the calls, at the client's pace. A long call does not make later pauses shorter."""
        turn = 0
        while not self._stop_event.wait(rng.random() * 2 * self._pause):
            yield turn
            turn += 1


# Afterwards ----------------------------------------------------------------------------------------------------------


def settle(hall: StormHall, records: list[CallRecord], seconds: float) -> list[CallRecord]:
    """The records with the outcomes in REST, once all calls have ended or `seconds` are over.

    The outcome in REST replaces that of a client that left before the end. If a client got another outcome than REST
    has now, it is in `later`.
    """
    deadline = time.monotonic() + seconds
    while True:
        rows = rest_calls(hall)
        is_over = all(row["status"] in FINISHED for row in rows.values())
        if (rows and is_over) or time.monotonic() > deadline:
            return [settled(record, rows.get(record.url)) if record.url else record for record in records]
        time.sleep(RETRY_SECONDS)


def rest_calls(hall: StormHall) -> dict[str, dict[str, Any]]:
    """The rows of calls by URL. Empty while the web does not respond."""
    rows: dict[str, dict[str, Any]] = {}
    path = "/api/calls/?source=rest&page_size=200"
    while path:
        page = hall.read(path, 10.0)
        if page is None:
            return {}
        rows |= {row["url"]: row for row in page["results"]}
        path = (page["next"] or "").partition("/api/")[2]
        path = f"/api/{path}" if path else ""
    return rows


def settled(record: CallRecord, row: dict[str, Any] | None) -> CallRecord:
    """`row`: the row of the call in REST, or None if there is no such call."""
    if row is None:
        return replace(record, end=GONE, kind="")
    kind = (row["error"] or {}).get("kind", "")
    if record.end in FINISHED:
        is_same = (row["status"], kind) == (record.end, record.kind)
        return record if is_same else replace(record, later=f"{row['status']} {kind}".strip())
    # The result is not compared again, so the text is that of a right result.
    end = row["status"] if row["status"] in FINISHED else SILENT
    return replace(record, end=end, kind=kind, text=record.key if end == "succeeded" else "")
