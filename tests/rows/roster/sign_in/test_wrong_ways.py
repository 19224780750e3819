"""Wrong ways in. Each row of a table is one way, and none of them gives a code, a token or a grant.

The last test counts the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone
from oauth2_provider.models import Application, RefreshToken
from oauth2_provider.models import Grant as LibraryCode

from mcp_runtime.control import grants
from mcp_runtime.control.tokens import delete_token, revoke_token
from roster.models import AccessToken, ClientRegistration, Grant, GuildMember, Token, ToolSet
from roster.sign_in import authorization, registration
from tests.support.sign_in import REDIRECT, RESOURCE, VERIFIER, SigningIn, challenge_of

pytestmark = pytest.mark.django_db

PAGE = "page"  # the person is told, and the browser is not sent anywhere
FAR = "https://app.example.com/callback"

# What a client asks for -------------------------------------------------------------------------------------------

# A name, the changes of a valid request, and the answer: PAGE, or the error with which the browser is sent back.
REQUESTS: list[tuple[str, dict[str, Any], str]] = [
    *(
        (f"redirect: {uri}", {"redirect_uri": uri}, PAGE)
        for uri in (
            "",
            "https://evil.example/callback",
            "//evil.example/callback",
            "/callback",
            "javascript:alert(1)",
            "data:text/html,x",
            "http://evil.example/callback",
            "http://127.0.0.1@evil.example/callback",
            "http://evil.example#@127.0.0.1/callback",
            "http://127.0.0.1:1\\@evil.example/callback",
            "http://127.0.0.1.evil.example/callback",
            "http://[::1]:49152/callback",
            "http://localhost:49152/callback",
            "https://127.0.0.1:49152/callback",
            f"{REDIRECT}/",
            f"{REDIRECT}/../admin",
            f"{REDIRECT}?next=https://evil.example",
            f"{REDIRECT}?",
            f"{REDIRECT}#x",
            f"{REDIRECT};x",
            "http://127.0.0.1:49152/Callback",
            "http://127.0.0.1:49152/%63allback",
            "http://127.0.0.1:49152//callback",
            "http://127.0.0.1:99999/callback",
            f"{REDIRECT}\0",
            f"{REDIRECT}\r\nSet-Cookie: a=b",
        )
    ),
    ("redirect: none", {"redirect_uri": None}, PAGE),
    ("client: none", {"client_id": None}, PAGE),
    ("client: unknown", {"client_id": "nobody"}, PAGE),
    ("client: empty", {"client_id": ""}, PAGE),
    ("client: with a null byte", {"client_id": "a\0b"}, PAGE),
    ("client: very long", {"client_id": "a" * 5000}, PAGE),
    ("PKCE: none", {"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
    ("PKCE: plain", {"code_challenge_method": "plain"}, "invalid_request"),
    ("PKCE: no method, which means plain", {"code_challenge_method": None}, "invalid_request"),
    ("PKCE: a method in small letters", {"code_challenge_method": "s256"}, "invalid_request"),
    ("PKCE: an unknown method", {"code_challenge_method": "S512"}, "invalid_request"),
    ("PKCE: an empty challenge", {"code_challenge": ""}, "invalid_request"),
    ("PKCE: a short challenge", {"code_challenge": "abc"}, "invalid_request"),
    ("type: implicit", {"response_type": "token"}, "unsupported_response_type"),
    ("type: id_token", {"response_type": "id_token"}, "unsupported_response_type"),
    ("type: hybrid", {"response_type": "code token"}, "unauthorized_client"),
    ("type: none", {"response_type": None}, "invalid_request"),
    *(
        (f"resource: {resource}", {"resource": resource}, "invalid_target")
        for resource in (
            "",
            "mcp",
            "https://localhost:8100/mcp",
            "http://localhost:8101/mcp",
            "http://localhost:8100.evil.example/mcp",
            "http://localhost:8100@evil.example/mcp",
            "http://evil.example/mcp",
            "http://evil.example/http://localhost:8100/mcp",
            "http://localhost:8000/api/",
            "http://localhost:8000/mcp",
            "http://localhost:8100/mcp/../sets/a/mcp",
            "http://localhost:8100/mcp/a/b",
            "http://localhost:8100/mcp?members=notes",
            "http://localhost:8100/mcp#x",
            "http://localhost:8100/events",
            "http://localhost:8100//mcp",
            "http://localhost:8100/mcp/%2e%2e",
            f"{RESOURCE} http://evil.example/mcp",
        )
    ),
    ("resource: a member that does not exist", {"resource": f"{RESOURCE}/nobody"}, PAGE),
    ("resource: a tool set that does not exist", {"resource": "http://localhost:8100/sets/nobody/mcp"}, PAGE),
    *(
        (f"pollution: two times {name}", {name: values}, PAGE)
        for name, values in {
            "client_id": ["nobody", "nobody"],
            "redirect_uri": [REDIRECT, "https://evil.example/"],
            "response_type": ["code", "token"],
            "state": ["a", "b"],
            "scope": ["mcp", "all"],
            "resource": [RESOURCE, "http://evil.example/mcp"],
            "code_challenge": ["a" * 43, "b" * 43],
            "code_challenge_method": ["S256", "plain"],
        }.items()
    ),
]


def nothing_is_allowed() -> bool:
    return not (Grant.objects.exists() or LibraryCode.objects.exists() or AccessToken.objects.exists())


@pytest.mark.parametrize(("changes", "answer"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS])
def test_a_wrong_request_is_refused_at_once_and_after_a_consent(
    client_of_boss: SigningIn, changes: dict[str, Any], answer: str
) -> None:
    client = client_of_boss
    form = client.ask()
    query = client.query(**changes)
    for response in (client.ask(query), client.decide(form, query)):  # the second one has a form for another request
        if response.status_code == 303:
            assert client.answer(response).get("error") == answer
            assert response["location"].startswith(f"{REDIRECT}?")
            assert client.answer(response)["iss"] == "http://localhost:8000"
        else:
            assert response.status_code == 400
            assert 'name="seal"' not in response.content.decode()
    if answer == PAGE:
        assert client.ask(query).status_code == 400
    assert nothing_is_allowed()


# The consent ------------------------------------------------------------------------------------------------------

Step = Callable[[SigningIn], Any]


def _as_somebody_else(client: SigningIn) -> Any:
    form = client.ask()
    client.browser.force_login(User.objects.create_superuser("mallory"))
    other_form = client.ask()
    return client.decide(form, csrfmiddlewaretoken=client.fields(other_form)["csrfmiddlewaretoken"])


def _in_a_later_session(client: SigningIn) -> Any:
    form, boss = client.ask(), User.objects.get(username="boss")
    client.browser.logout()
    client.browser.force_login(boss)
    return client.decide(form, csrfmiddlewaretoken=client.fields(client.ask())["csrfmiddlewaretoken"])


def _without_a_session(client: SigningIn) -> Any:
    form = client.ask()
    client.browser.logout()
    return client.decide(form)


def _for_a_reserved_member(client: SigningIn) -> Any:
    group = Group.objects.create(name="circle")
    GuildMember.objects.get(name="other").groups.add(group)
    caller = User.objects.create_user("caller")
    caller.groups.add(Group.objects.get(name="caller"))
    client.browser.force_login(caller)
    return client.decide(client.ask(), scope="members", members=["other"])


def _from(**headers: str) -> Step:
    def step(client: SigningIn) -> Any:
        form = client.ask()
        body = {**client.fields(form), "scope": "all", "days": "90", "decision": "allow"}
        return client.browser.post(f"/oauth/authorize?{client.query()}", body, headers=headers)

    return step


def _after_ten_minutes(client: SigningIn) -> Any:
    form = client.ask()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authorization, "SEAL_SECONDS", -1)
        return client.decide(form)


CONSENTS: dict[str, Step] = {
    "without the CSRF token": lambda client: client.decide(client.ask(), csrfmiddlewaretoken=None),
    "with another CSRF token": lambda client: client.decide(client.ask(), csrfmiddlewaretoken="x" * 64),
    "without the seal": lambda client: client.decide(client.ask(), seal=None),
    "with a made-up seal": lambda client: client.decide(client.ask(), seal="1.a.b:c:d"),
    "with the seal of another request": lambda client: client.decide(client.ask(), client.query(state="s2")),
    "with the seal of a request with less": lambda client: client.decide(
        client.ask(resource=f"{RESOURCE}/notes"), client.query()
    ),
    "with the seal of somebody else": _as_somebody_else,
    "with the seal of an earlier session": _in_a_later_session,
    "with a seal that is too old": _after_ten_minutes,
    "without a session": _without_a_session,
    "from a page of another site": _from(Origin="https://evil.example"),
    "from a page without an origin": _from(Origin="null"),
    "in an address": lambda client: client.ask(f"{client.query()}&decision=allow&scope=all&days=90"),
    "with an approval in the address": lambda client: client.ask(f"{client.query()}&approval_prompt=auto"),
    "without a person": lambda client: client.ask(f"{client.query()}&prompt=none"),
    "without a decision": lambda client: client.decide(client.ask(), decision=None),
    "without a scope": lambda client: client.decide(client.ask(), scope=None),
    "for some members, but none": lambda client: client.decide(client.ask(), scope="members"),
    "for some tools, but none": lambda client: client.decide(client.ask(), scope="tools"),
    "for a tool set, but none": lambda client: client.decide(client.ask(), scope="tool_set"),
    "for an unknown scope": lambda client: client.decide(client.ask(), scope="root"),
    "for an unknown member": lambda client: client.decide(client.ask(), scope="members", members=["nobody"]),
    "for an unknown tool": lambda client: client.decide(client.ask(), scope="tools", tools=["notes/rm"]),
    "for a reserved member": _for_a_reserved_member,
    "for everything, at the address of a member": lambda client: client.decide(
        client.ask(resource=f"{RESOURCE}/notes"), scope="all"
    ),
    "for another member, at the address of a member": lambda client: client.decide(
        client.ask(resource=f"{RESOURCE}/notes"), scope="tools", tools=["other/echo"]
    ),
    "for ever": lambda client: client.decide(client.ask(), days="36500"),
}


@pytest.mark.parametrize("step", CONSENTS.values(), ids=CONSENTS)
def test_nothing_but_the_form_of_the_person_is_a_consent(client_of_boss: SigningIn, step: Step) -> None:
    response = step(client_of_boss)
    assert response.status_code != 303
    assert "code=" not in response.headers.get("Location", "").replace("response_type=code", "")
    assert nothing_is_allowed()


def test_the_consent_is_asked_each_time_and_fits_into_no_frame(client_of_boss: SigningIn) -> None:
    client_of_boss.sign_in()
    page = client_of_boss.ask()
    assert page.status_code == 200
    assert 'name="seal"' in page.content.decode()
    assert page["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in page["Content-Security-Policy"]
    assert "form-action 'self' http://127.0.0.1:49152;" in page["Content-Security-Policy"]
    assert "no-store" in page["Cache-Control"]


# The tokens -------------------------------------------------------------------------------------------------------


def _code_of_another(client: SigningIn) -> Any:
    code = client.code()
    client.register(client_name="Other")
    return client.exchange(code)


def _after(change: Callable[[Token], Any]) -> Step:
    def step(client: SigningIn) -> Any:
        code = client.code()
        change(Token.objects.get())
        return client.exchange(code)

    return step


def _refresh_after(change: Callable[[Token], Any]) -> Step:
    def step(client: SigningIn) -> Any:
        tokens = client.sign_in()
        change(Token.objects.get())
        return client.refresh(tokens["refresh_token"])

    return step


def _without_one_of_two_redirects(client: SigningIn) -> Any:
    client.register(redirect_uris=[REDIRECT, FAR])
    return client.exchange(client.code(), redirect_uri=None)


def _refresh_of_another(client: SigningIn) -> Any:
    tokens = client.sign_in()
    client.register(client_name="Other")
    return client.refresh(tokens["refresh_token"])


def _end(token: Token) -> None:
    Token.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


def _deactivate(token: Token) -> None:
    User.objects.filter(pk=token.user_id).update(is_active=False)


def _expire_codes(token: Token) -> None:
    LibraryCode.objects.update(expires=timezone.now() - timedelta(seconds=1))


def _of_type(grant_type: str, **values: str) -> Step:
    return lambda client: client.token({"grant_type": grant_type, "client_id": client.client_id, **values})


def _at_a_member(client: SigningIn) -> Any:
    client.resource = f"{RESOURCE}/notes"
    code = client.answer(client.decide(client.ask(), scope="members"))["code"]
    return client.exchange(code, resource=RESOURCE)


EXCHANGES: dict[str, Step] = {
    "PKCE: no verifier": lambda client: client.exchange(client.code(), code_verifier=None),
    "PKCE: another verifier": lambda client: client.exchange(client.code(), code_verifier="w" * 50),
    "PKCE: the challenge as verifier": lambda client: client.exchange(
        client.code(), code_verifier=challenge_of(VERIFIER)
    ),
    "PKCE: an empty verifier": lambda client: client.exchange(client.code(), code_verifier=""),
    "redirect: none, of a client with two": _without_one_of_two_redirects,
    "redirect: another port": lambda client: client.exchange(
        client.code(), redirect_uri="http://127.0.0.1:50000/callback"
    ),
    "redirect: another host": lambda client: client.exchange(client.code(), redirect_uri="https://evil.example/"),
    "code: none": lambda client: client.exchange("") if client.code() else None,
    "code: made up": lambda client: client.exchange("x" * 30) if client.code() else None,
    "code: its SHA-256": lambda client: client.exchange(AccessToken.digest_of(client.code())),
    "code: of another client": _code_of_another,
    "code: expired": _after(_expire_codes),
    "code: of a revoked grant": _after(revoke_token),
    "code: of a deleted grant": _after(delete_token),
    "code: of a grant that ended": _after(_end),
    "code: of an inactive user": _after(_deactivate),
    "client: none": lambda client: client.exchange(client.code(), client_id=None),
    "client: unknown": lambda client: client.exchange(client.code(), client_id="nobody"),
    "client: with a secret": lambda client: client.exchange(client.code(), client_secret="x"),
    "resource: another": lambda client: client.exchange(client.code(), resource="http://evil.example/mcp"),
    "resource: wider than the consent": _at_a_member,
    "pollution: two codes": lambda client: client.token(
        {"grant_type": "authorization_code", "client_id": client.client_id, "code": [client.code()] * 2}
    ),
    "pollution: two verifiers": lambda client: client.exchange(client.code(), code_verifier=[VERIFIER, VERIFIER]),
    "pollution: two clients": lambda client: client.exchange(client.code(), client_id=[client.client_id] * 2),
    "type: password": _of_type("password", username="boss", password="x"),
    "type: client credentials": _of_type("client_credentials"),
    "type: device": _of_type("urn:ietf:params:oauth:grant-type:device_code", device_code="x"),
    "type: assertion": _of_type("urn:ietf:params:oauth:grant-type:jwt-bearer", assertion="x"),
    "type: token exchange": _of_type("urn:ietf:params:oauth:grant-type:token-exchange", subject_token="x"),
    "type: none": _of_type(""),
}
REFRESHES: dict[str, Step] = {
    "refresh: made up": lambda client: client.refresh("ghr_x") if client.sign_in() else None,
    "refresh: with the access token": lambda client: client.refresh(client.sign_in()["access_token"]),
    "refresh: by another client": _refresh_of_another,
    "refresh: for another resource": lambda client: client.refresh(
        client.sign_in()["refresh_token"], resource=f"{RESOURCE}/notes"
    ),
    "refresh: of a revoked grant": _refresh_after(revoke_token),
    "refresh: of a deleted grant": _refresh_after(delete_token),
    "refresh: of a grant that ended": _refresh_after(_end),
    "refresh: of an inactive user": _refresh_after(_deactivate),
    "refresh: the token as a code": lambda client: client.exchange(client.sign_in()["refresh_token"]),
    "refresh: two tokens": lambda client: client.token(
        {
            "grant_type": "refresh_token",
            "client_id": client.client_id,
            "refresh_token": [client.sign_in()["refresh_token"]] * 2,
        }
    ),
}


@pytest.mark.parametrize("step", [*EXCHANGES.values(), *REFRESHES.values()], ids=[*EXCHANGES, *REFRESHES])
def test_a_wrong_exchange_gives_no_token(client_of_boss: SigningIn, step: Step) -> None:
    response = step(client_of_boss)
    assert response.status_code in (400, 401), response.content
    assert response.json()["error"]
    assert "access_token" not in response.json()
    assert AccessToken.objects.count() == (1 if step in REFRESHES.values() and Token.objects.exists() else 0)


def test_the_parameters_of_an_exchange_are_in_its_body(client_of_boss: SigningIn) -> None:
    client = client_of_boss
    body = {"grant_type": "authorization_code", "code": client.code(), "client_id": client.client_id}
    body |= {"redirect_uri": REDIRECT, "code_verifier": VERIFIER}
    assert client.program.get("/oauth/token", body).status_code == 405
    assert client.program.post(f"/oauth/token?code={body['code']}", body).status_code == 400
    assert client.program.post("/oauth/token", body, content_type="application/json").status_code == 400
    assert not AccessToken.objects.exists()


@pytest.mark.parametrize(("length", "status"), [("abc", 400), ("-5", 400), ("9" * 5000, 400), ("20001", 413)])
def test_a_wrong_length_of_a_body_is_refused(client_of_boss: SigningIn, length: str, status: int) -> None:
    response = client_of_boss.program.post("/oauth/token", {"grant_type": "x"}, CONTENT_LENGTH=length)
    assert (response.status_code, response.json()["error"]) == (status, "invalid_request")


def test_a_code_that_is_used_twice_ends_its_grant(client_of_boss: SigningIn) -> None:
    client = client_of_boss
    code = client.code()
    tokens = client.exchange(code).json()
    assert client.exchange(code).status_code == 400
    assert Token.objects.get().state == "revoked"
    assert client.refresh(tokens["refresh_token"]).status_code == 400


def test_a_refresh_token_that_is_used_twice_ends_its_grant(client_of_boss: SigningIn) -> None:
    client = client_of_boss
    first = client.sign_in()
    second = client.refresh(first["refresh_token"]).json()
    third = client.refresh(second["refresh_token"]).json()
    assert client.refresh(first["refresh_token"]).status_code == 400
    assert Token.objects.get().state == "revoked"
    assert client.refresh(third["refresh_token"]).status_code == 400


def test_a_refresh_token_that_is_used_again_later_ends_its_grant(client_of_boss: SigningIn) -> None:
    client = client_of_boss
    first = client.sign_in()
    second = client.refresh(first["refresh_token"]).json()
    RefreshToken.objects.exclude(revoked=None).update(revoked=timezone.now() - timedelta(seconds=31))
    assert client.refresh(first["refresh_token"]).status_code == 400
    assert Token.objects.get().state == "revoked"
    assert client.refresh(second["refresh_token"]).status_code == 400


@pytest.mark.parametrize("end", [revoke_token, delete_token])
def test_a_grant_that_ends_while_a_refresh_is_answered_gives_no_token(
    client_of_boss: SigningIn, monkeypatch: pytest.MonkeyPatch, end: Callable[[Token], None]
) -> None:
    token, find = client_of_boss.sign_in()["refresh_token"], grants.find_by_family

    def find_and_wait(family: Any) -> Grant | None:
        grant = find(family)
        end(Token.objects.get())
        return grant

    monkeypatch.setattr(grants, "find_by_family", find_and_wait)
    assert client_of_boss.refresh(token).status_code == 400
    assert AccessToken.objects.count() <= 1  # that of the sign-in, until its row is pruned


def test_only_its_own_client_gives_a_token_back(client_of_boss: SigningIn) -> None:
    client = client_of_boss
    tokens = client.sign_in()
    owner = client.client_id
    client.register(client_name="Other")
    for client_id, state in ((client.client_id, "good"), ("nobody", "good"), (owner, "revoked")):
        response = client.program.post("/oauth/revoke", {"token": tokens["access_token"], "client_id": client_id})
        assert response.status_code in (200, 401, 400)
        assert Token.objects.get().state == state


# Registration -----------------------------------------------------------------------------------------------------

REGISTRATIONS: dict[str, Any] = {
    "a list": [],
    "no redirects": {"client_name": "x"},
    "an empty list of redirects": {"redirect_uris": []},
    "redirects that are no list": {"redirect_uris": REDIRECT},
    "a redirect that is no text": {"redirect_uris": [1]},
    "too many redirects": {"redirect_uris": [REDIRECT] * 11},
    "a long redirect": {"redirect_uris": [f"{REDIRECT}/{'x' * 500}"]},
    **{
        f"the redirect {uri}": {"redirect_uris": [uri]}
        for uri in (
            "javascript:alert(1)",
            "data:text/html,x",
            "file:///etc/passwd",
            "http://evil.example/callback",
            "http://169.254.169.254/callback",
            "http://127.0.0.1@evil.example/",
            "https://",
            "https:///callback",
            "https://*.example.com/callback",
            "https://example.com/a b",
            "https://example.com/#x",
            "myapp://callback",
            "urn:ietf:wg:oauth:2.0:oob",
            f"{REDIRECT} https://evil.example/",
        )
    },
    "a name that is no text": {"client_name": {}, "redirect_uris": [REDIRECT]},
    "the grant password": {"grant_types": ["password"], "redirect_uris": [REDIRECT]},
    "the grant client_credentials": {"grant_types": ["client_credentials"], "redirect_uris": [REDIRECT]},
    "the grant implicit": {"grant_types": ["authorization_code", "implicit"], "redirect_uris": [REDIRECT]},
    "the response token": {"response_types": ["token"], "redirect_uris": [REDIRECT]},
}


@pytest.mark.parametrize("metadata", REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_a_wrong_registration_is_refused_in_the_words_of_the_protocol(metadata: Any) -> None:
    response = SigningIn().program.post("/oauth/register", metadata, content_type="application/json")
    assert response.status_code == 400
    assert response.json()["error"] in ("invalid_client_metadata", "invalid_redirect_uri")
    assert not Application.objects.exists()


def test_bodies_that_are_not_json_or_too_long_register_nothing() -> None:
    program = SigningIn().program
    for body, status in ((b"{", 400), (b"[" * 10_000, 400), (b"\xff", 400), (b" " * 20_001, 413)):
        assert program.post("/oauth/register", body, content_type="application/json").status_code == status
    assert not Application.objects.exists()


def test_registrations_are_bounded_by_address_and_by_clients_that_nobody_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = SigningIn()
    assert [client.register().status_code for _ in range(11)] == [201] * 10 + [429]
    assert client.program.post("/oauth/register", {}, REMOTE_ADDR="10.1.1.1").status_code == 400  # another address
    ClientRegistration.objects.all().delete()
    monkeypatch.setattr("roster.sign_in.registration.MAX_UNUSED_CLIENTS", 10)
    assert client.register().status_code == 503  # somebody may read the consents of these now
    Application.objects.order_by("pk").filter(pk=Application.objects.earliest("pk").pk).update(
        created=timezone.now() - timedelta(minutes=11)
    )
    assert client.register().status_code == 201
    assert Application.objects.count() == 10


def test_registrations_at_the_same_moment_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "MAX_UNUSED_CLIENTS", 3)
    others, has_room = [SigningIn() for _ in range(2)], registration.has_room
    assert others[0].register().status_code == 201
    statuses = []

    def has_room_while_others_register() -> bool:
        found = has_room()
        if others:
            statuses.append(others.pop().register().status_code)
        return found

    monkeypatch.setattr(registration, "has_room", has_room_while_others_register)
    statuses.append(SigningIn().register().status_code)  # which two others overtake
    assert sorted(statuses) == [201, 201, 503]
    assert Application.objects.count() == 3


# REST -------------------------------------------------------------------------------------------------------------


def test_rest_and_the_admin_take_no_token_of_a_client(client_of_boss: SigningIn) -> None:
    tokens = client_of_boss.sign_in()
    for text in (tokens["access_token"], tokens["refresh_token"]):
        for path in ("/api/", "/api/tokens/", "/metrics", "/admin/"):
            response = client_of_boss.program.get(path, headers={"Authorization": f"Bearer {text}"})
            assert response.status_code in (401, 302), path
    assert client_of_boss.program.get(f"/api/?access_token={tokens['access_token']}").status_code == 401


def test_the_tool_set_that_is_reserved_for_others_gives_no_consent(boss: User) -> None:
    ToolSet.objects.get(name="writing").groups.add(Group.objects.create(name="circle"))
    caller = User.objects.create_user("caller")
    caller.groups.add(Group.objects.get(name="caller"))
    client = SigningIn(caller, resource="http://localhost:8100/sets/writing/mcp")
    client.register()
    hidden = client.ask()
    unknown = client.ask(resource="http://localhost:8100/sets/nobody/mcp")
    assert (hidden.status_code, unknown.status_code) == (400, 400)
    for page in (hidden, unknown):
        assert "There is nothing at /sets/" in page.content.decode()


def test_the_number_of_wrong_ways_is_what_the_page_says() -> None:
    """docs/sign-in.md has this number."""
    from tests.conftest import ROOT

    count = sum(map(len, (REQUESTS, CONSENTS, EXCHANGES, REFRESHES, REGISTRATIONS)))
    assert f"{count} wrong ways" in (ROOT / "docs" / "sign-in.md").read_text()
