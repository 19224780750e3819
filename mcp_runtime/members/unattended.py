"""How the hall gets tokens for a member without a person who signs in at the authorization server of the member.

client_credentials   with the client id of the hall there, and its proof
workload_identity    with a signed statement about the hall, which its platform gave (RFC 7523)
enterprise_managed   with a statement of the company's identity provider (ID-JAG), in exchange for an ID token

The ID token is that of a service, which the manifest names, or that of the user's login at single sign-on. That of a
user is sent to the provider of single sign-on alone, whatever a manifest says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial

from django.conf import settings

from mcp_runtime.client.outside import Guard, Place
from mcp_runtime.members import credentials, kept_id_tokens
from mcp_runtime.members.credentials import EVERYBODY, LISTS, PERSON, Ask, Held, Holder, require_issuer
from mcp_runtime.members.manifest.declaration import Manifest, OAuth
from mcp_runtime.oauth import clients, discovery, grants, identity_assertions, providers
from mcp_runtime.oauth.challenges import Challenge
from mcp_runtime.oauth.clients import OAuthClient
from mcp_runtime.oauth.discovery import AuthorizationServer
from mcp_runtime.oauth.grants import Tokens
from mcp_runtime.protocol.errors import AssertionRefusedError, OAuthError
from mcp_runtime.secrets import references

# Without a person they decide whose access the hall gets. Proofs of the hall may change.
ACCOUNT_KEYS = ("issuer", "client_id", "assertion", "subject_token", "idp_issuer", "idp_client_id")


def way_of(oauth: OAuth, holder: Holder) -> str:
    """In which way the hall gets the tokens of this holder: the grant, and without a person, a digest of the account.

    Tokens that came in another way are not used, because they are the access of somebody else.
    """
    if oauth.grant == PERSON or (holder == LISTS and not oauth.subject_token):
        return PERSON
    account = json.dumps([getattr(oauth, key) for key in ACCOUNT_KEYS])
    return f"{oauth.grant}:{hashlib.sha256(account.encode()).hexdigest()[:16]}"


def forget_other_ways(member_id: int, oauth: OAuth) -> None:
    """Forget what the hall has of this member in another way than the manifest says."""
    if oauth.credentials == "user":
        of_users = way_of(oauth, credentials.of_user(0))  # the same for each of them
        credentials.forget_other_ways(member_id, of_lists=way_of(oauth, LISTS), of_users=of_users)
    else:
        credentials.forget_other_ways(member_id, of_everybody=way_of(oauth, EVERYBODY))


@dataclass(frozen=True)
class Proofs:
    """The values of the references of `oauth` at this moment, and what the identity provider is asked with."""

    values: dict[str, str] = field(default_factory=dict, repr=False)
    issuer: str = ""  # of the ID token
    client_id: str = ""  # of the hall at the identity provider
    client_secret: str = field(default="", repr=False)
    id_token: str = field(default="", repr=False)
    is_of_user: bool = False

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(value for value in (*self.values.values(), self.id_token) if value)


@dataclass(frozen=True)
class Unattended:
    """The way for one member, or for one user of it.

    `read_proofs` reads the references of the manifest each time, because files change.
    """

    url: str
    oauth: OAuth
    read_proofs: Callable[[], Proofs]
    plain_http_hosts: Collection[str] = ()

    @property
    def is_asserted(self) -> bool:
        """Whether somebody else vouches each time, and so decides whether the access goes on."""
        return self.oauth.grant in ("workload_identity", "enterprise_managed")

    def ask(self, proofs: Proofs, challenge: Challenge, guard: Guard) -> Ask:
        """Ask for tokens with these proofs, which were read before, because a request may take long."""
        return partial(self._tokens, proofs, challenge, guard)

    def _tokens(
        self, proofs: Proofs, challenge: Challenge, guard: Guard, held: Held
    ) -> tuple[AuthorizationServer, OAuthClient, Tokens]:
        oauth = self.oauth
        known = held.server if held.server and oauth.issuer in ("", held.server.issuer) else None
        server = known or discovery.discover(self.url, challenge, guard, needs_person=False)
        require_issuer(server, oauth.issuer, credentials.issuer_of(held))
        known_as = clients.with_key if oauth.private_key else clients.known
        secret = proofs.values.get("private_key") or proofs.values.get("client_secret", "")
        client = known_as(oauth.client_id, secret, server, "manifest")
        scopes = grants.wanted_scopes(replace(server, offers_offline=False), challenge, oauth.scopes)
        if oauth.grant == "client_credentials":
            return server, client, grants.of_client(server, client, scopes, guard, held.key)
        if oauth.grant == "workload_identity":
            assertion = proofs.values["assertion"]
            identity_assertions.require_usable(assertion, server)
        else:
            assertion = self._exchanged(proofs, server, scopes)
        return server, client, grants.of_assertion(server, client, assertion, scopes, guard, held.key)

    def _exchanged(self, proofs: Proofs, server: AuthorizationServer, scopes: tuple[str, ...]) -> str:
        # The manifest or the settings name the provider, which may be in the network of the company.
        guard = Guard((Place.PUBLIC, Place.PRIVATE), proofs.issuer, self.plain_http_hosts)
        try:
            with providers.asked(proofs.issuer, guard) as known:
                provider = replace(known, resource=server.resource)
                client = clients.known(proofs.client_id, proofs.client_secret, provider, "manifest")
                return identity_assertions.exchange(
                    provider, client, proofs.id_token, server, scopes, guard, is_of_user=proofs.is_of_user
                )
        except AssertionRefusedError:
            raise
        except OAuthError as error:
            raise type(error)(f"the identity provider gave no assertion: {error}") from error


def of_member(manifest: Manifest, sources: references.Sources, plain_http_hosts: Collection[str]) -> Unattended | None:
    """The way for the member itself, which is that of its lists if each user has an own one.

    None if a person signs in. Raises SecretError if a reference cannot be read.
    """
    oauth = manifest.oauth
    if way_of(oauth, LISTS if oauth.credentials == "user" else EVERYBODY) == PERSON:
        return None
    read_proofs = partial(_proofs_of_member, oauth, sources)
    read_proofs()
    return Unattended(manifest.url, oauth, read_proofs, plain_http_hosts)


def of_user(
    manifest: Manifest, sources: references.Sources, plain_http_hosts: Collection[str], user_id: int
) -> Unattended | None:
    """The way for one user. None if each user signs in at the authorization server of the member."""
    oauth = manifest.oauth
    if oauth.grant != "enterprise_managed":
        return None
    return Unattended(manifest.url, oauth, partial(_proofs_of_user, oauth, sources, user_id), plain_http_hosts)


def _proofs_of_member(oauth: OAuth, sources: references.Sources) -> Proofs:
    values = _values(oauth, sources, references.OF_OAUTH)
    secret, id_token = values.get("idp_client_secret", ""), values.get("subject_token", "")
    return Proofs(values, oauth.idp_issuer, oauth.idp_client_id, secret, id_token)


def _proofs_of_user(oauth: OAuth, sources: references.Sources, user_id: int) -> Proofs:
    """Raises AssertionRefusedError if the user must log in at single sign-on first."""
    issuer, id_token = kept_id_tokens.of_user(user_id)
    values = _values(oauth, sources, ("client_secret", "private_key"))
    client_id, secret = settings.GUILD_HALL_OIDC_CLIENT_ID, settings.GUILD_HALL_OIDC_CLIENT_SECRET
    return Proofs(values, issuer, client_id, secret, id_token, is_of_user=True)


def _values(oauth: OAuth, sources: references.Sources, names: Collection[str]) -> dict[str, str]:
    named = {name: getattr(oauth, name) for name in names if getattr(oauth, name)}
    return dict(references.resolve(named, sources, "oauth").values)
