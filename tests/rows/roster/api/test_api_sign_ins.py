"""Members behind OAuth over REST and on the command line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from mcp_runtime.control import sign_ins
from mcp_runtime.members.manifest.parser import parse
from roster.models import GuildMember, MemberSignIn
from tests.support.api import client_of
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = pytest.mark.django_db

VAULT = "/api/members/vault/"


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


@pytest.fixture
def admin(root: User) -> Client:
    return client_of(root)


@pytest.fixture(autouse=True)
def vault(world: OAuthWorld) -> GuildMember:
    manifest = parse({"name": "vault", "version": "1", "transport": "http", "url": world.url})[0].as_json()
    return GuildMember.objects.create(name="vault", directory="vault", manifest=manifest, server_url=world.url)


def test_a_sign_in_begins_over_rest_and_its_user_finishes_it(admin: Client, root: User, world: OAuthWorld) -> None:
    response = admin.post(f"{VAULT}sign-in/", {}, content_type="application/json")
    begun = response.json()
    assert (response.status_code, begun["issuer"]) == (200, world.base)
    answer = world.approve(begun["address"])
    sign_ins.finish(answer, root, "any browser of the user")
    signed_in = admin.get(VAULT)
    assert signed_in.json()["sign_in"]["state"] == "signed in"
    assert signed_in.json()["sign_in"]["signed_in_by"] == "root"
    assert not any(token in signed_in.content.decode() for token in (*world.access, *world.refresh))
    assert admin.post(f"{VAULT}sign-out/").json() == {"revoked": True}
    assert admin.post(f"{VAULT}sign-out/").status_code == 409


def test_why_a_sign_in_cannot_begin_is_told(admin: Client, world: OAuthWorld) -> None:
    world.registers = False
    needs_id = admin.post(f"{VAULT}sign-in/", {}, content_type="application/json")
    assert (needs_id.status_code, needs_id.json()["code"]) == (409, "client_id_needed")
    world.metadata["code_challenge_methods_supported"] = []
    lie = admin.post(f"{VAULT}sign-in/", {}, content_type="application/json")
    assert (lie.status_code, lie.json()["code"]) == (502, "sign_in_failed")
    body = json.dumps({"client": "x"})
    assert admin.post(f"{VAULT}sign-in/", body, content_type="application/json").status_code == 400


def test_the_commands_print_the_address_and_sign_out(root: User, world: OAuthWorld, vault: GuildMember) -> None:
    output = io.StringIO()
    call_command("sign_in", "vault", stdout=output, stderr=io.StringIO())
    assert output.getvalue() == f"http://localhost:8000/admin/roster/guildmember/{vault.pk}/sign-in/\n"
    begun = sign_ins.begin(vault, root, web="http://localhost:8000")
    sign_ins.finish(world.approve(begun.address), root, "")
    call_command("sign_out", "vault", stdout=output)
    assert output.getvalue().endswith("vault is signed out.\n")
    assert MemberSignIn.objects.count() == 0
    for command in ("sign_in", "sign_out"):
        with pytest.raises(CommandError):
            call_command(command, "nobody")
