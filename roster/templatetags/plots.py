"""Figures of calls for any template: `{% load plots %}`."""

from __future__ import annotations

from collections.abc import Sequence

from django import template
from django.utils.safestring import SafeString

from roster.admin import plots

register = template.Library()


@register.simple_tag
def spark(points: Sequence[tuple[int, int]] | None) -> SafeString:
    """Small bars of a member's last hour: its part of `control.calls_of_last_hour()`, or None. Wants plots.css."""
    return plots.spark(points)
