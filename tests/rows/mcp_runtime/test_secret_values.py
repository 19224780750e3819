from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.contrib.auth.models import User
from django.db import connection

from mcp_runtime.control import secrets
from mcp_runtime.protocol.errors import (
    KeyFileError,
    RequestRefusedError,
    SecretError,
    SecretKeyError,
    UnknownSecretError,
)
from mcp_runtime.rows import lease
from mcp_runtime.secrets import values
from mcp_runtime.secrets.key_file import MAX_KEYS, KeyFile
from roster.models import GuildMember, Secret, SecretUse

pytestmark = pytest.mark.django_db

CANARY = "canary-4711-\u00fc"
MANIFEST: dict[str, Any] = {"command": "python", "args": ["server.py"], "env": {"API_KEY": "${secret:api-key}"}}


@pytest.fixture(autouse=True)
def key_path(settings: Any, tmp_path: Path) -> Path:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    return tmp_path / "secrets-key"


def make_member(name: str = "anna", **columns: Any) -> GuildMember:
    return GuildMember.objects.create(**{"name": name, "directory": name, "manifest": MANIFEST, **columns})


def value_for(member: GuildMember, name: str = "api-key") -> str:
    member.refresh_from_db()
    return values.MemberSecrets(member, member.manifest)(name)


def change_manifest(member: GuildMember, **keys: Any) -> None:
    member.manifest = {**member.manifest, **keys}
    member.save()


def test_a_member_that_may_use_a_secret_gets_its_value_and_the_database_has_only_the_encrypted_one() -> None:
    member = make_member()
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, member, by=None)
    assert value_for(member) == CANARY
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM roster_secret")
        assert CANARY not in repr(cursor.fetchall())


def test_a_secret_can_be_set_again_and_both_rows_of_one_value_differ() -> None:
    first = secrets.set_secret("a", CANARY, by=None)
    second = secrets.set_secret("b", CANARY, by=None)
    assert first.encrypted != second.encrypted
    user = User.objects.create(username="eve")
    again = secrets.set_secret("a", "other value", by=user)
    assert (again.pk, again.changed_by, Secret.objects.count()) == (first.pk, user, 2)
    assert again.changed_at > first.changed_at
    assert values.decrypt(again) == "other value"


def test_a_member_that_was_not_allowed_gets_a_sentence_with_the_command() -> None:
    member = make_member()
    with pytest.raises(SecretError, match=r"'api-key' does not exist; set it .* guildhall set_secret api-key"):
        value_for(member)
    secrets.set_secret("api-key", CANARY, by=None)
    with pytest.raises(SecretError, match=r"may not use .* guildhall allow_secret api-key anna") as error:
        value_for(member)
    assert CANARY not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"command": "bash"},
        {"args": ["server.py", "--send-to=elsewhere"]},
        {"args": []},
        {"url": "https://elsewhere.example/"},
        {"headers": {"X-Other": "${secret:api-key}"}},
        {"env": {"API_KEY": "${secret:api-key}", "PATH": "/tmp/bin"}},
        {"transport": "stdio"},
        {"sandbox": "on"},
        {"env": {**MANIFEST["env"], "PATH": ""}},
    ],
)
def test_a_member_that_was_changed_cannot_use_its_secrets_until_that_is_allowed_again(change: dict[str, Any]) -> None:
    member = make_member()
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, member, by=None)
    change_manifest(member, **change)
    assert not secrets.is_current(SecretUse.objects.get())
    with pytest.raises(SecretError, match="has changed since"):
        value_for(member)
    secrets.allow_secret(secret, member, by=None)
    assert value_for(member) == CANARY


def test_other_changes_of_a_manifest_take_no_secret_away() -> None:
    member = make_member()
    secrets.allow_secret(secrets.set_secret("api-key", CANARY, by=None), member, by=None)
    change_manifest(member, description="new", version="2", timeout=5.0, headers={}, url="")
    assert value_for(member) == CANARY


def test_the_values_of_headers_may_change_but_not_their_names() -> None:
    member = make_member(manifest={"url": "https://x.example/", "headers": {"X-Team": "a", "X-Key": "${secret:k}"}})
    secrets.allow_secret(secrets.set_secret("k", CANARY, by=None), member, by=None)
    change_manifest(member, headers={"X-Team": "b", "X-Key": "${secret:k}"})
    assert value_for(member, "k") == CANARY


BEHIND_OAUTH: dict[str, Any] = {
    "url": "https://x.example/",
    "headers": {"X-Team": "a"},
    "oauth": {
        **{"grant": "enterprise_managed", "issuer": "https://a.example", "client_id": "a", "credentials": "member"},
        **{"client_secret": "${secret:a}", "private_key": "", "idp_client_secret": "${secret:k}"},
        **{"idp_issuer": "https://i.example", "idp_client_id": "i", "subject_token": "${file:token}", "scopes": []},
    },
}


def allowed_behind_oauth(*without: str) -> GuildMember:
    oauth = {key: value for key, value in BEHIND_OAUTH["oauth"].items() if key not in without}
    member = make_member(manifest={**BEHIND_OAUTH, "oauth": oauth})
    for name in ("a", "k"):
        secrets.allow_secret(secrets.set_secret(name, CANARY, by=None), member, by=None)
    return member


@pytest.mark.parametrize(
    "oauth",
    [
        {"client_secret": "${secret:k}"},
        {"subject_token": "${secret:k}"},
        {"client_secret": "", "private_key": "${secret:a}"},
        {"idp_client_secret": ""},
        {"grant": "workload_identity"},
    ],
)
def test_a_secret_of_a_member_behind_oauth_goes_to_nobody_else_until_that_is_allowed(oauth: dict[str, str]) -> None:
    member = allowed_behind_oauth()
    change_manifest(member, oauth={**member.manifest["oauth"], **oauth})
    for name in ("a", "k"):
        with pytest.raises(SecretError, match="what the member runs or calls has changed"):
            value_for(member, name)
    assert secrets.needs_of(member)[0].changed_parts == ["oauth"]


@pytest.mark.parametrize("without", [(), ("idp_client_secret", "subject_token", "grant", "idp_issuer")])
def test_a_secret_for_an_authorization_server_does_not_become_a_header(without: tuple[str, ...]) -> None:
    member = allowed_behind_oauth(*without)
    change_manifest(member, headers={"X-Team": "${secret:a}"})
    with pytest.raises(SecretError, match="what the member runs or calls has changed"):
        value_for(member, "a")


def test_scopes_and_whose_account_it_is_take_no_secret_of_a_member_behind_oauth_away() -> None:
    member = allowed_behind_oauth()
    oauth = {**member.manifest["oauth"], "scopes": ["read"], "credentials": "user"}
    change_manifest(member, headers={"X-Team": "b"}, oauth=oauth)
    assert value_for(member, "k") == CANARY


@pytest.mark.parametrize(
    ("manifest", "digest"),
    [
        (MANIFEST, "b4ba74a63e73473e"),
        ({"url": "https://x.example/", "headers": {"X-Key": "${secret:k}"}, "oauth": {}}, "0bfdcb3c39714d99"),
        (
            {
                "url": "https://x.example/",
                "headers": {},
                "oauth": {
                    **{"client_id": "a", "client_secret": "${secret:k}", "issuer": "", "private_key": ""},
                    **{"grant": "authorization_code", "credentials": "member", "idp_issuer": ""},
                },
            },
            "daf43dbad105d806",
        ),
    ],
)
def test_a_member_that_an_earlier_version_allowed_needs_no_new_permission(
    manifest: dict[str, Any], digest: str
) -> None:
    assert values.identity(manifest)[:16] == digest


def test_a_manifest_that_changed_while_a_user_looked_at_it_is_not_allowed() -> None:
    member = make_member()
    secret, seen = secrets.set_secret("api-key", CANARY, by=None), secrets.identity_of(member)
    change_manifest(member, command="bash")
    with pytest.raises(RequestRefusedError, match="has just changed"):
        secrets.allow_secret(secret, member, by=None, identity=seen)
    assert not SecretUse.objects.exists()


def test_a_forbidden_member_and_a_deleted_secret_have_no_use_left() -> None:
    member = make_member()
    secret = secrets.set_secret("api-key", CANARY, by=None)
    secrets.allow_secret(secret, member, by=None)
    secrets.forbid_secret(secret, member)
    with pytest.raises(SecretError, match="may not use"):
        value_for(member)
    secrets.allow_secret(secret, member, by=None)
    secrets.delete_secret(secret)
    assert not SecretUse.objects.exists()
    with pytest.raises(UnknownSecretError):
        secrets.find_secret("api-key")


def test_choosing_members_leaves_hidden_members_and_changed_members_as_they_are() -> None:
    anna, bob, hidden = make_member(), make_member("bob"), make_member("hidden")
    secret = secrets.set_secret("api-key", CANARY, by=None)
    for member in (anna, hidden):
        secrets.allow_secret(secret, member, by=None)
    change_manifest(anna, command="bash")
    secrets.choose_members(secret, [anna, bob], None, of={"anna", "bob"})
    uses = {use.member.name: secrets.is_current(use) for use in SecretUse.objects.select_related("member")}
    assert uses == {"anna": False, "bob": True, "hidden": True}
    secrets.choose_members(secret, [], None, of={"anna", "bob"})
    assert [use.member.name for use in SecretUse.objects.all()] == ["hidden"]


def test_a_member_in_error_starts_again_when_its_secret_is_set_or_allowed() -> None:
    member = make_member(status=GuildMember.Status.ERROR, last_error="env.API_KEY: the secret ...")
    stopped = make_member("bob", status=GuildMember.Status.ERROR, desired_state="stopped")
    secret = secrets.set_secret("api-key", CANARY, by=None)
    for row in (member, stopped):
        secrets.allow_secret(secret, row, by=None)
        row.refresh_from_db()
    assert member.restart_requested_at is not None
    assert stopped.restart_requested_at is None
    GuildMember.objects.update(restart_requested_at=None)
    secrets.set_secret("api-key", "new", by=None)
    member.refresh_from_db()
    assert member.restart_requested_at is not None


def test_the_needs_of_a_member_name_each_secret_once_with_its_fault() -> None:
    env = {"A": "${secret:a}", "B": "${secret:b}${secret:a}"}
    member = make_member(manifest={**MANIFEST, "env": env, "args": ["${secret:c}"]})
    secrets.allow_secret(secrets.set_secret("a", CANARY, by=None), member, by=None)
    secrets.set_secret("b", CANARY, by=None)
    needs = [(need.name, need.exists, bool(need.fault)) for need in secrets.needs_of(member)]
    assert needs == [("a", True, False), ("b", True, True), ("c", False, True)]
    assert secrets.needs_of(make_member("bob", manifest={})) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a b", "x", "must be 1 to 64"),
        ("", "x", "must be 1 to 64"),
        ("a" * 65, "x", "must be 1 to 64"),
        ("a", " \n", "must not be empty"),
        ("a", "x\0", "NUL"),
        ("a", "x" * 65_537, "65,536"),
        ("a", "x\n" * 200, "200 lines"),
    ],
)
def test_a_name_or_value_that_cannot_be_used_is_refused_without_a_quote(name: str, value: str, message: str) -> None:
    with pytest.raises(RequestRefusedError, match=message):
        secrets.set_secret(name, value, by=None)
    assert not Secret.objects.exists()


# The key file -----------------------------------------------------------------------------------------------------


def test_the_first_secret_makes_a_private_key_file(key_path: Path) -> None:
    assert not key_path.exists()
    secrets.set_secret("a", CANARY, by=None)
    assert key_path.stat().st_mode & 0o777 == 0o600
    assert len(key_path.read_text().split()) == 1


def test_a_hall_with_one_node_that_lost_its_key_file_sets_its_secrets_again(key_path: Path) -> None:
    first = secrets.set_secret("a", CANARY, by=None)
    secrets.set_secret("b", CANARY, by=None)
    member = make_member(manifest={**MANIFEST, "env": {"K": "${secret:a}"}})
    secrets.allow_secret(first, member, by=None)
    for lose in (key_path.unlink, lambda: key_path.write_text(Fernet.generate_key().decode())):
        lose()
        with pytest.raises(SecretError, match=r"cannot be read|was encrypted with a key that is not in"):
            value_for(member, "a")
        secrets.set_secret("a", f"{CANARY} again", by=None)
        assert value_for(member, "a") == f"{CANARY} again"
    with pytest.raises(RequestRefusedError, match="'b' was encrypted with a key that is not in"):
        secrets.rotate_key(["add"])


def test_a_node_without_the_key_of_the_others_sets_no_secret(key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.set_secret("a", CANARY, by=None)
    monkeypatch.setattr(lease, "has_other_nodes", lambda: True)
    key_path.rename(key_path.with_name("elsewhere"))
    with pytest.raises(RequestRefusedError, match="copy the file from a node"):
        secrets.set_secret("b", CANARY, by=None)
    assert not key_path.exists()
    KeyFile(key_path).create()
    with pytest.raises(RequestRefusedError, match="was encrypted with a key that is not in"):
        secrets.set_secret("b", CANARY, by=None)
    assert [row.name for row in Secret.objects.all()] == ["a"]


def test_a_node_without_the_key_of_the_others_is_refused(key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values.require_same_keys()  # without secrets nobody needs a key
    secrets.set_secret("a", CANARY, by=None)
    content = key_path.read_bytes()
    key_path.unlink()
    values.require_same_keys()  # the only node of a hall may start
    monkeypatch.setattr(lease, "has_other_nodes", lambda: True)
    with pytest.raises(SecretKeyError, match="cannot be read: No such file"):
        values.require_same_keys()
    KeyFile(key_path).create()
    with pytest.raises(SecretKeyError, match="copy the key file of the node that set the secret"):
        values.require_same_keys()
    key_path.write_bytes(content)
    values.require_same_keys()


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe", b"x" * 5000])
def test_a_file_that_holds_no_keys_is_refused(key_path: Path, content: bytes) -> None:
    key_path.write_bytes(content)
    with pytest.raises(RequestRefusedError, match="does not hold keys"):
        secrets.set_secret("a", CANARY, by=None)


def test_a_key_that_was_added_and_never_used_goes_when_a_later_one_is_used(key_path: Path) -> None:
    keys = KeyFile(key_path)
    keys.create()
    keys.add()
    keys.add()
    first, _, last = (line.removeprefix("unused ") for line in key_path.read_text().splitlines())
    assert keys.use_new()
    assert key_path.read_text().splitlines() == [last, first]


@pytest.mark.parametrize("content", [None, b"short"])
def test_an_error_of_the_key_file_says_how_to_mend_it(key_path: Path, content: bytes | None) -> None:
    if content is not None:
        key_path.write_bytes(content)
    with pytest.raises(KeyFileError, match="put a copy of it back, or remove it and set all secrets again"):
        KeyFile(key_path).cipher()


def test_a_rotation_encrypts_all_secrets_with_a_new_key_and_drops_the_old_one(key_path: Path) -> None:
    for name in ("a", "b"):
        secrets.set_secret(name, f"{CANARY} {name}", by=None)
    old_key, old_texts = key_path.read_text(), {row.encrypted for row in Secret.objects.all()}
    assert secrets.rotate_key(secrets.KEY_STEPS) == 2
    assert old_key not in key_path.read_text()
    assert {row.encrypted for row in Secret.objects.all()}.isdisjoint(old_texts)
    assert {values.decrypt(row) for row in Secret.objects.all()} == {f"{CANARY} a", f"{CANARY} b"}


def test_between_the_steps_of_a_rotation_every_copy_of_the_key_file_decrypts(key_path: Path) -> None:
    secret = secrets.set_secret("a", CANARY, by=None)
    copies = []
    for step in secrets.KEY_STEPS:
        before = key_path.read_bytes()
        secrets.rotate_key([step])
        secret.refresh_from_db()
        after = key_path.read_bytes()
        # Right after a step, the other nodes have the file of the step before.
        for content in [before, after] if step != "drop" else [after]:
            key_path.write_bytes(content)
            assert values.decrypt(secret) == CANARY
        key_path.write_bytes(after)
        copies.append(after)
    assert [len(content.splitlines()) for content in copies] == [2, 2, 1]


def test_a_step_that_is_repeated_never_goes_back_to_an_old_key(key_path: Path) -> None:
    secrets.set_secret("a", CANARY, by=None)
    old_key = key_path.read_text().strip()
    with pytest.raises(RequestRefusedError, match="no new key was added"):
        secrets.rotate_key(["use"])
    secrets.rotate_key(["add"])
    secrets.rotate_key(["use"])
    with pytest.raises(RequestRefusedError, match="no new key was added"):
        secrets.rotate_key(["use"])
    secrets.rotate_key(["drop"])
    assert old_key not in key_path.read_text()
    assert values.decrypt(Secret.objects.get()) == CANARY


def test_a_rotation_that_was_interrupted_is_finished_by_the_next_one(key_path: Path) -> None:
    secrets.set_secret("a", CANARY, by=None)
    secrets.rotate_key(["add"])
    assert values.key_file().use_new()  # and the process ends before the rows are encrypted again
    with pytest.raises(RequestRefusedError, match="an old key is still needed"):
        secrets.rotate_key(["drop"])
    secrets.rotate_key(["use"])
    secrets.rotate_key(["drop"])
    assert values.decrypt(Secret.objects.get()) == CANARY


def test_a_key_that_was_added_is_not_dropped_before_its_use(key_path: Path) -> None:
    secrets.set_secret("a", CANARY, by=None)
    secrets.rotate_key(["add"])
    secrets.rotate_key(["drop"])
    secrets.rotate_key(["use"])
    assert values.decrypt(Secret.objects.get()) == CANARY


def test_first_secrets_at_the_same_moment_share_one_key_file(key_path: Path) -> None:
    for _ in range(30):
        key_path.unlink(missing_ok=True)
        barrier, seen = threading.Barrier(4), []

        def create(barrier: threading.Barrier = barrier, seen: list[str] = seen) -> None:
            barrier.wait()
            values.key_file().create()
            seen.append(key_path.read_text())

        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 4
        assert set(seen) == {key_path.read_text()}
    assert list(key_path.parent.glob(".secrets-key*")) == []


def test_the_parts_that_changed_are_named(key_path: Path) -> None:
    member = make_member()
    secrets.allow_secret(secrets.set_secret("api-key", CANARY, by=None), member, by=None)
    assert secrets.needs_of(member)[0].changed_parts == []
    env = {"API_KEY": "${secret:api-key}", "API_BASE_URL": "https://elsewhere.example"}
    change_manifest(member, args=[], env=env, sandbox="on")
    assert secrets.needs_of(member)[0].changed_parts == ["args", "env.API_BASE_URL", "sandbox"]


def test_the_keys_of_a_file_have_a_bound(key_path: Path) -> None:
    secrets.set_secret("a", CANARY, by=None)
    for _ in range(MAX_KEYS - 1):
        secrets.rotate_key(["add"])
    with pytest.raises(RequestRefusedError, match="drop the old ones first"):
        secrets.rotate_key(["add"])


def test_without_a_key_file_there_is_nothing_to_rotate() -> None:
    with pytest.raises(RequestRefusedError, match="there is no key file"):
        secrets.rotate_key(secrets.KEY_STEPS)


def test_a_key_file_in_a_missing_folder_is_reported(settings: Any, tmp_path: Path) -> None:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "nowhere" / "secrets-key"
    with pytest.raises(RequestRefusedError, match="cannot be written: No such file"):
        secrets.set_secret("a", CANARY, by=None)
