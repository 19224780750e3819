"""What the OpenAPI document says of a view: noted here, and handed to drf-spectacular when the document is asked for.

Its own decorator imports Django's test client and more, 4 MB that no other request needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

View = TypeVar("View", bound=Callable[..., Any])

_notes: list[tuple[Callable[..., Any], dict[str, Any]]] = []


def extend_schema(**values: Any) -> Callable[[View], View]:
    """As drf-spectacular's decorator of that name, for the methods of a view."""

    def note(view: View) -> View:
        _notes.append((view, values))
        return view

    return note


def hand_over() -> None:
    """Once, before the first document is made."""
    from drf_spectacular import utils

    while _notes:
        view, values = _notes.pop()
        utils.extend_schema(**values)(view)
