"""The filtered list of calls as a file, over REST and for the admin."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers
from rest_framework.request import Request

from mcp_runtime.protocol.errors import TooManyCallsError
from mcp_runtime.security.limits import Owner, SharedSlots
from roster.api.base import REFUSED, HallView, query_of
from roster.api.calls import CallFilters, filtered_calls, search_of, tool_sets_of
from roster.api.described import extend_schema
from roster.api.permissions import principal_of
from roster.api.requests import SeatedStream
from roster.call_export import FORMATS, MAX_EXPORTED, Selection, parts

# The files that this process sends at the same time. A slow client holds a batch in memory, and a thread of the web.
exports = SharedSlots(8)
EXPORTS_FULL = "Too many exports are in progress. Try again when one of them is complete."


def exported(selection: Selection, form: str, owner: Owner) -> StreamingHttpResponse:
    """The calls as an attachment in one of FORMATS.

    Raises TooManyCallsError if too many files are read already, and SearchError.
    """
    with ExitStack() as stack:
        if not stack.enter_context(exports.seat(owner)):
            raise TooManyCallsError(EXPORTS_FULL, 1.0)
        text = parts(selection, form)
        seat = stack.pop_all()
    response = StreamingHttpResponse(SeatedStream(text, seat), content_type=FORMATS[form])
    response.headers["Content-Disposition"] = f'attachment; filename="calls.{form}"'
    return response


class CallExportFilters(CallFilters):
    """The filters of the list of calls, and the form of the file."""

    format = serializers.ChoiceField(
        choices=list(FORMATS),
        default="jsonl",
        help_text="`csv` has no arguments. `jsonl` has a JSON object for each line, and `json` is one list of them.",
    )
    results = serializers.BooleanField(
        default=False, help_text="Whether JSON contains the results too. One result may have megabytes."
    )


class CallExportView(HallView):
    @extend_schema(
        parameters=[CallExportFilters],
        responses={(200, content_type.partition(";")[0]): OpenApiTypes.STR for content_type in FORMATS.values()}
        | {400: REFUSED, 429: REFUSED},
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> StreamingHttpResponse:
        values = query_of(CallExportFilters, request)
        selection = Selection(
            filtered_calls(request, values),
            tool_sets_of(request),
            search_of(values),
            with_results=values["results"],
        )
        return exported(selection, values["format"], principal_of(request).owner)

    get.__doc__ = (
        f"Return the calls of the list as a file, newest first, at most {MAX_EXPORTED:,}. Secrets in the arguments are "
        "masked. In CSV, a text that a spreadsheet could read as a formula begins with an apostrophe."
    )
