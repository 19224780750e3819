"""The rows of the lists of the admin: `{% load lists %}`."""

from __future__ import annotations

from typing import Any

from django import template
from django.contrib.admin.templatetags import admin_list
from django.contrib.admin.views.main import ChangeList

from roster.admin import table_rows

register = template.Library()


@register.inclusion_tag("admin/change_list_results.html")
def rows_of_list(cl: ChangeList) -> dict[str, Any]:
    """The same as Django's `result_list`, in less time."""
    headers = list(admin_list.result_headers(cl))
    return {
        "cl": cl,
        "result_hidden_fields": list(admin_list.result_hidden_fields(cl)),
        "result_headers": headers,
        "num_sorted_fields": sum(1 for header in headers if header["sortable"] and header["sorted"]),
        "results": table_rows.rows(cl),
    }
