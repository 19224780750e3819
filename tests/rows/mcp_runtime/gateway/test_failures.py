"""What agents are told of a request without an answer, and what is written down of it: one kind for both."""

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


def failed(error: ClientError, *, is_sent: bool) -> MethodError:
    async def told() -> MethodError:
        request = Request("1", "tools/call", {}, Client(OPERATOR, None, {}), Deadline())
        if is_sent:
            request.begin_sending()
        return failures.of_member(error, "notes", request)

    return asyncio.run(told())


@pytest.mark.parametrize("is_sent", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        ConnectError("refused", is_refusal=True),  # in a later round the member has had the call before
        ConnectError("reset"),
        HttpStatusError(500),
        RequestTimeoutError(3),
        ProtocolError("html"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_agent_and_the_record_of_its_call_have_the_same_kind(error: ClientError, is_sent: bool) -> None:
    told = failed(error, is_sent=is_sent)
    assert told.data["kind"] == Outcome.of_error(error, member="notes", tool="echo").error_kind
    assert (told.data["kind"] == "unavailable") is (told.data.get("sent") is False) is not is_sent


def test_the_page_of_the_gateway_has_the_kinds_that_only_the_gateway_has() -> None:
    async def cancelled() -> MethodError:
        request = Request("1", "tools/call", {}, Client(OPERATOR, None, {}), Deadline())
        request.deadline.is_cancelled = True
        return failures.deadline_error(request)

    page = (ROOT / "docs" / "gateway.md").read_text()
    for error in (asyncio.run(cancelled()), failures.forbidden("bob", "notes", "echo")):
        assert f"| `{error.data['kind']}` |" in page
