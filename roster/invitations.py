"""Invitations: who may make one, and how it becomes a user. One person spends it, once.

An invitation is never wider than the rights of its inviter, also when it is used: the inviter must still be active, may
still create users, and has every permission of the role. The operator, who has all rights, is no user, so an
invitation of `guildhall invite` has no inviter.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from roster import audit, roles
from roster.addresses import web_address
from roster.login_backends import allows_passwords
from roster.models import AuditEntry, Invitation, Role
from roster.models.audit import acting, current_actor

PERMISSION = "auth.add_user"
TOO_MANY = (
    f"You have {Invitation.MAX_OPEN} open invitations, which is the limit. Revoke some, or wait until they are used or "
    "expire."
)

NO_PASSWORDS = "People log in to this hall with single sign-on only, so nobody can make an account with an invitation."


class InvitationError(Exception):
    """The invitation was not made. The text says why."""


class GoneError(Exception):
    """No invitation with this secret is open: it is used, expired, revoked or unknown, or its inviter lost rights."""


def open_invitations() -> QuerySet[Invitation]:
    """Those that are neither used nor revoked, and that have not expired by the time of the database."""
    return Invitation.objects.filter(used_at=None, revoked_at=None, expires_at__gt=Now())


def invite(role: Role, *, inviter: User | None, note: str = "") -> tuple[Invitation, str]:
    """Make an invitation. Returns it with its link, whose secret is stored nowhere. Raises InvitationError."""
    if not allows_passwords():
        raise InvitationError(NO_PASSWORDS)
    secret = Invitation.new_secret()
    with transaction.atomic():
        if inviter is not None:
            User.objects.select_for_update().get(pk=inviter.pk)  # two requests at the same moment count one by one
        if open_invitations().filter(created_by=inviter).count() >= Invitation.MAX_OPEN:
            raise InvitationError(TOO_MANY)
        invitation = Invitation.objects.create(
            digest=Invitation.digest_of(secret),
            role=role,
            note=note,
            created_by=inviter,
            created_at=Now(),
            expires_at=Now() + Invitation.LIFETIME,
        )
        invitation.refresh_from_db(fields=["created_at", "expires_at"])  # the database knows the time
        details = {"role": role.name, "note": note, "expires_at": invitation.expires_at}
        AuditEntry.record(AuditEntry.Kind.INVITATION_MADE, str(invitation), after=details)
    return invitation, f"{web_address()}/invitations/{secret}/"


def find(secret: str) -> Invitation:
    """The open invitation with this secret. Changes nothing. Raises GoneError."""
    if not allows_passwords():
        raise GoneError
    invitation = _with_secret(open_invitations(), secret)
    if invitation is None or not _is_covered(invitation):
        raise GoneError
    return invitation


def accept(secret: str, user: User) -> None:
    """Spend the invitation and save the new user with its role, or do neither. Raises GoneError."""
    with transaction.atomic():
        # Of several requests at the same moment, the database lets one change the row.
        if not open_invitations().filter(digest=Invitation.digest_of(secret)).update(used_at=Now()):
            raise GoneError
        invitation = _with_secret(Invitation.objects.all(), secret)
        if invitation is None or not _is_covered(invitation):
            raise GoneError
        invited = current_actor()
        with acting(lambda: audit.named(invited, user)):
            with audit.merged():
                user.save()
                roles.set_role(user, invitation.role)
            details = {"inviter": str(invitation.created_by or "the operator"), "note": invitation.note}
            AuditEntry.record(AuditEntry.Kind.INVITATION_ACCEPTED, str(invitation), before=details)
        Invitation.objects.filter(pk=invitation.pk).update(used_by=user)


def revoke(invitation: Invitation) -> bool:
    """Whether it was open, and is revoked now."""
    with transaction.atomic():
        if not open_invitations().filter(pk=invitation.pk).update(revoked_at=Now()):
            return False
        details = {"role": invitation.role.name, "note": invitation.note}
        AuditEntry.record(AuditEntry.Kind.INVITATION_REVOKED, str(invitation), before=details)
    return True


def _with_secret(invitations: QuerySet[Invitation], secret: str) -> Invitation | None:
    with_rights = invitations.select_related("role__group", "created_by")
    return with_rights.filter(digest=Invitation.digest_of(secret)).first()


def _is_covered(invitation: Invitation) -> bool:
    """Whether the inviter could make it now."""
    inviter = invitation.created_by
    if inviter is None:
        return True
    return inviter.is_active and inviter.has_perm(PERMISSION) and invitation.role in roles.roles_to_give(inviter)
