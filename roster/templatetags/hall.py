"""What every page of the admin says about the hall as a whole."""

from __future__ import annotations

from django import template
from django.template import Context

from roster.admin import present

register = template.Library()


@register.simple_tag(takes_context=True)
def runtime_is_alive(context: Context) -> bool:
    return present.runtime_is_alive(context["request"])
