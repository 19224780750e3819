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


def test_events_are_their_data_whatever_ends_their_lines() -> None:
    assert events_of(STREAM) == EVENTS


def test_a_stream_split_anywhere_tells_the_same() -> None:
    for position in range(len(STREAM) + 1):
        assert events_of(STREAM[:position], STREAM[position:]) == EVENTS


def test_a_stream_that_comes_byte_by_byte_tells_the_same() -> None:
    assert events_of(*(STREAM[index : index + 1] for index in range(len(STREAM)))) == EVENTS


def test_an_event_is_told_as_soon_as_its_blank_line_is_there() -> None:
    stream = EventStream()
    assert list(stream.feed(b"data: 1\n")) == []
    assert list(stream.feed(b"\n")) == [b"1"]
    assert list(stream.feed(b"data: 2\r\n\r")) == [b"2"]  # its LF is still to come, and adds nothing
    assert list(stream.feed(b"\ndata: 3\n\n")) == [b"3"]


def test_a_read_that_brings_nothing_changes_nothing() -> None:
    assert events_of(b"data: 1\r", b"", b"\ndata: 2\r\n", b"", b"\r\n") == [b"1\n2"]


def test_an_event_that_never_ends_is_never_passed_on() -> None:
    assert events_of(b"data: 1\n", b"data: 2\n") == []


def test_a_byte_order_mark_counts_at_the_beginning_alone() -> None:
    assert events_of(b"\xef", b"\xbb", b"\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n") == [b"1"]


def test_a_line_that_comes_byte_by_byte_costs_no_more_the_longer_it_gets() -> None:
    stream = EventStream()
    began = time.process_time()
    for _ in range(500_000):
        list(stream.feed(b"x"))
    assert time.process_time() - began < 5  # squared, it would be minutes


lines = st.lists(st.sampled_from(["data: a", "data:b", "data", ": c", "event: d", "x", "data: é:  "]), max_size=6)
blocks = st.lists(st.tuples(lines, st.sampled_from(["\n", "\r\n", "\r"])), max_size=6)


@fixed_budget
@given(blocks, st.lists(st.integers(0, 400), max_size=12))
def test_neither_line_ends_nor_splits_matter(blocks: list[tuple[list[str], str]], cuts: list[int]) -> None:
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
def test_any_bytes_are_taken(chunks: list[bytes]) -> None:
    assert events_of(*chunks) == events_of(b"".join(chunks))


# What a result says ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "said"),
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
def test_what_a_result_says_to_people(result: dict[str, object], said: str) -> None:
    assert text_of(result) == said


def test_the_version_asked_for_is_the_seeds_and_one_that_is_spoken() -> None:
    assert mcp.PREFERRED_VERSION == "2025-06-18"
    assert mcp.PREFERRED_VERSION in mcp.HANDSHAKE_VERSIONS


# The modern way ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "carried"),
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
def test_a_header_carries_any_value(value: str | int | bool, carried: str) -> None:
    assert mcp.header_value(value) == carried


@fixed_budget
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_header_never_carries_more_than_one_line_of_ascii_and_can_be_read_back(value: str) -> None:
    carried = mcp.header_value(value)
    assert carried == carried.strip()
    assert all(" " <= char <= "~" for char in carried)
    if carried.startswith("=?base64?") and carried.endswith("?="):
        assert base64.b64decode(carried[9:-2]).decode() == value
    else:
        assert carried == value


def annotated(name: object, **more: object) -> dict[str, object]:
    return {"type": "string", "x-mcp-header": name, **more}


def test_headers_are_found_wherever_properties_lead() -> None:
    deep = {"type": "object", "properties": {"b": annotated("B", type="boolean"), "x-mcp-header": {"type": "string"}}}
    schema = {"properties": {"a": annotated("A"), "deep": deep}, "default": {"x-mcp-header": "no annotation"}}
    headers = mcp.parameter_headers(schema)
    assert headers == {("a",): "Mcp-Param-A", ("deep", "b"): "Mcp-Param-B"}
    assert mcp.parameter_values(headers, {"a": "x", "deep": {"b": True}}) == {
        "Mcp-Param-A": "x",
        "Mcp-Param-B": "true",
    }
    for nothing in ({}, {"a": None, "deep": None}, {"a": ["x"], "deep": "x"}, {"deep": {"b": None}}):
        assert mcp.parameter_values(headers, nothing) == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": annotated("")}},
        {"properties": {"a": annotated("My Region")}},
        {"properties": {"a": annotated("Region:Primary")}},
        {"properties": {"a": annotated("R\u00e9gion")}},
        {"properties": {"a": annotated("Region\t1")}},
        {"properties": {"a": annotated(7)}},
        {"properties": {"a": annotated("A", type="number")}},
        {"properties": {"a": annotated("A", type="object")}},
        {"properties": {"a": annotated("A", type=["string", "null"])}},
        {"properties": {"a": annotated("A"), "b": annotated("a")}},
        {"properties": {"a": {"type": "array", "items": annotated("A")}}},
        {"properties": {"a": {"anyOf": [annotated("A")]}}},
        {"$defs": {"a": annotated("A")}, "properties": {"a": {"$ref": "#/$defs/a"}}},
        {"anyOf": [{"properties": {"a": annotated("A")}}]},
        annotated("A"),
    ],
)
def test_an_annotation_that_is_not_allowed_is_refused_with_the_reason(schema: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="x-mcp-header"):
        mcp.parameter_headers(schema)


def test_thousands_of_annotations_are_refused_without_being_compared_with_each_other() -> None:
    schema = {"properties": {f"p{number}": annotated(f"H{number}") for number in range(16_000)}}
    began = time.thread_time()
    with pytest.raises(ValueError, match="more than 100 times"):
        mcp.parameter_headers(schema)
    assert time.thread_time() - began < 1


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


PAIRS = [
    ("a", "b__c"),
    ("a__b", "c"),
    ("a", "_x"),
    ("a_", "x"),
    ("one", "a/b"),
    ("one", "a_b"),
    ("one", "ü"),
    ("one", "ö"),
]
LONG = [("m" * 64, "t" * 255), ("m" * 64, "t" * 254), ("m", "t" * 70), ("m", "t" * 71)]


def test_no_two_tools_are_named_alike_and_no_name_is_too_long_or_holds_what_names_may_not() -> None:
    names = [mcp.qualified_name(member, tool) for member, tool in PAIRS + LONG]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in names)


def offered(**parts: Any) -> dict[str, Any]:
    return mcp.offered_definition({"name": "echo", "inputSchema": {"type": "object"}, **parts}, "one__echo")


@pytest.mark.parametrize(
    "slip",
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
def test_a_slip_in_one_definition_does_not_cost_the_client_the_list(slip: dict[str, Any]) -> None:
    from mcp.types import ListToolsResult

    listed = offered(**{"x-ours": ["kept", "ü"], "annotations": {"title": "Echo", "readOnlyHint": True}, **slip})
    assert ListToolsResult.model_validate({"tools": [listed]}).tools[0].name == "one__echo"
    assert listed["x-ours"] == ["kept", "ü"]


def test_an_annotation_that_is_not_valid_does_not_cost_the_tool_the_others() -> None:
    hints = {"title": "Echo", "readOnlyHint": True, "openWorldHint": False, "priority": 0.5, "vendor/x": {"a": 1}}
    slips = {"destructiveHint": "no", "idempotentHint": 1}
    assert offered(annotations={**hints, **slips})["annotations"] == hints
    assert "title" not in offered(annotations={**hints, "title": 5})["annotations"]
    assert offered(annotations={"readOnlyHint": "yes"})["annotations"] == {}


def test_an_icon_that_is_not_valid_does_not_cost_the_tool_the_others() -> None:
    good = [{"src": "x"}, {"src": "y", "sizes": ["any"], "theme": "dark", "mimeType": "image/png", "x": 1}]
    bad = [5, {}, {"src": "z", "sizes": "any"}, {"src": "z", "mimeType": 5}]
    assert offered(icons=[*bad, *good])["icons"] == good


# What a stream says of itself -------------------------------------------------------------------------------------


def test_a_stream_says_where_to_go_on_and_when() -> None:
    stream = EventStream()
    assert list(stream.feed(b"id: event-1\nretry: 500\ndata:\n\n")) == []
    assert (stream.last_event_id, stream.retry_ms) == ("event-1", 500)
    assert list(stream.feed(b"id: " + b"x" * 1001 + b"\nid: e\x1b[31m\n\n")) == []
    assert list(stream.feed(b"id: bad\0\nretry: soon\ndata: half of an eve")) == []
    stream.go_on()
    assert (stream.last_event_id, stream.retry_ms) == ("event-1", 500)
    assert list(stream.feed(b"\xef\xbb\xbfdata: whole\n\nid\ndata: x\n\n")) == [b"whole", b"x"]
    assert stream.last_event_id == ""


def test_what_an_event_holds_is_counted_as_it_comes() -> None:
    stream = EventStream()
    assert list(stream.feed(b"data:\n" * 1000 + b"data: ab")) == []
    assert stream.buffered_bytes == 1000 + len(b"data: ab")
    assert list(stream.feed(b"c\n\n")) == [b"\n" * 1000 + b"abc"]
    assert stream.buffered_bytes == 0
