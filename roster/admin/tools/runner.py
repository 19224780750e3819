"""The tool runner: a form beside its JSON, the call's result on the same page, and presets.

Without scripts it is a text area with JSON and a button. static/roster/runner.js adds the rest to the same page.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import (
    check_call,
    masked_secrets,
    queue_call,
    unmasked_arguments,
    wait_for_call,
    why_arguments_unknown,
    without_secrets,
)
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import (
    AccessError,
    IdempotencyConflictError,
    InvalidArgumentsError,
    RequestRefusedError,
)
from roster import addresses, calls, presets, snippets
from roster.admin import live, present
from roster.admin.calls import results
from roster.admin.rows import RuntimeRowAdmin, principal_of
from roster.admin.tools.annotations import badges_of, is_destructive, obstacle_of, takes_arguments
from roster.admin.tools.field_texts import field_texts
from roster.admin.tools.forms import Beginning, CallForm
from roster.api import requests
from roster.models import Call, Preset, Tool

SENT_BEFORE = "You already sent this form. This is the call that it made. To make another call, open the form again."
# Most calls end before a page would request their result.
PATIENCE_SECONDS = 0.4
# A schema with more characters gets no form.
MAX_FORM_SCHEMA = 200_000
OUTCOME = "admin/roster/tool/outcome.html"
PRESETS = "admin/roster/tool/presets_part.html"


class ToolRunner(RuntimeRowAdmin):
    """The views of one tool's runner, for the admin of tools."""

    def runner_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:tool_id>/call/", view(self.call_view), name="roster_tool_call"),
            path("<int:tool_id>/call/<int:call_id>/", view(self.outcome_view), name="roster_tool_outcome"),
            path("<int:tool_id>/snippets/", view(self.snippets_view), name="roster_tool_snippets"),
            path("<int:tool_id>/presets/", view(self.presets_view), name="roster_tool_presets"),
            path(
                "<int:tool_id>/presets/<int:preset_id>/delete/",
                view(self.delete_preset_view),
                name="roster_tool_preset_delete",
            ),
        ]

    def _tool(self, request: HttpRequest, tool_id: int) -> Tool:
        if not request.user.is_authenticated or not self.has_invoke_permission(request):
            raise PermissionDenied
        tool: Tool = get_object_or_404(self.get_queryset(request).select_related("member"), pk=tool_id)
        return tool

    # The page

    def call_view(self, request: HttpRequest, tool_id: int) -> HttpResponse:
        tool = self._tool(request, tool_id)
        if request.method == "POST":
            return self._call(request, tool)
        beginning = self._beginning(request, tool)
        form = CallForm(initial={"arguments": _as_text(beginning.arguments)})
        return self._page(request, tool, form, beginning)

    def _page(self, request: HttpRequest, tool: Tool, form: CallForm, beginning: Beginning) -> HttpResponse:
        schema = json.dumps(tool.input_schema, indent=2, ensure_ascii=False)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Call {present.one_line(present.shown_text(tool.title or tool.name), 80)}",
            "opts": self.opts,
            "tool": tool,
            "badges": badges_of(tool),
            "obstacle": obstacle_of(tool),
            "must_confirm": is_destructive(tool),
            "takes_arguments": takes_arguments(tool),
            "needs_task": mcp.needs_task(tool.definition),
            "gateway_address": addresses.address_of_member(tool.member.name),
            "form": form,
            "notes": beginning.notes,
            "schema": schema if len(schema) <= MAX_FORM_SCHEMA else "",
            "field_texts": field_texts(tool.input_schema) if len(schema) <= MAX_FORM_SCHEMA else [],
            "presets": _presets(request, tool),
            "snippets": snippets.of_call(tool, masked_secrets(tool, beginning.arguments), _home(request)),
            "token_variable": snippets.TOKEN_VARIABLE,
            "call_key": uuid.uuid4(),
        }
        return TemplateResponse(request, "admin/roster/tool/call.html", context)

    def _beginning(self, request: HttpRequest, tool: Tool) -> Beginning:
        if number := _number(request.GET.get("preset", "")):
            return self._of_preset(request, tool, number)
        if number := _number(request.GET.get("from", "")):
            return self._of_call(request, tool, number)
        return Beginning(calls.skeleton_of(tool.input_schema))

    @staticmethod
    def _of_preset(request: HttpRequest, tool: Tool, preset_id: int) -> Beginning:
        row = presets.of(cast(User, request.user), tool).filter(pk=preset_id).first()
        if row is None:
            return Beginning(
                calls.skeleton_of(tool.input_schema),
                ["You do not have this preset. The form starts with empty arguments."],
            )
        # The schema may mark more secrets now than when the preset was saved.
        arguments, left_out = without_secrets(tool, row.arguments)
        beginning = Beginning(arguments, [f"These are the arguments of your preset “{row.name}”."])
        beginning.note_missing_secrets(list(dict.fromkeys([*row.left_out, *left_out])))
        return beginning

    def _of_call(self, request: HttpRequest, tool: Tool, call_id: int) -> Beginning:
        call = self._viewable_call(request, tool, call_id)
        if call is None:
            note = f"There is no call {call_id} of this tool that you may see."
            return Beginning(calls.skeleton_of(tool.input_schema), [note])
        if reason := why_arguments_unknown(call):
            note = f"The arguments of call {call.pk} are not available: {reason}."
            return Beginning(calls.skeleton_of(tool.input_schema), [note])
        arguments, left_out = unmasked_arguments(call)
        beginning = Beginning(arguments, [f"These are the arguments of call {call.pk}."])
        beginning.note_missing_secrets(left_out)
        return beginning

    def _viewable_call(self, request: HttpRequest, tool: Tool, call_id: int) -> Call | None:
        """The call of this tool, if the user may see it."""
        screen: Any = self.admin_site.get_model_admin(Call)
        row: Model | None = screen.get_object(request, str(call_id))
        if not isinstance(row, Call) or not screen.has_view_permission(request, row):
            return None
        return row if (row.member_id, row.tool_name) == (tool.member_id, tool.name) else None

    # The call

    def _call(self, request: HttpRequest, tool: Tool) -> HttpResponse:
        form = CallForm(request.POST, must_confirm=is_destructive(tool))
        stays = request.headers.get("Accept") == "application/json"
        result = self._queue(request, tool, form) if form.is_valid() else None
        if result is None:
            # As for an invalid form that is shown again, the status is 200.
            return self._refusal(form) if stays else self._form_again(request, tool, form)
        call, is_new = result
        if not stays:
            if not is_new:
                messages.info(request, SENT_BEFORE)
            return redirect("admin:roster_call_change", call.pk)
        with requests.seat((request.user.pk, None), request.META) as has_seat:
            if has_seat:
                wait_for_call(call.pk, PATIENCE_SECONDS)
        outcome = reverse("admin:roster_tool_outcome", args=[tool.pk, call.pk])
        return JsonResponse({"call": call.pk, "outcome": outcome, "call_key": str(uuid.uuid4())})

    @staticmethod
    def _refusal(form: CallForm) -> JsonResponse:
        new_key = {"call_key": str(uuid.uuid4())} if form.is_key_used else {}
        return JsonResponse({"errors": form.complaints(), **new_key})

    def _form_again(self, request: HttpRequest, tool: Tool, form: CallForm) -> HttpResponse:
        arguments = form.cleaned_data.get("arguments")
        beginning = arguments if isinstance(arguments, dict) else calls.skeleton_of(tool.input_schema)
        return self._page(request, tool, form, Beginning(beginning))

    @staticmethod
    def _queue(request: HttpRequest, tool: Tool, form: CallForm) -> tuple[Call, bool] | None:
        """The row, and whether it is new. None if the call was only checked or refused. The form has the reasons."""
        call = tool.member.name, tool.name, form.cleaned_data["arguments"]
        requester = Requester(Call.Source.ADMIN, cast(User, request.user))
        try:
            if form.cleaned_data["only_check"]:
                check_call(*call, requester=requester)
                return None
            key = str(form.cleaned_data["call_key"] or "") or None
            return queue_call(*call, requester=requester, idempotency_key=key)
        except InvalidArgumentsError as refusal:
            form.refuse(refusal.errors)
        except IdempotencyConflictError:
            form.refuse_key()
        except (AccessError, RequestRefusedError) as refusal:
            form.add_error(None, str(refusal))
        return None

    def outcome_view(self, request: HttpRequest, tool_id: int, call_id: int) -> HttpResponse:
        """The progress of the call, as a live part. Call 0 is for a page without a call."""
        tool = self._tool(request, tool_id)
        if not call_id:
            return live.part(request, OUTCOME, dict, is_final=True)
        call = self._viewable_call(request, tool, call_id)
        if call is None:
            raise Http404(f"no call {call_id} of this tool")
        context = {
            "tool": tool,
            "call": call,
            "elapsed_ms": int(_elapsed(call).total_seconds() * 1000),
            "elapsed": present.seconds(_elapsed(call)),
            "progress": progress_of(call),
        }
        principal = principal_of(request)
        # A finished call does not change, and its result may be large, so it is rendered once.
        tag = live.etag("outcome", call.pk) if call.is_finished else ""
        return live.part(
            request,
            OUTCOME,
            lambda: {**context, "view": results.result_view(call, tool.output_schema, principal)},
            tag=tag,
            is_final=call.is_finished,
        )

    # Texts to copy

    @method_decorator(require_POST)
    def snippets_view(self, request: HttpRequest, tool_id: int) -> HttpResponse:
        """The call as curl, Python and command, and its arguments for a link. None of them has secrets."""
        tool = self._tool(request, tool_id)
        try:
            arguments = calls.parse_arguments(request.POST.get("arguments", ""))
        except ValueError as error:
            return JsonResponse({"error": str(error)})
        if not isinstance(arguments, dict):
            return JsonResponse({"error": "the arguments must be a JSON object"})
        public_arguments, left_out = without_secrets(tool, arguments)
        texts = snippets.of_call(tool, masked_secrets(tool, arguments), _home(request))
        return JsonResponse({"snippets": texts, "arguments": public_arguments, "left_out": left_out})

    # Presets

    def presets_view(self, request: HttpRequest, tool_id: int) -> HttpResponseBase:
        """The presets as a live part. A POST saves a preset."""
        tool = self._tool(request, tool_id)
        if request.method == "POST":
            return self._save_preset(request, tool)
        return live.part(request, PRESETS, lambda: {"tool": tool, "presets": _presets(request, tool)}, is_final=True)

    def _save_preset(self, request: HttpRequest, tool: Tool) -> HttpResponseBase:
        page = reverse("admin:roster_tool_call", args=[tool.pk])
        user = cast(User, request.user)
        try:
            arguments = calls.parse_arguments(request.POST.get("arguments", ""))
            row, left_out = presets.save(user, tool, request.POST.get("preset_name", ""), arguments)
        except (ValueError, presets.PresetRefusedError) as error:
            messages.error(request, f"The preset was not saved: {error}.")
            return live.form_response(request, redirect(page))
        secrets = f" Its secrets are not stored: {', '.join(left_out)}." if left_out else ""
        messages.success(request, f"Saved the preset “{row.name}”.{secrets}")
        return live.form_response(request, redirect(f"{page}?preset={row.pk}"))

    @method_decorator(require_POST)
    def delete_preset_view(self, request: HttpRequest, tool_id: int, preset_id: int) -> HttpResponseBase:
        tool = self._tool(request, tool_id)
        row: Preset = get_object_or_404(presets.of(cast(User, request.user), tool), pk=preset_id)
        row.delete()
        messages.success(request, f"Deleted the preset “{row.name}”.")
        return live.form_response(request, redirect("admin:roster_tool_call", tool.pk))


def _presets(request: HttpRequest, tool: Tool) -> QuerySet[Preset]:
    return presets.of(cast(User, request.user), tool).defer("arguments")[: presets.MAX_PRESETS]


# The progress of a call -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """The progress of a call. `share` is in percent, or None if the member gives no total."""

    share: float | None
    text: str


def progress_of(call: Call) -> Progress | None:
    progress = call.progress
    if call.is_finished or not progress:
        return None
    total = progress.get("total")
    share = 100 * progress["progress"] / total if total else None
    return Progress(None if share is None else max(0.0, min(100.0, share)), calls.progress_text(progress)[:500])


def _elapsed(call: Call) -> timedelta:
    """The time since it was accepted. For a finished call, the time in the tool, as on the call's own page."""
    if call.is_finished:
        return call.duration or timedelta()
    return timezone.now() - call.queued_at


def _as_text(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, indent=2, ensure_ascii=False)


def _home(request: HttpRequest) -> str:
    return request.build_absolute_uri("/")


def _number(text: str) -> int:
    """The id in the URL, or 0 if it is not an id."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0
