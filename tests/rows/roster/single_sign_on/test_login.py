"""People log in at the provider: who they are, which role and groups they have, and what the audit log says."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import jwt
import pytest
from django.contrib.auth.models import Group, User
from django.db import InterfaceError, OperationalError, connections
from django.test import Client
from django.utils import timezone

from mcp_runtime.members import kept_id_tokens
from mcp_runtime.secrets import values
from roster import audit, invitations, roles
from roster.models import AuditEntry, GuildMember, Identity, Role
from roster.single_sign_on import attempts
from tests.rows.roster.single_sign_on.conftest import Person
from tests.support import provider as support
from tests.support.admin import html
from tests.support.provider import Answer, Provider

pytestmark = pytest.mark.django_db


def role_names(user: User) -> list[str]:
    return sorted(Role.objects.filter(group__user=user).values_list("name", flat=True))


def group_names(user: User) -> list[str]:
    return sorted(user.groups.filter(role=None).values_list("name", flat=True))


def entries(kind: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(kind=kind).order_by("pk"))


# Who it is --------------------------------------------------------------------------------------------------------


def test_the_first_login_makes_a_user_without_a_password_and_without_rights(provider: Provider, person: Person) -> None:
    provider.person |= {"given_name": "Jane", "family_name": "Doe"}
    response = person.log_in("/admin/roster/call/")
    assert (response.status_code, response.headers["Location"]) == (302, "/admin/")  # which says that she has no role
    user = User.objects.get()
    assert (user.username, user.email, user.get_full_name()) == ("jane", "jane@example.com", "Jane Doe")
    assert (user.has_usable_password(), user.is_superuser, user.is_staff) == (False, False, False)
    assert user.get_all_permissions() == set()
    assert "You are logged in as <strong>jane</strong>" in html(person.client.get("/admin/"))


def test_a_user_with_rights_goes_where_they_wanted_to_go(provider: Provider, person: Person, settings: Any) -> None:
    settings.GUILD_HALL_OIDC_GROUPS = [("*", "viewer")]
    assert person.log_in("/admin/roster/statuschange/?q=a").headers["Location"] == "/admin/roster/statuschange/?q=a"


def test_the_consent_of_a_client_with_a_long_address_comes_after_the_login(
    provider: Provider, person: Person, settings: Any
) -> None:
    settings.GUILD_HALL_OIDC_GROUPS = [("*", "viewer")]
    consent = f"/oauth/authorize?state={'s' * (attempts.MAX_NEXT - len('/oauth/authorize?state='))}"
    begun = person.begin(consent)
    assert len(begun.cookies[attempts.cookie_name()].OutputString()) < 4000
    assert person.client.get(person.at_provider(begun)).headers["Location"] == consent


def test_the_next_login_is_of_the_same_user_also_with_another_name_and_address(
    provider: Provider, person: Person
) -> None:
    person.log_in()
    provider.person |= {"preferred_username": "jane.roe", "email": "roe@example.com", "family_name": "Roe"}
    Person().log_in()
    user = User.objects.get()
    assert (user.username, user.email, user.last_name) == ("jane", "roe@example.com", "Roe")


@pytest.mark.parametrize("name", ["jane", "JANE"])
def test_a_local_user_with_the_same_name_and_address_stays_who_it_is(
    provider: Provider, person: Person, name: str
) -> None:
    local = User.objects.create_superuser(name, "jane@example.com", "a long secret")
    person.log_in()
    assert User.objects.get(identity__subject=provider.person["sub"]).username == "jane-2"
    assert not hasattr(User.objects.get(pk=local.pk), "identity")
    assert person.client.session["_auth_user_id"] != str(local.pk)
    assert Client().login(username=name, password="a long secret")
    provider.person["sub"] = "another"
    Person().log_in()
    assert User.objects.filter(username="jane-3").exists()


def test_the_same_subject_of_another_issuer_is_another_person(provider: Provider, person: Person) -> None:
    person.log_in()
    Identity.objects.update(issuer="https://former.example.com")
    Person().log_in()
    assert sorted(User.objects.values_list("username", flat=True)) == ["jane", "jane-2"]


@pytest.mark.parametrize(
    ("claim", "username"),
    [
        ("jane@example.com", "jane@example.com"),
        ("Jane Doe", "Jane-Doe"),
        ("<script>alert(1)</script>", "script-alert-1-script"),
        ("   ", "248289761001"),
        (None, "248289761001"),
        (["jane"], "248289761001"),
        ("///", "user"),
        ("j" * 500, "j" * 140),
        ("\N{FULLWIDTH LATIN SMALL LETTER J}ane\u202e", "jane"),
    ],
)
def test_any_name_becomes_a_valid_user_name(provider: Provider, person: Person, claim: Any, username: str) -> None:
    provider.person["preferred_username"] = claim
    person.log_in()
    user = User.objects.get()
    assert user.username == username
    user.full_clean(exclude=["password"])


def test_the_name_can_be_another_claim_and_come_from_the_userinfo_endpoint(
    provider: Provider, person: Person, settings: Any
) -> None:
    settings.GUILD_HALL_OIDC_USERNAME_CLAIM = "upn"
    provider.person["upn"] = "jdoe"
    provider.only_in_userinfo = {"upn"}
    person.log_in()
    assert User.objects.get().username == "jdoe"
    assert "GET /userinfo" in provider.requests


def test_the_userinfo_endpoint_is_not_asked_without_need(provider: Provider, person: Person) -> None:
    person.log_in()
    assert provider.requests == [f"GET {support.DISCOVERY}", "GET /authorize", "POST /token", "GET /jwks"]
    Person().log_in()
    assert provider.requests[4:] == ["GET /authorize", "POST /token"]


def test_keys_that_were_rotated_are_read_again(
    provider: Provider, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp_runtime.control import identity_provider

    monkeypatch.setattr(identity_provider, "KEYS_AGAIN_SECONDS", -1.0)
    person.log_in()
    provider.rotate("second", elliptic=True)
    assert Person().log_in().status_code == 302
    assert provider.requests.count("GET /jwks") == 2


def test_unknown_keys_do_not_make_the_hall_ask_again_and_again(provider: Provider) -> None:
    provider.sign = lambda row: provider.signed(row, kid="another")
    for _ in range(4):
        assert Person().log_in().status_code == 502
    assert provider.requests.count("GET /jwks") == 1


def test_a_provider_without_http_basic_gets_the_secret_in_the_body(provider: Provider, person: Person) -> None:
    provider.discovery = lambda row: row.update(token_endpoint_auth_methods_supported=["client_secret_post"])
    seen: list[dict[str, str]] = []
    usual = provider.token

    def token(form: dict[str, str], authorization: str) -> Answer:
        seen.append(form)
        import base64

        pair = f"{form['client_id']}:{form['client_secret'].replace('%', '%25').replace('+', '%2B')}"
        return usual(form, f"Basic {base64.b64encode(pair.encode()).decode()}")

    provider.token = token  # type: ignore[method-assign]
    assert person.log_in().status_code == 302
    assert seen[0]["client_secret"] == support.CLIENT_SECRET


@pytest.mark.django_db(transaction=True)
def test_two_first_logins_at_the_same_moment_make_one_user(provider: Provider) -> None:
    persons = [Person() for _ in range(4)]
    paths = [person.at_provider(person.begin()) for person in persons]
    barrier, statuses = threading.Barrier(len(persons)), []

    def finish(person: Person, path: str) -> None:
        try:
            barrier.wait()
            statuses.append(person.client.get(path).status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=finish, args=pair) for pair in zip(persons, paths, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [302] * len(persons)
    assert (User.objects.count(), Identity.objects.count()) == (1, 1)


# Who may log in --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "claims", "may"),
    [
        (["@example.com"], {}, True),
        (["@Example.com"], {"email": "jane@EXAMPLE.com"}, True),
        (["@example.org", "@example.com"], {}, True),
        (["@example.com"], {"email_verified": False}, False),
        (["@example.com"], {"email_verified": "true"}, False),
        (["@example.com"], {"email_verified": None}, False),
        (["@example.com"], {"email": "jane@evil.example"}, False),
        (["@example.com"], {"email": "jane@sub.example.com"}, False),
        (["@example.com"], {"email": "jane@notexample.com"}, False),
        (["@example.com"], {"email": "jane@evil.example@example.com"}, False),
        (["@example.com"], {"email": '"jane@evil.example "@example.com'}, False),
        (["@example.com"], {"email": "jane@evil.example\n@example.com"}, False),
        (["@example.com"], {"email": ["jane@example.com"]}, False),
        (["@example.com"], {"email": None}, False),
        (["hd=example.com"], {"hd": "example.com"}, True),
        (["hd=example.com"], {"hd": "evil.example"}, False),
        (["hd=example.com"], {}, False),
        (["groups=staff"], {"groups": ["a", "staff"]}, True),
        (["groups=staff"], {"groups": ["staff2"]}, False),
        (["groups=staff"], {"groups": "staff"}, True),
        (["groups=staff"], {"groups": {"staff": True}}, False),
        (["staff=true"], {"staff": True}, True),
        (["staff=true"], {"staff": False}, False),
        ([], {}, False),
    ],
)
def test_only_people_that_the_setting_names_come_in(
    provider: Provider, person: Person, settings: Any, allow: list[str], claims: dict[str, Any], may: bool
) -> None:
    settings.GUILD_HALL_OIDC_ALLOW = allow
    provider.person |= claims
    response = person.log_in()
    assert person.is_logged_in == may
    assert response.status_code == (302 if may else 403)
    assert User.objects.count() == may
    if not may:
        text = "You may not use this hall. Ask its operator, who decides which people of Example Ltd may log in."
        assert text in response.content.decode()
        entry = entries("login_failed")[0]
        assert (entry.actor, entry.target) == ("somebody", "single sign-on")
        assert (entry.after["subject"], entry.after["with"]) == ("248289761001", "Example Ltd")


def test_somebody_who_is_not_allowed_any_more_stays_out_with_what_they_had(
    provider: Provider, person: Person, settings: Any
) -> None:
    settings.GUILD_HALL_OIDC_GROUPS = [("*", "operator")]
    person.log_in()
    before = Identity.objects.get().last_login_at
    settings.GUILD_HALL_OIDC_ALLOW = ["groups=staff"]
    again = Person()
    assert again.log_in().status_code == 403
    assert not again.is_logged_in
    assert Identity.objects.get().last_login_at == before  # so the tokens end in time
    assert entries("login_failed")[0].target == "user jane"


def test_a_user_who_is_switched_off_stays_out_and_ends_their_session(provider: Provider, person: Person) -> None:
    person.log_in()
    User.objects.update(is_active=False)
    assert person.client.get("/admin/").status_code == 302
    again = Person()
    response = again.log_in()
    assert response.status_code == 403
    assert "Your user jane is switched off in this hall. Ask an admin of the hall." in response.content.decode()
    assert not again.is_logged_in
    assert not User.objects.get().is_active


# Role and groups --------------------------------------------------------------------------------------------------


def test_a_group_named_admin_makes_nobody_admin_unless_the_mapping_says_so(
    provider: Provider, person: Person, settings: Any
) -> None:
    Group.objects.create(name="editors")
    provider.person["groups"] = ["admin", "superuser", "operator", "editors", "admin (role)"]
    person.log_in()
    user = User.objects.get()
    assert (user.get_all_permissions(), user.groups.count(), user.is_superuser) == (set(), 0, False)
    settings.GUILD_HALL_OIDC_GROUPS = [("admin", "admin")]
    Person().log_in()
    assert role_names(user) == ["admin"]


def test_mapped_groups_are_read_again_at_each_login_and_others_stay(
    provider: Provider, person: Person, settings: Any
) -> None:
    settings.GUILD_HALL_OIDC_GROUPS = [("engineering", "operator"), ("design", "designers"), ("*", "caller")]
    provider.person["groups"] = ["engineering", "design", "unmapped"]
    person.log_in()
    user = User.objects.get()
    assert (role_names(user), group_names(user)) == (["operator"], ["designers"])
    local = Group.objects.create(name="book club")
    user.groups.add(local)
    GuildMember.objects.create(name="notes", directory="notes").groups.add(local)
    provider.person["groups"] = ["unmapped"]
    Person().log_in()
    assert (role_names(user), group_names(user)) == (["caller"], ["book club"])
    assert Group.objects.filter(name="designers").exists()
    changes = entries("user_changed")[-1]
    assert (changes.before["groups"], changes.after["groups"]) == (["book club", "designers"], ["book club"])
    assert changes.actor == "jane with single sign-on"
    role = entries("role_changed")[-1]
    assert (role.before["role"], role.after["role"]) == ("operator", "caller")


@pytest.mark.parametrize("groups", [None, "engineering", {"engineering": 1}, [["engineering"]], [None, 3], "missing"])
def test_a_groups_claim_that_is_missing_or_odd_gives_only_what_it_says(
    provider: Provider, person: Person, settings: Any, groups: Any
) -> None:
    settings.GUILD_HALL_OIDC_GROUPS = [("engineering", "operator")]
    provider.person["groups"] = ["engineering"]
    person.log_in()
    provider.person["groups"] = groups
    if groups == "missing":
        del provider.person["groups"]
    Person().log_in()
    assert role_names(User.objects.get()) == (["operator"] if groups == "engineering" else [])


def test_a_role_that_is_given_in_the_hall_stays(provider: Provider, person: Person, settings: Any) -> None:
    settings.GUILD_HALL_OIDC_GROUPS = [("engineering", "operator")]
    person.log_in()
    user = User.objects.get()
    roles.set_role(user, Role.objects.get(name="viewer"))
    provider.person["groups"] = ["engineering"]
    Person().log_in()
    assert roles.role_of(User.objects.get()).name == "operator"  # type: ignore[union-attr]
    provider.person["groups"] = []
    Person().log_in()
    assert role_names(user) == ["viewer"]


def test_what_an_earlier_mapping_gave_is_taken_away_when_the_setting_does_not_give_it_any_more(
    provider: Provider, person: Person, settings: Any
) -> None:
    settings.GUILD_HALL_OIDC_GROUPS = [("engineering", "admin"), ("engineering", "writers")]
    provider.person["groups"] = ["engineering"]
    person.log_in()
    settings.GUILD_HALL_OIDC_GROUPS = []
    Person().log_in()
    assert User.objects.get().groups.count() == 0


def test_the_group_of_a_role_is_reached_by_the_name_of_the_role_only(
    provider: Provider, person: Person, settings: Any
) -> None:
    name = Role.objects.get(name="admin").group.name
    Role.objects.get(name="admin").group.__class__.objects.filter(name=name).update(name="admin (role)")
    settings.GUILD_HALL_OIDC_GROUPS = [("staff", "admin (role)")]
    provider.person["groups"] = ["staff"]
    person.log_in()
    assert User.objects.get().groups.count() == 0


# Sessions and the login page --------------------------------------------------------------------------------------


def test_a_session_ends_after_its_hours_also_if_it_is_used(
    provider: Provider, person: Person, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.GUILD_HALL_OIDC_SESSION_HOURS = 2
    person.log_in()
    assert person.client.get("/admin/").status_code == 200
    assert timedelta(hours=1, minutes=59) < person.client.session.get_expiry_date() - timezone.now()
    session = person.client.session
    session["touched"] = time.time()
    session.save()
    assert session.get_expiry_date() - timezone.now() < timedelta(hours=2)
    session.set_expiry(timezone.now() - timedelta(seconds=1))
    session.save()
    assert person.client.get("/admin/").status_code == 302


def test_sessions_of_the_provider_end_when_there_is_no_provider_any_more(
    provider: Provider, person: Person, settings: Any
) -> None:
    person.log_in()
    settings.AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
    assert person.client.get("/admin/").status_code == 302


def test_a_session_from_before_the_login_is_not_used_afterwards(provider: Provider, person: Person) -> None:
    session = person.client.session
    session["planted"] = True
    session.save()
    before = session.session_key
    person.log_in()
    assert person.client.session.session_key != before


def test_logging_out_ends_the_session_and_is_in_the_audit_log(provider: Provider, person: Person) -> None:
    person.log_in()
    person.client.post("/admin/logout/")
    assert not person.is_logged_in
    assert [entry.kind for entry in AuditEntry.objects.order_by("pk")] == ["user_created", "login", "logout"]
    assert entries("login")[0].after == {"with": "single sign-on"}
    assert entries("login")[0].actor == "jane"
    assert entries("user_created")[0].actor == "jane with single sign-on"
    assert audit.filtered(AuditEntry.objects.all(), actor="jane").count() == 3


def test_the_page_of_a_user_names_the_person_at_the_provider(provider: Provider, person: Person) -> None:
    person.log_in()
    local, admin = User.objects.create_superuser("root"), Client()
    admin.force_login(local)
    page = html(admin.get(f"/admin/auth/user/{User.objects.get(username='jane').pk}/change/"))
    assert f"248289761001 of {provider.url}. Last login there: " in page
    assert "Single sign-on" not in html(admin.get(f"/admin/auth/user/{local.pk}/change/"))


def test_the_login_page_has_the_button_with_the_page_that_people_wanted(provider: Provider, person: Person) -> None:
    page = html(person.client.get("/admin/login/?next=/admin/roster/call/"))
    assert 'href="http://localhost:8000/single-sign-on/?next=%2Fadmin%2Froster%2Fcall%2F"' in page
    assert "Log in with Example Ltd" in page
    assert 'name="password"' in page
    assert "evil" not in html(person.client.get("/admin/login/?next=//evil.example/")).partition("sign-on")[2]


def test_without_an_issuer_the_login_page_has_no_button(person: Person) -> None:
    assert "single-sign-on" not in html(person.client.get("/admin/login/"))


def test_wrong_clocks_are_told_with_their_difference(provider: Provider, person: Person) -> None:
    provider.claims = lambda row: row.update(iat=row["iat"] - 7200, exp=row["exp"] - 7200)
    page = person.log_in().content.decode()
    assert "The clocks of this hall and of Example Ltd differ by about 120 minutes" in page
    assert entries("login_failed")[0].after["clock"] == "wrong"


def test_a_provider_that_is_away_is_told_and_local_login_goes_on(
    provider: Provider, person: Person, settings: Any
) -> None:
    User.objects.create_superuser("root", password="a long secret")
    settings.GUILD_HALL_OIDC_ISSUER = "http://127.0.0.1:1"
    response = person.begin("/admin/roster/call/")
    assert response.status_code == 503
    assert "Example Ltd cannot be reached: connection refused. Try again later." in response.content.decode()
    form = {"username": "root", "password": "a long secret", "next": "/admin/roster/call/"}
    assert person.client.post("/admin/login/", form).headers["Location"] == "/admin/roster/call/"


def test_the_client_secret_is_in_no_page_log_or_entry(
    provider: Provider, person: Person, caplog: pytest.LogCaptureFixture
) -> None:
    provider.answers["/token"] = Answer(401, f'{{"error": "invalid_client", "x": "{support.CLIENT_SECRET}"}}'.encode())
    page = person.log_in().content.decode()
    assert "Example Ltd answered with HTTP 401 (the token endpoint: invalid_client)." in page
    for text in (page, caplog.text, str([entry.after for entry in AuditEntry.objects.all()])):
        assert "a secret" not in text


# Without passwords ------------------------------------------------------------------------------------------------


@pytest.fixture
def only_provider(provider: Provider, settings: Any) -> Provider:
    settings.GUILD_HALL_OIDC_ONLY = 1
    settings.AUTHENTICATION_BACKENDS = ["roster.login_backends.LinkBackend", "roster.login_backends.ProviderBackend"]
    return provider


def test_where_passwords_are_switched_off_only_the_provider_lets_in(only_provider: Provider, person: Person) -> None:
    User.objects.create_superuser("root", password="a long secret")
    page = html(person.client.get("/admin/login/"))
    assert ('name="password"' in page, "Log in with Example Ltd" in page) == (False, True)
    response = person.client.post("/admin/login/", {"username": "root", "password": "a long secret"})
    assert response.status_code == 403
    assert "This hall has no logins with a password. Use the button." in response.content.decode()
    assert not person.client.login(username="root", password="a long secret")
    assert person.log_in().status_code == 302
    assert person.is_logged_in


def test_where_passwords_are_switched_off_local_sessions_end_and_invitations_do_not_work(
    provider: Provider, person: Person, settings: Any
) -> None:
    User.objects.create_superuser("root", password="a long secret")
    person.client.login(username="root", password="a long secret")
    _, link = invitations.invite(Role.objects.get(name="caller"), inviter=None)
    settings.GUILD_HALL_OIDC_ONLY = 1
    settings.AUTHENTICATION_BACKENDS = ["roster.login_backends.LinkBackend", "roster.login_backends.ProviderBackend"]
    assert person.client.get("/admin/").status_code == 302
    assert Client().get(link.removeprefix("http://localhost:8000")).status_code == 410
    with pytest.raises(invitations.InvitationError, match="single sign-on only"):
        invitations.invite(Role.objects.get(name="caller"), inviter=None)


def test_invitations_work_beside_a_provider(provider: Provider) -> None:
    _, link = invitations.invite(Role.objects.get(name="caller"), inviter=None)
    secret = "a long secret"
    form = {"username": "carl", "password1": secret, "password2": secret}
    assert Client().post(link.removeprefix("http://localhost:8000"), form).status_code == 302


# Members that take the login --------------------------------------------------------------------------------------


def takes_logins() -> GuildMember:
    oauth = {"grant": "enterprise_managed", "credentials": "user"}
    return GuildMember.objects.create(name="tickets", server_url="https://a.example/mcp", manifest={"oauth": oauth})


@pytest.mark.parametrize("error", [OperationalError("the disk is full"), InterfaceError("closed")])
def test_a_login_goes_on_if_the_database_cannot_keep_its_id_token(
    provider: Provider,
    person: Person,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    takes_logins()
    monkeypatch.setattr(values, "lock", Mock(side_effect=error))
    assert person.log_in().status_code == 302
    assert "You are logged in as" in html(person.client.get("/admin/"))
    assert f"the ID token of a login cannot be kept for members: {error}" in caplog.text


def test_a_login_goes_on_if_the_provider_writes_the_end_of_an_id_token_as_a_text(
    provider: Provider, person: Person
) -> None:
    takes_logins()
    provider.claims = lambda row: row.update(exp=str(row["exp"]))
    assert person.log_in().status_code == 302
    assert Identity.objects.get().id_token


def test_the_id_token_of_a_user_who_is_not_active_any_more_is_forgotten(provider: Provider, person: Person) -> None:
    takes_logins()
    person.log_in()
    kept_id_tokens.prune()
    assert Identity.objects.get().id_token
    User.objects.update(is_active=False)
    kept_id_tokens.prune()
    assert (Identity.objects.get().id_token, Identity.objects.get().id_token_ends_at) == ("", None)


def test_the_id_token_is_kept_if_a_member_takes_it_and_not_otherwise(provider: Provider, person: Person) -> None:
    person.log_in()
    assert Identity.objects.get().id_token == ""
    member = takes_logins()
    person.log_in()
    identity = Identity.objects.get()
    issuer, token = kept_id_tokens.of_user(identity.user_id)
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (issuer, claims["sub"]) == (provider.url, identity.subject)
    assert identity.id_token_ends_at is not None
    assert int(identity.id_token_ends_at.timestamp()) == claims["exp"]
    assert token not in identity.id_token
    member.delete()
    person.log_in()
    assert Identity.objects.get().id_token == ""
