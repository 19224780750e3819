"""What a client reads first: where it registers, signs in and gets tokens (RFC 8414)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse

from mcp_runtime.security.resources import SCOPE, web_address
from roster.sign_in.answers import public


@public("GET")
def metadata(request: HttpRequest, issuer_path: str = "") -> HttpResponse:
    """The document of the one issuer. With a prefix in its address, it is at the form with this path too."""
    if issuer_path and f"/{issuer_path}" != urlsplit(web_address()).path:
        raise Http404("no issuer with this path")
    response = JsonResponse(document())
    response.headers["Cache-Control"] = "max-age=300"
    return response


def document() -> dict[str, Any]:
    address = web_address()
    return {
        "issuer": address,
        "authorization_endpoint": f"{address}{reverse('sign_in:authorize')}",
        "token_endpoint": f"{address}{reverse('sign_in:token')}",
        "registration_endpoint": f"{address}{reverse('sign_in:register')}",
        "revocation_endpoint": f"{address}{reverse('sign_in:revoke')}",
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "scopes_supported": [SCOPE],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": settings.OAUTH2_PROVIDER["CIMD_ENABLED"],
    }
