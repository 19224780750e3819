"""The admin's screen of agents."""

from __future__ import annotations

import html
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from mcp_runtime.agents import transitions
from mcp_runtime.agents.transitions import Outcome
from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control.agents import create_agent
from mcp_runtime.rows import lease
from roster.models import Agent, AgentMessage, Call, GuildMember, Hall

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>"


@pytest.fixture
def bob() -> User:
    """May call tools, and see agents of others."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["invoke_tool", "view_agent"]))
    return user


@pytest.fixture
def page(bob: User) -> Client:
    client = Client()
    client.force_login(bob)
    return client


@pytest.fixture
def talk(bob: User) -> Agent:
    lease.take()
    GuildMember.objects.create(name="anna", directory="anna")
    return create_agent(["anna"], caller=Caller(Call.Source.ADMIN, bob), name="talk")


def url_of(talk: Agent, verb: str = "change") -> str:
    return reverse(f"admin:roster_agent_{verb}", args=[talk.pk])


def shown(response: Any) -> str:
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def test_a_prompt_is_sent_and_the_page_shows_what_came_of_it(page: Client, talk: Agent) -> None:
    response = page.post(url_of(talk, "send"), {"prompt": f"look {EVIL}"})
    assert response.status_code == 302
    message = AgentMessage.objects.get()
    assert (message.prompt, message.source, message.requester) == (f"look {EVIL}", "admin", "bob")
    assert "Stop the agent" in shown(page.get(url_of(talk)))
    lease_id = lease.hall().lease_id
    assert lease_id
    transitions.claim(message, lease_id)
    result = {"id": "t", "content": [{"type": "text", "text": EVIL}], "is_error": True}
    call = {"id": "t", "server": "anna", "tool": "echo", "arguments": {"a": 1}}
    missing = {"servers": [{"name": "anna", "status": "failed", "error": "refused"}]}
    transitions.write_events(
        message, [("servers", missing), ("text", {"text": "hm"}), ("tool_call", call), ("tool_result", result)]
    )
    transitions.finish(message, Outcome.failed(transitions.ErrorKind.AGENT, "it broke"), lease_id)
    content = page.get(url_of(talk)).content.decode()
    assert EVIL not in content
    text = html.unescape(content)
    for line in ("anna is failed: refused", "hm", "anna · echo", "It failed", EVIL, "it broke", "What to do:"):
        assert line in text
    assert "Say to the agent" in text
    listed = shown(page.get(reverse("admin:roster_agent_changelist")))
    assert "talk" in listed
    assert "anna" in listed


def test_stop_stops(page: Client, talk: Agent) -> None:
    page.post(url_of(talk, "send"), {"prompt": "look"})
    page.post(url_of(talk, "stop"))
    assert AgentMessage.objects.get().status == "cancelled"


def test_a_refused_prompt_says_why(page: Client, talk: Agent) -> None:
    text = shown(page.post(url_of(talk, "send"), {"prompt": " "}, follow=True))
    assert "Not sent: a message needs a prompt" in text


def test_nobody_sends_messages_to_an_agent_of_others(page: Client, talk: Agent) -> None:
    Agent.objects.update(created_by=User.objects.create_user("carol"))
    assert "Say to the agent" not in shown(page.get(url_of(talk)))
    assert page.post(url_of(talk, "send"), {"prompt": "look"}).status_code == 403
    assert page.post(url_of(talk, "stop")).status_code == 403
    assert not AgentMessage.objects.exists()


# Parts that stay true ---------------------------------------------------------------------------------------------


def part_of(talk: Agent, part: str) -> str:
    return reverse("admin:roster_agent_part", args=[talk.pk, part])


def running(talk: Agent, prompt: str = "look") -> AgentMessage:
    """A message that an agent works on."""
    message = AgentMessage.objects.create(agent=talk, prompt=prompt, timeout=60, source="admin", requester="bob")
    lease_id = lease.hall().lease_id
    assert lease_id
    assert transitions.claim(message, lease_id)
    return message


def say(message: AgentMessage, *texts: str) -> None:
    transitions.write_events(message, [("text", {"text": text}) for text in texts])


def call(message: AgentMessage, call_id: str, *content: Any, is_error: bool = False, **arguments: Any) -> None:
    made = {"id": call_id, "server": "anna", "tool": "echo", "arguments": arguments}
    transitions.write_events(message, [("tool_call", made)])
    if content:
        result = {"id": call_id, "content": list(content), "is_error": is_error}
        transitions.write_events(message, [("tool_result", result)])


@pytest.mark.parametrize("part", ["transcript", "state"])
def test_a_part_is_sent_anew_when_it_changed_and_not_before(page: Client, talk: Agent, part: str) -> None:
    tag = page.get(part_of(talk, part))["ETag"]
    assert page.get(part_of(talk, part), headers={"If-None-Match": tag}).status_code == 304
    message = running(talk)
    say(message, "hello")
    second = page.get(part_of(talk, part), headers={"If-None-Match": tag})
    assert second.status_code == 200
    assert "running" in shown(second)
    transitions.cancel(message)
    third = page.get(part_of(talk, part), headers={"If-None-Match": second["ETag"]})
    assert third.status_code == 200


def test_each_word_of_the_agent_makes_another_transcript(page: Client, talk: Agent) -> None:
    message = running(talk)
    tags = set()
    for word in ("one", "two", "three"):
        say(message, word)
        response = page.get(part_of(talk, "transcript"))
        assert word in shown(response)
        tags.add(response["ETag"])
    assert len(tags) == 3


def test_a_call_is_shown_with_its_arguments_and_what_came_back(page: Client, talk: Agent) -> None:
    message = running(talk)
    call(message, "1", {"type": "text", "text": "# Found\n\n- a **note**\n- another"}, city="Berlin")
    call(message, "2", city="Rome")
    text = shown(page.get(part_of(talk, "transcript")))
    assert "anna · echo" in text
    assert '"Berlin"' in text
    assert "<strong>note</strong>" in text
    assert text.count('<span class="status status-succeeded">succeeded</span>') == 1
    assert text.count("running") >= 2  # the second call, and the message


def test_the_agents_words_are_markdown_without_what_it_could_break(page: Client, talk: Agent) -> None:
    message = running(talk, prompt=EVIL)
    say(message, f"**bold** {EVIL} [x](javascript:alert(1)) ![y](http://evil/z.png)")
    call(message, "1", {"type": "text", "text": EVIL}, {"type": EVIL, "text": 1}, **{EVIL: EVIL})
    transitions.write_events(message, [("error", {"text": EVIL})])
    AgentMessage.objects.update(requester=EVIL, error_message=EVIL)
    for address in (url_of(talk), part_of(talk, "transcript")):
        content = page.get(address).content.decode()
        assert "<strong>bold</strong>" in content
        assert EVIL not in content
        assert 'href="javascript' not in content
        assert "<img" not in content


def test_a_result_whose_call_was_left_out_is_shown_all_the_same(page: Client, talk: Agent) -> None:
    message = running(talk)
    transitions.write_events(
        message, [("tool_result", {"id": "x", "content": [{"type": "text", "text": "late"}], "is_error": False})]
    )
    text = shown(page.get(part_of(talk, "transcript")))
    assert "an earlier call" in text
    assert "late" in text


def test_a_long_transcript_is_bounded_and_says_so(page: Client, talk: Agent) -> None:
    message = running(talk)
    say(message, *(f"word {number:05}" for number in range(400)))
    text = shown(page.get(part_of(talk, "transcript")))
    assert "word 00399" in text
    assert "word 00050" not in text
    assert "What was said earlier is left out here" in text
    say(message, *("x" * 100_000 for _ in range(20)))
    assert len(page.get(part_of(talk, "transcript")).content) < 1_000_000


@pytest.mark.parametrize("part", ["transcript", "state"])
def test_a_part_costs_the_same_queries_however_much_was_said(page: Client, talk: Agent, part: str) -> None:
    def grow(count: int) -> int:
        for _ in range(count):
            message = running(talk)
            say(message, "word")
            call(message, "1", {"type": "text", "text": "x"})
            AgentMessage.objects.update(status="succeeded")
        page.get(part_of(talk, part))
        with CaptureQueriesContext(connection) as captured:
            shown(page.get(part_of(talk, part)))
        return len(captured)

    assert grow(2) == grow(10) <= 12


# Sending from a script --------------------------------------------------------------------------------------------


def test_a_script_is_told_what_was_refused_and_nothing_when_it_was_sent(page: Client, talk: Agent) -> None:
    script = {"X-Live": "form"}
    assert page.post(url_of(talk, "send"), {"prompt": "look"}, headers=script).json() == {"messages": []}
    (refusal,) = page.post(url_of(talk, "send"), {"prompt": " "}, headers=script).json()["messages"]
    assert refusal["level"] == "error"
    assert "needs a prompt" in refusal["text"]
    (stopped,) = page.post(url_of(talk, "stop"), headers=script).json()["messages"]
    assert stopped["text"] == "Asked to stop."


def test_what_agents_lack_is_said_with_what_to_do(page: Client, talk: Agent) -> None:
    Hall.objects.update(agent_problem="the Agent SDK is not installed: pip install it")
    for address in (url_of(talk), part_of(talk, "state"), reverse("admin:roster_agent_new"), LIST):
        assert "No agent can run: the Agent SDK is not installed: pip install it" in shown(page.get(address))
    text = shown(page.post(url_of(talk, "send"), {"prompt": "look"}, follow=True))
    assert "Not sent: no agent can run: the Agent SDK is not installed" in text


# Making one -------------------------------------------------------------------------------------------------------

NEW = "admin:roster_agent_new"
LIST = "/admin/roster/agent/"


def test_an_agent_is_made_with_its_first_message(page: Client, talk: Agent) -> None:
    assert 'value="anna"' in shown(page.get(reverse(NEW)))
    values = {"members": ["anna"], "name": "second", "way": "direct", "model": "opus", "prompt": " look \n"}
    response = page.post(reverse(NEW), values)
    made = Agent.objects.get(name="second")
    assert response["Location"] == url_of(made)
    assert (made.direct, made.model, made.creator, made.created_by) == (True, "opus", "bob", talk.created_by)
    assert [member.name for member in made.members.all()] == ["anna"]
    assert AgentMessage.objects.get().prompt == " look \n"


def test_an_agent_is_made_without_a_message_and_gets_a_name(page: Client, talk: Agent) -> None:
    page.post(reverse(NEW), {"members": ["anna"], "way": "gateway"})
    made = Agent.objects.exclude(pk=talk.pk).get()
    assert made.name.startswith("anna-")
    assert not made.direct
    assert not AgentMessage.objects.exists()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"members": []}, "This field is required."),
        ({"members": ["nobody"]}, "Select a valid choice."),
        ({"members": ["anna"], "name": "talk"}, "there is an agent 'talk' already"),
        ({"members": ["anna"], "name": "12"}, "'12' is no name for an agent"),
        ({"members": ["anna"], "way": "by foot"}, "Select a valid choice."),
        ({"members": ["off"]}, "Select a valid choice."),
        ({"members": ["broken"]}, "cannot start: no such thing"),
    ],
)
def test_an_agent_that_cannot_be_is_refused_at_the_form(
    page: Client, talk: Agent, values: dict[str, Any], said: str
) -> None:
    GuildMember.objects.create(name="off", directory="off", enabled=False)
    GuildMember.objects.create(name="broken", directory="broken", manifest_error="no such thing")
    assert said in shown(page.post(reverse(NEW), {"way": "gateway", **values}))
    assert Agent.objects.get() == talk


def test_who_may_not_call_tools_makes_no_agent(bob: User, page: Client, talk: Agent) -> None:
    bob.user_permissions.set(Permission.objects.filter(codename="view_agent"))
    assert "New agent" not in shown(page.get(LIST))
    assert page.get(reverse(NEW)).status_code == 403
    assert page.post(reverse(NEW), {"members": ["anna"], "way": "gateway"}).status_code == 403


def test_members_that_are_reserved_for_others_are_not_offered(page: Client, talk: Agent) -> None:
    GuildMember.objects.get(name="anna").groups.add(Group.objects.create(name="others"))
    assert 'value="anna"' not in shown(page.get(reverse(NEW)))
    assert "Select a valid choice" in shown(page.post(reverse(NEW), {"members": ["anna"], "way": "gateway"}))


# Who sees what ----------------------------------------------------------------------------------------------------


def test_without_the_permission_the_list_has_the_own_agents_alone(bob: User, page: Client, talk: Agent) -> None:
    carol = User.objects.create_user("carol")
    hers = Agent.objects.create(name="hers", created_by=carol)
    assert "hers" in shown(page.get(LIST))
    bob.user_permissions.set(Permission.objects.filter(codename="invoke_tool"))
    text = shown(page.get(LIST))
    assert "talk" in text
    assert "hers" not in text
    assert page.get(part_of(hers, "transcript")).status_code == 404
    assert page.get(url_of(hers)).status_code == 302  # to the index, which says that there is none
    bob.user_permissions.clear()
    assert page.get(LIST).status_code == 403


def test_agents_of_others_with_reserved_members_are_not_there(page: Client, talk: Agent) -> None:
    anna = GuildMember.objects.get(name="anna")
    hers = Agent.objects.create(name="hers", created_by=User.objects.create_user("carol"))
    hers.members.add(anna)
    assert page.get(part_of(hers, "state")).status_code == 200
    anna.groups.add(Group.objects.create(name="others"))
    assert page.get(part_of(hers, "state")).status_code == 404
    assert page.get(part_of(talk, "state")).status_code == 200
    assert "hers" not in shown(page.get(LIST))


@pytest.mark.parametrize("part", ["transcript", "state", "cellar"])
def test_parts_are_not_for_strangers(talk: Agent, part: str) -> None:
    assert Client().get(part_of(talk, part)).status_code == 302
    stranger = Client()
    stranger.force_login(User.objects.create_user("carol", is_staff=True))
    assert stranger.get(part_of(talk, part)).status_code == 404


def test_a_part_that_there_is_not_is_not_found(page: Client, talk: Agent) -> None:
    assert page.get(part_of(talk, "cellar")).status_code == 404
