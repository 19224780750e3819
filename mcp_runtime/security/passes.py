"""Passes, with which the web and commands ask the gateway for a user, a token or the operator.

A pass is signed with the hall's secret key. It names who asks, and gives no right: the gateway reads the rights of the
user or the token from the rows, for each request. It is valid for a short time by the clock of the database. Only the
hall has passes. They are in no row and no log, and the web does not accept them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from django.contrib.auth.models import User
from django.core import signing

from mcp_runtime.protocol.errors import AccessError, TokenError
from mcp_runtime.rows import clock
from mcp_runtime.security import principals
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import Token

SCHEME = "guild-hall-pass"  # of the header Authorization
_SALT = "guildhall.pass"


def authorization(principal: Principal, seconds: float) -> str:
    """Return the value of the header Authorization, for so many seconds."""
    until = clock.now().timestamp() + seconds
    return f"{SCHEME} {signing.dumps([principal.user_id, principal.token_id, until], salt=_SALT)}"


def principal_of(text: str) -> Principal:
    """Return the principal of a pass, with its current rights. Raises TokenError."""
    try:
        user_id, token_id, until = signing.loads(text, salt=_SALT)
    except signing.BadSignature:
        raise TokenError("This is no pass of this hall.") from None
    if clock.now().timestamp() >= until:
        raise TokenError("This pass has expired.")
    principal = _principal(user_id, token_id)
    ends = [moment for moment in (principal.expires_at, datetime.fromtimestamp(until, UTC)) if moment is not None]
    return replace(principal, expires_at=min(ends))


def _principal(user_id: int | None, token_id: int | None) -> Principal:
    if user_id is None:
        return OPERATOR
    if token_id is not None:
        token = Token.objects.select_related("user").filter(pk=token_id, user=user_id).first()
        if token is None:
            raise TokenError("The token of this pass was deleted.")
        return principals.principal_of_row(token)
    user = User.objects.filter(pk=user_id).first()
    try:
        if user is not None:
            return principals.principal_of_user(user)
    except AccessError as error:
        raise TokenError(str(error)) from error
    raise TokenError("The user of this pass was deleted.")
