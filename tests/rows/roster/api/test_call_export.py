"""The list of calls as a file over REST."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from roster import call_export as export
from roster.api.call_export import exports
from roster.models import GuildMember
from tests.support.api import add_call

EXPORT = "/api/calls/export/"


def text_of(client: Client, **query: Any) -> str:
    response = client.get(f"{EXPORT}?{urlencode(query, doseq=True)}")
    assert response.status_code == 200
    return read(response)


def read(response: Any) -> str:
    """Read to the end, which closes the response."""
    return b"".join(response.streaming_content).decode()


def test_each_format_has_the_filtered_calls_newest_first(as_bob: Client, example: GuildMember) -> None:
    first, second = (add_call(example, arguments={"n": number}) for number in (1, 2))
    add_call(example, status="failed", error_kind="tool")
    expected = [second.pk, first.pk]
    lines = text_of(as_bob, status="queued").splitlines()
    assert [json.loads(line)["id"] for line in lines] == expected
    calls = json.loads(text_of(as_bob, status="queued", format="json"))
    assert [(call["id"], call["arguments"]) for call in calls] == [(second.pk, {"n": 2}), (first.pk, {"n": 1})]
    rows = csv.DictReader(io.StringIO(text_of(as_bob, status="queued", format="csv")))
    assert [int(row["id"]) for row in rows] == expected


def test_an_empty_export_is_valid(as_bob: Client, example: GuildMember) -> None:
    assert json.loads(text_of(as_bob, format="json")) == []
    assert text_of(as_bob) == ""
    assert text_of(as_bob, format="csv").startswith("id,member,tool")


def test_results_are_exported_on_request(as_bob: Client, example: GuildMember) -> None:
    add_call(example, result={"content": []}, arguments={"key": "hidden"}, secret_paths=[["key"]])
    assert "result" not in json.loads(text_of(as_bob))
    call = json.loads(text_of(as_bob, results="true"))
    assert (call["result"], call["arguments"]) == ({"content": []}, {"key": "********"})


def test_an_export_has_the_matches_of_a_search(as_bob: Client, example: GuildMember) -> None:
    call = add_call(example, search_text="plum pear")
    add_call(example, search_text="plum")
    assert [json.loads(line)["id"] for line in text_of(as_bob, search="pear, plum").splitlines()] == [call.pk]


def test_an_export_searches_once_whatever_its_size(
    as_bob: Client, example: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH", 2)
    expected = [add_call(example, search_text="plum").pk for _ in range(7)]
    with CaptureQueriesContext(connection) as queries:
        text = text_of(as_bob, search="plum")
    assert [json.loads(line)["id"] for line in text.splitlines()] == expected[::-1]
    assert len([query for query in queries if " MATCH " in query["sql"] or "to_tsquery" in query["sql"]]) == 1


def test_a_search_that_takes_too_long_is_refused_before_the_file_begins(
    as_bob: Client, example: GuildMember, too_long_searches: None
) -> None:
    add_call(example, search_text="plum")
    response = as_bob.get(EXPORT, {"search": "plum"})
    assert (response.status_code, response.json()["code"]) == (400, "search_failed")
    assert exports.in_use == 0
    assert text_of(as_bob)


def test_an_export_has_only_calls_that_its_reader_may_see(
    as_charlie: Client, example: GuildMember, alice: User
) -> None:
    add_call(example, requested_by=alice, search_text="plum")
    assert text_of(as_charlie) == text_of(as_charlie, search="plum") == ""


@pytest.mark.parametrize("query", [{"format": "xlsx"}, {"formt": "csv"}, {"search": "x" * 201}, {"results": "maybe"}])
def test_a_wrong_parameter_is_refused(as_bob: Client, query: dict[str, str]) -> None:
    response = as_bob.get(EXPORT, query)
    assert response.status_code == 400
    assert next(iter(query)) in response.content.decode()


def test_too_many_exports_at_once_are_refused_until_one_ends(as_bob: Client, example: GuildMember) -> None:
    add_call(example)
    responses = []
    while (response := as_bob.get(EXPORT)).status_code == 200:
        responses.append(response)
        assert len(responses) < 100
    assert response.status_code == 429
    assert response.json()["code"] == "too_many_calls"
    assert response.headers["Retry-After"]
    for response in responses:
        read(response)
    assert exports.in_use == 0
    assert text_of(as_bob)
