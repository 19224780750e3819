"""The page of a call, and what the list of calls finds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from roster.models import Call, GuildMember
from tests.support.admin import act, html, list_of, make_call, messages_of, page_of

pytestmark = pytest.mark.django_db


def test_the_page_of_a_call_looks_again_while_it_is_not_over(page: Client, example: GuildMember) -> None:
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


def test_the_answer_is_shown_as_text_and_the_result_as_json(page: Client, example: GuildMember) -> None:
    result = {"content": [{"type": "text", "text": "one\ntwo"}], "structuredContent": {"n": [1, 2]}}
    began = timezone.now()
    call = make_call(
        example, status="succeeded", result=result, started_at=began, finished_at=began + timedelta(seconds=0.25)
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


def test_cancel_ends_the_queued_asks_the_running_and_leaves_the_finished(page: Client, example: GuildMember) -> None:
    queued = make_call(example)
    running = make_call(example, status="running")
    done = make_call(example, status="succeeded")

    response = act(page, "call", "cancel", queued, running, done)

    assert messages_of(response) == [
        f"Cancelled (1): {queued.pk} echo.",
        f"Cancellation requested (1): {running.pk} echo.",
        f"Not changed (1): call {done.pk} has ended: Succeeded.",
    ]
    queued.refresh_from_db()
    running.refresh_from_db()
    assert queued.status == "cancelled"
    assert running.cancel_requested_at


def test_the_list_of_calls_filters_and_searches(page: Client, example: GuildMember) -> None:
    make_call(example, tool_name="echo", source="rest")
    failed = make_call(example, tool_name="reverse", source="admin", status="failed", error_kind="timeout")

    def found(**query: Any) -> list[Call]:
        return list(page.get(list_of("call"), query).context["cl"].result_list)

    for query in [
        {"q": "rever"},
        {"status__exact": "failed"},
        {"source__exact": "admin"},
        {"error_kind__exact": "timeout"},
    ]:
        assert found(**query) == [failed], query
    assert len(found(member__id__exact=example.pk)) == 2
    assert len(found(queued_at__gte=timezone.now() - timedelta(days=1))) == 2
