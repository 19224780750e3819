"""Members behind OAuth over REST: begin a sign-in, which a person finishes in a browser, and sign out."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from rest_framework import serializers, status
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import sign_ins, ways_in
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.addresses import web_address
from roster.api.base import REFUSED, HallView, Strict, body_of
from roster.api.described import extend_schema
from roster.api.permissions import MayControl, MayInvoke, controlled_member, used_member


class SignInBody(Strict):
    client_id = serializers.CharField(
        required=False, max_length=2048, help_text="For an authorization server at which the hall cannot register."
    )
    client_secret = serializers.CharField(required=False, max_length=8192, trim_whitespace=False)


class BegunSerializer(serializers.Serializer[Any]):
    address = serializers.CharField(help_text="Open it in a browser in which the user of the token is logged in.")
    issuer = serializers.CharField()
    client_id = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    ends_at = serializers.DateTimeField(help_text="Until then the person can finish the sign-in.")


class SignInView(HallView):
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(
        request=SignInBody,
        responses={200: BegunSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED, 409: REFUSED, 502: REFUSED},
    )
    def post(self, request: Request, name: str) -> Response:
        """Begin a sign-in at the authorization server of the member. Only the same user can finish it."""
        member = controlled_member(request, name)
        body = body_of(SignInBody, request.data)
        begun = sign_ins.begin(member, cast(User, request.user), web=web_address(), **body)
        return Response(BegunSerializer(begun).data)


class OwnSignInSerializer(serializers.Serializer[Any]):
    grant = serializers.CharField(help_text="In which way the hall gets your tokens, as in the manifest.")
    explanation = serializers.CharField(help_text="A sentence about the grant, if you do not sign in at the member.")
    state = serializers.CharField(help_text="needed, signed in, more scopes needed, or none before the first call.")
    issuer = serializers.CharField(help_text="The authorization server. Empty without a sign-in.")
    scopes = serializers.ListField(child=serializers.CharField())
    wanted_scopes = serializers.ListField(child=serializers.CharField(), help_text="Scopes that calls lacked.")
    signed_in_at = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True, help_text="When the access token is renewed at the latest.")


class OwnSignInView(HallView):
    """The sign-in of the user of the token, at a member where each user has an own one."""

    permission_classes = (IsAuthenticated, MayInvoke)

    @extend_schema(responses={200: OwnSignInSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def get(self, request: Request, name: str) -> Response:
        """Show whether you are signed in at the member. Nobody sees the sign-ins of others."""
        member = used_member(request, name)
        report = ways_in.own_report_of(member, cast(User, request.user))
        if report is None:
            raise RequestRefusedError(f"users have no sign-in of their own at member {name!r}")
        return Response(OwnSignInSerializer(report).data)

    @extend_schema(
        request=None, responses={200: BegunSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED, 502: REFUSED}
    )
    def post(self, request: Request, name: str) -> Response:
        """Begin your own sign-in. Only you can finish it, and only your calls use its tokens."""
        member = used_member(request, name)
        begun = sign_ins.begin(member, cast(User, request.user), web=web_address(), own=True)
        return Response(BegunSerializer(begun).data)


class SignOutSerializer(serializers.Serializer[Any]):
    revoked = serializers.BooleanField(help_text="Whether the authorization server confirmed that the tokens ended.")


class SignOutView(HallView):
    permission_classes = (IsAuthenticated, MayControl)

    @extend_schema(request=None, responses={200: SignOutSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, name: str) -> Response:
        """Forget the tokens of the member, and revoke them if its authorization server can."""
        is_revoked = sign_ins.sign_out(controlled_member(request, name))
        return Response({"revoked": is_revoked}, status=status.HTTP_200_OK)


class OwnSignOutView(HallView):
    permission_classes = (IsAuthenticated, MayInvoke)

    @extend_schema(request=None, responses={200: SignOutSerializer, 403: REFUSED, 404: REFUSED, 409: REFUSED})
    def post(self, request: Request, name: str) -> Response:
        """Forget your own tokens, and revoke them if the authorization server of the member can."""
        is_revoked = sign_ins.sign_out(used_member(request, name), cast(User, request.user))
        return Response({"revoked": is_revoked}, status=status.HTTP_200_OK)
