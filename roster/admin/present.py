"""Formatting for the admin. All texts of members are escaped and bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import urlsplit

from django.contrib import admin, messages
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from mcp_runtime.control.nodes import Liveness, read_liveness
from mcp_runtime.system import console
from roster.admin import live

MAX_SHOWN = 200_000
MAX_NAMED = 10
NOTHING = "-"

_CONTROL = re.compile(f"(?![\n\r])[{console.CONTROLS}]")
# A time as the hall writes it into texts, and into values of the audit log.
_MOMENT = re.compile(r"\b(20\d\d-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: UTC|\+00:00|Z\b))")
_LIVENESS = "_guild_hall_liveness"


def liveness(request: HttpRequest) -> Liveness:
    """Which nodes are alive. Read once per request, for all rows and banners."""
    if not hasattr(request, _LIVENESS):
        setattr(request, _LIVENESS, read_liveness())
    return cast(Liveness, getattr(request, _LIVENESS))


def set_liveness(request: HttpRequest, value: Liveness) -> None:
    """Spare the request a query, because another one brought which nodes are alive."""
    setattr(request, _LIVENESS, value)


def runtime_is_alive(request: HttpRequest) -> bool:
    """Whether the runtime of any node is alive."""
    return bool(liveness(request).live_ids)


def runtime_etag(request: HttpRequest) -> str:
    """The ETag of the part of each page that says when no runtime is alive."""
    return live.etag("runtime", runtime_is_alive(request))


def badge(word: str) -> SafeString:
    """The name of a status, in its colour from static/roster/admin.css."""
    return format_html('<span class="status status-{}">{}</span>', word, word)


def shown_text(text: str) -> str:
    """`text` with its control characters, and those that change the order of text, as �."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, length: int = 120) -> str:
    line = " ".join(text[: 4 * length].split())
    return f"{line[: length - 1]}…" if len(line) > length else line


def bounded(text: str, length: int) -> str:
    return f"{text[: length - 1]}…" if len(text) > length else text


def text_block(text: str) -> SafeString | str:
    if not text:
        return NOTHING
    if len(text) > MAX_SHOWN:
        text = f"{text[:MAX_SHOWN]}\n… and {len(text) - MAX_SHOWN} more characters. The API returns the whole text."
    return format_html('<pre class="block" tabindex="0">{}</pre>', text)


def json_block(value: Any) -> SafeString | str:
    if value is None or value == {} or value == []:
        return NOTHING
    return text_block(json.dumps(value, indent=2, ensure_ascii=False))


def link(row: Model, text: str = "") -> SafeString:
    """A link to the row's own page."""
    address = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    return format_html('<a href="{}">{}</a>', address, text or str(row))


def when(moment: datetime | None) -> SafeString | str:
    """The one format of times on all pages: to the second, because people want to see the order of events.

    `NOTHING` without a moment. Templates have it as the filter `when`.
    """
    return time_element(moment, f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC") if moment else NOTHING


def time_element(moment: datetime, text: str, attribute: str = "") -> SafeString:
    """`text` as `<time>`, with the exact time for programs, and for people who point at it."""
    moment = moment.astimezone(UTC)
    exact = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03} UTC"
    mark = format_html(" {}", attribute) if attribute else ""
    return format_html('<time datetime="{}" title="{}"{}>{}</time>', moment.isoformat(), exact, mark, text)


def with_times(text: str) -> SafeString:
    """A text of the hall, with each time in it as `<time>`. Everything in it is escaped."""
    parts = _MOMENT.split(text)
    return format_html_join("", "{}", ((_moment_or_text(part),) for part in parts))


def _moment_or_text(part: str) -> SafeString | str:
    if not _MOMENT.fullmatch(part):
        return part
    try:
        return when(datetime.fromisoformat(part.replace(" UTC", "+00:00")))
    except ValueError:  # there is no such day
        return part


def moment_column(field: str, label: str = "", *, without: str = NOTHING) -> Callable[[Any, Model], SafeString | str]:
    """A column for a date and time field, as an attribute of an admin class. `last_used_at` becomes "last used".

    A row without a time says `without`.
    """
    label = label or field.removesuffix("_at").replace("_", " ")

    @admin.display(description=label, ordering=field)
    def column(_: Any, row: Model) -> SafeString | str:
        moment = getattr(row, field)
        return when(moment) if moment else without

    return column


def seconds(length: timedelta | float | None) -> str:
    """`35 ms`, `2.1 s`, `12 min`."""
    if length is None:
        return NOTHING
    if isinstance(length, timedelta):
        length = length.total_seconds()
    if length < 0.0095:
        return f"{1000 * length:.1f} ms"
    if length < 0.9995:
        return f"{1000 * length:.0f} ms"
    return f"{length:.1f} s" if length < 99.95 else f"{length / 60:.0f} min"


def number(value: object) -> str:
    """The one format of numbers that count something: 12,345. Templates have it as the filter `number`.

    Ids, ports and versions are names, so they stay as they are. What is no whole number stays too.
    """
    return f"{value:,}" if isinstance(value, int) else str(value)


def report(
    request: HttpRequest, title: str, names: Iterable[str], refusals: Iterable[str], refused: str = "Not changed"
) -> None:
    """Tell the user what an action changed and what it refused, with counts. `refused` is the title of refusals."""
    changes, rejections = list(names), list(refusals)
    if changes:
        messages.success(request, f"{title} ({len(changes)}): {_join(changes, ', ')}.")
    if rejections:
        messages.warning(request, f"{refused} ({len(rejections)}): {_join(rejections, '; ')}.")


def _join(names: list[str], separator: str) -> str:
    remaining = len(names) - MAX_NAMED
    return separator.join(names[:MAX_NAMED]) + (f"{separator}and {remaining} more" if remaining > 0 else "")


def leads_to_the_web(address: str) -> bool:
    """Whether a page may link there: http or https, with a host, and nothing that a browser would read otherwise."""
    if any(char <= " " or char in '\\"<>`' for char in address):
        return False
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
