"""The page of a call, and the filters of the list of calls."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from roster.models import Call, GuildMember
from tests.support.admin import act, html, list_of, make_call, make_tool, messages_of, page_of

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


def test_the_page_of_a_call_leads_to_its_tool(page: Client, example: GuildMember) -> None:
    call = make_call(example, status="succeeded")
    assert "<strong>echo</strong>" in html(page.get(page_of(call)))
    tool = make_tool(example)
    assert f'<strong><a href="{page_of(tool)}">echo</a></strong>' in html(page.get(page_of(call)))


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


def test_half_a_surrogate_pair_in_a_text_of_json_does_not_break_the_page(page: Client, example: GuildMember) -> None:
    text = r'{"name": "half \ud800"}'
    content = [{"type": "text", "text": text}, {"type": "resource", "resource": {"uri": "file:///a", "text": text}}]
    call = make_call(example, status="succeeded", result={"content": content})

    assert html(page.get(page_of(call))).count("&quot;half \N{REPLACEMENT CHARACTER}&quot;</span>") == 2
    assert page.get(file_of(call, "0")).content.decode() == text


def test_a_text_that_repeats_the_structured_content_is_shown_once_though_half_a_pair_was_replaced(
    page: Client, example: GuildMember
) -> None:
    result = {
        "content": [{"type": "text", "text": r'{"name": "half \ud800"}'}],
        "structuredContent": {"name": "half \N{REPLACEMENT CHARACTER}"},
    }
    call = make_call(example, status="succeeded", result=result)

    assert html(page.get(page_of(call))).count('<span class="json-key">name</span>') == 1


def test_a_huge_result_is_shown_in_part(page: Client, example: GuildMember) -> None:
    call = make_call(example, status="succeeded", result={"content": [{"type": "text", "text": "x" * 3_000_000}]})

    text = html(page.get(page_of(call)))

    assert len(text) < 1_000_000
    assert "only the beginning" in text
    assert reverse("admin:roster_call_file", args=[call.pk, "0"]) in text


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


def test_the_parts_of_a_result_are_downloads(page: Client, example: GuildMember) -> None:
    svg = {"type": "image", "data": "PHN2Zz4=", "mimeType": "image/svg+xml"}
    call = make_call(example, status="succeeded", result={"content": [svg]})

    response = page.get(file_of(call, "0"))

    assert response.content == b"<svg>"
    assert response["Content-Disposition"] == f'attachment; filename="echo-{call.pk}-1.svg"'
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert json.loads(page.get(file_of(call, "result")).content) == call.result
    assert page.get(file_of(call, "1")).status_code == 404


@pytest.mark.parametrize("status", ["queued", "running"])
def test_an_unfinished_call_has_no_downloads(page: Client, example: GuildMember, status: str) -> None:
    assert page.get(file_of(make_call(example, status=status, result={}), "result")).status_code == 404


def test_the_result_of_anothers_call_is_no_download(client: Client, example: GuildMember) -> None:
    bob = User.objects.create_user("bob", is_staff=True)
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    client.force_login(bob)
    own = make_call(example, status="succeeded", result={"content": []}, requested_by=bob)
    other = make_call(example, status="succeeded", result={"content": []})
    assert [client.get(file_of(call, "result")).status_code for call in (own, other)] == [200, 404]


def file_of(call: Call, part: str) -> str:
    return reverse("admin:roster_call_file", args=[call.pk, part])
