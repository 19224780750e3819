"""Requests without a response: the client's error and the row of the call have the same error kind."""

from __future__ import annotations

import asyncio

import pytest

from mcp_runtime.calls.transitions import Outcome
from mcp_runtime.gateway import failures
from mcp_runtime.gateway.messages import Client, Deadline, Request
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    MethodError,
    ProtocolError,
    RequestTimeoutError,
)
from mcp_runtime.security.access import OPERATOR
from tests.conftest import ROOT


def method_error_of(error: ClientError, *, is_sent: bool) -> MethodError:
    async def convert() -> MethodError:
        request = Request("1", "tools/call", {}, Client(OPERATOR, None, {}), Deadline())
        if is_sent:
            request.begin_sending()
        return failures.of_member(error, "notes", request)

    return asyncio.run(convert())


@pytest.mark.parametrize("is_sent", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        ConnectError("refused", is_refusal=True),  # in a later round the member already has the call
        ConnectError("reset"),
        HttpStatusError(500),
        RequestTimeoutError(3),
        ProtocolError("html"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_client_and_the_row_of_a_call_get_the_same_error_kind(error: ClientError, is_sent: bool) -> None:
    method_error = method_error_of(error, is_sent=is_sent)
    assert method_error.data["kind"] == Outcome.of_error(error, member="notes", tool="echo").error_kind
    assert (method_error.data["kind"] == "unavailable") is (method_error.data.get("sent") is False) is not is_sent


def test_the_page_of_the_gateway_lists_the_error_kinds_that_only_the_gateway_has() -> None:
    async def cancellation_error() -> MethodError:
        request = Request("1", "tools/call", {}, Client(OPERATOR, None, {}), Deadline())
        request.deadline.is_cancelled = True
        return failures.deadline_error(request)

    page = (ROOT / "docs" / "gateway.md").read_text()
    kinds = {kind for line in page.splitlines() if line.startswith("| `") for kind in line.split("|")[1].split(",")}
    for error in (asyncio.run(cancellation_error()), failures.forbidden("bob", "notes", "echo")):
        assert f"`{error.data['kind']}`" in {kind.strip() for kind in kinds}
