"""The files of a call's result: their bytes are those of the member, and their names are harmless."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from roster.admin import downloads
from roster.admin.calls import files
from roster.models import Call

PNG = b"\x89PNG\r\n\x1a\npixels"


def call(*content: Any, **columns: Any) -> Call:
    result = {"content": list(content)}
    return Call(
        **{"pk": 7, "tool_name": "draw", "member_id": 1, "timeout": 1, "status": "succeeded"}, result=result, **columns
    )


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def resource(**values: Any) -> dict[str, Any]:
    return {"type": "resource", "resource": values}


@pytest.mark.parametrize(
    ("item", "name", "body"),
    [
        (text("words"), "draw-7-1.txt", b"words"),
        (text('{"a": 1}'), "draw-7-1.json", b'{"a": 1}'),
        (text("# Title\n\n**bold**"), "draw-7-1.md", b"# Title\n\n**bold**"),
        ({"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}, "draw-7-1.png", PNG),
        ({"type": "image", "data": "PHN2Zz4=", "mimeType": "image/svg+xml"}, "draw-7-1.svg", b"<svg>"),
        ({"type": "audio", "data": "AAAA", "mimeType": "x/../../y"}, "draw-7-1.bin", b"\0\0\0"),
        (resource(uri="file:///a/b/plan.pdf", blob="JVBERg=="), "plan.pdf", b"%PDF"),
        (resource(uri="x:y", mimeType="text/csv", text="a,b"), "draw-7-1.csv", b"a,b"),
        (resource(uri="file:///../../etc/.bash_profile.sh", text="x"), "bash_profile.sh", b"x"),
        (resource(uri='x:/a"; filename="b.exe\r\nSet-Cookie: c=d', text="x"), "a_filenameb.exeSet-Cookie_cd", b"x"),
    ],
)
def test_an_item_is_a_file(item: Any, name: str, body: bytes) -> None:
    file = files.file_of(call(item), "0")
    assert file is not None
    assert (file.name, file.body) == (name, body)
    assert re.fullmatch(r"[\w.-]+", file.name)


@pytest.mark.parametrize(
    "item", [None, 5, {}, {"type": "image", "data": "no base64!"}, resource(uri="x:y.z"), text("x") | {"text": 5}]
)
def test_an_item_without_bytes_is_a_file_with_its_json(item: Any) -> None:
    file = files.file_of(call(item), "0")
    assert file is not None
    assert file.name == "draw-7-1.json"
    assert json.loads(file.body) == item


def test_the_whole_result_the_structured_content_and_the_error_are_files() -> None:
    row = call(text("ü"), error_kind="tool", error_message="went wrong")
    row.result["structuredContent"] = {"n": [1]}
    found = {part: files.file_of(row, part) for part in (files.WHOLE, files.STRUCTURED, files.ERROR)}
    assert [file and file.name for file in found.values()] == [
        "draw-7.json",
        "draw-7-structured.json",
        "draw-7-error.txt",
    ]
    whole = found[files.WHOLE]
    assert whole is not None
    assert "ü" in whole.body.decode()
    assert json.loads(whole.body) == row.result


@pytest.mark.parametrize("part", ["1", "-1", "x", "99999999999", "²", "structured", "error", ""])
def test_what_is_not_there_is_no_file(part: str) -> None:
    assert files.file_of(call(text("x")), part) is None


@pytest.mark.parametrize("result", [None, [], "x", {"content": "x"}])
def test_a_result_of_another_form_has_no_items(result: Any) -> None:
    row = call()
    row.result = result
    assert files.file_of(row, "0") is None
    assert (files.file_of(row, files.WHOLE) is None) is (result is None)


def test_a_download_is_an_attachment_that_no_browser_shows() -> None:
    response = downloads.attachment(b"<script>", "page.html")
    assert response["Content-Disposition"] == 'attachment; filename="page.html"'
    assert response["Content-Type"] == "application/octet-stream"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert response["Cache-Control"] == "no-store"


def test_a_tool_with_a_hostile_name_gives_a_harmless_name() -> None:
    row = call(text("x"))
    row.tool_name = '../../"; evil\u202e'
    file = files.file_of(row, "0")
    assert file is not None
    assert file.name == "_evil-7-1.txt"


def test_numbers_keep_their_digits_and_broken_text_does_no_harm() -> None:
    row = call()
    row.result = {"n": 12345678901234567890123, "f": 1e300, "s": "\ud800", "deep": [[[]]]}
    file = files.file_of(row, files.WHOLE)
    assert file is not None
    assert json.loads(file.body) == {**row.result, "s": "?"}
