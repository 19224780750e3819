"""Entries of the audit log: nobody changes or deletes them, they are bounded, and they have no secrets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, NotSupportedError, connection, transaction
from django.utils import timezone

from roster.models import Actor, AuditEntry, AuditOverflow, Invitation, Token
from roster.models import audit as audit_models
from roster.models.audit import MAX_BYTES, MAX_ITEMS, MAX_TEXT, acting, current_actor

Kind = AuditEntry.Kind
TABLE = "roster_auditentry"


def add(kind: AuditEntry.Kind = Kind.LOGIN, target: str = "user bob", *, days: float = 0, **values: Any) -> AuditEntry:
    """An entry, as if it had been written so many days ago."""
    if days:
        return AuditEntry.objects.create(kind=kind, source="web", actor="bob", target=target, at=_ago(days))
    AuditEntry.record(kind, target, **values)
    return AuditEntry.objects.order_by("pk").last()  # type: ignore[return-value]


def _ago(days: float) -> Any:
    return timezone.now() - timedelta(days=days)


# Append only ------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.save(),
        lambda entry: entry.save(update_fields=["actor"]),
        lambda entry: entry.delete(),
        lambda entry: AuditEntry.objects.update(actor="nobody"),
        lambda entry: AuditEntry.objects.filter(pk=entry.pk).delete(),
        lambda entry: AuditEntry.objects.bulk_update([entry], ["actor"]),
        lambda entry: AuditEntry.objects.update_or_create(pk=entry.pk, defaults={"actor": "nobody"}),
        lambda entry: AuditEntry._base_manager.filter(pk=entry.pk).delete(),
    ],
)
def test_the_model_refuses_changes_and_deletions(change: Callable[[AuditEntry], object]) -> None:
    entry = add()
    with pytest.raises(NotSupportedError, match="only added"):
        change(entry)
    assert AuditEntry.objects.get() == entry


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE {TABLE} SET actor = 'nobody'",
        f"UPDATE {TABLE} SET at = '2001-01-01 00:00:00'",
        f"DELETE FROM {TABLE}",
        f"DELETE FROM {TABLE} WHERE id = (SELECT max(id) FROM {TABLE})",
    ],
)
@pytest.mark.parametrize("days", [0, 29.9])
def test_the_database_refuses_changes_and_deletions_of_new_entries(statement: str, days: float) -> None:
    entry = add(days=days)
    with pytest.raises(IntegrityError, match="Entries of the audit log"), transaction.atomic():
        connection.cursor().execute(statement)
    entry.refresh_from_db()
    assert entry.actor != "nobody"


@pytest.mark.django_db
def test_the_database_refuses_even_to_change_old_entries_and_to_replace_or_empty() -> None:
    entry = add(days=4000)
    copy = (
        f"INTO {TABLE} (id, kind, source, actor, address, target, member) VALUES ({entry.pk}, '', '', '', '', '', '')"
    )
    statements = [f"UPDATE {TABLE} SET actor = 'nobody'"]
    statements += [f"INSERT OR REPLACE {copy}"] if connection.vendor == "sqlite" else [f"TRUNCATE {TABLE}"]
    for statement in statements:
        with pytest.raises(IntegrityError, match="only added"), transaction.atomic():
            connection.cursor().execute(statement)
    assert AuditEntry.objects.get().actor == "bob"


@pytest.mark.django_db
def test_a_bulk_insert_cannot_change_an_entry() -> None:
    entry = add()
    changed = AuditEntry(pk=entry.pk, kind=Kind.LOGIN, source="web", actor="nobody", target="")
    with pytest.raises(DatabaseError), transaction.atomic():
        AuditEntry.objects.bulk_create([changed], update_conflicts=True, update_fields=["actor"], unique_fields=["id"])
    assert AuditEntry.objects.get().actor == entry.actor


@pytest.mark.django_db
def test_prune_deletes_by_age_and_never_what_the_database_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_models, "PRUNE_BATCH", 2)
    for days in (0, 20, 31, 99, 101, 150, 4000):
        add(days=days)
    assert AuditEntry.prune(100) == 3
    assert AuditEntry.prune(0) == 2
    assert AuditEntry.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_flush_deletes_all_rows_and_the_triggers_work_again() -> None:
    add()
    call_command("flush", interactive=False, verbosity=0)
    assert not AuditEntry.objects.exists()
    add()
    with pytest.raises(IntegrityError, match="Entries of the audit log"), transaction.atomic():
        connection.cursor().execute(f"DELETE FROM {TABLE}")


@pytest.mark.django_db
def test_flush_asks_before_it_deletes_the_audit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    add()
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or "no")
    with pytest.raises(CommandError, match=r"Nothing was deleted"):
        call_command("flush", interactive=True, verbosity=0)
    assert "audit log" in questions[0]
    assert AuditEntry.objects.exists()


# Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_no_token_invitation_or_password_is_stored() -> None:
    token, invitation = Token.make(user=User.objects.create_user("eve"))[1], Invitation.new_secret()
    values = {"note": f"use {token} or {invitation}.", "password": "open sesame", "deep": [{"api_key": "k", "ok": 1}]}
    entry = add(target=f"user {token}", before=values, after={token: 1}, actor=Actor("web", invitation))
    stored = f"{entry.target}{entry.actor}{entry.before}{entry.after}"
    assert not {token, invitation, "sesame"} & {part for part in (token, invitation, "sesame") if part in stored}
    assert entry.before == {
        "note": "use gh_… or ghi_….",
        "password": "********",
        "deep": [{"api_key": "********", "ok": 1}],
    }
    assert Token(hint="gh_AbCdE", user=User(username="eve")).audit_name == "token gh_AbCdE… of eve"


@pytest.mark.django_db
def test_values_are_bounded_whatever_they_are() -> None:
    long = {"text": "x" * 10_000, "list": list(range(1000)), "deep": {"a": {"b": {"c": {"d": "e" * 999}}}}}
    entry = add(
        target="t" * 9999, actor=Actor("web", "a" * 9999), before=long, after={str(n): "y" * 400 for n in range(99)}
    )
    assert len(entry.before["text"]) == MAX_TEXT
    assert entry.before["list"][MAX_ITEMS:] == ["… and 950 more"]
    assert len(str(entry.before)) < MAX_BYTES
    assert entry.after == {"note": "The values are too long for this log."}
    assert len(entry.target) == len(entry.actor) == 400


@pytest.mark.django_db
def test_texts_that_a_database_refuses_are_replaced() -> None:
    entry = add(target="tool a\0b\ud800", before={"a\0": "\ud800", "when": timezone.now(), "some": {"b", "a"}})
    entry.refresh_from_db()
    assert entry.target == "tool a\ufffdb\ufffd"
    assert entry.before["a\ufffd"] == "\ufffd"
    assert entry.before["some"] == ["a", "b"]


@pytest.mark.django_db
def test_an_entry_of_a_kind_that_this_version_does_not_know_is_shown_by_its_name() -> None:
    AuditEntry.objects.create(kind="secret_read", source="web", actor="bob", target="secret x")
    assert str(AuditEntry.objects.get()) == "bob secret_read: secret x"


# Who --------------------------------------------------------------------------------------------------------------


def test_outside_of_requests_the_user_of_the_system_or_the_runtime_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    monkeypatch.setattr(sys, "argv", ["/srv/manage.py", "set_role", "bob"])
    assert current_actor() == Actor("command", "system user root (manage.py set_role)")
    with acting(lambda: Actor("web", "bob")):
        assert current_actor().name == "bob"
    monkeypatch.setattr(audit_models, "actors_of_process", [])
    audit_models.act_as_runtime()
    assert current_actor() == Actor("runtime", "the runtime")


def test_a_system_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise OSError("no name")

    monkeypatch.setattr("getpass.getuser", fail)
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    monkeypatch.setattr(sys, "argv", ["manage.py", "--secret=x"])
    assert current_actor().name == "system user 4711 (manage.py)"


# Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_after_so_many_failed_logins_in_an_hour_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AuditEntry.LIMITS, Kind.LOGIN_FAILED, (5, 3))
    for _ in range(10):
        AuditEntry.record(Kind.LOGIN_FAILED, "an unknown name")
    for _ in range(4):
        AuditEntry.record(Kind.LOGIN_FAILED, "user bob")  # others cannot use up all of the hour
    targets = list(AuditEntry.objects.order_by("pk").values_list("target", flat=True))
    assert targets == ["an unknown name"] * 3 + ["user bob"] * 2
    assert AuditOverflow.objects.get().count == 9


@pytest.mark.django_db
def test_when_the_hour_is_over_one_entry_says_how_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = AuditOverflow.this_hour() - timedelta(hours=1)
    AuditOverflow.objects.create(kind=Kind.LOGIN_FAILED, hour=hour, count=4213)
    AuditOverflow.count_one(Kind.LOGIN_FAILED, AuditOverflow.this_hour())
    AuditOverflow.settle()
    AuditOverflow.settle()
    entry = AuditEntry.objects.get()
    assert (entry.kind, entry.actor) == (Kind.LOGIN_FAILED, "several")
    assert entry.target == "4,213 more, which have no entries of their own"
    assert entry.after == {"count": 4213, "hour": f"{hour:%Y-%m-%d %H}:00 UTC"}
    assert AuditOverflow.objects.get().count == 1


@pytest.mark.django_db
def test_an_overflow_that_grows_meanwhile_is_settled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = AuditOverflow.this_hour()
    AuditOverflow.objects.create(kind=Kind.LOGIN_FAILED, hour=hour, count=7)
    read = list(AuditOverflow.objects.all())
    AuditOverflow.objects.update(count=8)
    monkeypatch.setattr(AuditOverflow.objects, "filter", _first_stale(read, AuditOverflow.objects.filter))
    AuditOverflow.settle()
    assert not AuditEntry.objects.exists()


def _first_stale(rows: list[AuditOverflow], query: Callable[..., Any]) -> Callable[..., Any]:
    answers = [rows]
    return lambda **conditions: answers.pop() if answers else query(**conditions)
