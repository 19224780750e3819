"""The page that signs a member in, where browsers come back, and the button that signs it out."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from mcp_runtime.members.manifest.parser import parse
from roster.models import GuildMember, MemberSignIn, MemberSignInAttempt
from tests.support.admin import allow, html, make_member, messages_of, page_of
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]

CALLBACK = "/members/sign-in/"


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture
def vault(world: OAuthWorld) -> GuildMember:
    manifest = parse({"name": "vault", "version": "1", "transport": "http", "url": world.url})[0].as_json()
    return make_member("vault", manifest=manifest, server_url=world.url, status="error", needs_sign_in=True)


def address(member: GuildMember, verb: str = "sign_in") -> str:
    return reverse(f"admin:roster_guildmember_{verb}", args=[member.pk])


def link_in(response: Any) -> str:
    return unescape(html(response).partition('id="continue" href="')[2].partition('"')[0])


def come_back(client: Client, world: OAuthWorld, link: str, **more: str) -> Any:
    return client.get(CALLBACK, {**world.approve(link), **more}, follow=True)


def test_a_person_signs_a_member_in_and_out(page: Client, vault: GuildMember, world: OAuthWorld) -> None:
    assert "sign-in needed" in html(page.get(page_of(vault)))
    shown = page.post(address(vault))
    assert world.base in html(shown)
    link = link_in(shown)
    assert urlsplit(link).path == "/authorize"
    response = come_back(page, world, link)
    assert messages_of(response) == ["vault is signed in, and connects now."]
    assert "Sign out" in html(page.get(page_of(vault)))
    vault.refresh_from_db()
    assert (vault.needs_sign_in, vault.restart_requested_at is not None) == (False, True)
    assert messages_of(page.post(address(vault, "sign_out"), follow=True)) == ["vault is signed out."]
    assert MemberSignIn.objects.count() == 0


def test_another_user_and_another_browser_cannot_finish_it(page: Client, vault: GuildMember, world: OAuthWorld) -> None:
    link = link_in(page.post(address(vault)))
    mallory = User.objects.create_superuser("mallory")
    other, same_user = Client(), Client()
    other.force_login(mallory)
    same_user.force_login(User.objects.get(username="alice"))
    for client in (other, same_user):
        (message,) = messages_of(come_back(client, world, link))
        assert "somebody else began it" in message
    Client().get(CALLBACK, world.approve(link))  # nobody is logged in
    assert (MemberSignIn.objects.filter(has_tokens=True).count(), MemberSignInAttempt.objects.count()) == (0, 1)


def test_an_answer_without_a_sign_in_and_a_refusal_are_told(
    page: Client, vault: GuildMember, world: OAuthWorld
) -> None:
    (message,) = messages_of(page.get(CALLBACK, {"code": "x", "state": "y"}, follow=True))
    assert "This sign-in is over" in message
    world.answer_parameters["error"] = "access_denied"
    (message,) = messages_of(come_back(page, world, link_in(page.post(address(vault)))))
    assert "access_denied" in message


def test_a_user_who_lost_the_right_cannot_finish_it(client: Client, vault: GuildMember, world: OAuthWorld) -> None:
    bob = User.objects.create_user("bob", is_staff=True)
    allow(bob, "view_guildmember", "control_member")
    client.force_login(bob)
    link = link_in(client.post(address(vault)))
    bob.user_permissions.clear()
    client.get(CALLBACK, world.approve(link))
    assert not MemberSignIn.objects.filter(has_tokens=True).exists()
    assert client.post(address(vault)).status_code == 403


def test_the_page_asks_for_a_client_id_where_the_hall_cannot_register(
    page: Client, vault: GuildMember, world: OAuthWorld
) -> None:
    world.registers = False
    shown = page.post(address(vault))
    assert "Register it there by hand" in html(shown)
    assert "This field is required" in html(page.post(address(vault), {"client_id": ""}))
    link = link_in(page.post(address(vault), {"client_id": "by-hand", "client_secret": ""}))
    assert "client_id=by-hand" in link


def test_a_lie_of_the_server_is_told_to_the_person(page: Client, vault: GuildMember, world: OAuthWorld) -> None:
    world.metadata["issuer"] = "https://<b>evil</b>.example.com"
    shown = html(page.post(address(vault)))
    assert "Not possible: the authorization server calls itself" in shown
    assert "<b>evil" not in shown


def test_the_document_of_the_hall_needs_a_public_address(client: Client, settings: Any) -> None:
    assert client.get(f"{CALLBACK}client.json").status_code == 404
    settings.GUILD_HALL_WEB_URL = "https://hall.example.com"
    answer = client.get(f"{CALLBACK}client.json").json()
    assert answer["client_id"] == "https://hall.example.com/members/sign-in/client.json"
    assert answer["redirect_uris"] == ["https://hall.example.com/members/sign-in/"]
