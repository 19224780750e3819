"""The rows of a list, the same as of Django's `{% result_list %}`, with what they share computed once.

Django looks up the field or method, the class and the link of a column again in each cell. In a list of 25 members this
took longer than all queries of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django.contrib.admin.templatetags import admin_list
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import display_for_field, display_for_value
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import FieldDoesNotExist
from django.db.models import BooleanField, CharField, Field, IntegerField, Model, TextField
from django.utils.html import conditional_escape, escape
from django.utils.safestring import SafeString, mark_safe

# Fields without a relation, and whose cells have no class of their own.
_PLAIN_FIELDS = (BooleanField, CharField, IntegerField, TextField)


class Column(NamedTuple):
    text_of: Callable[[Model], str]  # what the cell of a row shows
    start: str
    end: str
    is_link: bool


def rows(cl: ChangeList) -> list[Iterable[SafeString]]:
    """The cells of each row. Lists with forms, lists for a popup, and rare kinds of columns are left to Django."""
    columns = _columns(cl)
    if columns is None or cl.formset or cl.is_popup or not cl.result_list:
        return list(admin_list.results(cl))
    filters = _filters_in_addresses(cl) if any(column.is_link for column in columns) else ""
    return [[_cell(cl, row, column, filters) for column in columns] for row in cl.result_list]


def _cell(cl: ChangeList, row: Model, column: Column, filters: str) -> SafeString:
    text: str = conditional_escape(column.text_of(row))
    if column.is_link:
        text = f'<a href="{escape(cl.url_for_result(row) + filters)}">{text}</a>'
    return mark_safe(f"{column.start}{text}{column.end}")  # noqa: S308 - escaped above


def _filters_in_addresses(cl: ChangeList) -> str:
    """The end of each row's address. It leads back from the row to the filtered list."""
    address = cl.url_for_result(cl.result_list[0])
    full_address: str = add_preserved_filters({"preserved_filters": cl.preserved_filters, "opts": cl.opts}, address)
    return full_address.removeprefix(address)


def _columns(cl: ChangeList) -> list[Column] | None:
    columns: list[Column] = []
    for name in cl.list_display:
        text_of = _text_of(cl, name) if isinstance(name, str) else None
        if text_of is None:
            return None
        is_link = name in (cl.list_display_links or ())
        tag = "th" if is_link and not any(column.is_link for column in columns) else "td"
        css_class = "action-checkbox" if name == "action_checkbox" else f"field-{name}"
        start = f'<{tag} class="{css_class}">'
        columns.append(Column(text_of, start, f"</{tag}>", is_link))
    return columns


def _text_of(cl: ChangeList, name: str) -> Callable[[Model], str] | None:
    """What shows a row in the column. None if only Django knows it."""
    empty = cl.model_admin.get_empty_value_display()
    try:
        field = cl.opts.get_field(name)
    except FieldDoesNotExist:
        method = getattr(cl.model_admin, name, None) if name != "__str__" else None  # which is the row's own
        return _text_of_method(method, empty) if callable(method) else None
    is_plain = isinstance(field, Field) and isinstance(field, _PLAIN_FIELDS)
    return _text_of_field(field, empty) if is_plain and not field.is_relation and not field.auto_created else None


def _text_of_field(field: Any, empty: str) -> Callable[[Model], str]:
    return lambda row: display_for_field(_or_nothing(getattr(row, field.name)), field, empty)


def _text_of_method(method: Any, empty: str) -> Callable[[Model], str]:
    empty = getattr(method, "empty_value_display", empty)
    is_boolean = getattr(method, "boolean", False)

    def text_of(row: Model) -> str:
        value = _or_nothing(method(row))
        if isinstance(value, str) and value and not is_boolean:
            return value
        return str(display_for_value(value, empty, is_boolean))

    return text_of


def _or_nothing(value: object) -> object:
    return "" if isinstance(value, str) and not value.strip() else value
