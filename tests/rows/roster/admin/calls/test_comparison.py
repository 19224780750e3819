"""Two calls side by side."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from mcp_runtime.control.members import reserve_member
from roster.admin.calls import comparison
from roster.models import GuildMember, Tool
from tests.support.calls import LIST, add, at, html, messages_of, numbered, words

pytestmark = pytest.mark.django_db

EVIL = "<img src=x onerror=alert(1)>"


def test_two_chosen_calls_stand_side_by_side(page: Client, echo: Tool) -> None:
    left = add(echo.member, arguments={"text": "a"}, result={"content": [{"type": "text", "text": f"one {EVIL}"}]})
    right = add(echo.member, arguments={"text": "b"}, result={"content": [{"type": "text", "text": "two"}]})
    chosen = {"action": "compare", "_selected_action": [right.pk, left.pk]}
    response = page.post(LIST, chosen, follow=True)
    said = words(response)
    assert f"Calls {left.pk} and {right.pk}" in said
    assert "Arguments: different" in said
    assert "≠ &quot;text&quot;: &quot;a&quot; ≠ &quot;text&quot;: &quot;b&quot;" in said
    assert EVIL not in html(response)


@pytest.mark.parametrize("number", [1, 3])
def test_other_than_two_cannot_be_compared(page: Client, anna: GuildMember, number: int) -> None:
    chosen = {"action": "compare", "_selected_action": numbered(anna, number)}
    assert messages_of(page.post(LIST, chosen, follow=True)) == ["Choose exactly two calls to compare."]


def test_a_call_is_compared_with_the_one_before_it_of_the_same_tool(page: Client, echo: Tool) -> None:
    first = add(echo.member)
    add(echo.member, tool_name="other")
    second = add(echo.member)
    asked = parse_qs(urlsplit(page.get(at(second, "previous")).headers["Location"]).query)
    assert asked == {"left": [str(first.pk)], "right": [str(second.pk)]}
    assert messages_of(page.get(at(first, "previous"), follow=True)) == [
        "There is no earlier call of this tool to compare with."
    ]


def test_the_call_before_is_ones_own_for_who_may_see_no_others(client: Client, echo: Tool) -> None:
    carol = User.objects.create_user("carol", is_staff=True)
    carol.user_permissions.add(Permission.objects.get(codename="view_guildmember"))
    client.force_login(carol)
    first, _, latest = add(echo.member, requested_by=carol), add(echo.member), add(echo.member, requested_by=carol)
    address = client.get(at(latest, "previous")).headers["Location"]
    assert address.endswith(f"left={first.pk}&right={latest.pk}")


def test_calls_that_are_not_there_for_one_cannot_be_compared(client: Client, bob: User, echo: Tool) -> None:
    mine, other = add(echo.member, requested_by=bob), add(echo.member)
    reserve_member(echo.member, [Group.objects.create(name="others")])
    address = reverse("admin:roster_call_compare")
    assert client.get(address, {"left": mine.pk, "right": mine.pk}).status_code == 200
    assert client.get(address, {"left": mine.pk, "right": other.pk}).status_code == 404
    assert client.get(address, {"left": "x", "right": "9" * 40}).status_code == 404
    assert client.get(address).status_code == 404


def test_secrets_stay_masked_side_by_side(page: Client, echo: Tool) -> None:
    call = add(echo.member, status="running", arguments={"password": "hunter2"}, secret_paths=[["password"]])
    response = page.get(reverse("admin:roster_call_compare"), {"left": call.pk, "right": call.pk})
    assert "hunter2" not in html(response)
    assert "Arguments: equal" in words(response)


def changes(left: str, right: str) -> list[tuple[str, str, str, int]]:
    found = comparison.part("Result", left, right)
    return [(line.change, line.left, line.right, line.count) for line in found.lines]


def test_lines_that_differ_are_marked_and_equal_ones_far_away_are_counted() -> None:
    same = [str(number) for number in range(20)]
    left, right = "\n".join([*same, "a", "x"]), "\n".join([*same, "b"])
    assert changes(left, right) == [
        ("skipped", "", "", 17),
        *[("", line, line, 0) for line in same[-3:]],
        ("changed", "a", "b", 0),
        ("left", "x", "", 0),
    ]
    assert changes("a", "a\nb") == [("", "a", "a", 0), ("right", "", "b", 0)]


def test_what_is_equal_is_shown_whole() -> None:
    text = "\n".join(map(str, range(30)))
    assert len(changes(text, text)) == 30
    assert comparison.part("Result", text, text).is_equal


@pytest.mark.parametrize(
    "text", ["x\n" * 10_000, "y" * 500_000, "\n".join(str(number % 90) for number in range(5_000))]
)
def test_comparing_has_a_bound_whatever_is_compared(text: str) -> None:
    found = comparison.part("Result", text, "z\n" + text)
    assert found.is_cut
    assert len(found.lines) <= 2 * comparison.MAX_LINES
    assert sum(len(line.left) for line in found.lines) <= comparison.MAX_CHARACTERS
