"""Filters of the list of calls that a user saved under a name. Only this user sees them."""

from __future__ import annotations

from typing import cast
from urllib.parse import parse_qsl, urlencode

from django.contrib.auth.models import User
from django.http import HttpRequest

from mcp_runtime.members.logs import plain
from roster.admin.calls import listing
from roster.models import SavedFilter

# What the address of the list may contain, without the number of a page and the like.
PARAMETERS = {*listing.UNINDEXED, "member__id__exact", "token", "q"}
MAX_FIELDS = 50


class NotSavedError(Exception):
    """The filter was not saved. The message says why."""


def of(request: HttpRequest) -> list[SavedFilter]:
    return list(SavedFilter.objects.filter(user=request.user.pk))


def clean_query(query: str) -> str:
    """The filters in the query of an address, in their order. Empty without filters."""
    try:
        pairs = parse_qsl(query.removeprefix("?"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return ""
    values = {name: value.strip().replace("\0", "") for name, value in pairs if name in PARAMETERS}
    return urlencode([(name, value) for name, value in values.items() if value])


def save(request: HttpRequest, name: str, query: str) -> SavedFilter:
    """Save the filters under `name`, and replace those with the same name. Raises NotSavedError."""
    name, query = plain(" ".join(name.split())), clean_query(query)
    if not name or len(name) > SavedFilter.MAX_NAME:
        raise NotSavedError(f"A saved filter needs a name, of {SavedFilter.MAX_NAME} characters at most.")
    if not query:
        raise NotSavedError("There is no filter to save. Choose one and press Show first.")
    if len(query) > SavedFilter.MAX_QUERY:
        raise NotSavedError("The filters are too long to be saved.")
    filters = SavedFilter.objects.filter(user=request.user.pk)
    if filters.exclude(name=name).count() >= SavedFilter.MAX_PER_USER:
        raise NotSavedError(f"You have {SavedFilter.MAX_PER_USER} saved filters. Delete one first.")
    row, _ = SavedFilter.objects.update_or_create(user=cast(User, request.user), name=name, defaults={"query": query})
    return row


def delete(request: HttpRequest, filter_id: int) -> str:
    """Delete a saved filter of the user, and return its name. Raises SavedFilter.DoesNotExist."""
    row = SavedFilter.objects.get(user=request.user.pk, pk=filter_id)
    row.delete()
    return row.name
