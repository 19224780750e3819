"""Who did what, as the audit log has it: logins, users, roles, passwords, groups, invitations, tokens, members."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import transaction
from django.test import Client

from mcp_runtime.control import members as control
from mcp_runtime.control import nodes, secrets
from mcp_runtime.control.tokens import NewToken, delete_token, make_token, revoke_token
from mcp_runtime.members import discovery
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.rows import lease
from mcp_runtime.security import access, principals
from roster import audit, invitations, roles
from roster.models import AuditEntry, GuildMember, Hall, Node, Role, Token, Tool

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def hall() -> None:
    lease.hall()


def entries(*columns: str) -> list[tuple[Any, ...]]:
    """The entries, oldest first."""
    return list(AuditEntry.objects.order_by("pk").values_list(*(columns or ("kind", "target", "before", "after"))))


def new_entries(change: Any, *columns: str) -> list[tuple[Any, ...]]:
    count = AuditEntry.objects.count()
    change()
    return entries(*columns)[count:]


def person(name: str, role: str = "") -> User:
    user = User.objects.create_user(name, password=PASSWORD)
    if role:
        roles.set_role(user, Role.objects.get(name=role))
    return user


def browser(user: User | None) -> Client:
    client = Client()
    if user is not None:
        client.force_login(user)
    return client


def member(name: str = "notes") -> GuildMember:
    return GuildMember.objects.create(name=name, directory=name, status="connected")


# Logins -----------------------------------------------------------------------------------------------------------


def test_a_login_and_a_logout_have_the_user_and_the_address_of_the_client() -> None:
    bob, client = person("bob", "viewer"), Client()
    columns = ("kind", "actor", "actor_user", "source", "address", "target")

    def visit() -> None:
        form = {"username": "bob", "password": PASSWORD}
        client.post("/admin/login/", form, REMOTE_ADDR="192.0.2.7", HTTP_X_FORWARDED_FOR="203.0.113.9")
        client.post("/admin/logout/", REMOTE_ADDR="192.0.2.8")

    assert new_entries(visit, *columns) == [
        ("login", "bob", bob.pk, "web", "192.0.2.7", "user bob"),
        ("logout", "bob", bob.pk, "web", "192.0.2.8", "user bob"),
    ]


def test_a_failed_login_names_a_user_and_never_what_was_typed() -> None:
    person("bob", "viewer")

    def try_names() -> None:
        for name in ("bob", PASSWORD, "b\0b"):
            Client().post("/admin/login/", {"username": name, "password": "wrong"}, REMOTE_ADDR="192.0.2.7")

    found = new_entries(try_names, "kind", "target", "actor", "address")
    assert found[0] == ("login_failed", "user bob", "somebody", "192.0.2.7")
    assert {entry[:3] for entry in found[1:]} == {("login_failed", audit.UNKNOWN_NAME, "somebody")}
    assert PASSWORD not in str(entries())


# Users, roles, passwords, groups ----------------------------------------------------------------------------------


def test_one_form_of_a_user_is_one_entry_of_each_kind() -> None:
    root, bob = User.objects.create_superuser("root"), person("bob", "viewer")
    circle = Group.objects.create(name="circle")
    form = {
        **{"username": "bob", "role": "operator", "first_name": "Bob", "is_active": "on", "groups": [circle.pk]},
        **{"last_login_0": "", "last_login_1": "", "date_joined_0": "2030-01-01", "date_joined_1": "00:00:00"},
    }
    found = new_entries(
        lambda: browser(root).post(f"/admin/auth/user/{bob.pk}/change/", form),
        "kind",
        "actor",
        "target",
        "before",
        "after",
    )
    before, after = {"first_name": "", "groups": []}, {"first_name": "Bob", "groups": ["circle"]}
    assert found[1:] == [  # the first one is the login
        ("user_changed", "root", "user bob", before, after),
        ("role_changed", "root", "user bob", {"role": "viewer"}, {"role": "operator"}),
    ]


def test_a_form_that_changes_nothing_has_no_entry() -> None:
    root, bob = User.objects.create_superuser("root"), person("bob", "viewer")
    client = browser(root)
    form = {"username": "bob", "role": "viewer", "is_active": "on"}
    assert new_entries(lambda: client.post(f"/admin/auth/user/{bob.pk}/change/", form)) == []


def test_a_new_user_is_one_entry_with_the_role() -> None:
    client = browser(person("ann", "admin"))
    form = {
        "username": "bob",
        "password1": PASSWORD,
        "password2": PASSWORD,
        "usable_password": "true",
        "role": "caller",
    }
    found = new_entries(lambda: client.post("/admin/auth/user/add/", form), "kind", "actor", "target", "after")
    assert found == [
        (
            "user_created",
            "ann",
            "user bob",
            {"username": "bob", "is_active": True, "is_staff": False} | {"is_superuser": False, "role": "caller"},
        ),
    ]


def test_a_new_password_is_an_entry_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    root, bob = User.objects.create_superuser("root"), person("bob", "viewer")
    client = browser(root)
    form = {"password1": f"{PASSWORD} staple", "password2": f"{PASSWORD} staple", "usable_password": "true"}
    found = new_entries(lambda: client.post(f"/admin/auth/user/{bob.pk}/password/", form))
    assert found == [("password_changed", "user bob", None, None)]
    monkeypatch.setattr(sys, "argv", ["manage.py", "changepassword", "bob"])
    monkeypatch.setattr("getpass.getpass", lambda *_, **__: f"{PASSWORD} again")
    found = new_entries(lambda: call_command("changepassword", "bob"), "kind", "source", "target")
    assert found == [("password_changed", "command", "user bob")]


def test_a_login_that_writes_a_newer_hash_of_the_same_password_is_no_change() -> None:
    bob = person("bob", "viewer")
    bob.set_password(PASSWORD)
    bob._password = None
    assert new_entries(lambda: bob.save(update_fields=["password"])) == []
    assert new_entries(lambda: bob.save(update_fields=["last_login"])) == []


def test_the_role_of_a_command_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    person("bob", "viewer")
    monkeypatch.setattr(sys, "argv", ["manage.py", "set_role", "bob", "admin"])
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    found = new_entries(lambda: call_command("set_role", "bob", "admin"), "kind", "source", "actor", "before", "after")
    actor = "system user root (manage.py set_role)"
    assert found == [("role_changed", "command", actor, {"role": "viewer"}, {"role": "admin"})]
    found = new_entries(lambda: call_command("create_user", "carl"), "kind", "target")
    assert found == [("user_created", "user carl")]


def test_a_deleted_user_stays_in_the_entries() -> None:
    root, bob = User.objects.create_superuser("root"), person("bob", "caller")
    Token.make(user=bob)
    browser(bob)
    client = browser(root)
    found = new_entries(lambda: client.post(f"/admin/auth/user/{bob.pk}/delete/", {"post": "yes"}))
    assert [entry[:2] for entry in found] == [("user_deleted", "user bob")]
    assert found[0][2] == {"username": "bob", "is_active": True, "is_staff": False, "is_superuser": False} | {
        "role": "caller",
        "tokens": 1,
    }
    assert ("login", "bob") in entries("kind", "actor")


def test_links_are_recorded_from_both_ends() -> None:
    bob, circle = person("bob"), Group.objects.create(name="circle")
    permission = Permission.objects.get(codename="invoke_tool")
    name = "roster.invoke_tool"

    def links() -> None:
        circle.user_set.add(bob)
        circle.user_set.clear()
        bob.user_permissions.add(permission)
        permission.user_set.clear()
        circle.permissions.set([permission])
        circle.name = "ring"
        circle.save()

    assert new_entries(links) == [
        ("user_changed", "user bob", {"groups": []}, {"groups": ["circle"]}),
        ("user_changed", "user bob", {"groups": ["circle"]}, {"groups": []}),
        ("user_changed", "user bob", {"permissions": []}, {"permissions": [name]}),
        ("user_changed", "user bob", {"permissions": [name]}, {"permissions": []}),
        ("group_changed", "group circle", {"permissions": []}, {"permissions": [name]}),
        ("group_changed", "group ring", {"name": "circle"}, {"name": "ring"}),
    ]


def test_a_group_is_recorded_when_it_is_made_and_deleted() -> None:
    circle = Group.objects.create(name="circle")
    assert entries()[-1] == ("group_created", "group circle", None, {"name": "circle"})
    assert new_entries(circle.delete) == [("group_deleted", "group circle", {"name": "circle"}, None)]


@pytest.mark.parametrize("block", [transaction.atomic, audit.merged])
def test_a_change_that_is_rolled_back_has_no_entry(block: Any) -> None:
    bob = person("bob", "viewer")

    def change_and_fail() -> None:
        with block():
            roles.set_role(bob, None)
            raise ZeroDivisionError

    def fail() -> None:
        with pytest.raises(ZeroDivisionError):
            change_and_fail()

    assert new_entries(fail) == []
    assert str(roles.role_of(bob)) == "viewer"


# Invitations and tokens -------------------------------------------------------------------------------------------


def test_an_invitation_is_recorded_when_it_is_made_accepted_and_revoked() -> None:
    ann = person("ann", "admin")
    made: list[Any] = []

    def invite_two() -> None:
        made.extend(invitations.invite(Role.objects.get(name="viewer"), inviter=ann, note="for Carl") for _ in range(2))

    found = new_entries(invite_two)
    assert {entry[0] for entry in found} == {"invitation_made"}
    assert found[0][3].items() >= {"role": "viewer", "note": "for Carl"}.items()
    form = {"username": "carl", "password1": PASSWORD, "password2": PASSWORD}
    link = made[0][1].partition("/invitations/")[2]
    found = new_entries(lambda: Client().post(f"/invitations/{link}", form), "kind", "actor", "actor_user")
    carl = User.objects.get(username="carl")
    kinds = ["user_created", "invitation_accepted", "login"]
    assert found == [(kind, "carl", carl.pk) for kind in kinds]
    assert new_entries(lambda: invitations.revoke(made[1][0]), "kind") == [("invitation_revoked",)]
    assert new_entries(lambda: invitations.revoke(made[1][0]), "kind") == []
    secrets = [link.partition("/invitations/")[2].strip("/") for _, link in made]
    assert not [secret for secret in secrets if secret in str(entries())]


def test_a_token_is_recorded_over_rest_with_the_token_that_made_it() -> None:
    bob = person("bob", "caller")
    member()
    row, text = Token.make(user=bob, name="laptop")
    client = Client(headers={"Authorization": f"Bearer {text}"})
    body = {"name": "ci", "members": ["notes"], "calls_per_minute": 5}
    found = new_entries(
        lambda: client.post("/api/tokens/", body, content_type="application/json"),
        *("kind", "actor", "actor_user", "actor_token", "source", "after"),
    )
    actor = f"bob with token {row.hint}… (laptop)"
    after = {"scope": "members", "members": ["notes"], "calls_per_minute": 5, "created_with_token": row.hint}
    assert found == [("token_created", actor, bob.pk, row.pk, "rest", after)]
    assert text not in str(entries("actor", "target", "after"))


def test_a_token_is_recorded_when_it_is_changed_revoked_and_deleted() -> None:
    bob = person("bob", "caller")
    row, _ = make_token(bob, NewToken(name="laptop"), maker=access.OPERATOR)
    child, _ = make_token(bob, NewToken(), maker=principals.principal_of_row(row))
    name = f"token {row.hint}… (laptop) of bob"
    assert entries("kind", "target")[-2] == ("token_created", name)
    row.max_in_flight = 7
    found = new_entries(row.save)
    assert found == [("token_changed", name, {"max_in_flight": None}, {"max_in_flight": 7})]
    found = new_entries(lambda: revoke_token(row))
    assert found == [("token_revoked", name, None, {"tokens_created_with_it": [child.hint]})]
    found = new_entries(lambda: delete_token(row))
    assert found == [("token_deleted", name, {"scope": "all", "max_in_flight": 7}, None)]


# Members and nodes ------------------------------------------------------------------------------------------------


def test_every_verb_of_a_member_is_recorded_with_what_it_changed() -> None:
    row = member()
    expected = {
        "stop": ("member_stopped", {"desired_state": "running"}, {"desired_state": "stopped"}),
        "start": ("member_started", {"desired_state": "stopped"}, {"desired_state": "running"}),
        "restart": ("member_restarted", None, None),
        "refresh": ("member_refreshed", None, None),
        "disable": ("member_disabled", {"enabled": True}, {"enabled": False}),
        "enable": ("member_enabled", {"enabled": False}, {"enabled": True}),
    }
    assert expected.keys() == control.MEMBER_VERBS.keys()
    for verb, entry in expected.items():
        found = new_entries(lambda verb=verb: control.MEMBER_VERBS[verb](row), "kind", "before", "after", "member")
        assert found == [(*entry, "notes")]


def test_a_verb_that_is_refused_has_no_entry() -> None:
    row = member()
    row.status = "disconnected"

    def refresh() -> None:
        with pytest.raises(RequestRefusedError):
            control.refresh_member(row)

    assert new_entries(refresh) == []


def test_reserved_members_and_switched_tools_are_recorded() -> None:
    row, circle = member(), Group.objects.create(name="circle")
    tool = Tool.objects.create(member=row, name="add", definition={"name": "add"})

    def change() -> None:
        control.reserve_member(row, [circle])
        control.set_tool_enabled(tool, False)
        control.set_tool_enabled(tool, True)

    assert new_entries(change) == [
        ("member_reserved", "member notes", {"groups": []}, {"groups": ["circle"]}),
        ("tool_disabled", "tool notes/add", None, None),
        ("tool_enabled", "tool notes/add", None, None),
    ]


def test_members_of_the_folder_are_recorded_when_they_come_go_and_come_back(tmp_path: Path) -> None:
    manifest = tmp_path / "notes" / "guild-member.json"
    manifest.parent.mkdir()

    def come_and_go() -> None:
        for _ in range(2):
            manifest.write_text('{"name": "notes", "command": "python"}')
            discovery.sync(tmp_path)
            discovery.sync(tmp_path)
            manifest.unlink()
            discovery.sync(tmp_path)

    folder = {"folder": "notes"}
    both = [("member_added", "member notes", None, folder), ("member_removed", "member notes", folder, None)]
    assert new_entries(come_and_go) == both * 2
    found = new_entries(GuildMember.objects.get().delete)
    assert found == [("member_deleted", "member notes", None, None)]


@pytest.mark.usefixtures("several_nodes")
def test_drained_and_removed_nodes_and_moved_members_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (Node.objects.create(name=name, folders={"notes": "d"}) for name in ("a", "b"))
    row = member()
    GuildMember.objects.update(node=old, digest="d", manifest={"node": {"state": "none"}})
    row.refresh_from_db()
    with monkeypatch.context() as patch:
        patch.setattr(lease, "is_alive", lambda node: True)
        found = new_entries(lambda: nodes.move_member(row, new))
    assert found == [("member_moved", "member notes", {"node": "a"}, {"node": "b"})]

    def drain_and_remove() -> None:
        nodes.drain(old)
        nodes.undrain(old)
        nodes.remove_node(old)

    assert new_entries(drain_and_remove) == [
        ("node_drained", "node a", None, None),
        ("node_undrained", "node a", None, None),
        ("node_removed", "node a", {"members_without_node": 1}, None),
    ]


def test_a_password_is_not_changed_without_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    root = User.objects.create_superuser("root", password="old password")
    client = Client(raise_request_exception=False)
    client.force_login(root)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(AuditEntry, "record", fail)
    new = {"new_password1": "a new long secret", "new_password2": "a new long secret"}
    assert client.post("/admin/password_change/", {"old_password": "old password", **new}).status_code == 500
    passwords = {"password1": "a new long secret", "password2": "a new long secret", "usable_password": "true"}
    assert client.post(f"/admin/auth/user/{root.pk}/password/", passwords).status_code == 500
    monkeypatch.setattr("getpass.getpass", lambda **_: "a new long secret")
    with pytest.raises(RuntimeError):
        call_command("changepassword", "root", stdout=io.StringIO())
    root.refresh_from_db()
    assert root.check_password("old password")


def test_secrets_are_recorded_without_their_values(settings: Any, tmp_path: Path) -> None:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    row = member()

    def use_a_secret() -> None:
        secret = secrets.set_secret("key", "canary-4711", by=None)
        secrets.allow_secret(secret, row, by=None)
        secrets.forbid_secret(secret, row)
        secrets.forbid_secret(secret, row)  # changes nothing
        secrets.choose_members(secret, [row], None, of={"notes"})
        secrets.set_secret("key", "canary-4712", by=None)
        secrets.rotate_key(secrets.KEY_STEPS)
        secrets.delete_secret(secret)

    entries = new_entries(use_a_secret)
    assert entries == [
        ("secret_set", "secret key", None, {"is_new": True}),
        ("secret_allowed", "secret key", None, {"members": ["notes"]}),
        ("secret_forbidden", "secret key", {"members": ["notes"]}, None),
        ("secret_allowed", "secret key", None, {"members": ["notes"]}),
        ("secret_set", "secret key", None, {"is_new": False}),
        *(("secrets_key_rotated", "the key file", None, {"step": step}) for step in secrets.KEY_STEPS),
        ("secret_deleted", "secret key", {"members": ["notes"]}, None),
    ]
    assert "canary" not in str(entries)


def test_the_admin_and_rest_name_the_user() -> None:
    olga, row = person("olga", "operator"), member()
    client = browser(olga)
    found = new_entries(
        lambda: client.post(f"/admin/roster/guildmember/{row.pk}/do/stop/"), "kind", "actor", "source", "actor_user"
    )
    assert found == [("member_stopped", "olga", "web", olga.pk)]
    found = new_entries(lambda: client.post("/api/members/notes/start/"), "kind", "actor", "source", "actor_token")
    assert found == [("member_started", "olga", "rest", None)]


# Who may read what ------------------------------------------------------------------------------------------------


def test_members_of_others_are_hidden_and_deleted_ones_are_for_superusers() -> None:
    circle = Group.objects.create(name="circle")
    hidden = member("hidden")
    hidden.groups.add(circle)
    for name in ("hidden", "notes", "gone"):
        AuditEntry.record(audit.Kind.MEMBER_STOPPED, f"member {name}", member=name)
    member("notes")
    names = audit.visible_entries(is_superuser=False, closed_members={"hidden"}).exclude(member="")
    assert [entry.member for entry in names] == ["notes"]
    everything = audit.visible_entries(is_superuser=True, closed_members=()).exclude(member="")
    assert [entry.member for entry in everything] == ["gone", "notes", "hidden"]
    tools = ["hidden/x", "notes/x"]
    values = {"members": ["hidden", "notes", "gone"], "tools": tools, "scope": "tools", "pinned_tools": tools}
    show = audit.shower(is_superuser=False, closed_members={"hidden"})
    assert show(values) == {
        "members": [audit.HIDDEN, "notes", audit.HIDDEN],
        "tools": [audit.HIDDEN, "notes/x"],
        "scope": "tools",
        "pinned_tools": [audit.HIDDEN, "notes/x"],
    }
    assert show(None) is None
    assert audit.shower(is_superuser=True, closed_members=())(values) == values
    assert Hall.objects.exists()
