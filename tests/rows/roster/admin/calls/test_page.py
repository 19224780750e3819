"""The page of a call, and the filters of the list of calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from roster.models import Call, GuildMember
from tests.support.admin import act, html, list_of, make_call, messages_of, page_of

pytestmark = pytest.mark.django_db


def test_the_page_of_an_unfinished_call_reloads(page: Client, example: GuildMember) -> None:
    refresh = '<meta http-equiv="refresh" content="1">'

    for status, is_active in [("queued", True), ("running", True), ("succeeded", False), ("cancelled", False)]:
        call = make_call(example, status=status, started_at=timezone.now())
        assert (refresh in html(page.get(page_of(call)))) is is_active, status


@pytest.mark.parametrize("status", ["running", "failed"])
def test_secret_arguments_are_masked_even_while_the_call_runs(page: Client, example: GuildMember, status: str) -> None:
    call = make_call(
        example, status=status, arguments={"text": "plain words", "password": "hunter2"}, secret_paths=[["password"]]
    )

    text = html(page.get(page_of(call)))

    assert "plain words" in text
    assert "hunter2" not in text


def test_the_result_is_shown_as_text_and_as_json(page: Client, example: GuildMember) -> None:
    result = {"content": [{"type": "text", "text": "one\ntwo"}], "structuredContent": {"n": [1, 2]}}
    start = timezone.now()
    call = make_call(
        example, status="succeeded", result=result, started_at=start, finished_at=start + timedelta(seconds=0.25)
    )

    text = html(page.get(page_of(call)))

    assert "one\ntwo" in text
    assert "&quot;structuredContent&quot;: {" in text
    assert "250 ms" in text


def test_a_huge_result_is_shown_in_part(page: Client, example: GuildMember) -> None:
    call = make_call(example, status="succeeded", result={"content": [{"type": "text", "text": "x" * 3_000_000}]})

    text = html(page.get(page_of(call)))

    assert len(text) < 1_000_000
    assert "more characters. The API returns the whole text." in text


def test_the_cancel_action_affects_queued_and_running_calls_and_no_finished_ones(
    page: Client, example: GuildMember
) -> None:
    queued_call = make_call(example)
    running_call = make_call(example, status="running")
    finished_call = make_call(example, status="succeeded")

    response = act(page, "call", "cancel", queued_call, running_call, finished_call)

    assert messages_of(response) == [
        f"Cancelled (1): {queued_call.pk} echo.",
        f"Cancellation requested (1): {running_call.pk} echo.",
        f"Not changed (1): call {finished_call.pk} has ended: Succeeded.",
    ]
    queued_call.refresh_from_db()
    running_call.refresh_from_db()
    assert queued_call.status == "cancelled"
    assert running_call.cancel_requested_at


def test_the_list_of_calls_can_be_filtered_and_searched(page: Client, example: GuildMember) -> None:
    make_call(example, tool_name="echo", source="rest")
    failed_call = make_call(example, tool_name="reverse", source="admin", status="failed", error_kind="timeout")

    def find(**query: Any) -> list[Call]:
        return list(page.get(list_of("call"), query).context["cl"].result_list)

    for query in [
        {"q": "rever"},
        {"status__exact": "failed"},
        {"source__exact": "admin"},
        {"error_kind__exact": "timeout"},
    ]:
        assert find(**query) == [failed_call], query
    assert len(find(member__id__exact=example.pk)) == 2
    assert len(find(queued_at__gte=timezone.now() - timedelta(days=1))) == 2
