"""Ask clients to open the page of the hall where their user signs in at a member (URL elicitation).

It is never the address of the authorization server: only the user who logged in at the hall can begin there.

A client of 2025-11-25 is asked with an error (25-11: client/elicitation), and told when its user has signed in.
A client of 2026-07-28 is asked with a result that needs input (26: basic/patterns/mrtr), and sends its request again,
with the answer, when its user opened the page.
"""

from __future__ import annotations

import secrets
from typing import Any

from django.utils.crypto import salted_hmac

from mcp_runtime.gateway.messages import Request
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import CallFailedError, InputNeededError, PageNeededError, SignInNeededError


def key() -> str:
    """The key of the question and its answer, which are not the member's.

    Another hall may be the member, and ask in the same way. So each hall has a key of its own, on all of its nodes.
    """
    digest = salted_hmac("guildhall.gateway.sign_in_pages", "", algorithm="sha256").hexdigest()
    return f"guildhall-sign-in-{digest[:16]}"


def asked(failure: CallFailedError, error: SignInNeededError, member: str, request: Request) -> CallFailedError:
    """Return the failure in the form that asks the client, or unchanged if it cannot open pages."""
    client = request.client
    elicitation = client.capabilities.get("elicitation")
    if error.own is None or not error.page or not isinstance(elicitation, dict) or "url" not in elicitation:
        return failure
    message = f"Sign in at {member}, so that the calls of {client.principal.name} can use your account there."
    page = {"mode": "url", "url": error.page, "message": message}
    if client.is_modern:
        if not _may_ask(request):
            return failure
        return InputNeededError(failure, {key(): {"method": "elicitation/create", "params": page}})
    if client.session is not None and client.session.version == "2025-11-25":
        page["elicitationId"] = secrets.token_urlsafe(16)
        return PageNeededError(failure, mcp.URL_ELICITATION_REQUIRED, page, error.own)
    return failure


def take_answer(request: Request) -> None:
    """Take the client's answer out of the params, because the member did not ask."""
    answers = request.params.get("inputResponses")
    if not isinstance(answers, dict) or (own := key()) not in answers:
        return
    others = {name: answer for name, answer in answers.items() if name != own}
    request.params = {name: value for name, value in request.params.items() if name != "inputResponses"}
    if others:
        request.params["inputResponses"] = others
    answer: Any = answers[own]
    request.opened_page = isinstance(answer, dict) and answer.get("action") == "accept"


def _may_ask(request: Request) -> bool:
    """Return whether this request may be sent again, and its user did not refuse.

    With the requestState of a member, a second request without it would begin the call again.
    """
    return request.method in mcp.NAMED_BY and "requestState" not in request.params and request.opened_page is not False
