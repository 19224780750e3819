"""The access token of one connected member behind OAuth: it is renewed early, or when the member refuses it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime

from mcp_runtime.client import outside
from mcp_runtime.client.bearer import Bearer
from mcp_runtime.client.outside import Guard
from mcp_runtime.members import credentials, unattended
from mcp_runtime.members.credentials import Held, Holder
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.unattended import Proofs, Unattended
from mcp_runtime.oauth import challenges, discovery
from mcp_runtime.oauth.challenges import Challenge
from mcp_runtime.oauth.grants import ASSERTED_SECONDS
from mcp_runtime.oauth.proof_keys import ProofKey
from mcp_runtime.protocol.errors import (
    AccessEndedError,
    AssertionRefusedError,
    ChallengeError,
    GrantOverError,
    HttpStatusError,
    OAuthError,
    OwnSignIn,
    SecretError,
    ServerAwayError,
    SignInNeededError,
    SignInText,
)
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import unit_of_work
from roster.models import SignIn

logger = logging.getLogger("guildhall.runtime")

# A server that refuses a token which is this new will refuse the next one too.
NEW_SECONDS = 10.0
# The row of a sign-in, and when a person signed in.
SignInKey = tuple[int, datetime | None]
NO_SIGN_IN: SignInKey = (0, None)
HOW = "sign in on its page in the admin, or with guildhall sign_in {}"


class AccessToken(Bearer):
    """The token that the hall sends to the member with this manifest.

    `own` is how the hall gets tokens without a sign-in of a person, if it does. `on_over(token, reason)` is called
    when a person must sign in again. `own_page` is the address where the user signs in, for the token of one user.
    """

    def __init__(
        self,
        member_id: int,
        manifest: Manifest,
        *,
        plain_http_hosts: Collection[str],
        own: Unattended | None = None,
        on_over: Callable[[AccessToken, str], None] = lambda token, reason: None,
        holder: Holder = credentials.EVERYBODY,
        own_page: str = "",
    ) -> None:
        super().__init__()
        self.member_id = member_id
        self.manifest = manifest
        self._plain_http_hosts = plain_http_hosts
        self.own = own
        self._proofs = Proofs()
        self._reason = ""  # why there is no token from `own`
        self._needs_login = False  # whether a login of the user would end this reason
        self._ended_by = ""  # why the last sign-in of a person is over, if the manifest ended it
        self._on_over = on_over
        self._holder = holder
        self._way = unattended.way_of(manifest.oauth, holder)
        self._own_page = own_page
        self._sign_in = NO_SIGN_IN  # which one the token is of, as `look` has seen it
        self._lock = threading.Lock()
        self._version = 0
        self._renew_at: float | None = None  # by the monotonic clock
        self._ends_at: float | None = None  # by the monotonic clock. After that the hall does not send it
        self._renewed_at: float | None = None  # by the monotonic clock, when the member refused the one before
        self._last = ""  # the token before this one. Requests with it may still run

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(secret for secret in (self.token, self._last, *self._proofs.secrets) if secret)

    @property
    def is_own(self) -> bool:
        """Whether the hall signs in as itself, so that nobody is asked."""
        return self.own is not None

    @property
    def comes_from_login(self) -> bool:
        """Whether the login of one user at single sign-on gives the token, so that there is one when it is needed."""
        return self.is_own and self._holder.is_user

    @property
    def sign_in(self) -> SignInKey:
        """After another one, the token may be of another account. The login of a user is always the same account."""
        return NO_SIGN_IN if self.comes_from_login else self._sign_in

    @property
    def _own_sign_in(self) -> OwnSignIn | None:
        """What the user of the token has to do to get the next one. None if it is not of one user."""
        if self._holder.user_id is None:
            return None
        return OwnSignIn(self.member_id, self._holder.user_id, self._own_page, is_login=self.comes_from_login)

    # Before the connection ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Take the token from the row, and renew it if its end is near. Raises OAuthError, KeyFileError.

        What the hall got before the manifest changed the way is forgotten, for all users of the member.
        """
        unattended.forget_other_ways(self.member_id, self.manifest.oauth)
        row = self._row()
        if row is None or not row.has_tokens:
            self._version = row.version if row else 0  # a sign-in of a person may have ended before
            return
        self._take(credentials.read(row))
        if not self.is_due:
            return
        try:
            self._renew(self.token, Challenge())
        except GrantOverError:
            self.token = ""  # the member says what it needs, and a person signs in again
        except OAuthError as error:
            is_over = row.expires_at is None or row.expires_at <= clock.now()
            if is_over or isinstance(error, AccessEndedError):
                raise

    def look(self) -> None:
        """Let the token be that of the row as it is now, so that a sign-out ends it at once. Raises KeyFileError."""
        row = self._row()
        if row is None or not row.has_tokens:
            self._drop()
            self._version = row.version if row else 0
            return
        sign_in = (row.pk, row.signed_in_at)  # another row may have the same version, after a sign-out
        if sign_in != self._sign_in or row.version > self._version or not self.token:
            self._sign_in = sign_in
            self._take(credentials.read(row))

    def need(self) -> SignInNeededError:
        """Why a request cannot be sent while there is no token."""
        if self.is_own:
            own = self._own_sign_in if self._needs_login else None
            where = f" at {self._own_page}" if self._needs_login else ""  # such a reason ends with "log in to the hall"
            return SignInNeededError(f"{SignInText.NO_ACCOUNT}: {self._reason}{where}", own=own)
        return SignInNeededError(self._sentence() + self._why_ended, own=self._own_sign_in)

    def needs(self, error: ChallengeError) -> SignInNeededError | None:
        """Why a person must sign in, if the refusal of the member means that. Asks the member for its metadata."""
        challenge = challenges.read(error.challenge)
        is_refused = error.status == 401 or challenge.asks_for_more
        if self.is_own or not is_refused:
            return None
        with outside.in_total(credentials.ASK_SECONDS):
            if not discovery.is_protected(self.manifest.url, challenge, self._guard()):
                return None
        unit_of_work(lambda: self._note(challenge))
        return SignInNeededError(self._sentence(challenge.scopes) + self._why_ended, challenge.scopes)

    # While it is connected ----------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the end of the token is near, or the login of a user gives one first."""
        if self.comes_from_login and not self.token:
            return True
        return self._renew_at is not None and time.monotonic() >= self._renew_at

    def renew_early(self) -> None:
        """Renew the token before its end. While the authorization server is away, the old one goes on to its end.

        If somebody refuses to vouch again, it ends at once.
        """
        try:
            self._renew(self.token, Challenge())
        except GrantOverError as error:
            self._over(str(error))
        except (OAuthError, SecretError) as error:
            self._renew_at = time.monotonic() + 1.0  # the row says when the next try is due
            self._note_reason(error)
            logger.debug("a token could not be renewed: %s", error)

    def renew(self, used: str, error: ChallengeError) -> bool:
        challenge = challenges.read(error.challenge)
        if error.status == 403:
            return self._ask_for_more(challenge)
        if not self.token and not self.is_own:
            return False
        is_new = self._renewed_at is not None and time.monotonic() < self._renewed_at + NEW_SECONDS
        if is_new and used == self.token and not self.is_due:
            return False
        try:
            self._renew(used, challenge)
        except GrantOverError as over:
            raise self._over(str(over), challenge) from over
        except OAuthError as refusal:
            if not self.is_own and not isinstance(refusal, ServerAwayError):
                text = f"its token cannot be renewed: {refusal}"
                raise ChallengeError(401, text, error.challenge) from refusal
            reason = self._note_reason(refusal)
            raise (self.need() if self._needs_login else self._not_now(reason)) from refusal
        except SecretError as away:
            raise self._not_now(self._note_reason(away)) from away
        if used:
            self._renewed_at = time.monotonic()
        return True

    def _note_reason(self, error: Exception) -> str:
        """The reason for people. That of the last try stays while the next one waits. A token that is over ends."""
        if isinstance(error, AccessEndedError) or (self._ends_at is not None and time.monotonic() >= self._ends_at):
            self._drop()
        if not self._reason or not isinstance(error, ServerAwayError):
            self._reason = str(error)
            needs_login = isinstance(error, AssertionRefusedError) and error.needs_login
            self._needs_login = self.comes_from_login and needs_login
        return self._reason

    @staticmethod
    def _not_now(reason: str) -> HttpStatusError:
        """Not a challenge, because a sign-in of a person would not help."""
        return HttpStatusError(401, f"its token cannot be renewed now: {reason}")

    def _ask_for_more(self, challenge: Challenge) -> bool:
        """Note the scopes that a call needs. Raises SignInNeededError."""
        if self.is_own or not challenge.asks_for_more or not self.token:
            return False
        if not unit_of_work(lambda: credentials.note_step_up(self.member_id, challenge.scopes, self._holder)):
            return False
        raise SignInNeededError(self._sentence(challenge.scopes, is_more=True), challenge.scopes, self._own_sign_in)

    def _over(self, reason: str, challenge: Challenge | None = None) -> SignInNeededError:
        if challenge is not None and challenge.is_oauth:
            unit_of_work(lambda: self._note(challenge))
        sentence = f"{self._sentence()} ({reason})"
        self._drop()
        self._on_over(self, sentence)
        return SignInNeededError(sentence, own=self._own_sign_in)

    def _drop(self) -> None:
        self._last, self.token = self.token or self._last, ""

    def _renew(self, used: str, challenge: Challenge) -> None:
        """Let the token be another one than `used`. Threads of this process wait for the first of them."""
        with self._lock:
            if self.token != used:
                return
            self._take(unit_of_work(lambda: self._renewed(challenge)))

    def _renewed(self, challenge: Challenge) -> Held:
        guard = self._guard()
        if self.own is not None:
            proofs = self.own.read_proofs()
            if proofs != self._proofs:
                self._proofs, self._reason = proofs, ""  # which was about other proofs
            ask = self.own.ask(proofs, self._note(challenge), guard)
        else:
            ask = credentials.refresh_of(guard, credentials.issuer_now(self.member_id))
        return credentials.renew(self.member_id, self.manifest.url, self._version, ask, self._holder, self._way)

    def _row(self) -> SignIn | None:
        row = credentials.row_of(self.member_id, self.manifest.url, self._holder, self._way)
        self._ended_by = ""
        if row is not None and not self.is_own and not row.is_of(self.manifest.oauth.issuer):
            # The manifest of now decides, because somebody may have signed in since this connection began.
            self._ended_by = credentials.end_of_other_issuer(row, credentials.issuer_now(self.member_id))
        return row

    def _note(self, challenge: Challenge) -> Challenge:
        return credentials.note_challenge(self.member_id, self.manifest.url, challenge, self._holder)

    def _take(self, held: Held) -> None:
        self._last = self.token or self._last  # first, so that errors never show a token that was sent
        self.key = ProofKey(held.key) if held.is_bound else None
        self._version, self.token, self._renew_at, self._reason = held.version, held.access, None, ""
        left, now = None, time.monotonic()
        if held.expires_at is not None:
            left = (held.expires_at - clock.now()).total_seconds()
        if self.own is not None and self.own.is_asserted:
            # Earlier versions wrote no end if the authorization server said none.
            left = ASSERTED_SECONDS if left is None else left
            self._ends_at, left = now + left, min(left, ASSERTED_SECONDS)
        if left is not None and (held.refresh or self.is_own):
            self._renew_at = now + left - min(credentials.EARLY_SECONDS, max(left, 0.0) / 2)

    def _guard(self) -> Guard:
        return Guard.near(self.manifest.url, self._plain_http_hosts)

    @property
    def _why_ended(self) -> str:
        return f" ({self._ended_by})" if self._ended_by else ""

    def _sentence(self, scopes: Collection[str] = (), *, is_more: bool = False) -> str:
        needs_more = is_more and scopes
        needed = f"{SignInText.MORE_SCOPES} ({' '.join(scopes)[:300]})" if needs_more else SignInText.NEEDED
        how = f"{SignInText.OWN} {self._own_page}" if self._own_page else HOW.format(self.manifest.name)
        return f"{needed}: {how}"
