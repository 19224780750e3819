"""The list of calls as a file."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from mcp_runtime.control.members import reserve_member
from roster.admin.calls import export, listing
from roster.models import GuildMember, Tool
from tests.support.calls import LIST, add, numbered

pytestmark = pytest.mark.django_db


def exported(page: Client, form: str, **asked: Any) -> str:
    response = page.get(reverse("admin:roster_call_export", args=[form]), asked)
    assert response.status_code == 200
    assert f'attachment; filename="calls.{form}"' == response.headers["Content-Disposition"]
    return b"".join(response.streaming_content).decode()


def test_the_filtered_list_is_written_as_csv(page: Client, anna: GuildMember) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    call = add(anna, tool_name='a,"b"', started_at=began, finished_at=began + timedelta(seconds=1.5))
    add(anna, status="failed")
    (row,) = csv.DictReader(io.StringIO(exported(page, "csv", status__exact="succeeded")))
    assert (row["id"], row["member"], row["tool"], row["duration"]) == (str(call.pk), "anna", 'a,"b"', "1.5")
    assert row["finished_at"] == "2026-01-01T00:00:01.500000+00:00"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(page: Client, anna: GuildMember, text: str) -> None:
    add(anna, tool_name=text, requester=text, error_message=text, status="failed")
    (row,) = csv.DictReader(io.StringIO(exported(page, "csv"), newline=""))
    for column in ("tool", "requester", "error_message"):
        assert row[column] == f"'{text}"


def test_json_lines_hold_the_arguments_with_secrets_masked(page: Client, anna: GuildMember) -> None:
    arguments = {"text": "grüezi\n", "password": "hunter2"}
    add(anna, status="running", arguments=arguments, secret_paths=[["password"]])
    text = exported(page, "jsonl")
    (line,) = text.splitlines()
    assert json.loads(line)["arguments"]["text"] == "grüezi\n"
    assert "hunter2" not in text


def test_a_file_has_all_matches_in_batches_to_its_bound(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH", 20)
    monkeypatch.setattr(listing, "SCANNED", 10)
    made = numbered(anna, 90)

    def written() -> list[int]:
        return [json.loads(line)["id"] for line in exported(page, "jsonl", status__exact="succeeded").splitlines()]

    assert written() == made[::-1]
    monkeypatch.setattr(export, "MAX_EXPORTED", 50)
    assert written() == made[::-1][:50]


@pytest.mark.parametrize(("form", "reads"), [("csv", False), ("jsonl", True)])
def test_a_file_reads_no_more_than_it_writes_and_keeps_no_connection_while_it_is_read(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch, form: str, reads: bool
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(export, "BATCH_WITH_ARGUMENTS", 5)
    monkeypatch.setattr(export, "give_connection_back", lambda: given_back.append(1))
    numbered(anna, 20)
    with CaptureQueriesContext(connection) as captured:
        text = exported(page, form)
    assert len(text.splitlines()) == (20 if reads else 21)
    assert any('"arguments"' in query["sql"] for query in captured) == reads
    assert len(given_back) == (4 if reads else 1)


def test_a_file_holds_no_more_of_large_arguments_than_one_call_at_a_time(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    monkeypatch.setattr(export, "give_connection_back", lambda: reads.append(1))
    for size in (export.BATCH_CHARACTERS, 5, 5, export.BATCH_CHARACTERS):
        add(anna, arguments={"text": "x" * size})
    assert len(exported(page, "jsonl").splitlines()) == 4
    assert len(reads) == 3


def test_who_reads_many_files_slowly_leaves_some_to_others(client: Client, alice: User, bob: User, echo: Tool) -> None:
    other = Client()
    other.force_login(alice)
    address = reverse("admin:roster_call_export", args=["jsonl"])
    taken = []
    while (response := client.get(address)).streaming:
        taken.append(response)
        assert len(taken) < 100
    assert response.status_code == 429
    assert exported(other, "csv")
    for response in taken:
        response.close()
    assert export.exports.in_use == 0


def test_files_are_for_those_who_may_see_the_list_and_hold_no_more(client: Client, bob: User, echo: Tool) -> None:
    mine = add(echo.member, requested_by=bob)
    add(echo.member)
    assert len(exported(client, "jsonl").splitlines()) == 2
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert [json.loads(line)["id"] for line in exported(client, "jsonl").splitlines()] == [mine.pk]
    assert client.get(f"{LIST}export/xlsx/").status_code == 404
    bob.user_permissions.clear()
    assert client.get(f"{LIST}export/csv/").status_code == 403
