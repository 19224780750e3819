"""The prompts and resources of a member in the admin: tabs, a page for each, use, completion, watching, switches."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from mcp_runtime.control.extras import Kind, find_extra, set_extra_enabled
from mcp_runtime.control.watches import watches
from roster.admin.calls import files
from roster.admin.members import extras
from roster.api import requests
from roster.models import AuditEntry, Contract, GuildMember, MemberExtras
from tests.conftest import eventually
from tests.support.admin import EVIL, allow, html, make_member, messages_of, page_of
from tests.support.extras import PROMPTS, TEMPLATES, Updates, connect, start_member
from tests.support.gateway_world import Member, World
from tests.support.scripted_server import Request as MemberRequest

pytestmark = pytest.mark.django_db
TEMPLATE = str(TEMPLATES[0]["uriTemplate"])
URI = "file:///a.txt"


def address(row: GuildMember, view: str, *args: Any, **query: str) -> str:
    place = reverse(f"admin:roster_guildmember_{view}", args=[row.pk, *args], query=query or None)
    assert place
    return place


# Tabs -------------------------------------------------------------------------------------------------------------


def test_the_page_of_a_member_has_tabs_with_what_it_lists(page: Client, listed: GuildMember) -> None:
    text = html(page.get(page_of(listed)))
    assert 'href="?show=prompts#tools">Prompts <span class="quiet">2</span>' in text
    assert 'href="?show=resources#tools">Resources <span class="quiet">3</span>' in text
    prompts = html(page.get(f"{page_of(listed)}?show=prompts"))
    assert escape(address(listed, "prompt", name="trip")) in prompts
    assert "Plan a trip" in prompts
    resources = html(page.get(f"{page_of(listed)}?show=resources"))
    for place in (address(listed, "template", template=TEMPLATE), address(listed, "resource", uri=URI)):
        assert escape(place) in resources
    assert 'id="tool-rows"' not in resources


def test_two_thousand_resources_are_searched_and_come_in_pages(page: Client, listed: GuildMember) -> None:
    many = [{"uri": f"x:{number:04}", "name": f"Book {number}"} for number in range(2_000)]
    MemberExtras.objects.update(resources=many)
    first = html(page.get(f"{page_of(listed)}?show=resources"))
    assert "1 to 50 of 2,001" in first
    last = html(page.get(f"{page_of(listed)}?show=resources&p=41"))
    assert "x:1999" in last
    assert "Next" not in last.partition('aria-label="Pages"')[2].partition("</nav>")[0]
    found = html(page.get(f"{page_of(listed)}?show=resources&q=book+1234"))
    assert "x:1234" in found
    assert "x:1235" not in found
    assert "No matches." in html(page.get(f"{page_of(listed)}?show=resources&q=nothing"))
    for odd in ("p=x", "p=-1", "p=999999", "q=%00", "show=nothing"):
        assert page.get(f"{page_of(listed)}?show=resources&{odd}").status_code == 200


def test_a_tab_is_live_and_says_when_nothing_has_changed(page: Client, listed: GuildMember) -> None:
    place = f"{address(listed, 'part', 'prompts')}?show=prompts&p=1"
    response = page.get(place)
    assert "trip" in html(response)
    headers = {"If-None-Match": response.headers["ETag"]}
    assert page.get(place, headers=headers).status_code == 304
    set_extra_enabled(listed, find_extra(listed, Kind.PROMPT, "trip"), False)
    response = page.get(place, headers=headers)
    assert "Enable trip" in html(response)


def test_the_page_of_a_prompt_leads_to_its_member(page: Client, listed: GuildMember) -> None:
    text = html(page.get(address(listed, "prompt", name="trip")))
    assert f'<code>trip</code> of <a href="{page_of(listed)}">' in text


def test_texts_of_a_member_are_escaped(page: Client, listed: GuildMember) -> None:
    entry = {"name": EVIL, "title": EVIL, "description": EVIL, "arguments": [{"name": EVIL, "description": EVIL}]}
    MemberExtras.objects.update(
        prompts=[entry], resources=[{**entry, "uri": EVIL, "mimeType": EVIL}], resource_templates=[]
    )
    for place in (
        f"{page_of(listed)}?show=prompts",
        f"{page_of(listed)}?show=resources",
        address(listed, "prompt", name=EVIL),
        address(listed, "resource", uri=EVIL),
    ):
        assert EVIL not in html(page.get(place))


def test_definitions_of_any_form_have_a_page(page: Client, listed: GuildMember) -> None:
    odd: list[Any] = [
        {"name": "a", "arguments": "none", "title": 7, "description": ["x"]},
        {"name": "b", "arguments": [7, {"name": 7}, {"name": ""}, {"name": "c", "required": "yes"}]},
    ]
    MemberExtras.objects.update(prompts=odd, resources=[{"uri": "x:y", "size": "big", "mimeType": {}}])
    for place in (*(address(listed, "prompt", name=name) for name in "ab"), address(listed, "resource", uri="x:y")):
        assert page.get(place).status_code == 200


# Rights and switches ----------------------------------------------------------------------------------------------


def test_one_who_may_see_tools_sees_definitions_and_cannot_use_them(
    client: Client, bob: User, listed: GuildMember
) -> None:
    client.force_login(bob)
    place = address(listed, "prompt", name="trip")
    assert client.get(place).status_code == 403
    allow(bob, "view_tool", "view_guildmember")
    text = html(client.get(place))
    assert "Plans it." in text
    assert "Get messages" not in text
    assert "Disable" not in text
    assert client.post(place).status_code == 403
    assert client.post(address(listed, "complete")).status_code == 403
    assert client.post(address(listed, "resource_watch")).status_code == 403
    assert client.get(address(listed, "resource_updates")).status_code == 403
    switch = address(listed, "extra_switch", "disable", kind="prompt", name="trip")
    assert client.post(switch).status_code == 403
    assert "Prompts" in html(client.get(page_of(listed)))


def test_an_operator_disables_and_enables_on_the_page(page: Client, listed: GuildMember) -> None:
    for kind, name, word in (
        (Kind.PROMPT, "trip", "prompt"),
        (Kind.RESOURCE, URI, "resource"),
        (Kind.RESOURCE_TEMPLATE, TEMPLATE, "resource template"),
    ):
        switch = address(listed, "extra_switch", "disable", kind=kind.value, name=name)
        response = page.post(switch, follow=True)
        assert messages_of(response) == [f"Disabled the {word} “{name}”."]
        assert f"This {word} is disabled, so nobody can use it." in html(response)
        assert not find_extra(listed, kind, name).is_enabled
        enable = address(listed, "extra_switch", "enable", kind=kind.value, name=name)
        assert page.post(enable, headers={"X-Live": "form"}).json()["messages"][0]["text"].startswith("Enabled the")
        assert find_extra(listed, kind, name).is_enabled
    assert AuditEntry.objects.filter(target__contains="trip").count() == 2
    for bad in ({"kind": "tool", "name": "trip"}, {"kind": "prompt", "name": "nobody"}):
        assert page.post(address(listed, "extra_switch", "disable", **bad)).status_code == 404
    assert page.post(address(listed, "extra_switch", "stop", kind="prompt", name="trip")).status_code == 404


def test_a_disabled_prompt_that_left_the_list_is_enabled_from_the_tab(page: Client, listed: GuildMember) -> None:
    set_extra_enabled(listed, find_extra(listed, Kind.PROMPT, "trip"), False)
    MemberExtras.objects.update(prompts=[])
    assert "disabled, no longer listed" in html(page.get(f"{page_of(listed)}?show=prompts"))
    enable = address(listed, "extra_switch", "enable", kind="prompt", name="trip")
    assert "has listed no prompts" in html(page.post(enable, follow=True))


def test_a_held_prompt_says_so_and_leads_to_the_change(page: Client, listed: GuildMember) -> None:
    Contract.objects.create(member=listed, kind="prompt", name="trip", version="1", is_held=True, reason="it is loud")
    assert "held until somebody approves its change" in html(page.get(f"{page_of(listed)}?show=prompts"))
    text = html(page.get(address(listed, "prompt", name="trip")))
    assert "is held, because it is loud" in text
    assert reverse("admin:roster_guildmember_changes", args=[listed.pk]) in text
    assert "Get messages" not in text


def test_a_reserved_member_does_not_exist_for_others(
    client: Client, bob: User, example: GuildMember, writers: Any
) -> None:
    MemberExtras.objects.create(member=example, prompts=PROMPTS)
    client.force_login(bob)
    allow(bob, "invoke_tool", "view_tool", "view_guildmember", "control_member")
    for place in (address(example, "prompt", name="trip"), address(example, "resource", uri=URI)):
        assert client.get(place).status_code == 404
    for view in ("complete", "resource_watch", "resource_file", "prompt_file"):
        assert client.post(address(example, view)).status_code == 404
    switch = address(example, "extra_switch", "disable", kind="prompt", name="trip")
    assert client.post(switch).status_code == 404


def test_what_the_member_does_not_list_has_no_page_but_any_uri_has_one(page: Client, listed: GuildMember) -> None:
    assert page.get(address(listed, "prompt", name="nobody")).status_code == 404
    assert page.get(address(listed, "template", template="x:{y}")).status_code == 404
    assert page.get(address(listed, "resource")).status_code == 404
    assert page.get(address(listed, "resource", uri="x" * 9_000)).status_code == 404
    assert "is in no list of the member" in html(page.get(address(listed, "resource", uri="x:y")))


# Use --------------------------------------------------------------------------------------------------------------


def test_the_messages_of_a_prompt_are_a_conversation(page: Client, notes: Member) -> None:
    place = address(notes.row, "prompt", name="trip")
    response = page.post(place, {"argument:city": "Rome", "argument:season": ""})
    text = html(response)
    assert '<li class="message-user">' in text
    assert "{&#x27;city&#x27;: &#x27;Rome&#x27;}" in text
    assert ">Rome</textarea>" in text.replace("\n", "")
    part = html(page.post(place, {"argument:city": "Rome"}, headers={"X-Live": "part"}))
    assert "<html" not in part
    assert '<li class="message-user">' in part


def test_a_missing_argument_is_named_without_asking_the_member(page: Client, notes: Member) -> None:
    text = html(page.post(address(notes.row, "prompt", name="trip"), {}))
    assert "city: this argument is required" in text
    assert notes.messages("prompts/get") == []


def test_a_template_is_filled_in_and_leads_to_the_resource(page: Client, notes: Member) -> None:
    place = address(notes.row, "template", template=TEMPLATE)
    assert html(page.get(place)).count("<textarea") == 2
    text = html(page.post(place, {"argument:table": "cars", "argument:page": "2"}))
    assert "content of db://cars/rows?page=2" in text
    assert escape(address(notes.row, "resource", uri="db://cars/rows?page=2")) in text


def test_contents_are_shown_safely_and_downloaded_as_attachments(world: World, page: Client, settings: Any) -> None:
    svg = base64.b64encode(b"<svg onload=alert(1)>").decode()

    def read(incoming: MemberRequest) -> None:
        contents: list[Any] = [
            {"uri": URI, "mimeType": "text/html", "text": EVIL},
            {"uri": URI, "mimeType": "image/svg+xml", "blob": svg},
            {"uri": URI, "mimeType": "application/zip", "blob": "not base64"},
            7,
        ]
        incoming.result({"contents": contents})

    connect(world, settings)
    row = start_member(world, resources_read=read).row
    text = html(page.post(address(row, "resource", uri=URI), {}, headers={"X-Live": "part"}))
    assert EVIL not in text
    assert "<svg" not in text
    assert escape("<svg onload=alert(1)>") in text
    assert "the data is not valid base64" in text
    assert 'form="download-part" name="part" value="1">Download' in text
    for part, content, name in (("0", EVIL.encode(), "a.txt"), ("1", b"<svg onload=alert(1)>", "a.txt")):
        check_attachment(page.post(address(row, "resource_file"), {"uri": URI, "part": part}), content, name)
    check_attachment(page.post(address(row, "resource_file"), {"uri": URI, "part": "3"}), b"7", "a.txt-4.json")
    whole = page.post(address(row, "resource_file"), {"uri": URI, "part": "result"})
    assert json.loads(whole.content)["contents"][3] == 7
    for part in ("4", "-1", "x", ""):
        response = page.post(address(row, "resource_file"), {"uri": URI, "part": part}, follow=True)
        assert "Nothing was downloaded. The answer has no such part any more." in " ".join(messages_of(response))
    assert page.get(address(row, "resource_file")).status_code == 405


def check_attachment(response: Any, content: bytes, name: str) -> None:
    assert (response.status_code, response.content) == (200, content)
    assert response.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


def test_messages_of_a_prompt_are_copied_and_downloaded(world: World, page: Client, settings: Any) -> None:
    def get(incoming: MemberRequest) -> None:
        city = incoming.message["params"]["arguments"]["city"]
        media = {"type": "image", "data": base64.b64encode(b"GIF89a").decode(), "mimeType": "image/gif"}
        contents = [{"type": "text", "text": f"# Go to {city} {EVIL}"}, media]
        incoming.result({"messages": [{"role": "user", "content": content} for content in contents] + [8]})

    connect(world, settings)
    row = start_member(world, prompts_get=get).row
    text = html(page.post(address(row, "prompt", name="trip"), {"argument:city": "Rome"}))
    assert f'action="{address(row, "prompt_file")}"' in text
    assert '<input type="hidden" name="argument:city" value="Rome">' in text
    assert 'form="download-part" name="part" value="2">Download' in text
    assert "data-copy-item>Copy" in text

    form = {"name": "trip", "argument:city": "Rome"}
    place = address(row, "prompt_file")
    check_attachment(page.post(place, {**form, "part": "0"}), f"# Go to Rome {EVIL}".encode(), "trip-1.md")
    check_attachment(page.post(place, {**form, "part": "1"}), b"GIF89a", "trip-2.gif")
    check_attachment(page.post(place, {**form, "part": "2"}), b"8", "trip-3.json")
    assert len(json.loads(page.post(place, {**form, "part": "result"}).content)["messages"]) == 3
    assert page.post(place, {**form, "part": "3"}).status_code == 302
    assert page.post(place, {"name": "trip", "part": "0"}).status_code == 302  # an argument is missing
    assert page.post(place, {"name": "nothing", "part": "0"}).status_code == 404


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("file:///x/today.md", "today.md"),
        ("file:///x/%2e%2e%2fpasswd", "passwd"),
        ('x:"; filename="evil.exe', "_filenameevil.exe"),
        ("x:///", "resource"),
        ("http://[::1", "resource"),
        ("x:/..", "resource"),
        ("x:/.htaccess", "htaccess"),
    ],
)
def test_a_download_has_a_harmless_name(uri: str, name: str) -> None:
    assert files.name_of_uri(uri, "resource") == name


def test_failures_say_what_to_do(world: World, page: Client, settings: Any) -> None:
    connect(world, settings)
    row = start_member(world, prompts_get=lambda incoming: incoming.error(-32602, EVIL)).row
    text = html(page.post(address(row, "prompt", name="greet"), {}))
    assert EVIL not in text
    assert "What to do:" in text
    assert "code -32602" in text


def test_without_a_runtime_or_a_seat_the_page_says_so(
    page: Client, listed: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = address(listed, "prompt", name="greet")
    assert "No runtime is alive" in html(page.post(place, {}))
    monkeypatch.setattr(requests.seats, "count", 0)
    assert "Too many requests wait" in html(page.post(place, {}))


# Completion -------------------------------------------------------------------------------------------------------


def test_values_of_a_field_depend_on_the_other_fields(page: Client, notes: Member) -> None:
    form = {"kind": "prompt", "name": "trip", "argument": "season", "argument:city": "Rome", "argument:season": "s"}
    answer = page.post(address(notes.row, "complete"), form).json()
    assert answer == {"values": ["trip", "s", "{'arguments': {'city': 'Rome'}}"], "total": 5, "has_more": False}
    form = {"kind": "resourceTemplate", "name": TEMPLATE, "argument": "table"}
    assert page.post(address(notes.row, "complete"), form).json()["values"][0] == TEMPLATE
    form = {"kind": "prompt", "name": "nobody", "argument": "x"}
    assert page.post(address(notes.row, "complete"), form).json()["values"] == []


def test_fields_offer_values_only_while_the_member_that_completes_is_connected(page: Client, notes: Member) -> None:
    place, mark = address(notes.row, "prompt", name="trip"), "data-complete="
    assert mark not in html(page.get(place))  # no node owns it, so it does not count as connected
    GuildMember.objects.update(node=notes.row.node or make_member("other").node)
    assert mark in html(page.get(place))
    GuildMember.objects.update(capabilities={"prompts": {}})
    assert mark not in html(page.get(place))


# Watch ------------------------------------------------------------------------------------------------------------


def test_a_person_sees_when_a_watched_resource_was_updated(
    page: Client, client: Client, notes: Member, updates: Updates
) -> None:
    assert "Watch for updates" in html(page.get(address(notes.row, "resource", uri=URI)))
    url = page.post(address(notes.row, "resource_watch"), {"uri": URI}).json()["url"]
    assert "No update since" in html(page.get(url))
    eventually(lambda: notes.messages("resources/subscribe"))
    updates.send(URI)
    eventually(lambda: "Updated at" in html(page.get(url)))
    stranger = Client()
    stranger.force_login(User.objects.create_superuser("other"))
    assert stranger.get(url).status_code == 403
    for watch in list(watches.open_watches.values()):
        watch.exchange.abort()


def test_a_watch_ends_after_ten_minutes_and_cannot_be_invented(
    page: Client, listed: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = page.get(address(listed, "resource_updates"))
    assert (idle.headers["X-Live"], html(idle).strip()) == ("done", "")
    assert page.get(address(listed, "resource_updates", watch="forged")).status_code == 404
    url = page.post(address(listed, "resource_watch"), {"uri": URI}).json()["url"]
    response = page.get(url)  # it announces no updates
    assert response.headers["X-Live"] == "done"
    assert "does not announce updates" in html(response)
    monkeypatch.setattr(extras, "MAX_SECONDS", -1.0)
    assert "ten minutes are over" in html(page.get(url))
