"""Invitations: who may make them, what they give, and that each is spent once and never gives more than its inviter."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections, transaction
from django.utils import timezone

from roster import invitations, roles
from roster.invitations import GoneError, InvitationError
from roster.models import Invitation, Role

pytestmark = pytest.mark.django_db


def role(name: str) -> Role:
    return Role.objects.get(name=name)


def make_admin(name: str = "anna") -> User:
    user = User.objects.create_user(name)
    roles.set_role(user, role("admin"))
    return User.objects.get(pk=user.pk)


def make(name: str = "caller", inviter: User | None = None) -> tuple[Invitation, str]:
    """An invitation and its secret."""
    invitation, link = invitations.invite(role(name), inviter=inviter)
    return invitation, link.split("/")[-2]


def is_open(secret: str) -> bool:
    try:
        invitations.find(secret)
    except GoneError:
        return False
    return True


def test_the_row_has_only_the_hash_of_the_secret_and_ends_after_72_hours() -> None:
    invitation, secret = make()
    assert secret not in str(Invitation.objects.values().get())
    assert invitation.digest == Invitation.digest_of(secret)
    assert len(secret) == len("ghi_") + 43  # 32 bytes
    assert invitation.expires_at - invitation.created_at == timedelta(hours=72)
    assert abs(invitation.created_at - timezone.now()) < timedelta(minutes=1)


def test_an_accepted_invitation_makes_a_user_with_its_role_and_no_other_rights() -> None:
    invitation, secret = make("operator", make_admin())
    carl = User(username="carl")
    invitations.accept(secret, carl)
    fresh = User.objects.get(username="carl")
    assert fresh.get_all_permissions() == roles.permissions_of_role("operator")
    assert (fresh.is_superuser, fresh.is_staff, fresh.is_active) == (False, False, True)
    invitation.refresh_from_db()
    assert (invitation.state, invitation.used_by) == ("used", carl)


def test_a_spent_invitation_makes_no_second_user() -> None:
    _, secret = make()
    invitations.accept(secret, User(username="carl"))
    assert not is_open(secret)
    with pytest.raises(GoneError):
        invitations.accept(secret, User(username="eve"))
    assert not User.objects.filter(username="eve").exists()


@pytest.mark.django_db(transaction=True)
def test_of_many_requests_at_the_same_moment_one_makes_a_user() -> None:
    _, secret = make()
    barrier, outcomes = threading.Barrier(6), []

    def accept(number: int) -> None:
        try:
            barrier.wait()
            invitations.accept(secret, User(username=f"user-{number}"))
            outcomes.append("accepted")
        except GoneError:
            outcomes.append("gone")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=accept, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["accepted", *["gone"] * 5]
    assert User.objects.count() == 1


def test_a_refused_user_does_not_spend_the_invitation() -> None:
    _, secret = make()
    User.objects.create_user("carl")
    with pytest.raises(Exception, match=r"(?i)unique"), transaction.atomic():
        invitations.accept(secret, User(username="carl"))
    assert is_open(secret)


@pytest.mark.parametrize("secret", ["", "ghi_", "x" * 5000, "ghi_\0", "\ud800"])
def test_an_unknown_secret_is_gone(secret: str) -> None:
    make()
    assert not is_open(secret)


def test_an_expired_or_revoked_invitation_is_gone() -> None:
    (expired, expired_secret), (revoked, revoked_secret) = make(), make()
    Invitation.objects.filter(pk=expired.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert invitations.revoke(revoked)
    for secret in (expired_secret, revoked_secret):
        assert not is_open(secret)
        with pytest.raises(GoneError):
            invitations.accept(secret, User(username="eve"))
    assert [row.state for row in Invitation.objects.order_by("pk")] == ["expired", "revoked"]
    assert not invitations.revoke(expired)
    assert not User.objects.exists()


@pytest.mark.parametrize("loss", ["inactive", "no role", "smaller role", "permission"])
def test_an_inviter_who_lost_rights_leaves_a_link_that_is_gone(loss: str) -> None:
    anna = make_admin()
    if loss == "permission":  # may still create users, and lacks one permission of the role
        roles.set_role(anna, role("viewer"))
        anna.user_permissions.add(Permission.objects.get(codename="add_user"))
    _, secret = make("operator", anna)
    if loss == "inactive":
        User.objects.update(is_active=False)
    elif loss != "permission":
        roles.set_role(anna, role("operator") if loss == "smaller role" else None)
    assert not is_open(secret)
    with pytest.raises(GoneError):
        invitations.accept(secret, User(username="eve"))
    assert not User.objects.filter(username="eve").exists()
    assert Invitation.objects.get().used_at is None


def test_a_deleted_inviter_takes_the_open_invitations_along() -> None:
    anna = make_admin()
    _, secret = make("caller", anna)
    anna.delete()
    assert not is_open(secret)
    assert not Invitation.objects.exists()


def test_a_deleted_user_stays_in_the_list_as_a_used_invitation() -> None:
    _, secret = make()
    carl = User(username="carl")
    invitations.accept(secret, carl)
    carl.delete()
    assert Invitation.objects.get().state == "used"
    assert not is_open(secret)


def test_an_inviter_has_at_most_100_open_invitations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Invitation.MAX_OPEN == 100
    monkeypatch.setattr(Invitation, "MAX_OPEN", 2)
    anna = make_admin()
    (first, _), (_, second_secret) = make("caller", anna), make("caller", anna)
    with pytest.raises(InvitationError, match="open invitations, which is the limit"):
        make("caller", anna)
    make("caller", make_admin("berta"))
    make("caller")
    invitations.revoke(first)
    make("caller", anna)
    invitations.accept(second_secret, User(username="carl"))
    make("caller", anna)


def test_the_link_begins_with_the_address_of_the_settings(settings: Any) -> None:
    settings.GUILD_HALL_WEB_URL = "https://example.com/hall"
    _, link = invitations.invite(role("caller"), inviter=None)
    assert link.startswith("https://example.com/hall/invitations/ghi_")


def test_invitations_whose_time_is_long_over_are_deleted() -> None:
    now = timezone.now()
    old, recent, still_open = (make()[0] for _ in range(3))
    for invitation, age in (
        (old, Invitation.KEEP + timedelta(hours=1)),
        (recent, Invitation.KEEP - timedelta(hours=1)),
    ):
        Invitation.objects.filter(pk=invitation.pk).update(expires_at=now - age, used_at=now - age)
    assert Invitation.prune() == 1
    assert set(Invitation.objects.all()) == {recent, still_open}
