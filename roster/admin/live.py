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

# The CSRF token has a new mask on each page, and the browser counts how long ago a time was. Both are no changes.
_NO_CHANGES = re.compile(r'(?<=name="csrfmiddlewaretoken" value=")[^"]*|(?<= data-ago>)[^<]*|(?<= data-until>)[^<]*')


def etag(*versions: object) -> str:
    """An ETag from the versions of a part's data, for `part`, or for data-live-etag of the page with the part."""
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
    """The part as HTML, or 304 if the page has it already. With `is_final` the page stops its requests.

    `tag` is an ETag that is cheap to compute (see `etag`). With it, a 304 needs no query and no rendering. Compute it
    before calling `part`, because `context` is evaluated later. Without it the rendered part is compared.
    """
    if not tag or not _browser_has(request, tag):
        html = render_to_string(template, dict(context()), request)
        tag = tag or etag(_NO_CHANGES.sub("", html))
        response: HttpResponse = HttpResponse(html)
    if _browser_has(request, tag):
        response = HttpResponseNotModified()
    response.headers["ETag"] = tag
    response.headers["X-Live"] = "done" if is_final else "part"
    return response


def form_response(request: HttpRequest, page: HttpResponseBase) -> HttpResponseBase:
    """The response of a button's view. For a `data-live-form` it has the messages. Otherwise it is `page`."""
    if request.headers.get("X-Live") != "form":
        return page
    texts = [{"level": message.level_tag, "text": str(message)} for message in messages.get_messages(request)]
    return JsonResponse({"messages": texts})


def _browser_has(request: HttpRequest, tag: str) -> bool:
    etags = parse_etags(request.headers.get("If-None-Match", ""))
    return tag in (etag.removeprefix("W/") for etag in etags)


@cache
def _code_version() -> str:
    """Changes with the templates, because a part of an earlier version is not up to date."""
    templates = sorted((Path(__file__).resolve().parent.parent / "templates").rglob("*.html"))
    return str([(path.name, path.stat().st_mtime_ns) for path in templates])
