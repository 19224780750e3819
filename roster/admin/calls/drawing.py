"""The items of a result by their type in MCP: text, pictures, sound, links and embedded resources."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from roster.admin import present
from roster.admin.calls.items import MAX_JSON, Item, json_item, text_item

MAX_MEDIA_CHARACTERS = 6_000_000  # base64, of all images and audio of a result together
MAX_NAME = 300
MAX_LINK = 2_048  # characters of the URI of a linked resource

# No SVG. In <img> its scripts do not run, but a small SVG can take hours to draw. Its source is shown instead.
IMAGE_TYPES: Mapping[str, Sequence[bytes]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "image/bmp": (b"BM",),
}
AUDIO_TYPES = frozenset(
    f"audio/{name}"
    for name in ("wav", "x-wav", "wave", "mpeg", "mp3", "ogg", "webm", "flac", "aac", "mp4", "x-m4a", "opus")
)


@dataclass
class Drawing:
    """Renders the items of one result of a member, with one budget for all media, and one for all texts of JSON."""

    member_id: int | None = None
    media_budget: int = field(default=MAX_MEDIA_CHARACTERS)
    json_budget: int = field(default=MAX_JSON)

    def item(self, part: Any) -> Item:
        if not isinstance(part, dict):
            return json_item(part)
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str):
            return self._text(part["text"])
        if kind in ("image", "audio") and isinstance(part.get("data"), str):
            return self._media(part["data"], media_type_of(part))
        if kind == "resource_link":
            return _resource_link(part, self.member_id)
        if kind == "resource" and isinstance(part.get("resource"), dict):
            return self.resource(part["resource"])
        return json_item(part)

    def _text(self, text: str, media_type: str = "") -> Item:
        item = text_item(text, media_type=media_type, max_json=self.json_budget)
        self.json_budget -= len(text)
        return item

    def _media(self, data: str, media_type: str) -> Item:
        self.media_budget -= len(data)
        if self.media_budget < 0:
            return _note(media_type, f"too large to show here ({len(data):,} characters of base64)")
        content = decoded(data)
        if content is None:
            return _note(media_type, "the data is not valid base64")
        size = f"{media_type}, {len(content):,} bytes"
        if media_type == "image/svg+xml":
            return text_item(content.decode("utf-8", "replace"), note="SVG, shown as source text")
        if any(content.startswith(signature) for signature in IMAGE_TYPES.get(media_type, ())):
            picture = format_html(
                '<img class="result-image" src="{}" alt="{}" decoding="async">', *_url_of(media_type, content)
            )
            return Item("image", picture, note=size)
        if media_type in AUDIO_TYPES:
            sound = format_html(
                '<audio controls preload="metadata" src="{}" aria-label="{}"></audio>', *_url_of(media_type, content)
            )
            return Item("audio", sound, note=size)
        return _note(media_type, f"{len(content):,} bytes of a type that is not shown here")

    def resource(self, resource: dict[str, Any]) -> Item:
        """An embedded resource, or one of the contents of a resource that was read."""
        place = present.one_line(str(resource.get("uri") or ""), MAX_NAME)
        media_type = media_type_of(resource)
        if isinstance(resource.get("text"), str):
            item = self._text(resource["text"], media_type)
        elif isinstance(resource.get("blob"), str):
            item = self._media(resource["blob"], media_type)
        else:
            item = json_item(resource)
        note = ", ".join(word for word in (place, item.note or media_type) if word)
        return replace(item, kind=f"resource, {item.kind}", note=note)


def decoded(data: str) -> bytes | None:
    """The bytes of base64, or None."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def media_type_of(part: dict[str, Any]) -> str:
    return present.one_line(str(part.get("mimeType") or ""), 100).partition(";")[0].strip().lower()


def _url_of(media_type: str, content: bytes) -> tuple[str, str]:
    """The data: URL, from the decoded content, and an alternative text."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}", f"{media_type} from the member"


def _note(media_type: str, why: str) -> Item:
    kind = media_type or "data"
    return Item(kind, format_html('<p class="result-message">{}</p>', f"{kind}: {why}."))


# Links ------------------------------------------------------------------------------------------------------------


def resource_page(member_id: int, uri: str) -> str:
    """The page of the admin on which the hall reads this resource."""
    return f"{reverse('admin:roster_guildmember_resource', args=[member_id])}?{urlencode({'uri': uri})}"


def _resource_link(part: dict[str, Any], member_id: int | None) -> Item:
    uri = str(part.get("uri") or "")[:MAX_LINK]
    name = present.one_line(str(part.get("title") or part.get("name") or uri), MAX_NAME) or "no name"
    facts = [word for word in (media_type_of(part), _size(part.get("size"))) if word]
    description = present.one_line(str(part.get("description") or ""), MAX_NAME)
    where: SafeString = (
        format_html('<a href="{}">{}</a>', resource_page(member_id, uri), name)
        if member_id is not None and 0 < len(str(part.get("uri") or "")) <= MAX_LINK
        else format_html("<strong>{}</strong>", name)
    )
    html = format_html('<p class="result-link">{} <code>{}</code></p>', where, present.one_line(uri, MAX_NAME))
    if description:
        html = format_html("{}<p>{}</p>", html, description)
    return Item("link", html, note=", ".join(facts), source=uri)


def _size(size: Any) -> str:
    return f"{size:,} bytes" if isinstance(size, int) and not isinstance(size, bool) else ""
