"""Clients of three kinds that call while it storms. Each writes what it was told of each call, in a book of its own."""

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
from tests.storm.ledger import BROKEN, GONE, REFUSED, SILENT, Book, Told

SOURCES = ("rest", "session", "modern")
# Seconds that a client waits: for the call's own deadline, a hall that starts anew, and a machine that is busy.
PATIENCE = CALL_SECONDS + 30.0
WAIT = 5  # seconds, in Prefer
AGAIN = 0.2  # seconds before a request that was not answered is made again
FINISHED = ("succeeded", "failed", "cancelled")


class Call:
    """One call under way. `end()` gives what its client writes down."""

    def __init__(self, key: str, member: str, source: str) -> None:
        self.key, self.member, self.source = key, member, source
        self.asked_at = time.monotonic()

    def end(self, end: str, **values: Any) -> Told:
        return Told(self.key, self.member, self.source, self.asked_at, time.monotonic(), end, **values)


# REST -----------------------------------------------------------------------------------------------------------------


def over_rest(client: Client, call: Call, over: threading.Event) -> Told:
    """With an idempotency key, so that asking again is safe; where it was accepted, its address is asked until it ends.

    When the storm is over meanwhile, the call is left as it is: the reckoning asks once more.
    """
    path = f"/api/members/{call.member}/tools/effect/invoke/"
    url, refusal, deadline = "", "", call.asked_at + PATIENCE
    while time.monotonic() < deadline and not (over.is_set() and url):
        try:
            if url:
                reply = client.rest("GET", url, Prefer=f"wait={WAIT}")
            else:
                headers = {"Idempotency-Key": call.key, "Prefer": f"wait={WAIT}"}
                reply = client.rest("POST", path, {"arguments": {"key": call.key}}, **headers)
        except (OSError, http.client.HTTPException):
            over.wait(AGAIN)
            continue
        if reply.status in (200, 202):
            row = json.loads(reply.body)
            url, refusal = row["url"], ""
            if row["status"] in FINISHED:
                return of_row(call, row)
        elif url and reply.status == 404:
            return call.end(GONE, kind="404", url=url)
        elif reply.status < 500 and reply.status != 429:
            return call.end(REFUSED, kind=str(reply.status), text=reply.body.decode()[:200], url=url)
        else:
            refusal = str(reply.status)
            over.wait(AGAIN)
    if url:
        return call.end(SILENT, url=url)
    return call.end(REFUSED, kind=refusal) if refusal else call.end(BROKEN)


def of_row(call: Call, row: dict[str, Any]) -> Told:
    return call.end(
        row["status"], kind=(row["error"] or {}).get("kind", ""), text=text_of(row["result"]), url=row["url"]
    )


def text_of(result: Any) -> str:
    """Of a tool's result."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        return str(result["content"][0]["text"])
    return ""


# Gateway --------------------------------------------------------------------------------------------------------------


def with_session(client: Client, call: Call, over: threading.Event) -> Told:
    try:
        if "Mcp-Session-Id" not in client.headers:
            client.begin()
    except TimeoutError:
        return call.end(SILENT, kind="initialize", sent=False)
    except (OSError, http.client.HTTPException, KeyError) as error:
        client.headers.pop("Mcp-Session-Id", None)
        return call.end(REFUSED, kind=f"initialize: {type(error).__name__}", sent=False)
    told = through_gateway(client, call, modern=False)
    if told.end == REFUSED and told.kind == "404":
        del client.headers["Mcp-Session-Id"]  # it is over; the next call begins another
    return told


def without_session(client: Client, call: Call, over: threading.Event) -> Told:
    return through_gateway(client, call, modern=True)


def through_gateway(client: Client, call: Call, *, modern: bool) -> Told:
    try:
        reply = client.call(f"{call.member}__effect", {"key": call.key}, modern=modern)
    except TimeoutError:
        return call.end(SILENT)
    except ConnectionRefusedError:
        return call.end(REFUSED, kind="nobody listens", sent=False)
    except (OSError, http.client.HTTPException) as error:
        return call.end(BROKEN, kind=type(error).__name__)
    try:
        return of_reply(call, reply)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        if reply.status >= 400:
            return call.end(REFUSED, kind=str(reply.status), text=reply.body.decode(errors="replace")[:200])
        return call.end(BROKEN, kind="no MCP", text=reply.body.decode(errors="replace")[:200])


def of_reply(call: Call, reply: Reply) -> Told:
    """Raises several errors where it is no response of JSON-RPC."""
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

WAYS: dict[str, Callable[[Client, Call, threading.Event], Told]] = {
    "rest": over_rest,
    "session": with_session,
    "modern": without_session,
}


class Load:
    """`rate`: calls a second in all that are asked at most. Each client has one call under way at a time."""

    def __init__(self, hall: StormHall, books: Path, seed: int, rate: float) -> None:
        self._hall, self._books, self._seed = hall, books, seed
        self._pause = CLIENTS / rate
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(CLIENTS)]
        self.faults: list[str] = []  # of our own

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Nothing new is asked; what is under way is told to its end, or left to the reckoning."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        source = SOURCES[number % len(SOURCES)]
        chance = random.Random(f"{self._seed} {number}")
        book = Book(self._books / f"{source}-{number}.jsonl")
        try:
            with self._client(source, number) as client:
                for turn in self._turns(chance):
                    call = Call(f"{source}-{number}-{turn}", chance.choice(self._hall.names), source)
                    book.add(WAYS[source](client, call, self._over))
        except Exception as error:  # noqa: BLE001 - a client that ended early is a fault of the storm, and is told
            self.faults.append(f"client {number} ({source}) ended with {type(error).__name__}: {error}")
        finally:
            book.close()

    def _client(self, source: str, number: int) -> Client:
        name = str(number)
        return self._hall.web(name, PATIENCE) if source == "rest" else self._hall.agent(name, PATIENCE)

    def _turns(self, chance: random.Random) -> Iterator[int]:
        """Numbers, at the client's pace; a call that took long is not made up for."""
        turn = 0
        while not self._over.wait(chance.random() * 2 * self._pause):
            yield turn
            turn += 1


# Afterwards ----------------------------------------------------------------------------------------------------------


def settle(hall: StormHall, told: list[Told], seconds: float) -> list[Told]:
    """What REST says of the calls that it accepted, once all have ended or `seconds` are over.

    It stands in the place of what was told to a client that left before the end; where a client was told an end, and
    REST says another one now, it is in `later`.
    """
    deadline = time.monotonic() + seconds
    while True:
        rows = rest_calls(hall)
        is_over = all(row["status"] in FINISHED for row in rows.values())
        if (rows and is_over) or time.monotonic() > deadline:
            return [settled(one, rows.get(one.url)) if one.url else one for one in told]
        time.sleep(AGAIN)


def rest_calls(hall: StormHall) -> dict[str, dict[str, Any]]:
    """By url. Empty while the web does not answer."""
    rows: dict[str, dict[str, Any]] = {}
    path = "/api/calls/?source=rest&page_size=200"
    while path:
        page = hall.asked(path, 10.0)
        if page is None:
            return {}
        rows |= {row["url"]: row for row in page["results"]}
        path = (page["next"] or "").partition("/api/")[2]
        path = f"/api/{path}" if path else ""
    return rows


def settled(told: Told, row: dict[str, Any] | None) -> Told:
    """`row`: what REST says now; None: it knows no such call."""
    if row is None:
        return replace(told, end=GONE, kind="")
    kind = (row["error"] or {}).get("kind", "")
    if told.end in FINISHED:
        is_same = (row["status"], kind) == (told.end, told.kind)
        return told if is_same else replace(told, later=f"{row['status']} {kind}".strip())
    # Without the result: that of a call that succeeded is not looked at again.
    end = row["status"] if row["status"] in FINISHED else SILENT
    return replace(told, end=end, kind=kind, text=told.key if end == "succeeded" else "")
