"""Who may log in through the provider, which user they are, and which role and groups they have.

The claims here are those of a checked ID token, and perhaps of the userinfo endpoint.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from mcp_runtime.protocol.errors import ProviderError
from roster import audit, roles
from roster.models import Actor, AuditEntry, Identity, Role
from roster.models.audit import acting

EVERYBODY = "everybody"  # in the setting of who may log in
EVERYBODY_IN = "*"  # in the mapping of groups
MAX_GROUPS = 10_000  # of one person at the provider
MAX_NAME = 150  # of a user
NOT_ALLOWED = "You may not use this hall. Ask its operator, who decides which people of {} may log in."
INACTIVE = "Your user {} is switched off in this hall. Ask an admin of the hall."


class NotAllowedError(ProviderError):
    """The provider says who it is, and this person may not log in. `user_name` is empty if they have no user."""

    def __init__(self, text: str, user_name: str = "") -> None:
        super().__init__(text)
        self.user_name = user_name


# Claims -----------------------------------------------------------------------------------------------------------


def needed_claims() -> set[str]:
    """The claims for which the userinfo endpoint is asked if the ID token does not have them."""
    needed = {settings.GUILD_HALL_OIDC_USERNAME_CLAIM}
    for part in settings.GUILD_HALL_OIDC_ALLOW:
        if part.startswith("@"):
            needed |= {"email", "email_verified"}
        elif part != EVERYBODY:
            needed.add(part.partition("=")[0])
    if any(group != EVERYBODY_IN for group, _ in settings.GUILD_HALL_OIDC_GROUPS):
        needed.add(settings.GUILD_HALL_OIDC_GROUPS_CLAIM)
    return needed


def may_come_in(claims: Mapping[str, Any]) -> bool:
    return any(_applies(part, claims) for part in settings.GUILD_HALL_OIDC_ALLOW)


def _applies(part: str, claims: Mapping[str, Any]) -> bool:
    if part == EVERYBODY:
        return True
    if part.startswith("@"):
        return claims.get("email_verified") is True and _domain(claims.get("email")) == part[1:].lower()
    name, _, value = part.partition("=")
    return value in _values(claims.get(name))


def _domain(email: Any) -> str:
    """Empty if it is no plain e-mail address."""
    match = re.fullmatch(r"[^@\s\"]+@([A-Za-z0-9.-]+)", email) if isinstance(email, str) else None
    return match[1].lower() if match else ""


def _values(claim: Any) -> list[str]:
    """A claim with one value or several, as texts."""
    values = claim if isinstance(claim, list) else [claim]
    words = {True: "true", False: "false"}
    return [words[each] if isinstance(each, bool) else str(each) for each in values[:MAX_GROUPS] if _is_plain(each)]


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int)


def text_of(claims: Mapping[str, Any], name: str, length: int) -> str:
    """One line of the claim. Empty if it is not a text."""
    value = claims.get(name)
    if not isinstance(value, str):
        return ""
    line = "".join(each for each in unicodedata.normalize("NFKC", value) if each.isprintable())
    return line.strip()[:length]


# The user ---------------------------------------------------------------------------------------------------------


def find(claims: Mapping[str, Any]) -> Identity | None:
    rows = Identity.objects.select_related("user")
    return rows.filter(issuer=claims["iss"], subject=claims["sub"]).first()


def log_in_as(claims: Mapping[str, Any]) -> User:
    """The user of the person, who is created at the first login, with the role and the groups of this moment.

    Raises NotAllowedError. Then nothing is changed.
    """
    if not may_come_in(claims):
        identity = find(claims)
        name = identity.user.get_username() if identity else ""
        raise NotAllowedError(NOT_ALLOWED.format(settings.GUILD_HALL_OIDC_NAME), name)
    try:
        return _update(claims)
    except IntegrityError:  # the same person logs in twice at the same moment, or somebody takes the name
        return _update(claims)


def _update(claims: Mapping[str, Any]) -> User:
    with transaction.atomic(), acting(_actor_for(claims)), audit.merged():
        identity = Identity.objects.select_for_update().filter(issuer=claims["iss"], subject=claims["sub"]).first()
        user = _new_user(claims) if identity is None else identity.user
        if not user.is_active:
            raise NotAllowedError(INACTIVE.format(user.get_username()), user.get_username())
        if identity is None:
            now = timezone.now()
            user.save()
            identity = Identity(
                user=user, issuer=claims["iss"], subject=claims["sub"], created_at=now, last_login_at=now
            )
        else:
            _update_texts(user, claims)
        identity.granted_groups = _set_groups(user, identity.granted_groups, _targets(claims))
        identity.last_login_at = timezone.now()
        identity.save()
    return user


def _actor_for(claims: Mapping[str, Any]) -> Callable[[], Actor]:
    """The person, as the actor of what their login changes. A new person has a user only when it is recorded."""

    def actor() -> Actor:
        identity = find(claims)
        name = identity.user.get_username() if identity else _wanted_name(claims)
        user_id = identity.user_id if identity else None
        return Actor(AuditEntry.Source.WEB, f"{name}{audit.WITH_SINGLE_SIGN_ON}", user_id)

    return actor


def _texts(claims: Mapping[str, Any]) -> dict[str, str]:
    names = {"first_name": ("given_name", 150), "last_name": ("family_name", 150), "email": ("email", 254)}
    return {column: text_of(claims, claim, length) for column, (claim, length) in names.items()}


def _update_texts(user: User, claims: Mapping[str, Any]) -> None:
    changed = {column: text for column, text in _texts(claims).items() if text and getattr(user, column) != text}
    for column, text in changed.items():
        setattr(user, column, text)
    if changed:
        user.save(update_fields=list(changed))


def _new_user(claims: Mapping[str, Any]) -> User:
    """A user with a free name, who cannot log in with a password. It is not saved."""
    user = User(username=_free_name(_wanted_name(claims)), **_texts(claims))
    user.set_unusable_password()
    return user


def _wanted_name(claims: Mapping[str, Any]) -> str:
    text = text_of(claims, settings.GUILD_HALL_OIDC_USERNAME_CLAIM, MAX_NAME) or str(claims["sub"])
    return re.sub(r"[^\w.@+-]+", "-", text)[: MAX_NAME - 10].strip("-") or "user"


def _free_name(wanted: str) -> str:
    """The name itself, or with a number if another user has it. That user stays who it is."""
    taken = {
        name.lower() for name in User.objects.filter(username__istartswith=wanted).values_list("username", flat=True)
    }
    if wanted.lower() not in taken:
        return wanted
    return next(name for number in range(2, len(taken) + 3) if (name := f"{wanted}-{number}").lower() not in taken)


# Role and groups --------------------------------------------------------------------------------------------------


def _targets(claims: Mapping[str, Any]) -> set[str]:
    """The roles and groups of the hall that the mapping gives for these claims, by name."""
    of_person = {EVERYBODY_IN, *_values(claims.get(settings.GUILD_HALL_OIDC_GROUPS_CLAIM))}
    return {target for group, target in settings.GUILD_HALL_OIDC_GROUPS if group in of_person}


def _set_groups(user: User, granted_before: Iterable[int], targets: set[str]) -> list[int]:
    """Give the user these roles and groups, of several roles the one with most permissions. Return their ids.

    What the mapping or an earlier login could give, and this one does not, is taken away. Everything else stays, also a
    role that somebody gave in the hall.
    """
    role = next((name for name in reversed(roles.NAMES) if name in targets), None)
    targets = {name for name in targets if name not in roles.NAMES or name == role}
    mapped = {target for _, target in settings.GUILD_HALL_OIDC_GROUPS}
    groups = {name: group for name in mapped if (group := _group(name, create=name in targets)) is not None}
    given = {group.pk for name, group in groups.items() if name in targets}
    managed = {group.pk for group in groups.values()} | set(granted_before)
    current = set(user.groups.values_list("pk", flat=True))
    user.groups.remove(*(current & managed) - given)
    user.groups.add(*given - current)
    return sorted(given)


def _group(name: str, *, create: bool) -> Group | None:
    """The group of the role with this name, or else the group of this name, which is never the group of a role."""
    if name in roles.NAMES:
        return Role.objects.select_related("group").get(name=name).group
    group = Group.objects.filter(name=name).first()
    if group is None:
        return Group.objects.create(name=name) if create else None
    return None if Role.objects.filter(group=group).exists() else group
