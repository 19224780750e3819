"""What a user may do here: the same Django permissions that the admin asks for."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

CONTROL = "roster.control_member"
INVOKE = "roster.invoke_tool"
VIEW_CALLS = "roster.view_invocation"


class MayControl(BasePermission):
    """Start, stop and switch members and their tools."""

    message = f"This needs the permission {CONTROL}."

    def has_permission(self, request: Request, view: Any) -> bool:
        return request.user.has_perm(CONTROL)


class MayInvoke(BasePermission):
    """Call tools. What a tool is called like is no secret: reading needs no permission."""

    message = f"This needs the permission {INVOKE}."

    def has_permission(self, request: Request, view: Any) -> bool:
        return request.method in ("GET", "HEAD", "OPTIONS") or request.user.has_perm(INVOKE)


def readable_calls(user: Any) -> Q:
    """The calls that `user` may see, and cancel: everybody's with VIEW_CALLS, else the own ones."""
    return Q() if user.has_perm(VIEW_CALLS) else Q(requested_by=user)
