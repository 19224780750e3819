"""Between the eras: which one a message is of, what is refused, and results restated for the other side."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.gateway import eras
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import MethodError

META = "io.modelcontextprotocol/"
VERSION = f"{META}protocolVersion"
CAPABILITIES = f"{META}clientCapabilities"
GOOD_META = {VERSION: "2026-07-28", CAPABILITIES: {}}


def message(method: str = "tools/call", meta: Any = None, **params: Any) -> dict[str, Any]:
    params = {"name": "echo", **params} if method == "tools/call" else params
    return {"id": 1, "method": method, "params": {**params, "_meta": GOOD_META if meta is None else meta}}


def headers(**changed: str | None) -> dict[bytes, bytes]:
    good = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "echo"}
    good |= {name.replace("_", "-"): value for name, value in changed.items()}
    return {name.encode(): value.encode("latin-1") for name, value in good.items() if value is not None}


@pytest.mark.parametrize(
    ("sent", "header", "modern"),
    [
        (message(), "", True),
        (message(meta={VERSION: "2031-01-01"}), "2025-06-18", True),
        ({"method": "ping"}, "2026-07-28", True),
        ({"method": "ping"}, "nonsense", True),
        ({"method": "ping"}, "2025-06-18", False),
        ({"method": "ping"}, "", False),
        ([message()], "", False),
        ({"method": "ping", "params": [1]}, "", False),
        ({"method": "ping", "params": {"_meta": 1}}, "", False),
    ],
)
def test_the_message_says_its_era_or_else_its_header(sent: Any, header: str, modern: bool) -> None:
    assert eras.is_modern(sent, header) is modern


@pytest.mark.parametrize(
    ("sent", "told", "code", "said"),
    [
        (message(), headers(mcp_protocol_version="2025-06-18"), -32020, "does not match"),
        (message(meta={**GOOD_META, VERSION: "2031-01-01"}), headers(mcp_protocol_version=None), -32022, "2031-01-01"),
        (message(meta={}), headers(mcp_protocol_version="2031-01-01"), -32022, "'2031-01-01' is not supported"),
        (message(meta={CAPABILITIES: {}}), headers(), -32602, "_meta lacks io.modelcontextprotocol/protocolVersion"),
        (message(meta={VERSION: "2026-07-28"}), headers(), -32602, "clientCapabilities"),
        (message(meta={**GOOD_META, CAPABILITIES: []}), headers(), -32602, "clientCapabilities"),
        (message(), headers(mcp_protocol_version=None), -32020, "the header MCP-Protocol-Version is missing"),
        (message(), headers(mcp_method=None), -32020, "the header Mcp-Method is missing"),
        (message(), headers(mcp_name="other"), -32020, "the header Mcp-Name ('other') does not match"),
        (message(), headers(mcp_name="=?base64?%%%?="), -32020, "does not match"),
    ],
)
def test_what_a_modern_request_must_say_is_demanded(sent: Any, told: Any, code: int, said: str) -> None:
    with pytest.raises(MethodError) as caught:
        eras.check_modern(sent, told)
    assert caught.value.code == code
    assert said in str(caught.value)


def test_a_refused_version_is_answered_with_those_that_are_spoken() -> None:
    with pytest.raises(MethodError) as caught:
        eras.check_modern(message(meta={**GOOD_META, VERSION: "2031-01-01"}), headers(mcp_protocol_version=None))
    assert caught.value.data == {"requested": "2031-01-01", "supported": eras.SUPPORTED}
    assert eras.SUPPORTED[:2] == ["2026-07-28", "2025-11-25"]


def test_a_good_request_passes_also_with_names_in_base64() -> None:
    eras.check_modern(message(), headers(mcp_name=" echo "))
    eras.check_modern(message(), headers(mcp_name="=?base64?ZWNobw==?="))
    eras.check_modern(message(name="grüß"), headers(mcp_name="=?base64?Z3LDvMOf?="))
    eras.check_modern(message("tools/list"), headers(mcp_method="tools/list", mcp_name=None))


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "x-mcp-header": "City"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    },
}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"city": "Rome"}, {b"mcp-param-city": b"Rome"}),
        ({"city": "Rome", "count": 5}, {b"mcp-param-city": b"Rome", b"mcp-param-count": b"5.0"}),
        ({}, {}),
        ({"city": "Köln"}, {b"mcp-param-city": b"=?base64?S8O2bG4=?="}),
    ],
)
def test_headers_that_repeat_arguments_pass(arguments: Any, told: Any) -> None:
    eras.check_parameter_headers(mcp.parameter_headers(SCHEMA), arguments, told)


@pytest.mark.parametrize(
    ("arguments", "told", "said"),
    [
        ({"city": "Rome"}, {}, "the header Mcp-Param-City is missing"),
        ({"city": "Rome"}, {b"mcp-param-city": b"Paris"}, "does not match"),
        ({}, {b"mcp-param-city": b"Rome"}, "does not match"),
        ({"count": 5}, {b"mcp-param-count": b"6"}, "does not match"),
        ({"count": 5}, {b"mcp-param-count": b"=?base64?!?="}, "does not match"),
    ],
)
def test_headers_that_say_something_else_than_the_arguments_are_refused(arguments: Any, told: Any, said: str) -> None:
    with pytest.raises(MethodError, match=said) as caught:
        eras.check_parameter_headers(mcp.parameter_headers(SCHEMA), arguments, told)
    assert caught.value.code == -32020


@pytest.mark.parametrize(("code", "status"), [(-32601, 404), (-32700, 400), (-32020, 400), (-32602, 200), (7, 200)])
def test_errors_have_the_status_of_the_modern_era(code: int, status: int) -> None:
    assert eras.http_status(code) == status


def error(code: int, **more: Any) -> dict[str, Any]:
    return {"id": 1, "error": {"code": code, "message": "m", **more}}


def test_results_are_restated_for_modern_callers() -> None:
    assert eras.for_modern("tools/call", {}, {"result": {"content": []}})["result"] == {
        "resultType": "complete",
        "content": [],
    }
    listed = eras.for_modern("tools/list", {}, {"result": {"tools": [], "ttlMs": 5}})["result"]
    assert listed == {"resultType": "complete", "ttlMs": 5, "cacheScope": "private", "tools": []}
    missing = eras.for_modern("resources/read", {"uri": "u:1"}, error(-32002, data={"more": 1}))
    assert missing == error(-32602, data={"more": 1, "uri": "u:1"})
    assert eras.for_modern("tools/call", {}, error(-32002)) == error(-32002)
    assert eras.for_modern("tools/call", {}, error(-32042)) == error(-32603)


def test_results_are_restated_for_callers_with_sessions() -> None:
    told = {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "structuredContent": [1],
        "content": [],
        "_meta": {f"{META}x": 1, "own": 2},
    }
    assert eras.for_handshake("tools/call", {"result": told})["result"] == {"content": [], "_meta": {"own": 2}}
    told = {"structuredContent": {"a": 1}, "_meta": {f"{META}x": 1}}
    assert eras.for_handshake("tools/call", {"result": told})["result"] == {"structuredContent": {"a": 1}}
    missing = error(-32602, data={"uri": "u:1"})
    assert eras.for_handshake("resources/read", missing) == error(-32002, data={"uri": "u:1"})
    assert eras.for_handshake("resources/read", error(-32602)) == error(-32602)
    assert eras.for_handshake("tools/call", missing) == missing


@pytest.mark.parametrize(
    ("level", "said", "passes"),
    [
        ("info", "info", True),
        ("info", "debug", False),
        ("", "error", False),
        ("info", "odd", False),
        ([], "info", False),
    ],
)
def test_a_log_message_passes_from_the_level_that_was_asked_for(level: Any, said: str, passes: bool) -> None:
    assert eras.passes_log_level(level, said) is passes
