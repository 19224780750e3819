"""Members that have a process or a connection now: what clients, the gateway and the supervisor ask about them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.transport import Exchange
from mcp_runtime.members.process import MemberProcess, NoProcess
from mcp_runtime.members.silence import Silence
from mcp_runtime.members.start_limits import StartLimits
from mcp_runtime.protocol.errors import describe_exit

STABLE_SECONDS = 60.0
# A refused or reset connection is often the first sign of an exit, which explains more: wait for it this long.
EXIT_GRACE = 0.2


@dataclass(eq=False)
class LiveMember:
    """A member's process, or the remote server (then `port` is 0), and the client that talks to it."""

    member_id: int
    name: str
    port: int
    client: JsonRpcClient
    process: MemberProcess | NoProcess
    endpoint: str
    limits: StartLimits | None = None
    talk: Exchange = field(default_factory=Exchange)  # what the hall itself asks it: the handshake, its tools
    listening: Exchange = field(default_factory=Exchange)  # to its own announcements and requests
    silence: Silence = field(default_factory=Silence)
    calls: int = 0  # of the dispatcher, which run in it now
    relayed_calls: int = 0  # of the gateway, which run in it now
    big_outcome_lock: threading.Lock = field(default_factory=threading.Lock)  # so that one is written at a time
    connected_at: float | None = None
    announces_changes: bool = False  # of its lists, as it said when it was connected
    progress: str = ""  # as it stands on the row
    exposure: list[str] = field(default_factory=list)  # warnings of where it listens
    stop_requested: threading.Event = field(default_factory=threading.Event)

    @property
    def was_stable(self) -> bool:
        """Connected long enough that its next failure is the first one again."""
        return self.connected_at is not None and time.monotonic() - self.connected_at >= STABLE_SECONDS

    @property
    def is_remote(self) -> bool:
        return isinstance(self.process, NoProcess)

    @property
    def is_computing(self) -> bool:
        """Whether its start keeps a CPU busy."""
        return self.connected_at is None and self.limits is not None and self.limits.is_computing

    def describe_end(self, when: str) -> str:
        """How the process ended, for a call that ran in it or waited for it."""
        if self.stop_requested.is_set():
            return f"the member was stopped {when}"
        return f"the member exited {when}, with {describe_exit(self.process.exit_code or 0)}"


class LiveMembers:
    """Those of one runtime, by their ids. Safe to use from many threads."""

    def __init__(self) -> None:
        self._members: dict[int, LiveMember] = {}

    def add(self, live: LiveMember) -> None:
        self._members[live.member_id] = live

    def get(self, member_id: int) -> LiveMember | None:
        return self._members.get(member_id)

    def all(self) -> list[LiveMember]:
        return list(self._members.values())

    def connected_member(self, member_id: int) -> LiveMember | None:
        """The member, if it may be called now."""
        live = self._members.get(member_id)
        return live if live and live.connected_at and not live.stop_requested.is_set() else None

    def holds(self, live: LiveMember) -> bool:
        """Whether it is still this process or connection that serves the member."""
        return self._members.get(live.member_id) is live

    def remove(self, live: LiveMember) -> None:
        """Forget a member whose process or connection is over, and close its client."""
        if self.holds(live):
            self._members.pop(live.member_id, None)  # another thread may remove it in the same moment
        live.listening.abort()
        live.client.close()
