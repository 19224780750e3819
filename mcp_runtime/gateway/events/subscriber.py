"""One open stream of events: what its principal may see, and what it was sent. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db.models import Q

from mcp_runtime.gateway.events.snapshots import CallState, MemberState, Snapshot
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.security.access import Principal

MEMBERS, CALLS = "members", "calls"
TOPICS = (MEMBERS, CALLS)
# By name: the state before and after. None if the member was not there, or is not there any more.
MemberChanges = dict[str, tuple[MemberState | None, MemberState | None]]
GAP_SECONDS = 5.0  # between two gaps, while calls are left out
TOO_MANY = "more calls changed than are sent as events"
_ID = re.compile(r"([0-9]{1,15})-([0-9a-f]{16})")


@dataclass(frozen=True)
class Selection:
    """What a client asks for. `member` and `call` narrow the topics, if they are not empty."""

    topics: frozenset[str] = frozenset(TOPICS)
    member: str = ""
    call: int | None = None

    @property
    def calls(self) -> Q:
        """The rows of the calls that are in it."""
        return Q(**({"member__name": self.member} if self.member else {}), **({"pk": self.call} if self.call else {}))

    def has_call(self, call: CallState) -> bool:
        return CALLS in self.topics and self.member in ("", call.member) and self.call in (None, call.pk)

    def has_member(self, name: str) -> bool:
        return MEMBERS in self.topics and self.member in ("", name)


@dataclass(frozen=True)
class Position:
    """Where a client was: the time of its last event, and the digest of the members that it knew then."""

    at: datetime
    digest: int

    @classmethod
    def parse(cls, text: str) -> Position | None:
        """Read the id of an event. None if it is not one."""
        match = _ID.fullmatch(text)
        if match is None:
            return None
        try:
            return cls(datetime.fromtimestamp(int(match[1]) / 1000, UTC), int(match[2], 16))
        except (OverflowError, ValueError, OSError):
            return None

    @classmethod
    def unknown(cls) -> Position:
        """For an id that is not one of an event: so long ago that its client must read everything again."""
        return cls(datetime.fromtimestamp(0, UTC), -1)

    def __str__(self) -> str:
        return f"{int(self.at.timestamp() * 1000)}-{self.digest:016x}"


@dataclass(eq=False)
class Subscriber:
    """A stream. Its `outbox` holds complete events.

    `digest` stands for the members that its client knows. None until the first event, without a position to resume.
    `at` is the time up to which everything was sent. None before the stream begins.
    """

    principal: Principal
    authorization: bytes | None
    selection: Selection
    outbox: Outbox
    digest: int | None = None
    at: datetime | None = None
    is_current: bool = False  # whether it got the first state, since the last change of its rights
    resumed_calls: dict[int, CallState] = field(default_factory=dict)  # that it got before the first state
    _unsent: list[tuple[str, bytes, int]] = field(default_factory=list)  # events, each with the digest after it
    _is_over: bool = False
    _lacks_calls: bool = False  # since the last gap
    _gap_at: datetime | None = None

    def may_see_member(self, name: str) -> bool:
        return self.selection.has_member(name) and self.principal.reaches(name)

    def may_see_call(self, call: CallState) -> bool:
        is_readable = self.principal.may_read_call(call.member, call.requester_id, call.token_id)
        return self.selection.has_call(call) and is_readable

    def change_principal(self, principal: Principal) -> None:
        if principal != self.principal:
            self.principal, self.is_current = principal, False

    def catch_up(self, snapshot: Snapshot) -> None:
        """Send the state of everything that it may see. Members only if they differ from those that its client knows.

        The stream ends if its principal may not see the one member or call of its selection any more.
        """
        self.is_current = True
        call = snapshot.calls.get(self.selection.call) if self.selection.call is not None else None
        if (self.selection.member and not self.principal.reaches(self.selection.member)) or (
            call is not None and not self.may_see_call(call)
        ):
            self.outbox.discard()
            return
        visible = [state for name, state in sorted(snapshot.members.items()) if self.may_see_member(name)]
        digest = 0
        for state in visible:
            digest ^= state.digest
        is_known, self.digest = digest == self.digest, digest
        if MEMBERS in self.selection.topics and not is_known:
            self._send("roster", jsonrpc.encode({"members": [state.facts for state in visible]}))
        resumed, self.resumed_calls = self.resumed_calls, {}
        self.send_calls(call for call in snapshot.calls.values() if call != resumed.get(call.pk))

    def send_members(self, changes: MemberChanges) -> None:
        """Send those members that changed and that it may see."""
        for name, (before, after) in changes.items():
            if not self.may_see_member(name):
                continue
            self.digest = (self.digest or 0) ^ (before.digest if before else 0) ^ (after.digest if after else 0)
            if after is None:
                self._send("member-removed", jsonrpc.encode({"name": name}))
            else:
                self._send("member", after.data)

    def send_calls(self, calls: Iterable[CallState]) -> None:
        """Send those calls that it may see. The stream for one call ends with the call."""
        for call in calls:
            if self.may_see_call(call):
                self._send("call", call.data)
                self._is_over |= call.is_finished and self.selection.call is not None

    def note_missing(self, snapshot: Snapshot) -> None:
        """Send a gap if calls are left out that it may see.

        While that lasts, the gap comes again every GAP_SECONDS. The last one comes after the last of these calls.
        """
        if self.selection.call is None:  # which is never left out
            self._lacks_calls |= snapshot.may_lack_calls_of(self.principal)
            is_due = self._gap_at is None or abs((snapshot.at - self._gap_at).total_seconds()) >= GAP_SECONDS
            if self._lacks_calls and is_due:
                self.ask_to_read(TOO_MANY)
                self._lacks_calls, self._gap_at = False, snapshot.at

    def ask_to_read(self, reason: str) -> None:
        """Tell the client that events of calls are missing, so that it reads the list of calls."""
        if CALLS in self.selection.topics:
            self._send("gap", jsonrpc.encode({"topic": CALLS, "reason": reason}))

    def flush(self, at: datetime) -> None:
        """Put the events into the outbox, with which everything until then is sent.

        Only the last one says so in its id. A client that breaks off before it continues at the time before.
        """
        before = self.at or at
        self.at = at
        for number, (event, data, digest) in enumerate(self._unsent, 1):
            if self.outbox.is_full:
                self.outbox.give_up("it has too many events")
            position = Position(self.at if number == len(self._unsent) else before, digest)
            self.outbox.put(b"id: %b\nevent: %b\ndata: %b\n\n" % (str(position).encode(), event.encode(), data))
        self._unsent = []
        if self._is_over:
            self.outbox.close()

    def _send(self, event: str, data: bytes) -> None:
        self._unsent.append((event, data, self.digest or 0))
