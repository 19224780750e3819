"""The search of all pages: what it finds, for whom, in which order, and the pins of tools."""

from __future__ import annotations

import re
from html import unescape
from itertools import product

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from mcp_runtime.control.members import reserve_member
from roster.models import Call, Contract, GuildMember, MemberExtras, PinnedTool, Tool
from tests.support.admin import make_member, make_tool

pytestmark = pytest.mark.django_db


def found(page: Client, query: str) -> list[str]:
    """The kinds and labels of the results, the best first."""
    html = page.get("/admin/search/", {"q": query}, headers={"X-Live": "part"}).content.decode()
    kinds = re.findall(r'class="hit-kind">\s*(.*?)</span>', html)
    labels = re.findall(r'class="hit-label">(.*?)</span>', html)
    return [f"{kind} {label}" for kind, label in zip(kinds, labels, strict=True)]


def with_rights(name: str, *rights: str, groups: tuple[Group, ...] = ()) -> Client:
    user = User.objects.create_user(name)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    user.groups.set(groups)
    client = Client()
    client.force_login(user)
    return client


def add_call(tool: Tool, user: User | None = None) -> Call:
    return Call.objects.create(
        member=tool.member, tool_name=tool.name, timeout=5, source=Call.Source.REST, requested_by=user
    )


def test_the_best_match_is_first_among_many(page: Client) -> None:
    for number in range(30):
        member = make_member(f"m{number}")
        for verb in ("list", "get", "create", "update", "delete", "search"):
            make_tool(member, f"{verb}_billing")
    make_tool(make_member("shop"), "share_billing")
    assert found(page, "share billing") == ["tool share_billing"]
    cards = page.get("/admin/", {"q": "share billing"}).content.decode()
    assert re.findall(r'/tool/\d+/call/">([^<]*)</a></li>', cards) == ["share_billing"]


def test_tools_members_calls_people_and_pages_are_found(page: Client, echo: Tool, alice: User) -> None:
    call = add_call(echo, alice)
    assert found(page, "echo") == ["tool echo", f"call #{call.pk} echo"]
    assert found(page, str(call.pk)) == [f"call #{call.pk} echo"] == found(page, f"#{call.pk}")
    assert found(page, "The Example")[0] == "member example"
    assert found(page, "alice") == ["person alice"]
    assert found(page, "audit") == ["page Audit log"]
    assert found(page, "invite")[0] == "page Invite a person"


def test_a_description_is_searched(page: Client, example: GuildMember) -> None:
    make_tool(example, "post", definition={"name": "post", "description": "Sends a letter to somebody."})
    assert found(page, "letter") == ["tool post"]
    assert ">post</a>" in page.get("/admin/", {"q": "letter"}).content.decode()


def test_a_verb_and_a_member_are_a_command_for_those_who_may(page: Client, runtime: None, example: GuildMember) -> None:
    html = page.get("/admin/search/", {"q": "restart exam"}).content.decode()
    address = f"/admin/roster/guildmember/{example.pk}/do/restart/"
    assert f'formaction="{address}"' in html
    assert found(page, "restart exam") == ["command Restart: example"]
    assert found(page, "enable exam") == []  # it is enabled
    page.post(address)
    example.refresh_from_db()
    assert example.restart_requested_at is not None
    assert found(with_rights("viewer", "view_guildmember", "view_tool"), "restart exam") == []


def test_disabled_held_and_unlisted_tools_and_removed_members_are_not_found(page: Client, example: GuildMember) -> None:
    make_tool(example, "tree_one", enabled=False)
    make_tool(example, "tree_two", is_held=True)
    make_tool(example, "tree_three", listed=False)
    assert found(page, "tree") == []


# Prompts and resources --------------------------------------------------------------------------------------------


def add_extras(member: GuildMember, word: str) -> None:
    MemberExtras.objects.create(
        member=member,
        prompts=[{"name": f"{word}_prompt", "title": "Sum up", "description": "Makes it short. Größe"}],
        resources=[{"uri": f"file:///{word}.txt", "name": "Minutes of the day"}],
        resource_templates=[{"uriTemplate": f"{word}://{{day}}", "name": "One day", "description": "All of it."}],
        digest=word,
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("diary_prompt", ["prompt diary_prompt"]),
        ("sum up", ["prompt diary_prompt"]),
        ("short größe", ["prompt diary_prompt"]),
        ("file:///diary", ["resource file:///diary.txt"]),
        ("minutes", ["resource file:///diary.txt"]),
        ("one day", ["resource template diary://{day}"]),
        ("day diary", ["resource template diary://{day}", "resource file:///diary.txt"]),
        ("nowhere", []),
    ],
)
def test_prompts_and_resources_are_found_by_all_their_texts(
    page: Client, example: GuildMember, query: str, expected: list[str]
) -> None:
    add_extras(example, "diary")
    assert sorted(found(page, query)) == sorted(expected)


def test_a_prompt_or_resource_in_the_results_leads_to_its_page(page: Client, example: GuildMember) -> None:
    add_extras(example, "diary")
    for query, words in (("diary_prompt", "Sum up"), ("minutes", "Minutes of the day"), ("one day", "One day")):
        html = page.get("/admin/search/", {"q": query}, headers={"X-Live": "part"}).content.decode()
        (address,) = re.findall(r'<a href="([^"]*)"', html)
        response = page.get(unescape(address))
        assert response.status_code == 200
        assert words in response.content.decode()


def test_what_is_held_or_disabled_and_what_a_disabled_member_has_is_not_found(
    page: Client, example: GuildMember
) -> None:
    add_extras(example, "diary")
    assert len(found(page, "diary")) == 3
    example.disabled_extras.create(kind="resource", name="file:///diary.txt", key="file:///diary.txt")
    example.contracts.create(kind="prompt", name="diary_prompt", version="1", is_held=True)
    assert found(page, "diary") == ["resource template diary://{day}"]
    example.contracts.create(kind="resourceTemplate", name="diary://{day}", version="1", is_held=True)
    assert found(page, "diary") == []
    Contract.objects.all().delete()
    GuildMember.objects.update(enabled=False)
    assert found(page, "diary") == []


def test_odd_definitions_of_members_do_no_harm(page: Client, example: GuildMember) -> None:
    odd = ["text", None, 7, {}, {"name": 3}, {"name": "odd", "title": ["x"], "description": {"a": 1}}]
    MemberExtras.objects.create(member=example, prompts=odd, resources=odd, resource_templates=odd, digest="x")
    assert found(page, "odd") == ["prompt odd"]


WORDS = (
    "secret",
    "prompt",
    "minutes",
    "plan",
    "echo",
    "vault",
    "a",
    "e",
    "call",
    "restart vault",
    "restart",
    "1",
    "2",
    "3",
    "mallory",
)


@pytest.mark.parametrize(
    "rights", [("view_guildmember", "view_tool"), ("invoke_tool", "view_guildmember", "add_token")]
)
def test_what_somebody_may_not_see_changes_no_answer(echo: Tool, rights: tuple[str, ...]) -> None:
    """All queries, compared with the same hall before it had the reserved member."""
    stranger = with_rights("stranger", *rights)
    add_extras(echo.member, "echo")
    queries = [*WORDS, *(f"{one} {other}" for one, other in product(WORDS[:7], repeat=2))]
    before = {query: found(stranger, query) for query in queries}
    group = Group.objects.create(name="keepers")
    vault = make_member("vault", display_name="secret plan", description="echo a e 1 2 3")
    reserve_member(vault, [group])
    keeper = User.objects.create_user("mallory", first_name="secret", last_name="plan")
    add_call(make_tool(vault, "secret_plan"), keeper)
    add_extras(vault, "secret_plan")
    assert {query: found(stranger, query) for query in queries} == before
    insider = with_rights("insider", *rights, groups=(group,))
    assert {hit.split()[0] for hit in found(insider, "secret plan")} == {"tool", "member", "prompt", "resource"}


def test_a_user_without_rights_finds_nothing_of_the_hall(echo: Tool, bob: User) -> None:
    add_extras(echo.member, "echo")
    client = Client()
    client.force_login(bob)
    for word in ("echo", "example", "alice", "1", "e"):
        assert {hit.split()[0] for hit in found(client, word)} <= {"page"}, word


def test_hostile_words_are_shown_as_text(page: Client) -> None:
    html = page.get("/admin/search/", {"q": "<script>alert(1)</script>\0%_'\""}).content.decode()
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


# Pinned and recent tools ------------------------------------------------------------------------------------------


def test_without_words_pinned_tools_come_first_and_then_those_called_last(
    page: Client, alice: User, bob: User, example: GuildMember
) -> None:
    one, two, three, four = (make_tool(example, name) for name in ("one", "two", "three", "four"))
    for tool, user in ((one, alice), (two, alice), (one, alice), (four, bob)):
        add_call(tool, user)
    page.post(reverse("admin:search_pin", args=[three.pk]))
    assert found(page, "")[:4] == ["pinned tool three", "tool one", "tool two", "page Roster"]
    page.post(reverse("admin:search_pin", args=[three.pk]), {"unpin": ""})
    assert found(page, "")[:3] == ["tool one", "tool two", "page Roster"]


def test_a_pin_belongs_to_its_user_and_is_made_once(page: Client, alice: User, echo: Tool) -> None:
    address = reverse("admin:search_pin", args=[echo.pk])
    for _ in range(2):
        page.post(address)
    assert [pin.user for pin in PinnedTool.objects.all()] == [alice]
    other = with_rights("other", "view_tool")
    assert "pinned" not in str(found(other, ""))
    other.post(address, {"unpin": ""})
    assert PinnedTool.objects.count() == 1


def test_pins_are_bounded(page: Client, alice: User, example: GuildMember) -> None:
    tools = [make_tool(example, f"t{number}") for number in range(PinnedTool.MAX_PER_USER + 1)]
    for tool in tools:
        response = page.post(reverse("admin:search_pin", args=[tool.pk]), follow=True)
    assert "You have pinned 20 tools" in response.content.decode()
    assert PinnedTool.objects.count() == PinnedTool.MAX_PER_USER


def test_a_tool_out_of_sight_cannot_be_pinned_and_a_pin_does_not_show_it(
    page: Client, echo: Tool, writers: Group
) -> None:
    stranger = with_rights("stranger", "view_tool", "view_guildmember")
    address = reverse("admin:search_pin", args=[echo.pk])
    assert stranger.post(address).status_code == 404
    PinnedTool.objects.create(user=User.objects.get(username="stranger"), tool=echo)
    assert "echo" not in str(found(stranger, ""))


@pytest.mark.parametrize("place", ["https://evil.example.com/", "//evil.example.com/", "javascript:alert(1)"])
def test_after_a_pin_the_hall_leads_to_no_other_site(page: Client, echo: Tool, place: str) -> None:
    response = page.post(reverse("admin:search_pin", args=[echo.pk]), {"next": place})
    assert response.headers["Location"] == "/admin/search/"


def test_the_runner_has_the_button_that_pins(page: Client, alice: User, echo: Tool) -> None:
    runner = reverse("admin:roster_tool_call", args=[echo.pk])
    assert "Pin</button>" in page.get(runner).content.decode()
    response = page.post(reverse("admin:search_pin", args=[echo.pk]), {"next": runner})
    assert response.headers["Location"] == runner
    assert "Take the pin away</button>" in page.get(runner).content.decode()
