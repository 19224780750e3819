"""Tokens, created here, over REST or with `manage.py create_token`. They are shown once, then only their beginning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import DateTimeField, ForeignKey, ManyToManyField, Model, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Concat
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from mcp_runtime.control import tool_sets
from mcp_runtime.control.tokens import NewToken, delete_token, make_token, revoke_token
from roster.admin import live, present
from roster.admin.rows import SafeFilterAdmin, principal_of
from roster.admin.tokens import page
from roster.models import GuildMember, Token, TokenClient, Tool

NEW_TOKEN_FIELDS = [
    "user",
    "name",
    "expires_at",
    "scope",
    "members",
    "tools",
    "tool_set",
    *(limit.name for limit in Token.LIMITS),
]
TOKEN_FIELDS = ["beginning"]  # the page shows the rest from FACTS
Scope = Token.Scope


class ToolChoice(forms.ModelMultipleChoiceField):  # type: ignore[type-arg]  # as for ModelAdmin
    def label_from_instance(self, tool: Any) -> str:
        return f"{tool.member.name}/{tool.name}"


class NamedDateTime(AdminSplitDateTime):
    """Add labels to the date and time fields for screen readers. Django's labels are only visible."""

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        label = name.replace("_", " ").capitalize()
        for part, word in zip(context["widget"]["subwidgets"], ("date", "time"), strict=True):
            part["attrs"]["aria-label"] = f"{label}, {word}"
        return context


class TokenForm(forms.ModelForm):  # type: ignore[type-arg]  # as for ModelAdmin
    class Meta:
        model = Token
        fields = NEW_TOKEN_FIELDS

    def clean_expires_at(self) -> Any:
        end = self.cleaned_data["expires_at"]
        if end is not None and end <= timezone.now():
            raise ValidationError("This time is in the past. Choose a later time.")
        return end

    def clean(self) -> dict[str, Any] | None:
        """Require choices that match the scope. Otherwise a forgotten choice would create a token for everything."""
        cleaned = super().clean()
        scope = self.cleaned_data.get("scope")
        for field in ("members", "tools"):
            is_filled = bool(self.cleaned_data.get(field) or (field == "tools" and self.cleaned_data.get("tool_set")))
            if scope == field and not is_filled:
                self.add_error(field, f"The scope is “{Scope(scope).label}”. Choose at least one.")
            if scope and scope != field and is_filled:
                self.add_error(
                    "scope", f"This scope does not use {field}. Remove the chosen {field}, or change the scope."
                )
        if self.cleaned_data.get("tools") and self.cleaned_data.get("tool_set"):
            self.add_error("tool_set", "A token is for some tools or for a tool set. Choose one of them.")
        return cleaned


@admin.register(Token)
class TokenAdmin(SafeFilterAdmin):
    """Superusers see all tokens. Other users see, create and revoke their own."""

    form = TokenForm
    list_display = [
        "beginning",
        "status",
        "user",
        "name",
        "scope_text",
        "created",
        "expires",
        "last_used",
        "last_client",
    ]
    list_select_related = ["user"]
    list_filter = ["scope", "created_at", "expires_at"]
    search_fields = ["name", "hint", "user__username"]
    filter_horizontal = ["members", "tools"]
    formfield_overrides = {DateTimeField: {"widget": NamedDateTime}}
    actions = ["revoke"]
    change_form_template = "admin/roster/token/change_form.html"

    created = present.moment_column("created_at")
    expires = present.moment_column("expires_at")
    last_used = present.moment_column("last_used_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Token]:
        tokens: QuerySet[Token] = super().get_queryset(request).prefetch_related("members", "tools__member")
        clients = TokenClient.objects.filter(token=OuterRef("pk")).order_by("-last_seen_at", "-pk")
        client = Subquery(clients.values(words=Concat("name", Value(" "), "version"))[:1])
        tokens = tokens.select_related("user", "made_with__user", "tool_set").annotate(client=client)
        return tokens if request.user.is_superuser else tokens.filter(user=request.user.pk)

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return NEW_TOKEN_FIELDS if obj is None else TOKEN_FIELDS

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [] if obj is None else TOKEN_FIELDS

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Whether the action is offered: to users who may delete tokens."""
        return self.has_delete_permission(request)

    def formfield_for_foreignkey(self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        # A token has its user's rights, so a token for another user would give away that user's rights.
        if db_field.name == "tool_set":
            kwargs["queryset"] = tool_sets.visible_tool_sets(principal_of(request))
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if field is not None and db_field.name == "user":
            field.initial = request.user.pk
            if not request.user.is_superuser and field.queryset is not None:
                field.queryset = field.queryset.filter(pk=request.user.pk)
        return field

    def formfield_for_manytomany(self, db_field: ManyToManyField[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        """Offer no members and tools that are reserved for groups of others, or that left the roster."""
        closed_names = principal_of(request).closed_members
        if db_field.name == "members":
            kwargs["queryset"] = GuildMember.objects.filter(removed_at=None).exclude(name__in=closed_names)
        else:
            tools = Tool.objects.filter(listed=True, member__removed_at=None).exclude(member__name__in=closed_names)
            kwargs["queryset"] = tools.select_related("member").order_by("member__name", "position").defer("definition")
            kwargs["form_class"] = ToolChoice
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        # Members and tools are linked by save_related, to the row whose key `obj` has now.
        data = form.cleaned_data
        new_token = NewToken(
            name=obj.name,
            members=[member.name for member in data["members"]],
            tools=[(tool.member.name, tool.name) for tool in data["tools"]],
            tool_set=data["tool_set"].name if data["tool_set"] else "",
            expires_at=obj.expires_at,
            limits=obj.own_limits,
        )
        row, token = make_token(obj.user, new_token, maker=principal_of(request))
        obj.pk, obj.digest, obj.hint = row.pk, row.digest, row.hint
        messages.warning(
            request, format_html('Copy the token now. It will not be shown again: <code class="token">{}</code>', token)
        )

    def response_post_save_add(self, request: HttpRequest, obj: Token) -> HttpResponseRedirect:
        """Redirect to its page, where the token is in the configuration of each client."""
        if self.has_view_permission(request, obj):
            return redirect("admin:roster_token_change", obj.pk)
        return super().response_post_save_add(request, obj)

    # Revoke

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:token_id>/revoke/", view(self.revoke_view), name="roster_token_revoke"),
            path("<int:token_id>/parts/<slug:part>/", view(self.part_view), name="roster_token_part"),
            *super().get_urls(),
        ]

    @admin.action(description="Revoke selected tokens", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        self._revoke(request, list(queryset))

    @method_decorator(require_POST)
    def revoke_view(self, request: HttpRequest, token_id: int) -> HttpResponse:
        token = self.get_object(request, str(token_id))
        if token is None or not self.has_revoke_permission(request):
            raise PermissionDenied
        self._revoke(request, [token])
        return redirect("admin:roster_token_change", token_id)

    def _revoke(self, request: HttpRequest, tokens: list[Token]) -> None:
        active = [token for token in tokens if token.revoked_at is None]
        for token in active:
            revoke_token(token)
            self.log_change(request, token, "Revoked.")
        refusals = [f"{token}: it is already revoked" for token in tokens if token not in active]
        present.report(request, "Revoked", [str(token) for token in active], refusals)

    def delete_model(self, request: HttpRequest, obj: Token) -> None:
        delete_token(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        for token in queryset:
            delete_token(token)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        token = self.get_object(request, object_id)
        context = {**(extra_context or {}), "may_revoke": self.has_revoke_permission(request)}
        if token is not None and self.has_view_permission(request, token):
            context |= {"facts": [(label, show(self, token)) for label, show in FACTS]}
            context |= {**page.configuration(request, token), **page.usage(request, token)}
        return super().change_view(request, object_id, form_url, context)

    def part_view(self, request: HttpRequest, token_id: int, part: str) -> HttpResponse:
        """One of the parts of its page that update automatically."""
        token = self.get_object(request, str(token_id))
        if token is None or not self.has_view_permission(request, token):
            raise PermissionDenied
        match part:
            case "configuration":  # it depends on the choices, not on time
                return live.part(
                    request,
                    "roster/token/configuration.html",
                    lambda: page.configuration(request, token),
                    is_final=True,
                )
            case "use":
                return live.part(request, "roster/token/use.html", lambda: page.usage(request, token))
            case _:
                raise Http404(f"a token's page has no part {part!r}")

    # Columns

    @admin.display(description="token", ordering="hint")
    def beginning(self, token: Token) -> str:
        return f"{token.hint}…"

    @admin.display(description="state")
    def status(self, token: Token) -> SafeString:
        return present.badge(token.state)

    @admin.display(description="scope", ordering="scope")
    def scope_text(self, token: Token) -> str:
        if token.scope == Scope.ALL:
            return Scope.ALL.label
        names = [member.name for member in token.members.all()]
        if token.tool_set is not None:
            return f"tool set {token.tool_set.name}"
        if token.scope == Scope.TOOLS:
            names = [f"{tool.member.name}/{tool.name}" for tool in token.tools.all()]
        return ", ".join(sorted(names)) or f"no access, because its {token.scope} have left the hall"

    @admin.display(description="last client")
    def last_client(self, token: Token) -> str:
        return present.one_line(str(getattr(token, "client", None) or ""), 60) or present.NOTHING

    @admin.display(description="limits")
    def limits(self, token: Token) -> str:
        own_limits = token.own_limits
        texts = {
            name: "default" if own_limits[name] is None else str(own_limits[name] or "no limit") for name in own_limits
        }
        return "; ".join(f"{limit.words}: {texts[limit.name]}" for limit in Token.LIMITS)


# The facts on the page of a token.
FACTS: list[tuple[str, Callable[[TokenAdmin, Token], Any]]] = [
    ("State", TokenAdmin.status),
    ("User", lambda _, token: token.user.get_username()),
    ("Scope", TokenAdmin.scope_text),
    ("Limits", TokenAdmin.limits),
    ("Created", TokenAdmin.created),
    ("Created with token", lambda _, token: present.link(token.made_with) if token.made_with else "none"),
    ("Expires", lambda _, token: present.when(token.expires_at) if token.expires_at else "never"),
    ("Last used", lambda _, token: present.when(token.last_used_at) if token.last_used_at else "never"),
    ("Revoked", lambda _, token: present.when(token.revoked_at) if token.revoked_at else "no"),
]
