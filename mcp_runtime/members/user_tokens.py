"""Access tokens of users, for a member where each user has an own sign-in: one token and one client for each user.

Nothing here falls back to the token of anybody else. Who has none gets SignInNeededError, which says where to sign in.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from mcp_runtime.client.client import INITIALIZE_TIMEOUT, JsonRpcClient
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.members.access_tokens import AccessToken, SignInKey
from mcp_runtime.protocol.errors import (
    ClientError,
    HttpStatusError,
    RequestTimeoutError,
    SecretError,
    SignInNeededError,
    SignInText,
)
from mcp_runtime.rows.database import unit_of_work
from roster.models import AgentMessage

MAX_USERS = 1_000  # whose tokens and clients are kept for one member. The rows have all of them
NO_USER = f"{SignInText.NO_USER}; call it as a user, such as with a token"

OTHER_ASKER = (
    "each user signs in there alone since its manifest changed, and this agent has the account of its creator, who did "
    "not send the message; let the creator send it, or make an agent of your own"
)


@dataclass(eq=False)
class _Entry:
    token: AccessToken
    client: JsonRpcClient
    connected_as: SignInKey | None = None  # the sign-in with which the client began its session
    lock: threading.Lock = field(default_factory=threading.Lock)  # of the handshake


class UserTokens:
    """The tokens and the clients of users for one connection to a member. Thread-safe.

    `new_token(user_id)` and `new_client(token)` create what one user has.
    """

    def __init__(
        self, new_token: Callable[[int], AccessToken], new_client: Callable[[AccessToken], JsonRpcClient]
    ) -> None:
        self._new_token = new_token
        self._new_client = new_client
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.client.close()

    def look(self, user_id: int | None, token_id: int | None = None) -> AccessToken:
        """The token of this user as the row has it now. It may be due. Raises SignInNeededError, HttpStatusError.

        `token_id` is the token of the hall with which the user asks. It reads the rows each time, so that a sign-out
        and the end of an account have an effect at once on all nodes.
        """
        entry = self._entry(user_id)
        if token_id is not None:
            _require_own_message(user_id, token_id)
        return self._look(entry)

    def sign_in_of(self, user_id: int | None) -> SignInKey:
        """The sign-in of this user, as the last `look` has seen it."""
        return self._entry(user_id).token.sign_in

    @staticmethod
    def renewed_early(token: AccessToken) -> AccessToken:
        """The token after an attempt to renew it. Raises SignInNeededError if it is over."""
        if token.is_due:  # another thread may have been faster
            token.renew_early()
        if not token.token:
            raise token.need()
        return token

    def client(self, user_id: int | None) -> JsonRpcClient:
        """The client of this user, connected or not. Raises SignInNeededError for no user."""
        return self._entry(user_id).client

    def connected_client(
        self, user_id: int | None, timeout: float, exchange: Exchange, version: str, token_id: int | None = None
    ) -> JsonRpcClient:
        """The client of this user, with the user's token and after a handshake of its own. Raises ClientError."""
        entry = self._entry(user_id)
        if self.look(user_id, token_id).is_due:
            self.renewed_early(entry.token)
        seconds = min(timeout, INITIALIZE_TIMEOUT)
        if not entry.lock.acquire(timeout=seconds):
            raise RequestTimeoutError(seconds)
        try:
            sign_in = entry.token.sign_in
            if entry.connected_as not in (None, sign_in):
                # The session is of the account before, and so may be what the member keeps in it.
                entry.client.close()
                entry.client, entry.connected_as = self._new_client(entry.token), None
            client = entry.client
            if entry.connected_as is None:
                client.connect(seconds, exchange, version=version)
                entry.connected_as = sign_in
        except ClientError as error:
            error.was_sent = False  # of the call itself
            raise
        finally:
            entry.lock.release()
        exchange.is_sent = False
        return client

    @staticmethod
    def _look(entry: _Entry) -> AccessToken:
        try:
            unit_of_work(entry.token.look)
        except SecretError as error:
            raise HttpStatusError(401, f"the user's token cannot be read: {error}") from error
        if not entry.token.token and not entry.token.comes_from_login:
            raise entry.token.need()
        return entry.token

    def _entry(self, user_id: int | None) -> _Entry:
        if user_id is None:
            raise SignInNeededError(NO_USER)
        with self._lock:
            entry = self._entries.get(user_id)
            if entry is None:
                token = self._new_token(user_id)
                entry = self._entries[user_id] = _Entry(token, self._new_client(token))
                while len(self._entries) > MAX_USERS:
                    self._entries.popitem(last=False)[1].client.close()
            self._entries.move_to_end(user_id)
            return entry


def _require_own_message(user_id: int | None, token_id: int) -> None:
    """Raise SignInNeededError for the token of an agent's run if somebody else than its user sent the message.

    Such a run is refused before it begins. But the manifest may have changed since, and then the calls of the run would
    have the account of the agent's creator, for the person who sent the message.
    """
    messages = AgentMessage.objects.filter(token_id=token_id).exclude(requested_by_id=user_id)
    if unit_of_work(messages.exists):
        raise SignInNeededError(OTHER_ASKER)
