"""The access token that the hall sends to a member behind OAuth. It may change while the member is connected."""

from __future__ import annotations

from mcp_runtime.protocol.errors import ChallengeError


class Bearer:
    """The token as it is now. Empty if there is none. Any thread may read it.

    Only the client of the member and the gateway's route to it read it, and both send it to the url of the member only.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.token,) if self.token else ()

    def renew(self, used: str, error: ChallengeError) -> bool:
        """Handle the refusal of a request that had the token `used`. Returns whether there is another token now.

        Then the request may be sent again, because the server did not serve it. Raises ClientError if it is known why
        there is none. It may take as long as a request to the authorization server.
        """
        return False
