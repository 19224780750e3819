"""Store what the OpenAPI document says of a view, and give it to drf-spectacular when the document is requested.

Its own decorator imports Django's test client and more. These 4 MB are needed by no other request.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap
from typing import Any, TypeVar

from roster.api.errors import MEDIA_TYPE

View = TypeVar("View", bound=Callable[..., Any])

_notes: list[tuple[Callable[..., Any], dict[str, Any]]] = []


def extend_schema(**values: Any) -> Callable[[View], View]:
    """Replaces drf-spectacular's decorator of this name, for the methods of a view."""

    def note(view: View) -> View:
        _notes.append((view, values))
        return view

    return note


def hand_over() -> None:
    """Apply all stored descriptions, once, before the first document is generated."""
    from drf_spectacular import utils

    while _notes:
        view, values = _notes.pop()
        if isinstance(responses := values.get("responses"), dict):
            values = {**values, "responses": dict(starmap(_with_media_type, responses.items()))}
        utils.extend_schema(**values)(view)


def _with_media_type(status: Any, response: Any) -> tuple[Any, Any]:
    """The view renders only JSON, so drf-spectacular does not know the media type of errors."""
    return ((status, MEDIA_TYPE) if isinstance(status, int) and status >= 400 else status, response)
