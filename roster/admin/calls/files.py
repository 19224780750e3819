"""The parts of a result as files: the whole result, its structured content, and each item of its content."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from roster.admin.calls.drawing import decoded, media_type_of
from roster.admin.calls.items import json_value, looks_like_markdown
from roster.admin.downloads import extension, filename
from roster.models import Call

WHOLE, STRUCTURED, ERROR = "result", "structured", "error"


@dataclass(frozen=True)
class File:
    name: str
    body: bytes


def file_of(call: Call, part: str) -> File | None:
    """The file with the name of `part`: WHOLE, STRUCTURED, ERROR, or the place of an item. None if there is none."""
    result = call.result if isinstance(call.result, dict) else {}
    stem = f"{call.tool_name[:60]}-{call.pk}"
    if part == ERROR:
        return (
            _file(f"{stem}-error", ".txt", call.error_message.encode("utf-8", "replace")) if call.error_kind else None
        )
    if part == STRUCTURED:
        return _json(f"{stem}-structured", result[key]) if (key := "structuredContent") in result else None
    return file_in(stem, part, call.result, result.get("content"))


def file_in(stem: str, part: str, whole: Any, content: Any) -> File | None:
    """The file with the name of `part`: WHOLE, or the place of an item in `content`. None if there is none."""
    if part == WHOLE:
        return None if whole is None else _json(stem, whole)
    number = int(part) if part.isascii() and part.isdecimal() and len(part) < 6 else -1
    if not isinstance(content, list) or not 0 <= number < len(content):
        return None
    return _of_item(f"{stem}-{number + 1}", content[number])


def _of_item(stem: str, item: Any) -> File:
    value: dict[str, Any] = item if isinstance(item, dict) else {}
    resource = value.get("resource") if value.get("type") == "resource" else None
    if isinstance(resource, dict):
        name = name_of_uri(str(resource.get("uri") or ""), "")
        body = bytes_of(resource)
        if body is not None:
            return File(name, body) if "." in name else _file(stem, _extension_of(resource), body)
    elif value.get("type") in ("text", "image", "audio"):
        body = bytes_of({"text": value.get("text"), "blob": value.get("data")})
        if body is not None:
            return _file(stem, _extension_of(value), body)
    return _json(stem, item)


def bytes_of(content: dict[str, Any]) -> bytes | None:
    """The bytes of the contents of a resource. None if there are none, or if they are not base64."""
    if isinstance(content.get("text"), str):
        return str(content["text"]).encode("utf-8", "replace")
    return decoded(content["blob"]) if isinstance(content.get("blob"), str) else None


def name_of_uri(uri: str, fallback: str) -> str:
    """The last part of the URI, as far as it can be the name of a file."""
    try:
        last = unquote(urlsplit(uri).path).rstrip("/").rpartition("/")[2]
    except ValueError:
        last = ""
    return filename(last, fallback)


def _extension_of(part: dict[str, Any]) -> str:
    if media_type := media_type_of(part):
        return extension(media_type)
    text = part.get("text")
    if not isinstance(text, str):
        return ".bin"
    if isinstance(json_value(text), (dict, list)):
        return ".json"
    return ".md" if looks_like_markdown(text) else ".txt"


def _json(stem: str, value: Any) -> File:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return _file(stem, ".json", msgspec.json.format(text, indent=2))  # json's own indents take twenty times as long


def _file(stem: str, suffix: str, body: bytes) -> File:
    return File(f"{filename(stem, 'result')}{suffix}", body)
