"""The tool runner: a form beside its JSON, the call's result on the same page, and presets.

Without scripts it is a text area with JSON and a button. static/roster/runner.js adds the rest to the same page.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from django import forms
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
    masked_secrets,
    queue_call,
    unmasked_arguments,
    wait_for_call,
    why_arguments_unknown,
    without_secrets,
)
from mcp_runtime.protocol.errors import (
    AccessError,
    IdempotencyConflictError,
    InvalidArgumentsError,
    RequestRefusedError,
)
from roster import calls, presets, snippets
from roster.admin import live, present
from roster.admin.calls import results
from roster.admin.rows import RuntimeRowAdmin
from roster.api import requests
from roster.models import Call, Preset, Tool

SENT_BEFORE = "You already sent this form. This is the call that it made. To make another call, open the form again."
# The answer to the first one was lost, and then the arguments were changed.
SENT_OTHERWISE = (
    "You already sent this form with other arguments. The list of calls shows that call. Press Call again to make a "
    "second call, with these arguments."
)
# Most calls end before a page would request their result.
PATIENCE_SECONDS = 0.4
# A schema with more characters gets no form.
MAX_FORM_SCHEMA = 200_000
OUTCOME = "admin/roster/tool/outcome.html"
PRESETS = "admin/roster/tool/presets_part.html"

Path = tuple[str | int, ...]


class CallForm(forms.Form):
    # The key of the form as shown, so that pressing the button twice does not call twice.
    call_key = forms.UUIDField(required=False)
    arguments = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 14, "cols": 60, "class": "json", "spellcheck": "false"}),
    )
    confirmed = forms.BooleanField(required=False)

    def __init__(self, *args: Any, must_confirm: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.must_confirm = must_confirm
        self.argument_errors: list[tuple[Path, str]] = []
        self.is_key_used = False

    def clean_arguments(self) -> Any:
        try:
            return calls.parse_arguments(self.cleaned_data["arguments"])
        except ValueError as error:
            self.argument_errors = [((), str(error))]
            raise forms.ValidationError(str(error)) from error

    def clean_confirmed(self) -> bool:
        confirmed = bool(self.cleaned_data["confirmed"])
        if self.must_confirm and not confirmed:
            raise forms.ValidationError("This tool may delete or overwrite data. Confirm the call.")
        return confirmed

    def refuse(self, errors: tuple[tuple[Path, str], ...]) -> None:
        self.argument_errors = list(errors)
        for place, reason in errors:
            self.add_error("arguments", f"{_dotted(place)}: {reason}" if place else reason)

    def refuse_key(self) -> None:
        """Note that another call has its key, so that the next press gets a new key."""
        self.is_key_used = True
        self.add_error(None, SENT_OTHERWISE)

    def complaints(self) -> list[dict[str, Any]]:
        """All errors, with their places in the arguments."""
        other_errors = [word for name, words in self.errors.items() if name != "arguments" for word in words]
        return [
            *({"path": list(place), "reason": reason} for place, reason in self.argument_errors),
            *({"path": [], "reason": str(word)} for word in other_errors),
        ]


def _dotted(place: Path) -> str:
    return ".".join(str(part) for part in place)


@dataclass
class Beginning:
    """The first arguments of a form, and the messages about them."""

    arguments: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def note_missing_secrets(self, places: list[str]) -> None:
        if places:
            self.notes.append(f"Secrets are not stored. Enter them again: {', '.join(places)}.")


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
            "title": f"Call {present.one_line(tool.name, 80)}",
            "subtitle": tool.member.title,
            "opts": self.opts,
            "tool": tool,
            "hints": hints_of(tool),
            "must_confirm": is_destructive(tool),
            "takes_arguments": takes_arguments(tool),
            "form": form,
            "notes": beginning.notes,
            "schema": schema if len(schema) <= MAX_FORM_SCHEMA else "",
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
        """The call's row, and whether it is new. None if it was refused. The form then has the reason."""
        try:
            return queue_call(
                tool.member.name,
                tool.name,
                form.cleaned_data["arguments"],
                requester=Requester(Call.Source.ADMIN, cast(User, request.user)),
                idempotency_key=str(form.cleaned_data["call_key"] or "") or None,
            )
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
            "elapsed_ms": _elapsed_ms(call),
            "elapsed": present.seconds(timedelta(milliseconds=_elapsed_ms(call))),
            "progress": progress_of(call),
        }
        # A finished call does not change, and its result may be large, so it is rendered once.
        tag = live.etag("outcome", call.pk) if call.is_finished else ""
        return live.part(
            request,
            OUTCOME,
            lambda: {**context, "view": results.result_view(call, tool.output_schema)},
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


# The tool's own hints ---------------------------------------------------------------------------------------------


def _annotations(tool: Tool) -> dict[str, Any]:
    annotations = tool.definition.get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def is_destructive(tool: Tool) -> bool:
    """Whether the tool declares it. In MCP that is the default, but users would soon ignore a question at each call."""
    annotations = _annotations(tool)
    return annotations.get("destructiveHint") is True and annotations.get("readOnlyHint") is not True


def hints_of(tool: Tool) -> list[str]:
    """The tool's annotations in words. They come from the member, and nobody has checked them."""
    annotations = _annotations(tool)
    words = {
        "readOnlyHint": ("only reads data", "may change data"),
        "idempotentHint": ("repeated calls have no further effect", ""),
        "openWorldHint": ("uses external systems", "uses no external systems"),
    }
    hints = [
        positive if annotations[name] else negative
        for name, (positive, negative) in words.items()
        if isinstance(annotations.get(name), bool)
    ]
    return [*(["may delete or overwrite data"] if is_destructive(tool) else []), *filter(None, hints)]


def takes_arguments(tool: Tool) -> bool:
    """Whether there is anything to fill in. An empty schema allows everything, but its tool mostly takes nothing."""
    schema = tool.input_schema
    uninformative_keys = {
        "$schema",
        "$id",
        "type",
        "title",
        "description",
        "additionalProperties",
        "properties",
        "required",
    }
    return bool(
        schema.keys() - uninformative_keys
        or schema.get("properties")
        or schema.get("required")
        or isinstance(schema.get("additionalProperties"), dict)
    )


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


def _elapsed_ms(call: Call) -> int:
    """The time since it was accepted. For a finished call, the time in the tool."""
    if call.is_finished:
        return int(call.duration.total_seconds() * 1000) if call.duration else 0
    return int((timezone.now() - call.queued_at).total_seconds() * 1000)


def _as_text(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, indent=2, ensure_ascii=False)


def _home(request: HttpRequest) -> str:
    return request.build_absolute_uri("/")


def _number(text: str) -> int:
    """The id in the URL, or 0 if it is not an id."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0
