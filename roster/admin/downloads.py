"""Files that leave the admin: attachments that no browser shows as a page, under names that nobody can misuse."""

from __future__ import annotations

import mimetypes
import re

from django.http import HttpResponse
from django.utils.text import get_valid_filename

MAX_FILENAME = 100
_EXTENSION = re.compile(r"\.[a-z0-9]{1,8}")
# Only the library's own table. The machine's could differ.
_TYPES = mimetypes.MimeTypes()
_PREFERRED = {"text/plain": ".txt", "text/markdown": ".md", "application/json": ".json", "text/csv": ".csv"}


def attachment(body: bytes, name: str) -> HttpResponse:
    """`body` as a download with the name of a file from `filename`. Its own type could let a browser show it."""
    response = HttpResponse(body, content_type="application/octet-stream")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response.headers["Cache-Control"] = "no-store"
    return response


def filename(text: str, fallback: str) -> str:
    """The end of `text`, as far as it can be the name of a file. Without a letter or a digit it is `fallback`."""
    name = text.encode("ascii", "ignore").decode().lstrip(".")[-MAX_FILENAME:].lstrip(".")
    return get_valid_filename(name).lstrip(".") if any(char.isalnum() for char in name) else fallback


def extension(media_type: str) -> str:
    """The extension for files of this type, such as `.png`. `.bin` for unknown types."""
    known = _PREFERRED.get(media_type) or _TYPES.guess_extension(media_type) or ""
    return known if _EXTENSION.fullmatch(known) else ".bin"
