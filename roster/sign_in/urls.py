"""The addresses of sign-in. Those of programs have no slash at their end, because clients compare them as texts."""

from __future__ import annotations

from django.urls import path

from roster.sign_in.authorization import authorize
from roster.sign_in.metadata import metadata
from roster.sign_in.registration import register
from roster.sign_in.token_views import revoke, token

app_name = "sign_in"

urlpatterns = [
    path(".well-known/oauth-authorization-server", metadata, name="metadata"),
    path(".well-known/oauth-authorization-server/<path:issuer_path>", metadata, name="metadata_of_path"),
    path("oauth/authorize", authorize, name="authorize"),
    path("oauth/token", token, name="token"),
    path("oauth/register", register, name="register"),
    path("oauth/revoke", revoke, name="revoke"),
]
