"""Seals of requests from one node to another. No Django.

A seal shows that the request is from a node of this hall. It is made with the hall's secret key. It covers everything
that the other node acts on, and it is valid once, for one start of one runtime. No clock is involved.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass

HEADER = "guild-hall-seal"
# How far a request may be overtaken by later ones of the same node. One that is overtaken by more is refused, and sent
# again with a new seal.
WINDOW = 4_096
# Headers that the connection changes, so the seal does not cover them. The receiver does not act on them.
OF_THE_CONNECTION = frozenset(("host", "content-length", "transfer-encoding", "connection"))


class SealError(Exception):
    """The request is not from a node of this hall, or it was received before."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a seal covers. `sender` and `target` are the leases of two runtimes. Names of headers are in lower case."""

    sender: str
    target: str
    verb: str
    url: bytes  # path and query
    headers: Mapping[str, str]
    body: bytes

    def digest(self, key: bytes, number: int) -> str:
        headers = sorted((name, value) for name, value in self.headers.items() if name != HEADER)
        lines = [self.sender, self.target, str(number), self.verb, *(f"{name}:{value}" for name, value in headers)]
        # No line contains a line break, because HTTP allows none. So two requests never have the same text.
        text = "\n".join(lines).encode() + b"\n\n" + self.url + b"\n" + hashlib.sha256(self.body).digest()
        return hmac.new(key, text, "sha256").hexdigest()


def key_of(secret_key: str) -> bytes:
    """Return the key for seals. It is used for nothing else."""
    return hashlib.sha256(b"guildhall.gateway.hop\0" + secret_key.encode()).digest()


def seal(key: bytes, request: Request, number: int) -> str:
    """Return the value of HEADER. A sender uses each `number` once for each target, and increases it."""
    return f"{request.sender}.{number}.{request.digest(key, number)}"


def sender_of(value: str) -> str:
    """Return the lease that the seal names as its sender. It may be a lie until `Seals.open` has checked it."""
    return value.partition(".")[0]


class Seals:
    """Checks the seals of requests to one runtime."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._windows: dict[str, Window] = {}  # by sender

    def open(self, request: Request) -> None:
        """Accept the request once. Raise SealError if its seal is invalid, or was accepted before."""
        sender, _, rest = request.headers.get(HEADER, "").partition(".")
        number, _, digest = rest.partition(".")
        is_number = number.isascii() and number.isdigit() and len(number) <= 18
        if sender != request.sender or not is_number or not digest.isascii():
            raise SealError("the request has no seal of a node of this hall")
        if not hmac.compare_digest(digest, request.digest(self._key, int(number))):
            raise SealError("the seal of the request is not of this hall, or not for this runtime")
        if not self._windows.setdefault(sender, Window()).accept(int(number)):
            raise SealError("the request was received before, or later requests overtook it")

    def keep_only(self, senders: Collection[str]) -> None:
        """Forget what was received from others. Their requests must not be accepted any more."""
        self._windows = {sender: window for sender, window in self._windows.items() if sender in senders}


class Window:
    """The numbers that were accepted: the highest one, and a bit for each of the WINDOW numbers up to it."""

    def __init__(self) -> None:
        self._highest = 0
        self._bits = 0

    def accept(self, number: int) -> bool:
        """Return whether the number is new, and remember it."""
        if number > self._highest:
            self._bits = (self._bits << min(number - self._highest, WINDOW) | 1) & ((1 << WINDOW) - 1)
            self._highest = number
            return True
        offset = self._highest - number
        if offset >= WINDOW or self._bits >> offset & 1:
            return False
        self._bits |= 1 << offset
        return True
