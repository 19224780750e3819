"""The access token that the hall sends to a member behind OAuth. It may change while the member is connected."""

from __future__ import annotations

import re
from typing import Protocol

from mcp_runtime.protocol.errors import ChallengeError

# Of one request: a refusal may ask for a nonce in the proof, one for another token, and then one for a nonce again.
TRIES = 4
NONCE_HEADER = "dpop-nonce"
USE_NONCE = "use_dpop_nonce"  # the error of a server that accepts only proofs with its nonce
_NONCE = re.compile(r"[!#-\[\]-~]{1,1000}")


class Prover(Protocol):
    def proof(self, method: str, url: str, *, token: str, nonce: str) -> str:
        """The proof for one request (RFC 9449)."""


def nonce_in(header: str | None) -> str:
    """The nonce that an answer gives for the next proof. Empty if there is none, or none that a proof can have."""
    return header if header and _NONCE.fullmatch(header) else ""


class Bearer:
    """The token as it is now. Empty if there is none. Any thread may read it.

    A token that is bound to a `key` is sent with a new proof each time, which has the last `nonce` of the server.
    Only the client of the member and the gateway's route to it read it, and both send it to the url of the member only.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.key: Prover | None = None
        self.nonce = ""

    def headers(self, method: str, url: str, nonce: str = "") -> dict[str, str]:
        """The headers of one request with this method to this address.

        `nonce` is what a refusal of the same request gave. No other request has it, because a server may accept each
        nonce only once. Without it, the proof has the last one of the server.
        """
        if not self.token:
            return {}
        if (key := self.key) is None:
            return {"Authorization": f"Bearer {self.token}"}
        token = self.token
        return {
            "Authorization": f"DPoP {token}",
            "DPoP": key.proof(method, url, token=token, nonce=nonce or self.nonce),
        }

    def note_nonce(self, header: str | None) -> str:
        """Remember what an answer gave in NONCE_HEADER, if it did. Returns that, or an empty text."""
        nonce = nonce_in(header)
        self.nonce = nonce or self.nonce
        return nonce

    def has_new_nonce(self, used: str, error: ChallengeError, given: str = "") -> bool:
        """Whether the request with the nonce `used` was refused only because the proof must have another one.

        `given` is the nonce of the refusal.
        """
        return self.key is not None and (given or self.nonce) != used and USE_NONCE in error.challenge

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.token,) if self.token else ()

    def renew(self, used: str, error: ChallengeError) -> bool:
        """Handle the refusal of a request that had the token `used`. Returns whether there is another token now.

        Then the request may be sent again, because the server did not serve it. Raises ClientError if it is known why
        there is none. It may take as long as a request to the authorization server.
        """
        return False
