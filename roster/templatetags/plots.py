"""Figures of calls for any template: `{% load plots %}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import template
from django.http import HttpRequest
from django.template import Context
from django.utils.safestring import SafeString

from roster.admin import plots, statistics
from roster.models import GuildMember

register = template.Library()


@register.simple_tag
def spark(points: Sequence[tuple[int, int]] | None) -> SafeString:
    """Bars of a member's last hour, from `control.calls.calls_of_last_hour()`, or None. The page needs plots.css."""
    return plots.spark(points)


@register.inclusion_tag("roster/statistics.html", takes_context=True)
def statistics_of(context: Context, member: GuildMember | None = None, tool_name: str = "") -> dict[str, Any]:
    """A live section with the plots of a member, of its tool, or of the hall. The page needs plots.css, statistics.js.

    The page's own URL may choose the span: `?span=day`.
    """
    request: HttpRequest = context["request"]
    return statistics.section(request, member, tool_name)
