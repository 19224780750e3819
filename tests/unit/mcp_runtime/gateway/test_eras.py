"""The two eras: the era of a message, refused requests, and the conversion of results."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.gateway import eras
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import MethodError

META_PREFIX = "io.modelcontextprotocol/"
VERSION = f"{META_PREFIX}protocolVersion"
CAPABILITIES = f"{META_PREFIX}clientCapabilities"
GOOD_META = {VERSION: "2026-07-28", CAPABILITIES: {}}


def build_message(method: str = "tools/call", meta: Any = None, **params: Any) -> dict[str, Any]:
    params = {"name": "echo", **params} if method == "tools/call" else params
    return {"id": 1, "method": method, "params": {**params, "_meta": GOOD_META if meta is None else meta}}


def build_headers(**changes: str | None) -> dict[bytes, bytes]:
    values = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "echo"}
    values |= {name.replace("_", "-"): value for name, value in changes.items()}
    return {name.encode(): value.encode("latin-1") for name, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("message", "header", "is_modern"),
    [
        (build_message(), "", True),
        (build_message(meta={VERSION: "2031-01-01"}), "2025-06-18", True),
        ({"method": "ping"}, "2026-07-28", True),
        ({"method": "ping"}, "nonsense", True),
        ({"method": "ping"}, "2025-06-18", False),
        ({"method": "ping"}, "", False),
        ([build_message()], "", False),
        ({"method": "ping", "params": [1]}, "", False),
        ({"method": "ping", "params": {"_meta": 1}}, "", False),
    ],
)
def test_the_era_comes_from_the_message_or_else_from_its_header(message: Any, header: str, is_modern: bool) -> None:
    assert eras.is_modern(message, header) is is_modern


@pytest.mark.parametrize(
    ("message", "headers", "code", "text"),
    [
        (build_message(), build_headers(mcp_protocol_version="2025-06-18"), -32020, "does not match"),
        (
            build_message(meta={**GOOD_META, VERSION: "2031-01-01"}),
            build_headers(mcp_protocol_version=None),
            -32022,
            "2031-01-01",
        ),
        (
            build_message(meta={}),
            build_headers(mcp_protocol_version="2031-01-01"),
            -32022,
            "'2031-01-01' is not supported",
        ),
        (
            build_message(meta={CAPABILITIES: {}}),
            build_headers(),
            -32602,
            "_meta lacks io.modelcontextprotocol/protocolVersion",
        ),
        (build_message(meta={VERSION: "2026-07-28"}), build_headers(), -32602, "clientCapabilities"),
        (build_message(meta={**GOOD_META, CAPABILITIES: []}), build_headers(), -32602, "clientCapabilities"),
        (
            build_message(),
            build_headers(mcp_protocol_version=None),
            -32020,
            "the header MCP-Protocol-Version is missing",
        ),
        (build_message(), build_headers(mcp_method=None), -32020, "the header Mcp-Method is missing"),
        (build_message(), build_headers(mcp_name="other"), -32020, "the header Mcp-Name ('other') does not match"),
        (build_message(), build_headers(mcp_name="=?base64?%%%?="), -32020, "does not match"),
    ],
)
def test_an_incomplete_modern_request_is_refused(message: Any, headers: Any, code: int, text: str) -> None:
    with pytest.raises(MethodError) as raised:
        eras.check_modern(message, headers)
    assert raised.value.code == code
    assert text in str(raised.value)


def test_the_refusal_of_a_version_lists_the_supported_versions() -> None:
    with pytest.raises(MethodError) as raised:
        eras.check_modern(
            build_message(meta={**GOOD_META, VERSION: "2031-01-01"}), build_headers(mcp_protocol_version=None)
        )
    assert raised.value.data == {"requested": "2031-01-01", "supported": eras.SUPPORTED}
    assert eras.SUPPORTED[:2] == ["2026-07-28", "2025-11-25"]


def test_a_modern_request_may_have_its_name_in_base64() -> None:
    eras.check_modern(build_message(), build_headers(mcp_name=" echo "))
    eras.check_modern(build_message(), build_headers(mcp_name="=?base64?ZWNobw==?="))
    eras.check_modern(build_message(name="grüß"), build_headers(mcp_name="=?base64?Z3LDvMOf?="))
    eras.check_modern(build_message("tools/list"), build_headers(mcp_method="tools/list", mcp_name=None))


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "x-mcp-header": "City"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    },
}


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"city": "Rome"}, {b"mcp-param-city": b"Rome"}),
        ({"city": "Rome", "count": 5}, {b"mcp-param-city": b"Rome", b"mcp-param-count": b"5.0"}),
        ({}, {}),
        ({"city": "Köln"}, {b"mcp-param-city": b"=?base64?S8O2bG4=?="}),
    ],
)
def test_headers_that_match_the_arguments_are_accepted(arguments: Any, headers: Any) -> None:
    eras.check_parameter_headers(mcp.parameter_headers(SCHEMA), arguments, headers)


@pytest.mark.parametrize(
    ("arguments", "headers", "text"),
    [
        ({"city": "Rome"}, {}, "the header Mcp-Param-City is missing"),
        ({"city": "Rome"}, {b"mcp-param-city": b"Paris"}, "does not match"),
        ({}, {b"mcp-param-city": b"Rome"}, "does not match"),
        ({"count": 5}, {b"mcp-param-count": b"6"}, "does not match"),
        ({"count": 5}, {b"mcp-param-count": b"=?base64?!?="}, "does not match"),
    ],
)
def test_headers_that_differ_from_the_arguments_are_refused(arguments: Any, headers: Any, text: str) -> None:
    with pytest.raises(MethodError, match=text) as raised:
        eras.check_parameter_headers(mcp.parameter_headers(SCHEMA), arguments, headers)
    assert raised.value.code == -32020


@pytest.mark.parametrize(("code", "status"), [(-32601, 404), (-32700, 400), (-32020, 400), (-32602, 200), (7, 200)])
def test_errors_have_the_status_of_the_modern_era(code: int, status: int) -> None:
    assert eras.http_status(code) == status


def build_error(code: int, **more: Any) -> dict[str, Any]:
    return {"id": 1, "error": {"code": code, "message": "m", **more}}


def test_results_are_converted_for_modern_clients() -> None:
    assert eras.for_modern("tools/call", {}, {"result": {"content": []}})["result"] == {
        "resultType": "complete",
        "content": [],
    }
    list_result = eras.for_modern("tools/list", {}, {"result": {"tools": [], "ttlMs": 5}})["result"]
    assert list_result == {"resultType": "complete", "ttlMs": 5, "cacheScope": "private", "tools": []}
    missing_resource = eras.for_modern("resources/read", {"uri": "u:1"}, build_error(-32002, data={"more": 1}))
    assert missing_resource == build_error(-32602, data={"more": 1, "uri": "u:1"})
    assert eras.for_modern("tools/call", {}, build_error(-32002)) == build_error(-32002)
    assert eras.for_modern("tools/call", {}, build_error(-32042)) == build_error(-32603)


def test_results_are_converted_for_clients_with_sessions() -> None:
    result = {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "structuredContent": [1],
        "content": [],
        "_meta": {f"{META_PREFIX}x": 1, "own": 2},
    }
    assert eras.for_handshake("tools/call", {"result": result})["result"] == {"content": [], "_meta": {"own": 2}}
    result = {"structuredContent": {"a": 1}, "_meta": {f"{META_PREFIX}x": 1}}
    assert eras.for_handshake("tools/call", {"result": result})["result"] == {"structuredContent": {"a": 1}}
    missing_resource = build_error(-32602, data={"uri": "u:1"})
    assert eras.for_handshake("resources/read", missing_resource) == build_error(-32002, data={"uri": "u:1"})
    assert eras.for_handshake("resources/read", build_error(-32602)) == build_error(-32602)
    assert eras.for_handshake("tools/call", missing_resource) == missing_resource


@pytest.mark.parametrize(
    ("client_level", "message_level", "passes"),
    [
        ("info", "info", True),
        ("info", "debug", False),
        ("", "error", False),
        ("info", "odd", False),
        ([], "info", False),
    ],
)
def test_a_log_message_passes_from_the_clients_level_upwards(
    client_level: Any, message_level: str, passes: bool
) -> None:
    assert eras.passes_log_level(client_level, message_level) is passes
