"""The parts of every page of the admin that are about the whole hall."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

from django import template
from django.template import Context
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from roster.admin import present
from roster.admin.calls import items
from roster.admin.places import MAIN, MORE, Place, places_for
from roster.admin.tools.annotations import Badge, badges_of
from roster.models import PinnedTool, Tool

register = template.Library()


# Below this number of seconds a time is shown in this unit. static/roster/times.js has the same limits.
_STEPS = [(60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"), (float("inf"), 86400, "days")]


@register.simple_tag(takes_context=True)
def runtime_is_alive(context: Context) -> bool:
    return present.runtime_is_alive(context["request"])


@register.simple_tag(takes_context=True)
def runtime_etag(context: Context) -> str:
    """The ETag of the part that says when no runtime is alive."""
    return present.runtime_etag(context["request"])


@register.simple_tag
def ago(moment: datetime) -> SafeString:
    """How long ago that was. static/roster/times.js updates it."""
    return _length(moment, math.floor((timezone.now() - moment).total_seconds()), "data-ago", math.floor)


@register.simple_tag
def until(moment: datetime) -> SafeString:
    """How long it is until then, rounded up, so that 72 hours are 3 days. static/roster/times.js updates it."""
    return _length(moment, math.ceil((moment - timezone.now()).total_seconds()), "data-until", math.ceil)


def _length(moment: datetime, seconds: int, attribute: str, rounded: Callable[[float], int]) -> SafeString:
    _, unit, word = next(step for step in _STEPS if seconds < step[0])
    return present.time_element(moment, f"{rounded(max(0, seconds) / unit)} {word}", attribute)


register.filter("when", present.when)
register.filter("number", present.number)
register.filter("with_times", present.with_times)


@register.filter
def shown(text: object) -> str:
    """A text of a member with its control characters, and those that change the order of text, as �."""
    return present.shown_text(str(text))


@register.filter
def shortened(text: object, length: int) -> str:
    """As `truncatechars`, which takes ten times as long. Lists have hundreds of texts."""
    return present.bounded(str(text), length)


@register.filter
def prose(text: object) -> SafeString:
    """A description by a member: Markdown as safe HTML if it looks like it, otherwise its lines."""
    return items.prose(str(text)[: items.MAX_TEXT])


@register.filter
def short_prose(text: object) -> SafeString:
    """The description of a field by a member, with emphasis, code and links in Markdown."""
    return items.short_prose(str(text))


@register.simple_tag(name="badges_of")
def badges(tool: Tool) -> list[Badge]:
    """What the tool says about itself."""
    return badges_of(tool)


@register.filter
def code_spans(text: str) -> SafeString:
    """The text with each part between backquotes as code. Everything in it is escaped."""
    parts = text.split("`")
    # A backquote without its partner stays as it is.
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    spans = (("{}" if index % 2 == 0 else "<code>{}</code>", part) for index, part in enumerate(parts))
    return mark_safe("".join(format_html(span, part) for span, part in spans))  # noqa: S308 - escaped above


@register.simple_tag(takes_context=True)
def is_pinned(context: Context, tool: Tool) -> bool:
    """Whether the user has pinned the tool, so that the search shows it first."""
    return PinnedTool.objects.filter(user=context["request"].user.pk, tool=tool).exists()


@register.simple_tag(takes_context=True)
def places(context: Context) -> list[Place]:
    """The first row of the navigation."""
    return places_for(context["request"], MAIN)


@register.simple_tag(takes_context=True)
def more_places(context: Context) -> list[Place]:
    """The second row of the navigation, which is needed less often."""
    return places_for(context["request"], MORE)
