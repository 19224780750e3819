"""The members that have a process or a connection now, for clients, the gateway and the supervisor."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.members.extras import ListedExtras
from mcp_runtime.members.process import MemberProcess, NoProcess
from mcp_runtime.members.silence import Silence
from mcp_runtime.members.start_limits import StartLimits
from mcp_runtime.protocol.errors import describe_exit

if TYPE_CHECKING:  # a hall without members behind OAuth does not load them, so that it is smaller
    from mcp_runtime.members.access_tokens import AccessToken
    from mcp_runtime.members.user_tokens import UserTokens

STABLE_SECONDS = 60.0
# A refused or reset connection is often the first sign of an exit. Wait this long for the exit, which explains more.
EXIT_GRACE = 0.2


@dataclass(eq=False)
class LiveMember:
    """A member's process, or its remote server (then `port` is 0), and the client for it."""

    member_id: int
    name: str
    port: int
    client: JsonRpcClient
    process: MemberProcess | NoProcess
    endpoint: str
    limits: StartLimits | None = None
    max_processes: int = 0  # at the same time. 0 without a limit
    token: AccessToken | None = None  # of a remote server that may be behind OAuth
    users: UserTokens | None = None  # if each user has an own sign-in. Then `token` is only for requests of the hall
    max_memory: int = 0  # bytes of all its processes together. 0 without a limit
    hall_exchange: Exchange = field(default_factory=Exchange)  # for the hall's own requests: handshake, tools/list
    listening: Exchange = field(default_factory=Exchange)  # for the stream of its announcements and requests
    silence: Silence = field(default_factory=Silence)
    calls: int = 0  # calls of the dispatcher that run in it now
    relayed_calls: int = 0  # calls of the gateway that run in it now
    big_outcome_lock: threading.Lock = field(default_factory=threading.Lock)  # only one is written at a time
    connected_at: float | None = None
    announces_changes: bool = False  # of its lists, according to its handshake
    progress: str = ""  # the text on the row
    exposure: list[str] = field(default_factory=list)  # warnings about the addresses where it listens
    held_tools: frozenset[str] = frozenset()  # that wait for an approval, according to its last list
    extras: ListedExtras | None = None  # its last list of prompts and resources. None until the gateway has it
    is_leaving: bool = False  # it moves to another node, so it gets no new calls
    stop_requested: threading.Event = field(default_factory=threading.Event)

    def client_of(self, user_id: int | None) -> JsonRpcClient:
        """The client for calls of this user. Raises SignInNeededError if each user has one, and this is no user."""
        return self.client if self.users is None else self.users.client(user_id)

    @property
    def was_stable(self) -> bool:
        """Whether it was connected for so long that its next failure counts as the first one."""
        return self.connected_at is not None and time.monotonic() - self.connected_at >= STABLE_SECONDS

    @property
    def is_remote(self) -> bool:
        return isinstance(self.process, NoProcess)

    @property
    def is_computing(self) -> bool:
        """Whether it is starting, and uses a whole CPU for that."""
        return self.connected_at is None and self.limits is not None and self.limits.is_computing

    def describe_end(self, when: str) -> str:
        """The end of the process as a text, for a call that ran in it or waited for it."""
        if self.stop_requested.is_set():
            return f"the member was stopped {when}"
        return f"the member exited {when}, with {describe_exit(self.process.exit_code or 0)}"


class LiveMembers:
    """The live members of one runtime, by their ids. Thread-safe."""

    def __init__(self) -> None:
        self._members: dict[int, LiveMember] = {}

    def add(self, member: LiveMember) -> None:
        self._members[member.member_id] = member

    def get(self, member_id: int) -> LiveMember | None:
        return self._members.get(member_id)

    def all(self) -> list[LiveMember]:
        return list(self._members.values())

    def connected_member(self, member_id: int) -> LiveMember | None:
        """The member if it may be called now, otherwise None."""
        member = self._members.get(member_id)
        if member is None or not member.connected_at or member.is_leaving or member.stop_requested.is_set():
            return None
        return member

    def holds(self, member: LiveMember) -> bool:
        """Whether this process or connection still serves the member."""
        return self._members.get(member.member_id) is member

    def remove(self, member: LiveMember) -> None:
        """Remove a member whose process or connection has ended, and close its client."""
        if self.holds(member):
            self._members.pop(member.member_id, None)  # another thread may remove it at the same moment
        member.listening.abort()
        member.client.close()
        if member.users is not None:
            member.users.close()
