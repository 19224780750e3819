"""Who the hall is at the authorization server of a member: what it knows from before, and its client there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings

from mcp_runtime.protocol.errors import ClientIdNeededError, RequestRefusedError
from mcp_runtime.secrets import values
from roster.models import GuildMember, SignIn

if TYPE_CHECKING:  # the web loads them when somebody signs a member in
    from mcp_runtime.client.outside import Guard
    from mcp_runtime.members.credentials import Held, Holder
    from mcp_runtime.members.manifest.declaration import Manifest
    from mcp_runtime.oauth.challenges import Challenge
    from mcp_runtime.oauth.clients import OAuthClient
    from mcp_runtime.oauth.discovery import AuthorizationServer

# Both are below the address of the web.
CALLBACK = "/members/sign-in/"
DOCUMENT = "/members/sign-in/client.json"


@dataclass(frozen=True)
class Known:
    """What the hall knows of the authorization server before a sign-in.

    `row` and `held` are for whom the sign-in is. For a user, `row_of_member` and `held_of_member` are those of the
    member, whose client helps each user. Its tokens are not read. Otherwise both are the same.
    """

    row: SignIn | None
    held: Held | None
    row_of_member: SignIn | None
    held_of_member: Held | None

    @classmethod
    def of(cls, member: GuildMember, url: str, holder: Holder) -> Known:
        """Raises RequestRefusedError if the key of the secrets is not there."""
        from mcp_runtime.members import credentials

        row = credentials.row_of(member.pk, url, holder)
        of_member = credentials.row_of(member.pk, url, credentials.LISTS) if holder.is_user else row
        with values.refusals():
            held = credentials.read(row) if row else None
            held_of_member = credentials.read(of_member) if of_member else None
        return cls(row, held, of_member, held_of_member)

    @property
    def challenge(self) -> Challenge:
        from mcp_runtime.oauth.challenges import Challenge

        asked = self.row if self.row and self.row.resource_metadata else self.row_of_member or self.row
        return Challenge(True, asked.resource_metadata, tuple(asked.challenge_scopes)) if asked else Challenge()

    def issuer_of_secret(self, member: GuildMember) -> str:
        """The authorization server that may have the secret of the manifest. Empty before the first sign-in."""
        from mcp_runtime.members import credentials

        if member.signs_in_by_user:
            return credentials.issuer_of_users(member.pk, member.server_url)
        return credentials.issuer_of(self.held_of_member)

    def kept_scopes(self, server: AuthorizationServer) -> tuple[str, ...]:
        """The scopes that the hall has. They stay, so that a step up does not take others away."""
        if self.row is None or not self.row.wanted_scopes or self.row.issuer != server.issuer:
            return ()
        return (*self.row.scopes, *self.row.wanted_scopes)

    def client(self, server: AuthorizationServer, redirect: str) -> OAuthClient | None:
        """Who the hall was at this server at the last sign-in of the member, or else of the user."""
        of_member: OAuthClient | None = _client_there(self.held_of_member, self.row_of_member, server, redirect)
        return of_member or _client_there(self.held, self.row, server, redirect)


def server_of(member: GuildMember, manifest: Manifest, known: Known, guard: Guard) -> AuthorizationServer:
    """The authorization server that the member names, if the secret of the manifest may be sent there."""
    from mcp_runtime.members import credentials
    from mcp_runtime.oauth import discovery

    server = discovery.discover(manifest.url, known.challenge, guard)
    if manifest.oauth.client_secret or manifest.oauth.issuer:
        before, is_by_user = known.issuer_of_secret(member), member.signs_in_by_user
        credentials.require_issuer(server, manifest.oauth.issuer, before, is_by_user=is_by_user)
    return server


def _client_there(
    held: Held | None, row: SignIn | None, server: AuthorizationServer, redirect: str
) -> OAuthClient | None:
    """Who the hall was at this authorization server at the last sign-in, if the same redirect is known there."""
    if held is None or row is None or held.server is None or held.server.issuer != server.issuer:
        return None
    return held.client if row.redirect == redirect else None


def client_of(
    member: GuildMember,
    server: AuthorizationServer,
    same: OAuthClient | None,
    guard: Guard,
    web: str,
    entered: tuple[str, str],
    scopes: Sequence[str],
) -> OAuthClient:
    """Who the hall is there, in the order of the specification: known, by its document, registered, or entered."""
    from mcp_runtime.oauth import clients

    oauth = member.manifest.get("oauth") or {}
    if oauth.get("client_id"):
        with values.refusals():
            secret = _secret_of_manifest(member, str(oauth.get("client_secret") or ""))
        return clients.known(str(oauth["client_id"]), secret, server, "manifest")
    if entered[0]:
        _require_text(*entered)
        return clients.known(*entered, server, "entered")
    if same is not None and same.source in clients.REPLACEABLE:
        return same
    if server.reads_documents and web.startswith("https:"):
        return clients.OAuthClient(f"{web}{DOCUMENT}", source="document")
    if server.registration_endpoint:
        return clients.register(server, f"{web}{CALLBACK}", guard, scopes)
    raise ClientIdNeededError(
        f"the hall cannot register at {server.issuer!r}. Register it there by hand, with the redirect address "
        f"{web}{CALLBACK}, and enter the client id"
    )


def _secret_of_manifest(member: GuildMember, reference: str) -> str:
    if not reference:
        return ""
    from mcp_runtime.secrets import references

    sources = references.Sources(
        settings.GUILD_HALL_MEMBERS_DIR / member.directory,
        private=(settings.GUILD_HALL_DATA_DIR, *settings.PRIVATE_PLACES),
        files=settings.GUILD_HALL_SECRET_FILES_DIR,
        secret=values.MemberSecrets(member, member.manifest),
    )
    return references.resolve({"client_secret": reference}, sources, "oauth").values["client_secret"]


def _require_text(client_id: str, secret: str) -> None:
    for text, longest in ((client_id, 2048), (secret, 8192)):
        if len(text) > longest or not text.isascii() or (text and not text.isprintable()):
            raise RequestRefusedError("a client id and its secret are one line of visible ASCII")


def document(web: str) -> dict[str, Any]:
    """What the hall publishes about itself (Client ID Metadata Document)."""
    from mcp_runtime.oauth import clients

    return clients.description(
        f"{web}{CALLBACK}", client_id=f"{web}{DOCUMENT}", client_uri=web, **{"token_endpoint_auth_method": "none"}
    )
