"""Watch resources as a person: a subscription that stays open while somebody asks for it.

Each process of the web has its own watches. One opens with the first question, and ends IDLE_SECONDS after the last
one. A client that reaches several processes has a watch in each of them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from mcp_runtime.control import gateway
from mcp_runtime.control.extra_uses import require_uri
from mcp_runtime.control.members import require_enabled
from mcp_runtime.protocol.errors import (
    ExtraDisabledError,
    McpRuntimeError,
    RequestRefusedError,
    TooManyCallsError,
)
from mcp_runtime.protocol.jsonrpc import object_of
from mcp_runtime.security import access
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import Owner
from roster.models import GuildMember

if TYPE_CHECKING:
    from mcp_runtime.client.exchanges import Exchange

# After the last question. The gateway sends something every 15 s, and only then a later deadline takes effect.
IDLE_SECONDS = 30.0
MAX_SECONDS = 600.0  # of one subscription. A client that still asks then gets another one
READY_SECONDS = 5.0  # for the subscription to open, before the first answer
TOUCH_SECONDS = 5.0  # between two extensions while a client waits
MAX_WATCHES = 64  # of this process. Each has a thread and a connection
MAX_OF_USER = 8
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"

Key = tuple[Owner, int, str]  # who asks, the member and the URI


@dataclass(frozen=True)
class State:
    """What a watch knows. With another `id` it is another subscription, and updates before it may be unknown."""

    id: str
    opened_at: datetime
    updates: int
    updated_at: datetime | None


def subscribes(row: GuildMember) -> bool:
    """Whether the member declares that it announces updates of resources."""
    return object_of(row.capabilities.get("resources")).get("subscribe") is True


@dataclass(eq=False)
class _Watch:
    way: gateway.Way
    member: str
    uri: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    opened_at: datetime = field(default_factory=timezone.now)
    ends_at: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)
    news: threading.Condition = field(default_factory=threading.Condition)
    updates: int = 0
    updated_at: datetime | None = None
    is_ready: bool = False
    is_over: bool = False
    failure: McpRuntimeError | None = None  # why it did not open
    exchange: Exchange = field(init=False)

    def __post_init__(self) -> None:
        from mcp_runtime.client.exchanges import Exchange  # megabytes that only this needs

        self.exchange = Exchange()

    def start(self) -> None:
        threading.Thread(target=self._listen, name=f"watch of {self.member}", daemon=True).start()

    def touch(self) -> None:
        """Keep the subscription open for a while. After MAX_SECONDS it ends nevertheless."""
        self.exchange.extend(max(min(IDLE_SECONDS, self.ends_at - time.monotonic()), 0.0))

    def state(self) -> State:
        with self.news:
            if self.failure is not None and not self.is_ready:
                raise self.failure
            return State(self.id, self.opened_at, self.updates, self.updated_at)

    def wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition holds or the watch is over."""
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0:
            self.touch()
            with self.news:
                if self.news.wait_for(lambda: self.is_over or condition(), min(remaining, TOUCH_SECONDS)):
                    return

    def _listen(self) -> None:
        failure = None
        try:
            gateway.listen(self.way, self.member, self.uri, self.exchange, IDLE_SECONDS, self._on_message)
        except McpRuntimeError as error:
            failure = error
        with self.news:
            self.is_over, self.failure = True, self.failure or failure
            self.news.notify_all()

    def _on_message(self, method: str, params: dict[str, Any]) -> None:
        with self.news:
            if method == ACKNOWLEDGED:
                accepted = object_of(params.get("notifications")).get("resourceSubscriptions")
                self.is_ready = accepted == [self.uri]
                if not self.is_ready:
                    text = f"resource {self.uri[:200]!r} of member {self.member!r} is held or disabled"
                    self.failure = ExtraDisabledError(text)
                    self.exchange.abort()
            elif method == UPDATED:
                self.updates, self.updated_at = self.updates + 1, timezone.now()
            self.news.notify_all()


class Watches:
    """The watches of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.open_watches: dict[Key, _Watch] = {}

    def look(
        self,
        principal: Principal,
        row: GuildMember,
        uri: str,
        *,
        after: tuple[str, int] | None = None,
        wait: float = 0.0,
    ) -> State:
        """Return the state of the watch, after it was opened if necessary.

        `after` is the id and the number of updates of an earlier state. Then wait for another update, at most `wait`
        seconds. Raises the errors of `gateway.ask`, and of requests that are refused.
        """
        watch = self._open(principal, row, uri)
        watch.touch()
        watch.wait(lambda: watch.is_ready, READY_SECONDS)
        if after is not None and after[0] == watch.id:
            watch.wait(lambda: watch.updates > after[1], wait)
        return watch.state()

    def _open(self, principal: Principal, row: GuildMember, uri: str) -> _Watch:
        access.require_use(principal, row.name)
        require_enabled(row)
        require_uri(uri)
        if not subscribes(row):
            raise RequestRefusedError(f"member {row.name!r} does not announce updates of resources")
        key = (principal.owner, row.pk, uri)
        with self._lock:
            self.open_watches = {each: watch for each, watch in self.open_watches.items() if not watch.is_over}
            if (watch := self.open_watches.get(key)) is not None:
                return watch
            of_user = sum(owner[0] == principal.user_id for owner, _, _ in self.open_watches)
            if of_user >= MAX_OF_USER or len(self.open_watches) >= MAX_WATCHES:
                raise TooManyCallsError(
                    "Too many resources are watched now. Try again when one of the pages is closed.", 10.0
                )
            watch = self.open_watches[key] = _Watch(gateway.way_to(principal, row, MAX_SECONDS), row.name, uri)
            watch.start()
            return watch


watches = Watches()
