"""Whose rights a command has: those of the user of its option --user, or without it those of the operator."""

from __future__ import annotations

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.security import principals
from mcp_runtime.security.access import OPERATOR, Principal
from roster.management.users import find_user
from roster.models import Call


def requester_of(source: Call.Source, user: str | None) -> Requester:
    """The requester for this user. Without a user, the operator, who may do everything. Raises CommandError."""
    return Requester(source, None if user is None else find_user(user))


def principal_for(user: str | None) -> Principal:
    """The principal of this user. Without a user, the operator, who may do everything. Raises CommandError."""
    return OPERATOR if user is None else principals.principal_of_user(find_user(user))
