"""Parts of pages that update automatically: the server's side of static/roster/live.js and posts.js."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotModified, JsonResponse
from django.template.loader import render_to_string
from django.utils.http import parse_etags

# Masked again whenever it is written, so it must not count as a change.
_CSRF_FIELD = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')


def etag(*versions: object) -> str:
    """An ETag of what a part was made from, for `part`, or for data-live-etag of the page that holds the part."""
    text = "\0".join([_code_version(), *map(str, versions)])
    return f'"{hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'


def part(
    request: HttpRequest,
    template: str,
    context: Callable[[], Mapping[str, Any]],
    *,
    tag: str = "",
    is_final: bool = False,
) -> HttpResponse:
    """The part as HTML, or 304 when the page has it already. With `is_final` the page stops asking.

    With `tag`, of a version that is cheap to know (see `etag`), nothing is looked up or rendered for a 304. It must
    be made before `context` is called. Without it the rendered part is compared.
    """
    if not tag or not _browser_has(request, tag):
        html = render_to_string(template, dict(context()), request)
        tag = tag or etag(_CSRF_FIELD.sub(r"\1", html))
        response: HttpResponse = HttpResponse(html)
    if _browser_has(request, tag):
        response = HttpResponseNotModified()
    response.headers["ETag"] = tag
    response.headers["X-Live"] = "done" if is_final else "part"
    return response


def form_response(request: HttpRequest, page: HttpResponseBase) -> HttpResponseBase:
    """The answer of a button's view. It is the messages for a `data-live-form`, else `page`, mostly a redirect."""
    if request.headers.get("X-Live") != "form":
        return page
    texts = [{"level": message.level_tag, "text": str(message)} for message in messages.get_messages(request)]
    return JsonResponse({"messages": texts})


def _browser_has(request: HttpRequest, tag: str) -> bool:
    etags = parse_etags(request.headers.get("If-None-Match", ""))
    return tag in (etag.removeprefix("W/") for etag in etags)


@cache
def _code_version() -> str:
    """Changes with the templates, because a part of the version before is not up to date."""
    templates = sorted((Path(__file__).resolve().parent.parent / "templates").rglob("*.html"))
    return str([(path.name, path.stat().st_mtime_ns) for path in templates])
