"""The page on which a person allows a client, and the code that the client gets.

Each request asks the person, however often they allowed the same client. A cookie alone allows nothing: the form has a
CSRF token, and a seal that belongs to the person, the session and each byte of the request.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from mcp_runtime.control.grants import make_grant
from mcp_runtime.protocol.errors import AccessError, RequestRefusedError
from mcp_runtime.security import principals, resources
from roster.sign_in import redirects
from roster.sign_in.answers import repeated
from roster.sign_in.consent import MAX_TOOLS, ConsentForm, NothingHereError
from roster.sign_in.registration import clean_name

if TYPE_CHECKING:
    from oauth2_provider.models import Application

PERMISSION = "roster.add_token"
SEAL = "seal"  # a field of the form
SEAL_SECONDS = 600
_SALT = "guildhall.consent"
CHALLENGE_LENGTH = 43  # of a SHA-256, which is the one method


class RefusedError(Exception):
    """The request cannot be trusted, so the browser is not sent anywhere. The text is for the person."""


class SentBackError(Exception):
    """The request is wrong, and its client learns why. `code` is one of OAuth's."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code


@dataclass(frozen=True)
class Asked:
    """A valid request of a client. `resource` is a path of the gateway."""

    client: Application
    redirect_uri: str
    state: str
    challenge: str
    resource: str

    @property
    def client_name(self) -> str:
        return clean_name(self.client.name) or "a client without a name"

    @property
    def verified_host(self) -> str:
        """The host that publishes the description of the client. Empty if nobody can say whose client it is."""
        is_published = self.client.registration_source == self.client.RegistrationSource.CIMD
        return urlsplit(self.client.client_id).netloc if is_published else ""


@never_cache
@require_http_methods(["GET", "POST"])
def authorize(request: HttpRequest) -> HttpResponse:
    """Ask the person who is logged in, and send the browser back to the client with the answer."""
    if not resources.is_own_sign_in_on():
        raise Http404("sign-in of clients is off")
    if not admin.site.has_permission(request):
        return redirect_to_login(request.get_full_path(), reverse("admin:login"))
    if not request.user.has_perm(PERMISSION):
        raise PermissionDenied
    try:
        if request.method == "POST":
            _require_seal(request)
        redirect_uri = _redirect_uri(request)
        try:
            asked = _read(request, redirect_uri)
            return _answer(request, asked)
        except SentBackError as error:
            return _send_back(redirect_uri, request, error=error.code, error_description=str(error))
    except (RefusedError, NothingHereError) as error:
        return _page(request, "This request cannot be accepted", status=400, refusal=str(error))


def _answer(request: HttpRequest, asked: Asked) -> HttpResponse:
    """The form, or what the person decided with it."""
    if request.POST.get("decision") == "deny":
        raise SentBackError("access_denied", "The person did not allow it.")
    principal = principals.principal_of_user(request.user)  # type: ignore[arg-type]
    form = ConsentForm(request.POST or None, principal=principal, resource=asked.resource)
    if form.is_valid() and request.POST.get("decision") == "allow":
        try:
            return _allow(request, asked, form)
        except (AccessError, RequestRefusedError) as error:
            form.add_error(None, str(error))
    return _form_page(request, asked, form)


def _allow(request: HttpRequest, asked: Asked, form: ConsentForm) -> HttpResponse:
    """Store the grant, and send the browser back with a code for it."""
    from oauth2_provider.exceptions import OAuthToolkitError

    new = form.grant(client_id=asked.client.client_id, client_name=asked.client_name, redirect_uri=asked.redirect_uri)
    credentials: dict[str, Any] = {
        "client_id": asked.client.client_id,
        "redirect_uri": asked.redirect_uri,
        "response_type": "code",
        "code_challenge": asked.challenge,
        "code_challenge_method": "S256",
        "resource": [f"{resources.gateway_address()}{asked.resource}"],
    }
    try:
        with transaction.atomic():
            grant = make_grant(request.user, new, maker=principals.principal_of_user(request.user))  # type: ignore[arg-type]
            credentials["grant_id"] = grant.pk
            location, *_ = _library().create_authorization_response(request, resources.SCOPE, credentials, True)
    except OAuthToolkitError as error:
        raise SentBackError("invalid_request", str(error.oauthlib_error.description)) from error
    code = dict(parse_qsl(urlsplit(location).query))["code"]
    return _send_back(asked.redirect_uri, request, code=code)


def _library() -> Any:
    from oauth2_provider.views.mixins import OAuthLibMixin  # here, because most halls never need it

    return OAuthLibMixin()


# The request ------------------------------------------------------------------------------------------------------


def _redirect_uri(request: HttpRequest) -> str:
    """Where the browser may go back to, if the client has registered it. Raises RefusedError."""
    if name := repeated(request.GET):
        raise RefusedError(f"The parameter {name[:50]!r} stands in the request twice.")
    if any("\0" in value for value in request.GET.values()):
        raise RefusedError("A parameter of the request has a character that no valid one has.")
    uri = request.GET.get("redirect_uri", "")
    if not uri or redirects.fault_of(uri):
        raise RefusedError("The request does not say where the browser goes back to, or it is a place that is refused.")
    return uri


def _read(request: HttpRequest, redirect_uri: str) -> Asked:
    """Raises RefusedError, or SentBackError when it is certain that the client may get the browser back."""
    from oauth2_provider.exceptions import FatalClientError, OAuthToolkitError
    from oauth2_provider.models import Application

    try:
        _, credentials = _library().validate_authorization_request(request)
    except FatalClientError as error:
        raise RefusedError(_why_unknown(request.GET.get("client_id", ""))) from error
    except OAuthToolkitError as error:
        raise SentBackError(error.oauthlib_error.error, str(error.oauthlib_error.description or "")) from error
    challenge = str(credentials.get("code_challenge") or "")
    if credentials.get("code_challenge_method") != "S256" or len(challenge) != CHALLENGE_LENGTH:
        raise SentBackError("invalid_request", "PKCE with code_challenge_method=S256 is required.")
    # Older clients name no resource. Their token is for the gateway too, and for nothing else.
    resource = resources.path_of(request.GET.get("resource", resources.gateway_address()))
    if resource is None:
        text = f"resource must be an address of the gateway, such as {resources.gateway_address()}/mcp"
        raise SentBackError("invalid_target", text)
    client = Application.objects.get(client_id=request.GET["client_id"])
    return Asked(client, redirect_uri, request.GET.get("state", ""), challenge, resource)


def _why_unknown(client_id: str) -> str:
    """What the person can do about a client that the library did not accept."""
    from oauth2_provider.models import Application

    is_published = settings.OAUTH2_PROVIDER["CIMD_ENABLED"] and client_id.startswith("https://")
    if is_published and not Application.objects.filter(client_id=client_id).exists():
        return (
            f"The hall cannot read or accept the description that the client publishes at {client_id[:255]}. Its log "
            "says why. If the hall cannot reach the internet, its operator sets GUILD_HALL_SIGN_IN_PUBLISHED=0."
        )
    return (
        "The hall does not know this client, or the client did not register this place to go back to. "
        "Remove the hall in the client, and add it again."
    )


def _seal_of(request: HttpRequest) -> str:
    query = hashlib.sha256(request.META.get("QUERY_STRING", "").encode("latin-1", "replace")).hexdigest()
    session = hashlib.sha256(str(request.session.session_key).encode()).hexdigest()
    return f"{request.user.pk}.{session}.{query}"


def _require_seal(request: HttpRequest) -> None:
    """Raise RefusedError unless this person got the form in this session, for exactly this request."""
    signer = signing.TimestampSigner(salt=_SALT)
    try:
        sealed = signer.unsign(request.POST.get(SEAL, ""), max_age=SEAL_SECONDS)
    except signing.BadSignature:
        sealed = ""
    if sealed != _seal_of(request):
        raise RefusedError("The form is too old, or the request is not the one that it was made for. Begin again.")


# The answers ------------------------------------------------------------------------------------------------------


def _send_back(redirect_uri: str, request: HttpRequest, **parameters: str) -> HttpResponse:
    """Send the browser back to the client. `iss` tells it who answers (RFC 9207)."""
    parts = urlsplit(redirect_uri)
    answer = {**parameters, "iss": resources.web_address()}
    if state := request.GET.get("state"):
        answer["state"] = state
    own = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in answer]
    location = urlunsplit(parts._replace(query=urlencode([*own, *answer.items()])))
    # Not a redirect of Django's, which knows no addresses of apps. 303 makes the browser send a GET.
    return HttpResponse(status=303, headers={"Location": location, "Referrer-Policy": "no-referrer"})


def _form_page(request: HttpRequest, asked: Asked, form: ConsentForm) -> HttpResponse:
    response = _page(
        request,
        "Allow a client?",
        form=form,
        asked=asked,
        place=redirects.words_for(asked.redirect_uri),
        address=f"{resources.gateway_address()}{asked.resource}",
        max_tools=MAX_TOOLS,
        seal=signing.TimestampSigner(salt=_SALT).sign(_seal_of(request)),
        action=request.get_full_path(),
    )
    policy = {**settings.SECURE_CSP, "form-action": ["'self'", redirects.form_action_for(asked.redirect_uri)]}
    response.headers["Content-Security-Policy"] = "; ".join(f"{key} {' '.join(value)}" for key, value in policy.items())
    return response


def _page(request: HttpRequest, title: str, *, status: int = 200, **context: Any) -> HttpResponse:
    names = {"title": title, "site_title": admin.site.site_title, "site_header": admin.site.site_header}
    return render(request, "roster/consent.html", {**names, **context}, status=status)
