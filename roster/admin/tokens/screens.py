"""Tokens, created here, over REST or with `guildhall create_token`. They are shown once, then only their beginning."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminSplitDateTime, RelatedFieldWidgetWrapper
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
from roster import agent_view
from roster.addresses import gateway_address
from roster.admin import agent_view as agent_view_page
from roster.admin import choosing, live, present
from roster.admin.choosing import SearchedField, label_of_tool
from roster.admin.rows import SafeFilterAdmin, principal_of, titled
from roster.admin.tokens import page
from roster.models import GuildMember, Token, TokenClient, Tool
from roster.sign_in import redirects
from roster.tokens import parse_tool

NEW_TOKEN_FIELDS = [
    "user",
    "name",
    "expires_at",
    "scope",
    "members",
    "tools",
    "tool_set",
    "search_mode",
    "pinned_tools",
    *(limit.name for limit in Token.LIMITS),
]
TOKEN_FIELDS = ["beginning"]  # the page shows the rest from FACTS
Scope = Token.Scope


def _may_create(request: HttpRequest) -> bool:
    return request.user.has_perm("roster.add_token")


def _members_for(request: HttpRequest) -> QuerySet[GuildMember]:
    """The members that a user may choose for a token: none that are reserved for groups of others."""
    members = GuildMember.objects.filter(removed_at=None).exclude(name__in=principal_of(request).closed_members)
    return members.order_by("name").only("name", "display_name", "description")


def _tools_for(request: HttpRequest) -> QuerySet[Tool]:
    """The tools that a user may choose for a token."""
    closed_names = principal_of(request).closed_members
    tools = Tool.objects.filter(listed=True, member__removed_at=None).exclude(member__name__in=closed_names)
    return tools.select_related("member").order_by("member__name", "position").defer("definition")


MEMBERS = choosing.rows_offer("token-members", "members", is_open=_may_create, rows=_members_for)
TOOLS = choosing.rows_offer("token-tools", "tools", is_open=_may_create, rows=_tools_for, label=label_of_tool)


class NamedDateTime(AdminSplitDateTime):
    """Add labels to the date and time fields for screen readers. Django's labels are only visible."""

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        label = name.replace("_", " ").capitalize()
        for part, word in zip(context["widget"]["subwidgets"], ("date", "time"), strict=True):
            part["attrs"]["aria-label"] = f"{label}, {word}"
        return context


class TokenForm(forms.ModelForm):  # type: ignore[type-arg]  # as for ModelAdmin
    # A scope of its own for people. In the row it is that of tools.
    OF_TOOL_SET = "tool_set"
    CHOICES_OF_SCOPE = ("members", "tools", OF_TOOL_SET)  # each is also the name of the field with the choice

    scope = forms.ChoiceField(choices=[*Scope.choices, (OF_TOOL_SET, "A tool set")], initial=Scope.ALL)
    pinned_tools = SearchedField(
        queryset=Tool.objects.none(),  # the admin offers those that the user may see
        offer=TOOLS,
        required=False,
        help_text=f"In search mode, clients list these beside the three tools that search. At most {Token.MAX_PINNED}.",
    )

    class Meta:
        model = Token
        fields = NEW_TOKEN_FIELDS
        labels = {"expires_at": "Expires at (UTC)", "max_in_flight": "Concurrent calls"}

    def clean_expires_at(self) -> Any:
        end = self.cleaned_data["expires_at"]
        if end is not None and end <= timezone.now():
            raise ValidationError("This time is in the past. Choose a later time.")
        return end

    def clean_pinned_tools(self) -> list[str]:
        """Return the value of the column."""
        tools = [label_of_tool(tool) for tool in self.cleaned_data["pinned_tools"]]
        if len(tools) > Token.MAX_PINNED:
            raise ValidationError(f"Choose at most {Token.MAX_PINNED} tools, not {len(tools)}.")
        return tools

    def clean(self) -> dict[str, Any] | None:
        """Require choices that match the scope. Otherwise a forgotten choice would create a token for everything."""
        cleaned = super().clean()
        scope = self.cleaned_data.get("scope")
        for field in self.CHOICES_OF_SCOPE:
            is_filled = bool(self.cleaned_data.get(field))
            if scope == field and not is_filled:
                label = dict(self.fields["scope"].choices)[scope]  # type: ignore[attr-defined]
                self.add_error(field, f"The scope is “{label}”. Choose at least one.")
            if scope and scope != field and is_filled:
                words = field.replace("_", " ")
                self.add_error(
                    "scope", f"This scope does not use {words}. Remove the chosen {words}, or change the scope."
                )
        if scope == self.OF_TOOL_SET:
            self.cleaned_data["scope"] = Scope.TOOLS
        if self.cleaned_data.get("pinned_tools") and not self.cleaned_data.get("search_mode"):
            self.add_error("pinned_tools", "Only a token in search mode has pinned tools. Other tokens list all tools.")
        return cleaned


class KindFilter(admin.SimpleListFilter):
    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("token", "Tokens"), ("sign-in", "Clients that signed in")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Token]) -> QuerySet[Token]:
        if self.value() == "token":
            return queryset.filter(resource="")
        return queryset.exclude(resource="") if self.value() == "sign-in" else queryset


@admin.register(Token)
class TokenAdmin(SafeFilterAdmin):
    """Superusers see all tokens. Other users see, create and revoke their own."""

    nothing_yet = "There are no tokens yet. Programs use the hall with a token: clients, agents and scripts."
    form = TokenForm
    list_display = [
        "beginning",
        "status",
        "user",
        "name",
        "kind",
        "scope_text",
        "created",
        "expires",
        "last_used",
        "last_client",
    ]
    list_select_related = ["user__identity"]
    list_filter = [
        KindFilter,
        "scope",
        ("created_at", titled("creation", admin.DateFieldListFilter)),
        ("expires_at", titled("expiry", admin.DateFieldListFilter)),
    ]
    search_fields = ["name", "hint", "user__username"]
    formfield_overrides = {DateTimeField: {"widget": NamedDateTime}}
    actions = ["revoke"]
    change_form_template = "admin/roster/token/change_form.html"

    created = present.moment_column("created_at")
    expires = present.moment_column("expires_at", without="never")
    last_used = present.moment_column("last_used_at", without="never")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Token]:
        tokens: QuerySet[Token] = super().get_queryset(request).prefetch_related("members", "tools__member")
        clients = TokenClient.objects.filter(token=OuterRef("pk")).order_by("-last_seen_at", "-pk")
        client = Subquery(clients.values(words=Concat("name", Value(" "), "version"))[:1])
        tokens = tokens.select_related("user__identity", "made_with__user", "tool_set", "grant").annotate(client=client)
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
        if db_field.name == "members":
            offered: dict[str, Any] = {"queryset": _members_for(request), "offer": MEMBERS}
        else:
            offered = {"queryset": _tools_for(request), "offer": TOOLS}
        return super().formfield_for_manytomany(db_field, request, form_class=SearchedField, **offered, **kwargs)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None and isinstance(field.widget, RelatedFieldWidgetWrapper):
            field.widget = field.widget.widget  # without Django's buttons, which would add users and members
        return field

    def get_form(self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        if "pinned_tools" in form.base_fields:
            field: Any = deepcopy(form.base_fields["pinned_tools"])  # that of the class is shared by all requests
            field.queryset = _tools_for(request)
            form.base_fields["pinned_tools"] = field
        return form

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
            search_mode=data["search_mode"],
            pinned_tools=[parse_tool(name) for name in data["pinned_tools"]],
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
            path("<int:token_id>/view/", view(self.agent_view), name="roster_token_view"),
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
            facts = [*FACTS, *(FACTS_OF_GRANT if token.is_grant else ())]
            context |= {"facts": [(label, show(self, token)) for label, show in facts]}
            context |= {} if token.is_grant else page.configuration(request, token)  # a client that has signed in
            context |= page.usage(request, token)
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

    def agent_view(self, request: HttpRequest, token_id: int) -> HttpResponse:
        """What its agent sees."""
        token = self.get_object(request, str(token_id))
        if token is None or not self.has_view_permission(request, token):
            raise PermissionDenied
        return agent_view_page.page(
            self,
            request,
            token,
            partial(agent_view.of_token, token),
            partial(agent_view.trim_token, token) if self.has_revoke_permission(request) else None,
            trim_help="The token then gives access to nothing else. You cannot take this back.",
        )

    # Columns

    @admin.display(description="token", ordering="hint")
    def beginning(self, token: Token) -> str:
        return f"{token.hint}…"

    @admin.display(description="state")
    def status(self, token: Token) -> SafeString:
        return present.badge(token.state)

    @admin.display(description="kind", ordering="resource")
    def kind(self, token: Token) -> str:
        return "sign-in" if token.is_grant else "token"

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

    @admin.display(description="tools in lists")
    def listed_tools(self, token: Token) -> str:
        if not token.search_mode:
            return "all tools"
        pinned = ", ".join(token.pinned_tools)
        return "search mode: three tools that find and call all others" + (f", and {pinned}" if pinned else "")

    @admin.display(description="limits")
    def limits(self, token: Token) -> str:
        own_limits = token.own_limits
        texts = {
            name: "default" if own_limits[name] is None else present.number(own_limits[name] or "no limit")
            for name in own_limits
        }
        return "; ".join(f"{limit.words}: {texts[limit.name]}" for limit in Token.LIMITS)


# The facts on the page of a token.
FACTS: list[tuple[str, Callable[[TokenAdmin, Token], Any]]] = [
    ("State", TokenAdmin.status),
    ("User", lambda _, token: token.user.get_username()),
    ("Scope", TokenAdmin.scope_text),
    ("Tools in lists", TokenAdmin.listed_tools),
    ("Limits", TokenAdmin.limits),
    ("Created", TokenAdmin.created),
    ("Created with token", lambda _, token: present.link(token.made_with) if token.made_with else "none"),
    ("Expires", lambda _, token: present.when(token.expires_at) if token.expires_at else "never"),
    (
        "Ends without a new login",
        lambda _, token: present.when(token.dormant_at) if token.dormant_at else "never",
    ),
    ("Last used", lambda _, token: present.when(token.last_used_at) if token.last_used_at else "never"),
    ("Revoked", lambda _, token: present.when(token.revoked_at) if token.revoked_at else "no"),
]
# And those of a client that signed in. The names are what the client says about itself.
FACTS_OF_GRANT: list[tuple[str, Callable[[TokenAdmin, Token], Any]]] = [
    ("Signed in", lambda _, token: present.when(token.grant.redeemed_at) if token.grant.redeemed_at else "not yet"),
    ("Address", lambda _, token: f"{gateway_address()}{token.resource}"),
    ("Issuer", lambda _, token: token.grant.issuer or "this hall"),
    (
        "Sent back to",
        lambda _, token: redirects.words_for(token.grant.redirect_uri) if token.grant.redirect_uri else present.NOTHING,
    ),
    ("Client id", lambda _, token: token.grant.client_id),
]
