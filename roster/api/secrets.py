"""Secrets over REST: their names, setting a value, the members that may use it. No response has a value."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from mcp_runtime.control import secrets
from mcp_runtime.protocol.errors import UnknownMemberError
from mcp_runtime.secrets.references import MAX_SECRET
from roster.api.base import REFUSED, HallView, NewestFirst, Strict, body_of
from roster.api.described import extend_schema
from roster.api.permissions import MayViewSecrets, principal_of
from roster.models import GuildMember, Secret


class SecretUseSerializer(serializers.Serializer[Any]):
    member = serializers.CharField(source="member.name")
    is_current = serializers.SerializerMethodField(
        help_text="False if what the member runs or calls has changed since, so that it cannot use the secret now."
    )

    def get_is_current(self, use: Any) -> bool:
        return secrets.is_current(use)


class SecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret without its value. Prefetch its uses with their members."""

    members = serializers.SerializerMethodField(help_text="The members that may use it, without those hidden from you.")
    changed_by = serializers.CharField(source="changed_by.username", default=None, allow_null=True)

    class Meta:
        model = Secret
        fields = ["name", "created_at", "changed_at", "changed_by", "members"]

    def get_members(self, secret: Secret) -> list[dict[str, Any]]:
        closed_members = self.context["closed_members"]
        uses = [use for use in secret.uses.all() if use.member.name not in closed_members]
        return list(SecretUseSerializer(sorted(uses, key=lambda use: use.member.name), many=True).data)


class SecretDetailSerializer(SecretSerializer):
    members_with_old_value = serializers.SerializerMethodField(
        help_text="The members that run with an earlier value until they restart, without those hidden from you."
    )

    class Meta(SecretSerializer.Meta):
        fields = [*SecretSerializer.Meta.fields, "members_with_old_value"]

    def get_members_with_old_value(self, secret: Secret) -> list[str]:
        names = [member.name for member in secrets.members_with_old_value(secret)]
        return [name for name in names if name not in self.context["closed_members"]]


class SecretBody(Strict):
    value = serializers.CharField(
        required=False, max_length=MAX_SECRET, trim_whitespace=False, help_text="Required for a new secret."
    )
    members = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="The names of all members that may use it. Without this list, the members stay as they are.",
    )


def _answer(request: Request, secret: Secret) -> dict[str, Any]:
    row = Secret.objects.select_related("changed_by").prefetch_related("uses__member").get(pk=secret.pk)
    return dict(SecretDetailSerializer(row, context={"closed_members": principal_of(request).closed_members}).data)


def _members(request: Request, names: list[str]) -> list[GuildMember]:
    """Raises UnknownMemberError, also for members that are hidden from the user."""
    rows = {row.name: row for row in GuildMember.objects.filter(name__in=names, removed_at=None)}
    for name in names:
        if name not in rows or not principal_of(request).reaches(name):
            raise UnknownMemberError(f"no member {name!r} is in the roster")
    return list(rows.values())


def _require(request: Request, action: str) -> None:
    if not request.user.has_perm(f"roster.{action}_secret"):
        raise PermissionDenied(f"This needs the permission roster.{action}_secret.")


class SecretsView(HallView, ListAPIView[Secret]):
    """The secrets for members, without their values."""

    serializer_class = SecretSerializer
    pagination_class = NewestFirst
    queryset = Secret.objects.select_related("changed_by").prefetch_related("uses__member")
    permission_classes = (IsAuthenticated, MayViewSecrets)

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "closed_members": principal_of(self.request).closed_members}


class SecretView(HallView):
    permission_classes = (IsAuthenticated, MayViewSecrets)

    @extend_schema(responses={200: SecretDetailSerializer, 403: REFUSED, 404: REFUSED})
    def get(self, request: Request, secret: str) -> Response:
        """A secret without its value."""
        return Response(_answer(request, secrets.find_secret(secret)))

    @extend_schema(
        request=SecretBody,
        responses={
            200: SecretDetailSerializer,
            201: SecretDetailSerializer,
            400: REFUSED,
            403: REFUSED,
            404: REFUSED,
            409: REFUSED,
        },
    )
    def put(self, request: Request, secret: str) -> Response:
        """Set the value of a new or an existing secret, and choose the members that may use it.

        Members that run get a new value when they start the next time. Members that are hidden from you stay as they
        are.
        """
        existing = Secret.objects.filter(name=secret).first()
        _require(request, "change" if existing else "add")
        body, user = body_of(SecretBody, request.data), cast(User, request.user)
        chosen = _members(request, body["members"]) if "members" in body else None
        if "value" in body:
            row = secrets.set_secret(secret, body["value"], user)
        elif existing is not None:
            row = existing
        else:
            raise serializers.ValidationError({"value": ["This field is required for a new secret."]})
        if chosen is not None:
            reachable = {row.name for row in GuildMember.objects.all() if principal_of(request).reaches(row.name)}
            secrets.choose_members(row, chosen, user, of=reachable)
        new_status = status.HTTP_200_OK if existing else status.HTTP_201_CREATED
        return Response(_answer(request, row), status=new_status)

    @extend_schema(responses={204: None, 403: REFUSED, 404: REFUSED})
    def delete(self, request: Request, secret: str) -> Response:
        """Delete it. Members that run keep its value until they end."""
        _require(request, "delete")
        secrets.delete_secret(secrets.find_secret(secret))
        return Response(status=status.HTTP_204_NO_CONTENT)
