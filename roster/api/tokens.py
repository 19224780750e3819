"""A user's own tokens over REST: create, list and revoke them."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.urls import reverse
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control.tokens import MAX_TOKEN_NAME, NewToken, make_token, revoke_token
from roster.addresses import gateway_address
from roster.api.base import REFUSED, HallView, NewestFirst, Strict, body_of
from roster.api.described import extend_schema
from roster.api.permissions import MayMakeTokens, principal_of
from roster.models import Token, TokenLimit
from roster.tokens import parse_tool


def _limit_field(limit: TokenLimit) -> serializers.IntegerField:
    return serializers.IntegerField(
        required=False,
        allow_null=True,
        default=None,
        min_value=limit.minimum,
        max_value=limit.maximum,
        help_text=limit.zero and f"{limit.zero}.",
    )


class NewTokenSerializer(Strict):
    """The body that creates a token. Without members, tools and tool set, the token may do what its creator may."""

    name = serializers.CharField(required=False, default="", max_length=MAX_TOKEN_NAME, allow_blank=True)
    members = serializers.ListField(child=serializers.CharField(), required=False, default=list, help_text="Names.")
    tools = serializers.ListField(
        child=serializers.CharField(), required=False, default=list, help_text="Each as MEMBER/TOOL."
    )
    tool_set = serializers.CharField(required=False, default="", allow_blank=True, help_text="The name of a tool set.")
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="If null, the token does not expire."
    )
    search_mode = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Clients list three tools that find and call all others, in place of all tools.",
    )
    pinned_tools = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        default=list,
        max_length=Token.MAX_PINNED,
        help_text="Each as MEMBER/TOOL. Clients list them beside these three.",
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return super().get_fields() | {limit.name: _limit_field(limit) for limit in Token.LIMITS}

    def validate_tools(self, texts: list[str]) -> list[tuple[str, str]]:
        return _parse_tools(texts)

    def validate_pinned_tools(self, texts: list[str]) -> list[tuple[str, str]]:
        return _parse_tools(texts)


def _parse_tools(texts: list[str]) -> list[tuple[str, str]]:
    try:
        return [parse_tool(text) for text in texts]
    except ValueError as error:
        raise serializers.ValidationError(str(error)) from error


class TokenSerializer(serializers.ModelSerializer[Token]):
    """A token's row, without the token itself. Prefetch its members and tools."""

    state = serializers.ChoiceField(
        choices=Token.STATES,
        help_text="`dormant`: its user must log in with single sign-on again, and it then works again.",
    )
    members = serializers.SerializerMethodField(help_text="The members, if the scope is `members`.")
    tools = serializers.SerializerMethodField(help_text="The tools as MEMBER/TOOL, if the scope is `tools`.")
    tool_set = serializers.CharField(
        source="tool_set.name",
        default=None,
        allow_null=True,
        help_text="The tool set that the token is for, if the scope is `tools` and `tools` is empty.",
    )
    pinned_tools = serializers.ListField(child=serializers.CharField(), help_text="Each as MEMBER/TOOL.")
    client = serializers.SerializerMethodField(
        help_text="Of a client that signed in: its id, and the address of the gateway that it is for. Null for a token."
    )
    url = serializers.SerializerMethodField()

    class Meta:
        model = Token
        fields = [
            "id",
            "name",
            "hint",
            "state",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
            "scope",
            "members",
            "tools",
            "tool_set",
            *(limit.name for limit in Token.LIMITS),
            "search_mode",
            "pinned_tools",
            "client",
            "url",
        ]

    def get_members(self, token: Token) -> list[str]:
        return sorted(member.name for member in token.members.all())

    def get_tools(self, token: Token) -> list[str]:
        return sorted(f"{tool.member.name}/{tool.name}" for tool in token.tools.all())

    def get_client(self, token: Token) -> dict[str, Any] | None:
        if not token.is_grant:
            return None
        grant = token.grant
        return {
            "client_id": grant.client_id,
            "issuer": grant.issuer,
            "redirect_uri": grant.redirect_uri,
            "address": f"{gateway_address()}{token.resource}",
            "ends_at": None if grant.issuer else grant.ends_at,
        }

    def get_url(self, token: Token) -> str:
        return reverse("token", args=[token.pk])


class MadeTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="The token. The hall does not store it and cannot show it again.")

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]


def _tokens(request: Request) -> QuerySet[Token]:
    """The user's own tokens. A narrowed token sees only itself."""
    principal = principal_of(request)
    own_tokens = (
        Token.objects.filter(user=principal.user_id)
        .select_related("tool_set", "user__identity", "grant")
        .prefetch_related("members", "tools__member")
    )
    return own_tokens.filter(pk__in=[principal.token_id]) if principal.is_narrowed else own_tokens


def _own_token(request: Request, pk: int) -> Token:
    token = _tokens(request).filter(pk=pk).first()
    if token is None:
        raise NotFound(f"You have no token {pk}.")
    return token


class TokensView(HallView, ListAPIView[Token]):
    """Your own tokens, newest first; revoked and expired ones too."""

    serializer_class = TokenSerializer
    pagination_class = NewestFirst
    queryset = Token.objects.none()
    permission_classes = (IsAuthenticated, MayMakeTokens)

    def get_queryset(self) -> QuerySet[Token]:
        return _tokens(self.request)

    @extend_schema(
        request=NewTokenSerializer, responses={201: MadeTokenSerializer, 400: REFUSED, 403: REFUSED, 404: REFUSED}
    )
    def post(self, request: Request) -> Response:
        """Create a token for yourself. It is shown only in this answer.

        With a token, the new one cannot have more scope, a later end or higher limits. It gets those of the old one if
        the body names no others.
        """
        body = body_of(NewTokenSerializer, request.data)
        limits = {limit.name: body.pop(limit.name) for limit in Token.LIMITS}
        new_token = NewToken(**body, limits=limits)
        row, token = make_token(cast(User, request.user), new_token, maker=principal_of(request))
        return Response({**TokenSerializer(row).data, "token": token}, status=status.HTTP_201_CREATED)


class TokenView(HallView):
    """One of your own tokens, without its secret."""

    @extend_schema(responses={200: TokenSerializer, 404: REFUSED})
    def get(self, request: Request, pk: int) -> Response:
        return Response(TokenSerializer(_own_token(request, pk)).data)


class TokenRevokeView(HallView):
    @extend_schema(request=None, responses={200: TokenSerializer, 404: REFUSED})
    def post(self, request: Request, pk: int) -> Response:
        """Revoke it and the tokens that were made with it. Stop the agents that work for them.

        The row stays, for the calls that were made with it.
        """
        row = _own_token(request, pk)
        revoke_token(row)
        return Response(TokenSerializer(row).data)
