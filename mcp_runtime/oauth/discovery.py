"""Finds the authorization server of a member: metadata of the resource (RFC 9728), then of the server (RFC 8414, OIDC).

What a member or its authorization server says is not trusted. The resource must be the member, the issuer must be the
one that was asked for, and PKCE with S256 must be supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from mcp_runtime.client.outside import Guard, OutsideAnswer, ask, origin_of
from mcp_runtime.oauth import proof_keys
from mcp_runtime.oauth.challenges import SCOPE, Challenge
from mcp_runtime.protocol.errors import ClientError, OAuthError, ServerAwayError

RESOURCE = "/.well-known/oauth-protected-resource"
SERVER = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
MAX_VALUES = 100  # of a list in the metadata
MAX_TEXT = 2048
OFFLINE = "offline_access"
SIGNED = "private_key_jwt"
ALGORITHMS = ("ES256", "RS256")  # with which the hall proves who it is
METHODS = ("client_secret_basic", "client_secret_post", "none")
Fetch = Callable[[str], OutsideAnswer]


@dataclass(frozen=True)
class AuthorizationServer:
    """An authorization server and the resource (RFC 8707) that is asked for there."""

    issuer: str
    resource: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    auth_methods: tuple[str, ...] = ()  # of the token endpoint, those that the hall knows
    signing_algorithms: tuple[str, ...] = ()  # of proofs with a private key; empty if it accepts no such proof
    scopes: tuple[str, ...] = ()  # of the resource
    names_itself: bool = False  # its answers have `iss` (RFC 9207)
    reads_documents: bool = False  # it accepts the address of a published document as client id
    offers_offline: bool = False
    binds_tokens: bool = False  # it binds tokens to a key of the hall, whose algorithm it knows (RFC 9449)
    must_bind: bool = False  # the resource accepts no other tokens

    _LISTS: ClassVar = ("auth_methods", "signing_algorithms", "scopes")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), **{name: list(getattr(self, name)) for name in self._LISTS}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> AuthorizationServer:
        lists = {name: tuple(values.get(name, ())) for name in cls._LISTS}
        return cls(**{key: value for key, value in values.items() if key in cls.__dataclass_fields__} | lists)


def discover(url: str, challenge: Challenge, guard: Guard, *, needs_person: bool = True) -> AuthorizationServer:
    """The authorization server of the member at `url`.

    Without `needs_person`, no person will sign in, so its page is not needed. Raises OAuthError, and ServerAwayError
    if another try may succeed.
    """
    resource = _resource(url, challenge, guard)
    named = resource.get("authorization_servers")
    issuer = named[0] if isinstance(named, list) and named else _origin(url)
    if not isinstance(issuer, str):
        raise OAuthError("the metadata of the member names no authorization server")
    server = _read(issuer, guard, str(resource.get("resource") or url), _scopes(resource), needs_person=needs_person)
    if resource.get("dpop_bound_access_tokens_required") is not True:
        return server
    if not server.binds_tokens:
        raise OAuthError(
            f"the member accepts only tokens that are bound to a key (DPoP), and {issuer!r} gives none with ES256"
        )
    return replace(server, must_bind=True)


def identity_provider(issuer: str, resource: str, guard: Guard) -> AuthorizationServer:
    """The identity provider of a company, which is asked for assertions about this resource.

    Raises OAuthError, ServerAwayError.
    """
    return _read(issuer, guard, resource, (), needs_person=False)


def _read(
    issuer: str, guard: Guard, resource: str, scopes: tuple[str, ...], *, needs_person: bool
) -> AuthorizationServer:
    metadata = _server(issuer, guard)
    if metadata.get("issuer") != issuer:
        raise OAuthError(f"the authorization server calls itself {_shown(metadata.get('issuer'))}, and not {issuer!r}")
    if needs_person and "S256" not in _texts(metadata, "code_challenge_methods_supported"):
        raise OAuthError(
            f"the authorization server {issuer!r} does not support PKCE with S256, so codes could be stolen"
        )
    methods = _texts(metadata, "token_endpoint_auth_methods_supported") or (METHODS[0],)
    return AuthorizationServer(
        issuer=issuer,
        resource=resource,
        authorization_endpoint=_endpoint(metadata, "authorization_endpoint", guard) if needs_person else "",
        token_endpoint=_endpoint(metadata, "token_endpoint", guard),
        registration_endpoint=_endpoint(metadata, "registration_endpoint", guard, is_required=False),
        revocation_endpoint=_endpoint(metadata, "revocation_endpoint", guard, is_required=False),
        auth_methods=tuple(method for method in METHODS if method in methods),
        signing_algorithms=_algorithms(metadata) if SIGNED in methods else (),
        scopes=scopes,
        names_itself=metadata.get("authorization_response_iss_parameter_supported") is True,
        reads_documents=metadata.get("client_id_metadata_document_supported") is True,
        offers_offline=OFFLINE in _texts(metadata, "scopes_supported"),
        binds_tokens=proof_keys.ALGORITHM in _texts(metadata, "dpop_signing_alg_values_supported"),
    )


def is_protected(url: str, challenge: Challenge, guard: Guard) -> bool:
    """Whether the member that answered 401 has an authorization server, as far as its metadata says. Never raises."""
    if challenge.resource_metadata:
        return True
    addresses = [*resource_addresses(url), *server_addresses(_origin(url))]
    try:
        return any(_document(address, guard) is not None for address in addresses)
    except (OAuthError, ClientError):
        return False


# The resource -----------------------------------------------------------------------------------------------------


def resource_addresses(url: str) -> list[str]:
    """The well-known addresses of the metadata of a resource: with its path, and without it."""
    path = urlsplit(url).path.rstrip("/")
    return list(dict.fromkeys([f"{_origin(url)}{RESOURCE}{path}", f"{_origin(url)}{RESOURCE}"]))


def _resource(url: str, challenge: Challenge, guard: Guard) -> dict[str, Any]:
    """The metadata of the member as a resource. Empty if it has none, as servers of 2025-03-26 have none."""
    named = challenge.resource_metadata
    for address in [named] if named else resource_addresses(url):
        metadata = _document(address, guard)
        if metadata is None:
            continue
        resource = metadata.get("resource")
        if not isinstance(resource, str) or not covers(resource, url):
            raise OAuthError(
                f"the metadata of the member is about {_shown(resource)}, and not about {_without_query(url)}"
            )
        return metadata
    if named:
        raise OAuthError("the metadata that the member names cannot be read")
    return {}


def covers(resource: str, url: str) -> bool:
    """Whether the resource is the member at `url`, or a path above it on the same host and port."""
    try:
        own, other = urlsplit(url).path.rstrip("/") + "/", urlsplit(resource).path.rstrip("/") + "/"
    except ValueError:
        return False
    is_same = bool(origin_of(url)) and origin_of(resource) == origin_of(url)
    return is_same and own.startswith(other) and "@" not in urlsplit(resource).netloc and len(resource) <= MAX_TEXT


# The server -------------------------------------------------------------------------------------------------------


def server_addresses(issuer: str) -> list[str]:
    """The well-known addresses of the metadata of an authorization server, in the order of the specification."""
    origin, path = _origin(issuer), urlsplit(issuer).path.rstrip("/")
    if not path:
        return [f"{origin}{SERVER}", f"{origin}{OPENID}"]
    return [f"{origin}{SERVER}{path}", f"{origin}{OPENID}{path}", f"{origin}{path}{OPENID}"]


def _server(issuer: str, guard: Guard) -> dict[str, Any]:
    if fault := guard.fault(issuer):
        raise OAuthError(f"the authorization server {issuer[:200]!r} may not be asked: {fault}")
    for address in server_addresses(issuer):
        if (metadata := _document(address, guard)) is not None:
            return metadata
    raise OAuthError(f"the authorization server {issuer!r} has no metadata")


def _algorithms(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The algorithms for proofs with a private key that both sides know. Servers that name none mean all."""
    named = _texts(metadata, "token_endpoint_auth_signing_alg_values_supported") or ALGORITHMS
    return tuple(algorithm for algorithm in ALGORITHMS if algorithm in named)


def _endpoint(metadata: Mapping[str, Any], key: str, guard: Guard, *, is_required: bool = True) -> str:
    value = metadata.get(key)
    if value is None and not is_required:
        return ""
    if not isinstance(value, str) or not value:
        raise OAuthError(f"the metadata of the authorization server has no {key}")
    if fault := guard.fault(value):
        raise OAuthError(f"the {key} {value[:200]!r} of the authorization server may not be used: {fault}")
    return value


# Documents --------------------------------------------------------------------------------------------------------


def _document(address: str, guard: Guard) -> dict[str, Any] | None:
    """The JSON object at the address. None if there is none. Raises ServerAwayError and OAuthError."""
    try:
        answer = ask(address, guard)
    except ClientError as error:
        if guard.fault(address):
            raise OAuthError(str(error)) from error
        raise ServerAwayError(f"{address} cannot be read: {error}") from error
    if answer.status >= 500:
        raise ServerAwayError(f"{address} answered with HTTP {answer.status}")
    return answer.json_object() if answer.status == 200 else None


def _scopes(resource: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(scope for scope in _texts(resource, "scopes_supported") if SCOPE.fullmatch(scope))


def _texts(metadata: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = metadata.get(key)
    if not isinstance(values, list):
        return ()
    return tuple(value for value in values[:MAX_VALUES] if isinstance(value, str) and len(value) <= MAX_TEXT)


def _shown(value: Any) -> str:
    return repr(value[:200]) if isinstance(value, str) else "nothing"


def _without_query(url: str) -> str:
    return repr(url.partition("?")[0])


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
