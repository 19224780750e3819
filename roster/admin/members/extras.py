"""The prompts and resources of a member: the tabs on its page, and a page for each of them, on which people use it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from mcp_runtime.control import extra_uses, extras
from mcp_runtime.control.extras import Extra, Kind
from mcp_runtime.control.watches import MAX_SECONDS, State, subscribes, watches
from mcp_runtime.protocol.errors import McpRuntimeError, UnknownExtraError
from roster.admin import live, present
from roster.admin.calls.files import File
from roster.admin.downloads import attachment
from roster.admin.finding import page_of_extra
from roster.admin.members import extra_outcomes
from roster.admin.members.extra_outcomes import Outcome
from roster.admin.members.verbs import visible_status
from roster.admin.rows import RuntimeRowAdmin, principal_of
from roster.api import requests
from roster.models import GuildMember

SHOWN_EXTRAS = 50  # on one page of a tab
PART = "roster/member/extras.html"
OUTCOME = "admin/roster/guildmember/outcome.html"
WATCH = "roster/member/watch.html"
WATCH_SALT = "guildhall.watch"
VERBS = {"enable": True, "disable": False}
# The tabs beside the tools, and the kinds of what they list.
TABS = {"prompts": (Kind.PROMPT,), "resources": (Kind.RESOURCE_TEMPLATE, Kind.RESOURCE)}
FIELD = "argument:"  # the beginning of the name of a field, because an argument may have any name


@dataclass(frozen=True)
class Field:
    """A field of the form, for an argument of a prompt or a variable of a template."""

    name: str
    label: str
    help: str
    is_required: bool
    value: str


class ExtrasScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about prompts and resources."""

    def get_urls(self) -> list[URLPattern]:
        def route(address: str, view: Callable[..., HttpResponseBase], name: str) -> URLPattern:
            place = f"<int:member_id>/{address}"
            return path(place, self.admin_site.admin_view(view), name=f"roster_guildmember_{name}")

        return [
            route("prompt/", self.prompt_view, "prompt"),
            route("resource/", self.resource_view, "resource"),
            route("prompt/file/", self.prompt_file_view, "prompt_file"),
            route("resource/file/", self.resource_file_view, "resource_file"),
            route("resource/watch/", self.watch_view, "resource_watch"),
            route("resource/updates/", self.updates_view, "resource_updates"),
            route("template/", self.template_view, "template"),
            route("complete/", self.complete_view, "complete"),
            route("extras/<slug:verb>/", self.switch_view, "extra_switch"),
            *super().get_urls(),
        ]

    def _member(self, request: HttpRequest, member_id: int, *, to_use: bool = False) -> Any:
        """The member, for one who may see its prompts and resources, or use them."""
        may_use = principal_of(request).invokes
        if not (may_use or (not to_use and request.user.has_perm("roster.view_tool"))):
            raise PermissionDenied
        return self.existing(request, str(member_id))

    # The tabs

    @staticmethod
    def tab_of(request: HttpRequest) -> str:
        return request.GET["show"] if request.GET.get("show") in TABS else "tools"

    @staticmethod
    def may_see_extras(request: HttpRequest) -> bool:
        return principal_of(request).invokes or request.user.has_perm("roster.view_tool")

    def extras_part(self, request: HttpRequest, member: Any, tab: str) -> HttpResponse:
        """A tab as a live part of the page of the member."""
        principal = principal_of(request)
        versions = [extras.versions_of(member, kind) for kind in TABS[tab]]
        rights = (principal.invokes, principal.controls, self.may_see_extras(request), member.enabled)
        tag = live.etag(tab, member.pk, versions, *rights, request.GET.get("q"), request.GET.get("p"))
        return live.part(request, PART, lambda: self.extras_of(request, member, tab), tag=tag)

    def extras_of(self, request: HttpRequest, member: Any, tab: str) -> dict[str, Any]:
        """The context of a tab: one page of the entries that have the words of the search."""
        words = request.GET.get("q", "")[:200]
        found: list[Extra] = []
        if self.may_see_extras(request):
            found = extras.search([each for kind in TABS[tab] for each in extras.extras_of(member, kind)], words)
        page = Paginator(found, SHOWN_EXTRAS).get_page(request.GET.get("p"))
        principal = principal_of(request)
        return {
            "member": member,
            "tab": tab,
            "words": words,
            "page": page,
            "rows": [(each, page_of_extra(member.pk, each), _switch(member.pk, each)) for each in page],
            "may_use": principal.invokes and member.enabled and member.removed_at is None,
            "may_control_extras": principal.controls,
            "query": urlencode({"show": tab, **({"q": words} if words else {})}),
        }

    def tabs_of(self, request: HttpRequest, member: Any) -> dict[str, Any]:
        """The context of the tabs beside the tools. None of them is shown to one who may see none."""
        tab = self.tab_of(request)
        numbers = extras.counts_of(member)
        counts = {name: sum(numbers[kind] for kind in kinds) for name, kinds in TABS.items()}
        context = {"tab": tab, "counts": counts, "may_see_extras": self.may_see_extras(request)}
        if tab != "tools":
            context |= self.extras_of(request, member, tab)
        return context

    # The pages

    def prompt_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        member, name = self._member(request, member_id), request.GET.get("name", "")
        extra = _existing(member, Kind.PROMPT, name)
        fields = [
            Field(each.name, each.title, each.description, each.is_required, _value(request, each.name))
            for each in extra.arguments
        ]

        def use() -> Outcome:
            result = extra_uses.get_prompt(principal_of(request), member, name, _values(fields))
            return extra_outcomes.of_prompt(result, member.pk)

        return self._extra_page(request, member, extra, fields, use)

    def resource_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """The page of a resource. The URI may be in no list, because a result or a person named it."""
        member, uri = self._member(request, member_id), request.GET.get("uri", "")
        if not 0 < len(uri) <= extra_uses.MAX_URI:
            raise Http404("there is no URI in this address")
        try:
            extra = extras.find_extra(member, Kind.RESOURCE, uri)
        except UnknownExtraError:
            extra = Extra(Kind.RESOURCE, uri, {}, is_listed=False)

        return self._extra_page(request, member, extra, [], lambda: self._read(request, member, uri))

    def template_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        member, template = self._member(request, member_id), request.GET.get("template", "")
        extra = _existing(member, Kind.RESOURCE_TEMPLATE, template)
        fields = [
            Field(each.name, "", "", each.is_required, _value(request, each.name))
            for each in extra_uses.variables_of(template)
        ]

        def use() -> Outcome:
            return self._read(request, member, extra_uses.expand(template, _values(fields)))

        return self._extra_page(request, member, extra, fields, use)

    @staticmethod
    def _read(request: HttpRequest, member: Any, uri: str) -> Outcome:
        result = extra_uses.read_resource(principal_of(request), member, uri)
        return extra_outcomes.of_resource(result, member.pk, uri)

    def _extra_page(
        self, request: HttpRequest, member: Any, extra: Extra, fields: list[Field], use: Callable[[], Outcome]
    ) -> HttpResponse:
        """The page, or with `X-Live: part` only the outcome of a POST."""
        principal, outcome = principal_of(request), None
        if request.method == "POST":
            if not principal.invokes:
                raise PermissionDenied
            outcome = _outcome_of(request, member, use)
        context = {
            "member": member,
            "extra": extra,
            "outcome": outcome,
            "resource_page": page_of_extra(member.pk, Extra(Kind.RESOURCE, outcome.uri, {})) if outcome else "",
            "download": _download_of(member.pk, extra, fields, outcome) if outcome else None,
        }
        if outcome is not None and request.headers.get("X-Live") == "part":
            return TemplateResponse(request, OUTCOME, context)
        is_there = member.enabled and member.removed_at is None
        completes = is_there and extra_uses.completes(member) and visible_status(member) == "connected"
        context |= {
            **self.admin_site.each_context(request),
            "title": present.one_line(extra.title or extra.name, 100),
            "subtitle": member.title,
            "opts": self.opts,
            "fields": fields,
            "arguments": FIELD,
            "definition": present.json_block(extra.definition),
            "may_use": principal.invokes and is_there and extra.is_usable,
            "may_control_extras": principal.controls and (extra.is_listed or not extra.is_enabled),
            "may_approve": request.user.has_perm("roster.approve_contract"),
            "completes": completes,
            "may_watch": extra.kind == Kind.RESOURCE and subscribes(member),
            "switch": _switch(member.pk, extra),
            "tab": "prompts" if extra.kind == Kind.PROMPT else "resources",
        }
        return TemplateResponse(request, "admin/roster/guildmember/extra.html", context)

    # What the pages request

    @method_decorator(require_POST)
    def resource_file_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """One part of a resource as a download."""
        member, uri = self._member(request, member_id, to_use=True), request.POST.get("uri", "")

        def get(part: str) -> File | None:
            return extra_outcomes.file_of_resource(
                extra_uses.read_resource(principal_of(request), member, uri), uri, part
            )

        return _file_response(request, get, page_of_extra(member.pk, Extra(Kind.RESOURCE, uri, {})))

    @method_decorator(require_POST)
    def prompt_file_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """One message of a prompt as a download."""
        member, name = self._member(request, member_id, to_use=True), request.POST.get("name", "")
        extra = _existing(member, Kind.PROMPT, name)
        values = {each.name: value for each in extra.arguments if (value := _value(request, each.name))}

        def get(part: str) -> File | None:
            result = extra_uses.get_prompt(principal_of(request), member, name, values)
            return extra_outcomes.file_of_prompt(result, name, part)

        return _file_response(request, get, page_of_extra(member.pk, extra))

    @method_decorator(require_POST)
    def complete_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """Values for a field that somebody fills in, as JSON. The other fields are the context."""
        member = self._member(request, member_id, to_use=True)
        values = {
            name.removeprefix(FIELD): str(value)[:100_000]
            for name, value in list(request.POST.items())[: extra_uses.MAX_VARIABLES + 10]
            if name.startswith(FIELD)
        }
        argument = request.POST.get("argument", "")
        kind = Kind.PROMPT if request.POST.get("kind") == Kind.PROMPT else Kind.RESOURCE_TEMPLATE
        context = {name: value for name, value in values.items() if name != argument and value}
        try:
            extra = extras.find_extra(member, kind, request.POST.get("name", ""))
            with _seat(request):
                found = extra_uses.complete(
                    principal_of(request), member, extra, argument, values.get(argument, ""), context
                )
        except McpRuntimeError as error:
            return JsonResponse({"values": [], "problem": present.one_line(str(error), 200)})
        return JsonResponse({"values": found.values, "total": found.total, "has_more": found.has_more})

    @method_decorator(require_POST)
    def watch_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """Begin to watch a resource. The answer has the address of the live part, which is good for some minutes."""
        member = self._member(request, member_id, to_use=True)
        claim = [request.user.pk, member.pk, request.POST.get("uri", "")[: extra_uses.MAX_URI]]
        token = signing.dumps(claim, salt=WATCH_SALT, compress=True)
        address = reverse("admin:roster_guildmember_resource_updates", args=[member.pk])
        return JsonResponse({"url": f"{address}?{urlencode({'watch': token})}"})

    def updates_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """When the watched resource was updated, as a live part. Without a watch it is empty."""
        member, token = self._member(request, member_id, to_use=True), request.GET.get("watch", "")
        state: State | None = None
        problem, is_over = "", not token
        try:
            if token:
                user_id, watched_id, uri = signing.loads(token, salt=WATCH_SALT, max_age=timedelta(seconds=MAX_SECONDS))
                if (user_id, watched_id) != (request.user.pk, member.pk):
                    raise PermissionDenied
                state = watches.look(principal_of(request), member, uri)
        except signing.SignatureExpired:
            problem, is_over = "Nobody watches any more, because ten minutes are over.", True
        except signing.BadSignature as error:
            raise Http404("this is no watch of the hall") from error
        except McpRuntimeError as error:
            problem, is_over = present.one_line(str(error), 300), True
        return live.part(request, WATCH, lambda: {"state": state, "problem": problem}, is_final=is_over)

    @method_decorator(require_POST)
    def switch_view(self, request: HttpRequest, member_id: int, verb: str) -> HttpResponseBase:
        """Enable or disable the entry in the query."""
        if not self.has_control_permission(request):
            raise PermissionDenied
        member: GuildMember = self.existing(request, str(member_id))
        kind, name = request.GET.get("kind", ""), request.GET.get("name", "")
        if verb not in VERBS or kind not in Kind.values:
            raise Http404(f"there is no verb {verb!r}")
        extra = _existing(member, Kind(kind), name)
        extras.set_extra_enabled(member, extra, VERBS[verb])
        text = f"{verb.capitalize()}d the {extra.kind.label} “{present.one_line(name, 100)}”."
        self.log_change(request, member, text)
        messages.success(request, text)
        page = f"{reverse('admin:roster_guildmember_change', args=[member.pk])}?show={_tab(extra.kind)}#tools"
        is_gone = not extra.is_listed and verb == "enable"
        return live.form_response(request, redirect(page if is_gone else page_of_extra(member.pk, extra)))


def _tab(kind: Kind) -> str:
    return next(tab for tab, kinds in TABS.items() if kind in kinds)


def _existing(member: GuildMember, kind: Kind, name: str) -> Extra:
    try:
        return extras.find_extra(member, kind, name)
    except UnknownExtraError as error:
        raise Http404(str(error)) from error


def _switch(member_id: int, extra: Extra) -> str:
    """The address that enables it if it is disabled, and otherwise disables it."""
    verb = "disable" if extra.is_enabled else "enable"
    address = reverse("admin:roster_guildmember_extra_switch", args=[member_id, verb])
    return f"{address}?{urlencode({'kind': extra.kind.value, 'name': extra.name})}"


def _value(request: HttpRequest, name: str) -> str:
    return str(request.POST.get(f"{FIELD}{name}", ""))


def _values(fields: list[Field]) -> dict[str, str]:
    """The values of the form. An empty field without a value is left out, unless it is required."""
    return {field.name: field.value for field in fields if field.value}


def _outcome_of(request: HttpRequest, member: GuildMember, use: Callable[[], Outcome]) -> Outcome:
    try:
        with _seat(request):
            return use()
    except McpRuntimeError as error:
        return extra_outcomes.of_error(error, member, principal_of(request))


def _file_response(request: HttpRequest, get: Callable[[str], File | None], page: str) -> HttpResponse:
    """A part of an answer of the member as an attachment. The hall asks again, because it stores no answers."""
    problem = "The answer has no such part any more."
    try:
        with _seat(request):
            file = get(request.POST.get("part", ""))
    except McpRuntimeError as error:
        file, problem = None, str(error)
    if file is not None:
        return attachment(file.body, file.name)
    messages.error(request, f"Nothing was downloaded. {present.bounded(problem, 500)}")
    return redirect(page)


def _download_of(member_id: int, extra: Extra, fields: list[Field], outcome: Outcome) -> dict[str, Any]:
    """The form that asks for a part of the same answer as a file."""
    view, values = "resource_file", [("uri", outcome.uri)]
    if extra.kind == Kind.PROMPT:
        view, values = "prompt_file", [("name", extra.name), *((FIELD + each.name, each.value) for each in fields)]
    return {"address": reverse(f"admin:roster_guildmember_{view}", args=[member_id]), "values": values}


def _seat(request: HttpRequest) -> AbstractContextManager[None]:
    return requests.seat_for_member((request.user.pk, None), request.META)
