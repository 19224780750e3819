"""What the page of a member, REST and the commands say about the lock of its packages. The tests write the rows."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import reverse

from mcp_runtime.members.manifest import parser
from mcp_runtime.protocol.errors import ManifestError
from mcp_runtime.secrets.values import identity
from roster.models import AuditEntry, GuildMember, PackageLock

pytestmark = pytest.mark.django_db

NPX: dict[str, Any] = {"command": "npx", "args": ["-y", "pocket-mcp"], "packages": "locked"}


def add(**manifest: Any) -> GuildMember:
    document = {"name": "anna", "version": "1", "transport": "stdio", **manifest}
    values = parser.parse(document)[0].as_json()
    return GuildMember.objects.create(name="anna", directory="anna", manifest=values)


def lock(member: GuildMember, **columns: Any) -> PackageLock:
    values = {"digest": "ab" * 32, "version": "1.2.3", "count": 7, "scripts": ["<native>"], "node": "north", **columns}
    specification = "npm pocket-mcp"
    key = PackageLock.key_of(specification)
    return PackageLock.objects.create(member=member, specification=specification, key=key, text="secret text", **values)


def page(member: GuildMember, user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.get(reverse("admin:roster_guildmember_change", args=[member.pk])).content.decode()


def detail(user: User) -> Any:
    client = Client()
    client.force_login(user)
    return client.get("/api/members/anna/").json()["packages"]


def test_the_page_and_rest_show_the_lock(admin_user: User) -> None:
    member = add(**NPX)
    assert "locked and installed at the first start" in page(member, admin_user)
    assert (detail(admin_user)["version"], detail(admin_user)["made_at"]) == ("", None)
    lock(member)
    text = page(member, admin_user)
    assert "npm pocket-mcp, locked at version 1.2.3 with 7 packages" in text
    assert "ab" * 32 in text
    assert "Install scripts did not run of: &lt;native&gt;" in text
    assert "secret text" not in text
    values = detail(admin_user)
    assert (values["specification"], values["version"], values["count"], values["node"]) == (
        *("npm pocket-mcp", "1.2.3", 7),
        "north",
    )
    assert (values["sha256"], values["scripts"], values["runs_scripts"]) == ("ab" * 32, ["<native>"], False)


def test_the_lock_of_another_version_is_not_shown(admin_user: User) -> None:
    lock(add(**{**NPX, "args": ["-y", "pocket-mcp@2.0.0"]}))
    assert (detail(admin_user)["specification"], detail(admin_user)["version"]) == ("npm pocket-mcp@2.0.0", "")


def test_who_may_not_see_the_manifest_does_not_see_the_packages() -> None:
    lock(add(**NPX))
    user = User.objects.create_user("bob")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    assert detail(user) is None


def test_a_member_without_locked_packages_has_none(admin_user: User) -> None:
    member = add(**{**NPX, "packages": "fetched"})
    assert detail(admin_user) is None
    assert "<dt>Packages</dt>" not in page(member, admin_user)


def test_relock_deletes_the_locks_and_restarts_the_member() -> None:
    member = add(**NPX)
    lock(member)
    output = io.StringIO()
    call_command("relock", "anna", stdout=output, stderr=output)
    assert "The lock of anna is deleted" in output.getvalue()
    member.refresh_from_db()
    assert (PackageLock.objects.count(), member.restart_requested_at is not None) == (0, True)
    entry = AuditEntry.objects.get(kind="packages_unlocked")
    assert entry.before == {"locks": [f"npm pocket-mcp, sha256 {'ab' * 32}"]}


def test_relock_refuses_members_without_a_lock() -> None:
    with pytest.raises(CommandError, match="no member 'bob'"):
        call_command("relock", "bob")
    add(**{**NPX, "packages": "fetched"})
    with pytest.raises(CommandError, match="has no lock"):
        call_command("relock", "anna")


def test_another_way_to_get_packages_needs_another_permission_for_secrets() -> None:
    manifest = add(**NPX).manifest
    fetched = {**manifest, "packages": "fetched"}
    assert identity(fetched) == identity({key: value for key, value in manifest.items() if key != "packages"})
    assert len({identity({**manifest, "packages": mode}) for mode in ("fetched", "locked", "locked-with-scripts")}) == 3


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ({"command": "bunx"}, "only npx and uvx"),
        ({"args": ["github:a/b"]}, "NAME@VERSION"),
        ({"env": {"NPM_CONFIG_REGISTRY": "http://example.com"}}, "NPM_CONFIG_REGISTRY"),
        ({"packages": "sometimes"}, "is not supported"),
    ],
)
def test_a_manifest_whose_packages_cannot_be_locked_is_refused(manifest: dict[str, Any], reason: str) -> None:
    with pytest.raises(ManifestError, match=reason):
        add(**{**NPX, **manifest})


def test_a_remote_server_has_no_packages() -> None:
    with pytest.raises(ManifestError, match="belongs to command"):
        parser.parse(
            {"name": "a", "version": "1", "transport": "http", "url": "https://example.com/mcp", "packages": "locked"}
        )
