"""API tokens: made here or with `manage.py create_token`; shown once, then only by how they begin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import ForeignKey, Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from roster.admin import present
from roster.models import ApiToken


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    """Who may see everybody's tokens is the superuser; others see, make and revoke their own."""

    list_display = ["beginning", "user", "name", "made"]
    list_select_related = ["user"]
    list_filter = ["created_at"]
    search_fields = ["name", "user__username"]

    made = present.moment_column("created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiToken]:
        tokens: QuerySet[ApiToken] = super().get_queryset(request)
        return tokens if request.user.is_superuser else tokens.filter(user=request.user.pk)

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return ["user", "name"] if obj is None else ["beginning", "user", "name", "made"]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def formfield_for_foreignkey(self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        # A token carries all its user's rights: making one for somebody else would be a way to borrow them.
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if field is not None:
            field.initial = request.user.pk
            if not request.user.is_superuser and field.queryset is not None:
                field.queryset = field.queryset.filter(pk=request.user.pk)
        return field

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        made, token = ApiToken.make(user=obj.user, name=obj.name)
        obj.pk, obj.digest, obj.hint = made.pk, made.digest, made.hint
        messages.warning(
            request, format_html('Copy the token now, it is not shown again: <code class="token">{}</code>', token)
        )

    @admin.display(description="token", ordering="hint")
    def beginning(self, token: ApiToken) -> str:
        return f"{token.hint}…"
