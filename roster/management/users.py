"""Find the user whose rights a command has. The module is small, because the start of `mcp_stdio` must be fast."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from roster.management import exit_codes
from roster.models import Role


def find_user(name: str) -> User:
    """The user. Raises CommandError if there is none, or if it is not active."""
    user = User.objects.filter(username=name).first()
    if user is None:
        message = f"no user {name!r}; make one with: guildhall create_user {name}"
        raise CommandError(message, returncode=exit_codes.NOT_FOUND)
    if not user.is_active:
        raise CommandError(f"user {name!r} is not active", returncode=exit_codes.REFUSED)
    return user


def user_for_token(name: str | None) -> User:
    """The user of a new token: the one with this name, or without a name the first superuser. Raises CommandError."""
    if name is not None:
        return find_user(name)
    first = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if first is None:
        raise CommandError("there is no superuser for the token; give --user")
    return first


def find_role(name: str) -> Role:
    """The role. Raises CommandError if the last migration did not make it."""
    role = Role.objects.filter(name=name).select_related("group").first()
    if role is None:
        raise CommandError(f"the hall has no role {name!r} yet; run: guildhall prepare")
    return role
