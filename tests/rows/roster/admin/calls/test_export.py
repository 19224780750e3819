"""The list of calls as a file."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from mcp_runtime.control.members import reserve_member
from roster import call_export as export
from roster.admin.calls import listing
from roster.api.call_export import exports
from roster.models import GuildMember, Tool
from tests.support.calls import LIST, add, numbered

pytestmark = pytest.mark.django_db


def export_text(page: Client, form: str, **query: Any) -> str:
    response = page.get(reverse("admin:roster_call_export", args=[form]), query)
    assert response.status_code == 200
    assert f'attachment; filename="calls.{form}"' == response.headers["Content-Disposition"]
    return b"".join(response.streaming_content).decode()


def test_the_filtered_list_is_exported_as_csv(page: Client, anna: GuildMember) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    call = add(anna, tool_name='a,"b"', started_at=start, finished_at=start + timedelta(seconds=1.5))
    add(anna, status="failed")
    (row,) = csv.DictReader(io.StringIO(export_text(page, "csv", status__exact="succeeded")))
    assert (row["id"], row["member"], row["tool"], row["duration"]) == (str(call.pk), "anna", 'a,"b"', "1.5")
    assert row["finished_at"] == "2026-01-01T00:00:01.500000+00:00"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        *((text, f"'{text}") for text in ("=1+1", "+1", "-1", "@sum", "\t1", "\r1")),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\r'=1"),
        (" =1", " '=1"),
        ("a;=1", "a;'=1"),
        ("a; -1\t@b", "a; '-1\t'@b"),
        ("a\n+1\r\n=1", "a\n'+1\r\n'=1"),
        ('a;"=1"', 'a;"\'=1"'),
        (";;=1", ";;'=1"),
        *((text, text) for text in ("a=1", "a - b", "a; b=1", "x;y", 'say "=1"')),
    ],
)
def test_no_cell_is_a_formula(page: Client, anna: GuildMember, text: str, cell: str) -> None:
    add(anna, tool_name=text, requester=text, error_message=text, status="failed")
    (row,) = csv.DictReader(io.StringIO(export_text(page, "csv"), newline=""))
    for column in ("tool", "requester", "error_message"):
        assert row[column] == cell


@pytest.mark.parametrize("separator", [";", "\t"])
def test_no_cell_is_a_formula_whatever_separates_cells(page: Client, anna: GuildMember, separator: str) -> None:
    """A spreadsheet separates cells as its country does. Blanks and quotes before a formula may be dropped."""
    gaps = map("".join, product(["", ";", "\t", "\n", ",", '"', " "], repeat=3))
    error_message = "".join(f"a{gap}{sign}1" for gap in gaps for sign in "=+-@" if set(gap) & {separator, "\n"})
    add(anna, error_message=f"a, {error_message}", status="failed")
    lines = io.StringIO(export_text(page, "csv"), newline="")
    cells = [cell for row in csv.reader(lines, delimiter=separator) for cell in row]
    assert [cell for cell in cells if cell.lstrip(' "').startswith(("=", "+", "-", "@"))] == []
    assert len(cells) > 100


def test_json_lines_contain_the_arguments_with_masked_secrets(page: Client, anna: GuildMember) -> None:
    arguments = {"text": "grüezi\n", "password": "hunter2"}
    add(anna, status="running", arguments=arguments, secret_paths=[["password"]])
    text = export_text(page, "jsonl")
    (line,) = text.splitlines()
    assert json.loads(line)["arguments"]["text"] == "grüezi\n"
    assert "hunter2" not in text


def test_an_export_has_all_matches_up_to_its_limit(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH", 20)
    monkeypatch.setattr(listing, "SCANNED", 10)
    call_ids = numbered(anna, 90)

    def exported_ids() -> list[int]:
        return [json.loads(line)["id"] for line in export_text(page, "jsonl", status__exact="succeeded").splitlines()]

    assert exported_ids() == call_ids[::-1]
    monkeypatch.setattr(export, "MAX_EXPORTED", 50)
    assert exported_ids() == call_ids[::-1][:50]


def test_a_search_that_takes_too_long_is_refused_before_the_file_begins(
    page: Client, anna: GuildMember, too_long_searches: None
) -> None:
    add(anna, search_text="plum")
    response = page.get(reverse("admin:roster_call_export", args=["csv"]), {"q": "plum"})
    assert response.status_code == 400
    assert "Use more or longer words" in response.content.decode()
    assert exports.in_use == 0


@pytest.mark.parametrize(("form", "has_arguments"), [("csv", False), ("jsonl", True)])
def test_an_export_reads_only_its_columns_and_holds_no_connection_between_batches(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch, form: str, has_arguments: bool
) -> None:
    returns: list[int] = []
    monkeypatch.setattr(export, "BATCH_WITH_JSON", 5)
    monkeypatch.setattr(export, "give_connection_back", lambda: returns.append(1))
    numbered(anna, 20)
    with CaptureQueriesContext(connection) as queries:
        text = export_text(page, form)
    assert len(text.splitlines()) == (20 if has_arguments else 21)
    assert any('"arguments"' in query["sql"] for query in queries) == has_arguments
    assert len(returns) == (4 if has_arguments else 1)


def test_an_export_holds_large_arguments_of_one_call_at_a_time(
    page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    monkeypatch.setattr(export, "give_connection_back", lambda: reads.append(1))
    for size in (export.BATCH_CHARACTERS, 5, 5, export.BATCH_CHARACTERS):
        add(anna, arguments={"text": "x" * size})
    assert len(export_text(page, "jsonl").splitlines()) == 4
    assert len(reads) == 3


def test_a_user_with_many_slow_exports_leaves_some_to_others(
    client: Client, alice: User, bob: User, echo: Tool
) -> None:
    other_client = Client()
    other_client.force_login(alice)
    address = reverse("admin:roster_call_export", args=["jsonl"])
    responses = []
    while (response := client.get(address)).streaming:
        responses.append(response)
        assert len(responses) < 100
    assert response.status_code == 429
    assert export_text(other_client, "csv")
    for response in responses:
        response.close()
    assert exports.in_use == 0


def test_an_export_needs_the_permission_and_contains_only_visible_calls(client: Client, bob: User, echo: Tool) -> None:
    own_call = add(echo.member, requested_by=bob)
    add(echo.member)
    assert len(export_text(client, "jsonl").splitlines()) == 2
    reserve_member(echo.member, [Group.objects.create(name="others")])
    assert [json.loads(line)["id"] for line in export_text(client, "jsonl").splitlines()] == [own_call.pk]
    assert client.get(f"{LIST}export/xlsx/").status_code == 404
    bob.user_permissions.clear()
    assert client.get(f"{LIST}export/csv/").status_code == 403
