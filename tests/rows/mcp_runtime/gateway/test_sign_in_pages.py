"""The question to open the page of a sign-in, and its answer, in a hall that is a member of another hall."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mcp_runtime.gateway import sign_in_pages
from mcp_runtime.gateway.messages import Request
from mcp_runtime.protocol.errors import CallFailedError, ErrorKind, InputNeededError, OwnSignIn, SignInNeededError

ACCEPTED = {"action": "accept"}


def a_request(**params: Any) -> Request:
    principal = SimpleNamespace(name="olga")
    client: Any = SimpleNamespace(is_modern=True, principal=principal, capabilities={"elicitation": {"url": {}}})
    deadline: Any = None
    return Request(1, "tools/call", {"name": "look", **params}, client, deadline)


def question_of(settings: Any, key: str) -> str:
    """The key of the question of the hall with this secret key."""
    settings.SECRET_KEY = key
    need = SignInNeededError("sign in", own=OwnSignIn(1, 1, "https://hall.example/members/1/own-sign-in/"))
    asked = sign_in_pages.asked(CallFailedError(ErrorKind.UNAVAILABLE, "sign in"), need, "vault", a_request())
    assert isinstance(asked, InputNeededError)
    (question,) = asked.requests
    return str(question)


def test_an_outer_hall_leaves_the_answer_for_an_inner_hall_to_it(settings: Any) -> None:
    inner, outer = question_of(settings, "inner"), question_of(settings, "outer")
    assert inner != outer
    request = a_request(inputResponses={inner: ACCEPTED})
    sign_in_pages.take_answer(request)
    assert (request.params["inputResponses"], request.opened_page) == ({inner: ACCEPTED}, None)
    request = a_request(inputResponses={inner: ACCEPTED, outer: ACCEPTED})
    sign_in_pages.take_answer(request)
    assert (request.params["inputResponses"], request.opened_page) == ({inner: ACCEPTED}, True)
    settings.SECRET_KEY = "inner"
    sign_in_pages.take_answer(request)
    assert "inputResponses" not in request.params


def test_all_nodes_of_a_hall_ask_with_the_same_key(settings: Any) -> None:
    assert question_of(settings, "one hall") == question_of(settings, "one hall")
