from __future__ import annotations

import base64
import re
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.mcp import EventStream, text_of

fixed_budget = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def events_of(*chunks: bytes) -> list[bytes]:
    stream = EventStream()
    return [data for chunk in chunks for data in stream.feed(chunk)]


STREAM = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b"data: one\n\n"
    b"event: message\rid: 7\rretry: 10\rdata: two\r\r"
    b"data:three\r\ndata: \xe2\x98\x83\r\ndata:  four\r\n\r\n"
    b"data\n\n"
    b"data:\n\n"
    b"id: 8\n\n"
    b"data: five\n: in between\ndatum: no\n data: no\ndata: six\n\n"
    b"data: never ended"
)
EVENTS = [b"one", b"two", b"three\n\xe2\x98\x83\n four", b"five\nsix"]


def test_all_kinds_of_line_ends_are_accepted_in_events() -> None:
    assert events_of(STREAM) == EVENTS


def test_a_stream_split_at_any_position_gives_the_same_events() -> None:
    for position in range(len(STREAM) + 1):
        assert events_of(STREAM[:position], STREAM[position:]) == EVENTS


def test_a_stream_read_byte_by_byte_gives_the_same_events() -> None:
    assert events_of(*(STREAM[index : index + 1] for index in range(len(STREAM)))) == EVENTS


def test_an_event_is_given_as_soon_as_its_blank_line_was_read() -> None:
    stream = EventStream()
    assert list(stream.feed(b"data: 1\n")) == []
    assert list(stream.feed(b"\n")) == [b"1"]
    assert list(stream.feed(b"data: 2\r\n\r")) == [b"2"]  # its LF comes later and adds nothing
    assert list(stream.feed(b"\ndata: 3\n\n")) == [b"3"]


def test_an_empty_read_changes_nothing() -> None:
    assert events_of(b"data: 1\r", b"", b"\ndata: 2\r\n", b"", b"\r\n") == [b"1\n2"]


def test_an_incomplete_event_is_not_given() -> None:
    assert events_of(b"data: 1\n", b"data: 2\n") == []


def test_a_byte_order_mark_is_removed_only_at_the_beginning() -> None:
    assert events_of(b"\xef", b"\xbb", b"\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n") == [b"1"]


def test_the_cost_of_a_line_grows_linearly() -> None:
    stream = EventStream()
    started_at = time.process_time()
    for _ in range(500_000):
        list(stream.feed(b"x"))
    assert time.process_time() - started_at < 5  # with quadratic cost it would take minutes


lines = st.lists(st.sampled_from(["data: a", "data:b", "data", ": c", "event: d", "x", "data: é:  "]), max_size=6)
blocks = st.lists(st.tuples(lines, st.sampled_from(["\n", "\r\n", "\r"])), max_size=6)


@fixed_budget
@given(blocks, st.lists(st.integers(0, 400), max_size=12))
def test_events_do_not_depend_on_line_ends_or_splits(blocks: list[tuple[list[str], str]], cuts: list[int]) -> None:
    expected = []
    for block, _ in blocks:
        data = [line[5:].removeprefix(" ") for line in block if line.startswith("data:") or line == "data"]
        if data and "\n".join(data):
            expected.append("\n".join(data).encode())
    body = "".join("".join(line + end for line in [*block, ""]) for block, end in blocks).encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    assert events_of(*(body[start:end] for start, end in pairwise(edges))) == expected


@fixed_budget
@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_accepted(chunks: list[bytes]) -> None:
    assert events_of(*chunks) == events_of(b"".join(chunks))


# The text of a result -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({}, ""),
        ({"content": []}, ""),
        ({"content": "text"}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "text"}, {"type": "text", "text": 7}]}, "\n7"),
        ({"content": [{"type": "image"}, {"type": "audio"}]}, "[an image]\n[audio]"),
        ({"content": [{"type": "resource"}, {"type": "resource_link"}]}, "[a resource]\n[a link]"),
        ({"content": [{"type": "dance"}, {}, "x", None, {"type": ["text"]}]}, "\n".join(["[something unknown]"] * 5)),
    ],
)
def test_text_of_joins_the_parts_of_a_result(result: dict[str, object], expected: str) -> None:
    assert text_of(result) == expected


def test_the_preferred_version_is_supported() -> None:
    assert mcp.PREFERRED_VERSION == "2025-06-18"
    assert mcp.PREFERRED_VERSION in mcp.HANDSHAKE_VERSIONS


# The modern version -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("us-west1", "us-west1"),
        ("us west 1", "us west 1"),
        ("", ""),
        (42, "42"),
        (-1, "-1"),
        (True, "true"),
        (False, "false"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("\tindented", "=?base64?CWluZGVudGVk?="),
        ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
        ("=?base64?AA==?=", "=?base64?PT9iYXNlNjQ/QUE9PT89?="),
        ("\x7f", "=?base64?fw==?="),
    ],
)
def test_a_header_value_encodes_any_argument(value: str | int | bool, header: str) -> None:
    assert mcp.header_value(value) == header


@fixed_budget
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_header_value_is_one_line_of_ascii_that_can_be_decoded(value: str) -> None:
    header = mcp.header_value(value)
    assert header == header.strip()
    assert all(" " <= char <= "~" for char in header)
    if header.startswith("=?base64?") and header.endswith("?="):
        assert base64.b64decode(header[9:-2]).decode() == value
    else:
        assert header == value


def annotated_property(name: object, **more: object) -> dict[str, object]:
    return {"type": "string", "x-mcp-header": name, **more}


def test_header_annotations_are_found_in_nested_properties() -> None:
    nested_schema = {
        "type": "object",
        "properties": {"b": annotated_property("B", type="boolean"), "x-mcp-header": {"type": "string"}},
    }
    schema = {
        "properties": {"a": annotated_property("A"), "deep": nested_schema},
        "default": {"x-mcp-header": "no annotation"},
    }
    headers = mcp.parameter_headers(schema)
    assert headers == {("a",): "Mcp-Param-A", ("deep", "b"): "Mcp-Param-B"}
    assert mcp.parameter_values(headers, {"a": "x", "deep": {"b": True}}) == {
        "Mcp-Param-A": "x",
        "Mcp-Param-B": "true",
    }
    for arguments in ({}, {"a": None, "deep": None}, {"a": ["x"], "deep": "x"}, {"deep": {"b": None}}):
        assert mcp.parameter_values(headers, arguments) == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": annotated_property("")}},
        {"properties": {"a": annotated_property("My Region")}},
        {"properties": {"a": annotated_property("Region:Primary")}},
        {"properties": {"a": annotated_property("R\u00e9gion")}},
        {"properties": {"a": annotated_property("Region\t1")}},
        {"properties": {"a": annotated_property(7)}},
        {"properties": {"a": annotated_property("A", type="number")}},
        {"properties": {"a": annotated_property("A", type="object")}},
        {"properties": {"a": annotated_property("A", type=["string", "null"])}},
        {"properties": {"a": annotated_property("A"), "b": annotated_property("a")}},
        {"properties": {"a": {"type": "array", "items": annotated_property("A")}}},
        {"properties": {"a": {"anyOf": [annotated_property("A")]}}},
        {"$defs": {"a": annotated_property("A")}, "properties": {"a": {"$ref": "#/$defs/a"}}},
        {"anyOf": [{"properties": {"a": annotated_property("A")}}]},
        annotated_property("A"),
    ],
)
def test_an_invalid_header_annotation_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="x-mcp-header"):
        mcp.parameter_headers(schema)


def test_too_many_header_annotations_are_refused_quickly() -> None:
    schema = {"properties": {f"p{number}": annotated_property(f"H{number}") for number in range(16_000)}}
    started_at = time.thread_time()
    with pytest.raises(ValueError, match="more than 100 times"):
        mcp.parameter_headers(schema)
    assert time.thread_time() - started_at < 1


@pytest.mark.parametrize(
    ("member", "tool", "name"),
    [
        ("one", "echo", "one__echo"),
        ("my-files", "read.v1", "my-files__read.v1"),
        ("a", "b__c", "a__b__c"),
    ],
)
def test_a_tool_is_named_after_its_member(member: str, tool: str, name: str) -> None:
    assert mcp.qualified_name(member, tool) == name


SIMILAR_NAMES = [
    ("a", "b__c"),
    ("a__b", "c"),
    ("a", "_x"),
    ("a_", "x"),
    ("one", "a/b"),
    ("one", "a_b"),
    ("one", "ü"),
    ("one", "ö"),
]
LONG_NAMES = [("m" * 64, "t" * 255), ("m" * 64, "t" * 254), ("m", "t" * 70), ("m", "t" * 71)]


def test_qualified_names_are_unique_and_valid() -> None:
    names = [mcp.qualified_name(member, tool) for member, tool in SIMILAR_NAMES + LONG_NAMES]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in names)


def offered_tool(**parts: Any) -> dict[str, Any]:
    return mcp.offered_definition({"name": "echo", "inputSchema": {"type": "object"}, **parts}, "one__echo")


@pytest.mark.parametrize(
    "change",
    [
        {"description": 5},
        {"title": {}},
        {"annotations": "x"},
        {"annotations": {"readOnlyHint": "yes"}},
        {"outputSchema": []},
        {"outputSchema": {"type": "string"}},
        {"annotations": {"readOnlyHint": None, "taskSupport": 5}},
        {"execution": {"taskSupport": "maybe"}},
        {"execution": {"taskSupport": ["required"]}},
        {"icons": 7},
        {"icons": [7, {"src": 7}, {"src": "x", "sizes": "any"}, {"src": "x", "theme": "blue"}]},
        {"_meta": 3},
        {"inputSchema": {"type": "object", "properties": []}},
        {"inputSchema": {"type": "object", "required": "text"}},
        {"inputSchema": None},
        {"inputSchema": {"type": "nonsense"}},
    ],
)
def test_a_definition_with_an_error_is_offered_in_a_valid_form(change: dict[str, Any]) -> None:
    from mcp.types import ListToolsResult

    definition = offered_tool(
        **{"x-ours": ["kept", "ü"], "annotations": {"title": "Echo", "readOnlyHint": True}, **change}
    )
    assert ListToolsResult.model_validate({"tools": [definition]}).tools[0].name == "one__echo"
    assert definition["x-ours"] == ["kept", "ü"]


def test_an_invalid_annotation_of_a_tool_is_left_out() -> None:
    valid_hints = {"title": "Echo", "readOnlyHint": True, "openWorldHint": False, "priority": 0.5, "vendor/x": {"a": 1}}
    invalid_hints = {"destructiveHint": "no", "idempotentHint": 1}
    assert offered_tool(annotations={**valid_hints, **invalid_hints})["annotations"] == valid_hints
    assert "title" not in offered_tool(annotations={**valid_hints, "title": 5})["annotations"]
    assert offered_tool(annotations={"readOnlyHint": "yes"})["annotations"] == {}


def test_an_invalid_icon_of_a_tool_is_left_out() -> None:
    valid_icons = [{"src": "x"}, {"src": "y", "sizes": ["any"], "theme": "dark", "mimeType": "image/png", "x": 1}]
    invalid_icons = [5, {}, {"src": "z", "sizes": "any"}, {"src": "z", "mimeType": 5}]
    assert offered_tool(icons=[*invalid_icons, *valid_icons])["icons"] == valid_icons


# The state of a stream --------------------------------------------------------------------------------------------


def test_a_stream_has_the_last_event_id_and_the_retry_time() -> None:
    stream = EventStream()
    assert list(stream.feed(b"id: event-1\nretry: 500\ndata:\n\n")) == []
    assert (stream.last_event_id, stream.retry_ms) == ("event-1", 500)
    assert list(stream.feed(b"id: " + b"x" * 1001 + b"\nid: e\x1b[31m\n\n")) == []
    assert list(stream.feed(b"id: bad\0\nretry: soon\ndata: half of an eve")) == []
    stream.go_on()
    assert (stream.last_event_id, stream.retry_ms) == ("event-1", 500)
    assert list(stream.feed(b"\xef\xbb\xbfdata: whole\n\nid\ndata: x\n\n")) == [b"whole", b"x"]
    assert stream.last_event_id == ""


def test_the_bytes_of_an_incomplete_event_are_counted() -> None:
    stream = EventStream()
    assert list(stream.feed(b"data:\n" * 1000 + b"data: ab")) == []
    assert stream.buffered_bytes == 1000 + len(b"data: ab")
    assert list(stream.feed(b"c\n\n")) == [b"\n" * 1000 + b"abc"]
    assert stream.buffered_bytes == 0
