"""The audit log over REST."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated

from roster import audit
from roster.api.base import REFUSED, Filters, HallView, NewestFirst, query_of
from roster.api.described import extend_schema
from roster.api.permissions import MayViewAudit, principal_of
from roster.models import AuditEntry


class AuditEntrySerializer(serializers.ModelSerializer[AuditEntry]):
    kind = serializers.CharField(help_text="What was done, as a word for programs, such as role_changed.")
    action = serializers.CharField(help_text="The kind in words.")
    source = serializers.ChoiceField(choices=AuditEntry.Source.choices)  # type: ignore[assignment]
    member = serializers.CharField(help_text="The member that it is about. Empty if it is about none.")
    address = serializers.CharField(help_text="The address of the client, for logins. Otherwise empty.")
    before = serializers.SerializerMethodField(help_text="The names and values that changed, or null.")
    after = serializers.SerializerMethodField(help_text="The names and new values, or null.")

    class Meta:
        model = AuditEntry
        fields = [
            "id",
            "at",
            "kind",
            "action",
            "source",
            "actor",
            "actor_user",
            "actor_token",
            "address",
            "target",
            "member",
            "before",
            "after",
        ]

    def get_before(self, entry: AuditEntry) -> dict[str, Any] | None:
        values: dict[str, Any] | None = self.context["show"](entry.before)
        return values

    def get_after(self, entry: AuditEntry) -> dict[str, Any] | None:
        values: dict[str, Any] | None = self.context["show"](entry.after)
        return values


class AuditFilters(Filters):
    """The filters of the audit log."""

    kind = serializers.MultipleChoiceField(choices=AuditEntry.Kind.choices, required=False)
    source = serializers.MultipleChoiceField(  # type: ignore[assignment]
        choices=AuditEntry.Source.choices, required=False
    )
    actor = serializers.CharField(required=False, help_text="The name of a user, with all tokens of the user.")
    member = serializers.CharField(required=False)
    since = serializers.DateTimeField(required=False, help_text="Only entries from this time on.")
    until = serializers.DateTimeField(required=False, help_text="Only entries before this time.")


class AuditView(HallView, ListAPIView[AuditEntry]):
    """Who changed what, and who logged in, newest first.

    It needs the permission roster.view_auditentry, and a token that is for everything its user may do. It has no
    entries about members that are reserved for groups of others.
    """

    serializer_class = AuditEntrySerializer
    pagination_class = NewestFirst
    queryset = AuditEntry.objects.none()
    permission_classes = (IsAuthenticated, MayViewAudit)

    @extend_schema(parameters=[AuditFilters], responses={200: AuditEntrySerializer(many=True), 403: REFUSED})
    def get(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().get(request, *args, **kwargs)

    def get_queryset(self) -> QuerySet[AuditEntry]:
        return audit.filtered(audit.visible_entries(**self._reader()), **query_of(AuditFilters, self.request))

    def get_serializer_context(self) -> dict[str, Any]:
        context = dict(super().get_serializer_context())
        if getattr(self, "swagger_fake_view", False):  # the OpenAPI document needs no rows
            return context
        return {**context, "show": audit.shower(**self._reader())}

    def _reader(self) -> dict[str, Any]:
        closed_members = principal_of(self.request).closed_members
        return {"is_superuser": bool(self.request.user.is_superuser), "closed_members": closed_members}
