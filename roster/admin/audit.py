"""The audit log in the admin: a list with filters, and for each entry a page with the values before and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from roster import audit
from roster.admin import present
from roster.admin.rows import RuntimeRowAdmin, principal_of
from roster.models import AuditEntry

MAX_ACTORS = 20  # in the filter. The search finds the others
SCANNED = 2000  # of the newest entries, for these actors

# Each filter by kind, with the beginnings of its kinds.
GROUPS_OF_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "logins": ("logins and logouts", ("login", "logout")),
    "failed": ("failed logins", ("login_failed",)),
    "users": ("users, roles, passwords", ("user_", "role_", "password_")),
    "invitations": ("invitations", ("invitation_",)),
    "tokens": ("tokens and clients", ("token_", "client_")),
    "groups": ("groups", ("group_",)),
    "members": ("members", ("member_", "edit_")),
    "packages": ("packages", ("packages_",)),
    "contracts": ("contracts", ("contract_",)),
    "tools": ("tools", ("tool_enabled", "tool_disabled")),
    "prompts": ("prompts", ("prompt_",)),
    "resources": ("resources", ("resource_",)),
    "tool_sets": ("tool sets", ("tool_set_",)),
    "secrets": ("secrets", ("secret",)),
    "nodes": ("nodes", ("node_",)),
}


class KindFilter(admin.SimpleListFilter):
    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, label) for value, (label, _) in GROUPS_OF_KINDS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        prefixes = GROUPS_OF_KINDS.get(str(self.value()), ("", ()))[1]
        kinds = [kind for kind in AuditEntry.Kind.values if kind.startswith(prefixes)] if prefixes else []
        return queryset.filter(kind__in=kinds) if kinds else queryset


class SourceFilter(admin.SimpleListFilter):
    title = "source"
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, str(label)) for value, label in AuditEntry.Source.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        return queryset.filter(source=self.value()) if self.value() else queryset


class ActorFilter(admin.SimpleListFilter):
    """The actors of the newest entries. A user counts with all tokens of the user, and with single sign-on."""

    title = "actor"
    parameter_name = "actor"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = model_admin.get_queryset(request).order_by("-id").values_list("actor", flat=True)[:SCANNED]
        users = (name.partition(audit.WITH_TOKEN)[0] for name in newest)
        names = dict.fromkeys(name.removesuffix(audit.WITH_SINGLE_SIGN_ON) for name in users)
        shown = sorted([*names][:MAX_ACTORS], key=str.casefold)
        return [(name, present.bounded(name, 60)) for name in shown]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        return queryset.filter(audit.by_actor(str(self.value()))) if self.value() else queryset


@admin.register(AuditEntry)
class AuditAdmin(RuntimeRowAdmin):
    list_title = "Audit log"
    list_display = ["happened", "who", "did", "what", "change"]
    list_filter = [KindFilter, ActorFilter, SourceFilter, "at"]
    search_fields = ["actor", "target", "address"]
    fields = ["happened", "who", "from_source", "from_address", "did", "what", "difference"]

    happened = present.moment_column("at", "time")

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        return audit.visible_entries(
            is_superuser=request.user.is_superuser, closed_members=principal_of(request).closed_members
        )

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The entry for its page, with only the values that the reader may see."""
        entry = super().get_object(request, object_id, from_field)
        return entry and _visible([entry], request)[0]

    def title_of(self, row: AuditEntry) -> str:
        return f"Entry {row.pk} of the audit log"

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changelist = super().get_changelist_instance(request)
        changelist.result_list = _visible(changelist.result_list, request)
        return changelist

    # Columns

    @admin.display(description="actor", ordering="actor")
    def who(self, entry: AuditEntry) -> str:
        return entry.actor

    @admin.display(description="source")
    def from_source(self, entry: AuditEntry) -> str:
        return str(dict(AuditEntry.Source.choices).get(entry.source, entry.source))

    @admin.display(description="address of the client")
    def from_address(self, entry: AuditEntry) -> str:
        return entry.address or present.NOTHING

    @admin.display(description="action", ordering="kind")
    def did(self, entry: AuditEntry) -> str:
        return entry.action

    @admin.display(description="about", ordering="target")
    def what(self, entry: AuditEntry) -> str:
        return entry.target

    @admin.display(description="change")
    def change(self, entry: AuditEntry) -> str:
        return present.with_times(present.one_line(audit.summary(entry), 160) or present.NOTHING)

    @admin.display(description="before and after")
    def difference(self, entry: AuditEntry) -> SafeString | str:
        rows = list(audit.differences(entry))
        if not rows:
            return present.NOTHING
        lines = format_html_join("", "<tr><th scope=row>{}</th>{}{}</tr>", _cells(rows))
        head = format_html(
            "<thead><tr><td></td><th scope=col>{}</th><th scope=col>{}</th></tr></thead>", "Before", "After"
        )
        return format_html('<table class="audit-difference">{}<tbody>{}</tbody></table>', head, lines)


def _cells(rows: list[tuple[str, str, str]]) -> Iterator[tuple[str, SafeString, SafeString]]:
    for name, before, after in rows:
        yield name, _cell("before", before), _cell("after", after)


def _cell(side: str, text: str) -> SafeString:
    shown = present.with_times(text or present.NOTHING)
    return format_html('<td class="audit-{}">{}</td>', side if text else "nothing", shown)


def _visible(entries: Any, request: HttpRequest) -> list[AuditEntry]:
    show = audit.shower(is_superuser=request.user.is_superuser, closed_members=principal_of(request).closed_members)
    rows = list(entries)
    for entry in rows:
        entry.before, entry.after = show(entry.before), show(entry.after)
    return rows
