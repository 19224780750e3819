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


def test_two_chosen_calls_are_shown_side_by_side(page: Client, echo: Tool) -> None:
    left = add(echo.member, arguments={"text": "a"}, result={"content": [{"type": "text", "text": f"one {EVIL}"}]})
    right = add(echo.member, arguments={"text": "b"}, result={"content": [{"type": "text", "text": "two"}]})
    form = {"action": "compare", "_selected_action": [right.pk, left.pk]}
    response = page.post(LIST, form, follow=True)
    text = words(response)
    assert f"Calls {left.pk} and {right.pk}" in text
    assert "Arguments: different" in text
    assert "≠ &quot;text&quot;: &quot;a&quot; ≠ &quot;text&quot;: &quot;b&quot;" in text
    assert EVIL not in html(response)


@pytest.mark.parametrize("number", [1, 3])
def test_only_two_calls_can_be_compared(page: Client, anna: GuildMember, number: int) -> None:
    form = {"action": "compare", "_selected_action": numbered(anna, number)}
    assert messages_of(page.post(LIST, form, follow=True)) == ["Choose exactly two calls to compare."]


def test_a_call_is_compared_with_the_previous_call_of_the_same_tool(page: Client, echo: Tool) -> None:
    first = add(echo.member)
    add(echo.member, tool_name="other")
    second = add(echo.member)
    query = parse_qs(urlsplit(page.get(at(second, "previous")).headers["Location"]).query)
    assert query == {"left": [str(first.pk)], "right": [str(second.pk)]}
    assert messages_of(page.get(at(first, "previous"), follow=True)) == [
        "There is no earlier call of this tool to compare with."
    ]


def test_the_previous_call_is_one_that_the_user_may_see(client: Client, echo: Tool) -> None:
    carol = User.objects.create_user("carol", is_staff=True)
    carol.user_permissions.add(Permission.objects.get(codename="view_guildmember"))
    client.force_login(carol)
    first, _, last = add(echo.member, requested_by=carol), add(echo.member), add(echo.member, requested_by=carol)
    address = client.get(at(last, "previous")).headers["Location"]
    assert address.endswith(f"left={first.pk}&right={last.pk}")


def test_calls_that_the_user_may_not_see_cannot_be_compared(client: Client, bob: User, echo: Tool) -> None:
    own_call, other_call = add(echo.member, requested_by=bob), add(echo.member)
    reserve_member(echo.member, [Group.objects.create(name="others")])
    address = reverse("admin:roster_call_compare")
    assert client.get(address, {"left": own_call.pk, "right": own_call.pk}).status_code == 200
    assert client.get(address, {"left": own_call.pk, "right": other_call.pk}).status_code == 404
    assert client.get(address, {"left": "x", "right": "9" * 40}).status_code == 404
    assert client.get(address).status_code == 404


def test_secrets_are_masked_in_a_comparison(page: Client, echo: Tool) -> None:
    call = add(echo.member, status="running", arguments={"password": "hunter2"}, secret_paths=[["password"]])
    response = page.get(reverse("admin:roster_call_compare"), {"left": call.pk, "right": call.pk})
    assert "hunter2" not in html(response)
    assert "Arguments: equal" in words(response)


def compare(left: str, right: str) -> list[tuple[str, str, str, int]]:
    part = comparison.part("Result", left, right)
    return [(line.change, line.left, line.right, line.count) for line in part.lines]


def test_lines_that_differ_are_marked_and_distant_equal_lines_are_counted() -> None:
    equal_lines = [str(number) for number in range(20)]
    left, right = "\n".join([*equal_lines, "a", "x"]), "\n".join([*equal_lines, "b"])
    assert compare(left, right) == [
        ("skipped", "", "", 17),
        *[("", line, line, 0) for line in equal_lines[-3:]],
        ("changed", "a", "b", 0),
        ("left", "x", "", 0),
    ]
    assert compare("a", "a\nb") == [("", "a", "a", 0), ("right", "", "b", 0)]


def test_equal_texts_are_shown_completely() -> None:
    text = "\n".join(map(str, range(30)))
    assert len(compare(text, text)) == 30
    assert comparison.part("Result", text, text).is_equal


@pytest.mark.parametrize(
    "text", ["x\n" * 10_000, "y" * 500_000, "\n".join(str(number % 90) for number in range(5_000))]
)
def test_a_comparison_has_a_limited_size(text: str) -> None:
    part = comparison.part("Result", text, "z\n" + text)
    assert part.is_cut
    assert len(part.lines) <= 2 * comparison.MAX_LINES
    assert sum(len(line.left) for line in part.lines) <= comparison.MAX_CHARACTERS


def test_characters_that_would_change_the_order_of_the_text_are_escaped(page: Client, anna: GuildMember) -> None:
    calls = [add(anna, arguments={"text": f"{text}\u202egnp.exe"}) for text in ("a", "b")]
    text = html(page.get(f"{LIST}compare/", {"left": calls[0].pk, "right": calls[1].pk}))
    assert "\u202e" not in text
    assert "a\\u202egnp.exe" in text
