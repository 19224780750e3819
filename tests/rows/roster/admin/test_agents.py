"""The admin's screen of agents."""

from __future__ import annotations

import base64
import html
import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from mcp_runtime.agents import transitions
from mcp_runtime.agents.transitions import MessageOutcome
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import create_agent
from mcp_runtime.rows import lease
from roster.admin.choosing import GONE
from roster.models import Agent, AgentEvent, AgentMessage, Call, GuildMember, Node
from tests.support.leases import add_node, current_lease_id

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>"


@pytest.fixture
def bob() -> User:
    """A user who may call tools and see agents of others."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["invoke_tool", "view_agent"]))
    return user


@pytest.fixture
def page(bob: User) -> Client:
    client = Client()
    client.force_login(bob)
    return client


@pytest.fixture
def agent(bob: User) -> Agent:
    lease.take()
    GuildMember.objects.create(name="anna", directory="anna")
    return create_agent(["anna"], requester=Requester(Call.Source.ADMIN, bob), name="talk")


def url_of(agent: Agent, verb: str = "change") -> str:
    return reverse(f"admin:roster_agent_{verb}", args=[agent.pk])


def text_of(response: Any) -> str:
    assert response.status_code == 200
    return html.unescape(response.content.decode())


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_the_page_says_that_a_message_waits_for_the_node_of_the_conversation(page: Client, agent: Agent) -> None:
    Agent.objects.update(node=add_node("b", is_alive=False))
    page.post(url_of(agent, "send"), {"prompt": "go on"})
    assert "The message waits for node 'b', which has the files of the conversation." in text_of(
        page.get(url_of(agent))
    )


def test_a_prompt_is_sent_and_the_page_shows_its_transcript(page: Client, agent: Agent) -> None:
    response = page.post(url_of(agent, "send"), {"prompt": f"look {EVIL}"})
    assert response.status_code == 302
    message = AgentMessage.objects.get()
    assert (message.prompt, message.source, message.requester) == (f"look {EVIL}", "admin", "bob")
    assert "Stop the agent" in text_of(page.get(url_of(agent)))
    lease_id = current_lease_id()
    assert lease_id
    transitions.claim(message, lease_id)
    result = {"id": "t", "content": [{"type": "text", "text": EVIL}], "is_error": True}
    call = {"id": "t", "server": "anna", "tool": "echo", "arguments": {"a": 1}}
    missing = {"servers": [{"name": "anna", "status": "failed", "error": "refused"}]}
    transitions.write_events(
        message, [("servers", missing), ("text", {"text": "hm"}), ("tool_call", call), ("tool_result", result)]
    )
    transitions.finish(message, MessageOutcome.failed(transitions.MessageErrorKind.AGENT, "it broke"), lease_id)
    content = page.get(url_of(agent)).content.decode()
    assert EVIL not in content
    text = html.unescape(content)
    for line in ("anna is failed: refused", "hm", "anna · echo", "It failed", EVIL, "it broke", "What to do:"):
        assert line in text
    assert "Say to the agent" in text
    list_text = text_of(page.get(reverse("admin:roster_agent_changelist")))
    assert "talk" in list_text
    assert "anna" in list_text


def test_the_stop_button_cancels_the_message(page: Client, agent: Agent) -> None:
    page.post(url_of(agent, "send"), {"prompt": "look"})
    page.post(url_of(agent, "stop"))
    assert AgentMessage.objects.get().status == "cancelled"


def test_a_refused_prompt_is_shown_with_the_reason(page: Client, agent: Agent) -> None:
    text = text_of(page.post(url_of(agent, "send"), {"prompt": " "}, follow=True))
    assert "Not sent: a message needs a prompt" in text


def test_a_user_cannot_send_messages_to_an_agent_of_another_user(page: Client, agent: Agent) -> None:
    Agent.objects.update(created_by=User.objects.create_user("carol"))
    assert "Say to the agent" not in text_of(page.get(url_of(agent)))
    assert page.post(url_of(agent, "send"), {"prompt": "look"}).status_code == 403
    assert page.post(url_of(agent, "stop")).status_code == 403
    assert not AgentMessage.objects.exists()


# Parts that update automatically ----------------------------------------------------------------------------------


def part_url(agent: Agent, part: str) -> str:
    return reverse("admin:roster_agent_part", args=[agent.pk, part])


def add_running_message(agent: Agent, prompt: str = "look") -> AgentMessage:
    """A message that an agent works on."""
    message = AgentMessage.objects.create(agent=agent, prompt=prompt, timeout=60, source="admin", requester="bob")
    lease_id = current_lease_id()
    assert lease_id
    assert transitions.claim(message, lease_id)
    return message


def write_text(message: AgentMessage, *texts: str) -> None:
    transitions.write_events(message, [("text", {"text": text}) for text in texts])


def write_call(message: AgentMessage, call_id: str, *content: Any, is_error: bool = False, **arguments: Any) -> None:
    call = {"id": call_id, "server": "anna", "tool": "echo", "arguments": arguments}
    transitions.write_events(message, [("tool_call", call)])
    if content:
        result = {"id": call_id, "content": list(content), "is_error": is_error}
        transitions.write_events(message, [("tool_result", result)])


@pytest.mark.parametrize("part", ["transcript", "state"])
def test_a_part_is_sent_again_only_after_a_change(page: Client, agent: Agent, part: str) -> None:
    tag = page.get(part_url(agent, part))["ETag"]
    assert page.get(part_url(agent, part), headers={"If-None-Match": tag}).status_code == 304
    message = add_running_message(agent)
    write_text(message, "hello")
    second = page.get(part_url(agent, part), headers={"If-None-Match": tag})
    assert second.status_code == 200
    assert "running" in text_of(second)
    transitions.cancel(message)
    third = page.get(part_url(agent, part), headers={"If-None-Match": second["ETag"]})
    assert third.status_code == 200


def test_each_text_of_the_agent_changes_the_version_of_the_transcript(page: Client, agent: Agent) -> None:
    message = add_running_message(agent)
    tags = set()
    for word in ("one", "two", "three"):
        write_text(message, word)
        response = page.get(part_url(agent, "transcript"))
        assert word in text_of(response)
        tags.add(response["ETag"])
    assert len(tags) == 3


def test_a_call_is_shown_with_its_arguments_and_its_result(page: Client, agent: Agent) -> None:
    message = add_running_message(agent)
    write_call(message, "1", {"type": "text", "text": "# Found\n\n- a **note**\n- another"}, city="Berlin")
    write_call(message, "2", city="Rome")
    text = text_of(page.get(part_url(agent, "transcript")))
    assert "anna · echo" in text
    assert '"Berlin"' in text
    assert "<strong>note</strong>" in text
    assert text.count('<span class="status status-succeeded">succeeded</span>') == 1
    assert text.count("running") >= 2  # the second call, and the message


def file_url(event: AgentEvent, part: str) -> str:
    return reverse("admin:roster_agent_file", args=[event.message.agent_id, event.pk, part])


def test_texts_and_results_are_copied_and_downloaded(page: Client, agent: Agent) -> None:
    message = add_running_message(agent)
    long_text = "# Found\n" + "word " * 10_000
    write_text(message, long_text)
    items = [{"type": "text", "text": f"{number} {EVIL}"} for number in range(12)]
    svg = {"type": "image", "mimeType": "image/svg+xml", "data": base64.b64encode(b"<svg onload=alert(1)>").decode()}
    write_call(message, "1", svg, *items)
    said, result = AgentEvent.objects.get(kind="text"), AgentEvent.objects.get(kind="tool_result")
    text = text_of(page.get(part_url(agent, "transcript")))
    assert f'data-copy-item="{file_url(said, "0")}"' in text
    assert f'href="{file_url(result, "9")}" download' in text
    assert "… and 3 more." in text
    assert f'data-copy-item="{file_url(result, "result")}"' in text

    for event, part, content, name in (
        (said, "0", long_text.encode(), f"talk-{said.pk}-1.md"),
        (result, "0", b"<svg onload=alert(1)>", f"talk-{result.pk}-1.svg"),
        (result, "12", f"11 {EVIL}".encode(), f"talk-{result.pk}-13.txt"),
    ):
        response = page.get(file_url(event, part))
        assert response.content == content
        assert response.headers["Content-Disposition"] == f'attachment; filename="{name}"'
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert json.loads(page.get(file_url(result, "result")).content) == [svg, *items]


@pytest.mark.parametrize("part", ["result", "1", "x", "999999999"])
def test_a_text_of_the_agent_has_no_other_files(page: Client, agent: Agent, part: str) -> None:
    write_text(add_running_message(agent), "hm")
    assert page.get(file_url(AgentEvent.objects.get(), part)).status_code == 404


def test_files_are_of_events_of_this_agent_that_the_page_shows(bob: User, page: Client, agent: Agent) -> None:
    message = add_running_message(agent)
    write_call(message, "1", key="secret")
    assert page.get(file_url(AgentEvent.objects.get(), "result")).status_code == 404  # arguments are no file
    write_text(message, "hm")
    event = AgentEvent.objects.get(kind="text")
    other = Agent.objects.create(name="other", created_by=bob)
    assert page.get(reverse("admin:roster_agent_file", args=[other.pk, event.pk, "0"])).status_code == 404
    Agent.objects.update(created_by=None)
    bob.user_permissions.set(Permission.objects.filter(codename="invoke_tool"))
    assert page.get(file_url(event, "0")).status_code == 404


def test_texts_of_the_agent_are_safe_markdown(page: Client, agent: Agent) -> None:
    message = add_running_message(agent, prompt=EVIL)
    write_text(message, f"**bold** {EVIL} [x](javascript:alert(1)) ![y](http://evil/z.png)")
    write_call(message, "1", {"type": "text", "text": EVIL}, {"type": EVIL, "text": 1}, **{EVIL: EVIL})
    transitions.write_events(message, [("error", {"text": EVIL})])
    AgentMessage.objects.update(requester=EVIL, error_message=EVIL)
    for address in (url_of(agent), part_url(agent, "transcript")):
        content = page.get(address).content.decode()
        assert "<strong>bold</strong>" in content
        assert EVIL not in content
        assert 'href="javascript' not in content
        assert "<img" not in content


def test_a_result_without_its_call_is_shown(page: Client, agent: Agent) -> None:
    message = add_running_message(agent)
    transitions.write_events(
        message, [("tool_result", {"id": "x", "content": [{"type": "text", "text": "late"}], "is_error": False})]
    )
    text = text_of(page.get(part_url(agent, "transcript")))
    assert "an earlier call" in text
    assert "late" in text


def test_a_long_transcript_is_shortened_with_a_note(page: Client, agent: Agent) -> None:
    message = add_running_message(agent)
    write_text(message, *(f"word {number:05}" for number in range(400)))
    text = text_of(page.get(part_url(agent, "transcript")))
    assert "word 00399" in text
    assert "word 00050" not in text
    assert "What was said earlier is left out here" in text
    write_text(message, *("x" * 100_000 for _ in range(20)))
    assert len(page.get(part_url(agent, "transcript")).content) < 1_000_000


@pytest.mark.parametrize("part", ["transcript", "state"])
def test_a_part_costs_the_same_number_of_queries_for_any_transcript(page: Client, agent: Agent, part: str) -> None:
    def count_queries(count: int) -> int:
        for _ in range(count):
            message = add_running_message(agent)
            write_text(message, "word")
            write_call(message, "1", {"type": "text", "text": "x"})
            AgentMessage.objects.update(status="succeeded")
        page.get(part_url(agent, part))
        with CaptureQueriesContext(connection) as queries:
            text_of(page.get(part_url(agent, part)))
        return len(queries)

    assert count_queries(2) == count_queries(10) <= 12


# Sending from a script --------------------------------------------------------------------------------------------


def test_a_script_gets_messages_only_about_refusals(page: Client, agent: Agent) -> None:
    headers = {"X-Live": "form"}
    assert page.post(url_of(agent, "send"), {"prompt": "look"}, headers=headers).json() == {"messages": []}
    (refusal,) = page.post(url_of(agent, "send"), {"prompt": " "}, headers=headers).json()["messages"]
    assert refusal["level"] == "error"
    assert "needs a prompt" in refusal["text"]
    (message,) = page.post(url_of(agent, "stop"), headers=headers).json()["messages"]
    assert message["text"] == "Asked to stop."


def test_a_problem_of_the_agents_is_shown_with_a_hint(page: Client, agent: Agent) -> None:
    Node.objects.update(agent_problem="the Agent SDK is not installed: pip install it")
    for address in (url_of(agent), part_url(agent, "state"), reverse("admin:roster_agent_new"), LIST):
        assert "No agent can run: the Agent SDK is not installed: pip install it" in text_of(page.get(address))
    text = text_of(page.post(url_of(agent, "send"), {"prompt": "look"}, follow=True))
    assert "Not sent: no agent can run: the Agent SDK is not installed" in text


# New agents -------------------------------------------------------------------------------------------------------

NEW = "admin:roster_agent_new"
LIST = "/admin/roster/agent/"


def test_an_agent_is_created_with_its_first_message(page: Client, agent: Agent) -> None:
    assert 'value="anna"' in text_of(page.get(reverse(NEW)))
    values = {"members": ["anna"], "name": "second", "way": "direct", "model": "opus", "prompt": " look \n"}
    response = page.post(reverse(NEW), values)
    new_agent = Agent.objects.get(name="second")
    assert response["Location"] == url_of(new_agent)
    assert (new_agent.direct, new_agent.model, new_agent.creator, new_agent.created_by) == (
        True,
        "opus",
        "bob",
        agent.created_by,
    )
    assert [member.name for member in new_agent.members.all()] == ["anna"]
    assert AgentMessage.objects.get().prompt == " look \n"


def test_an_agent_without_a_message_and_a_name_gets_a_name(page: Client, agent: Agent) -> None:
    page.post(reverse(NEW), {"members": ["anna"], "way": "gateway"})
    new_agent = Agent.objects.exclude(pk=agent.pk).get()
    assert new_agent.name.startswith("anna-")
    assert not new_agent.direct
    assert not AgentMessage.objects.exists()


def test_a_first_message_that_no_agent_can_get_stays_in_the_form(page: Client, agent: Agent) -> None:
    Node.objects.update(agent_problem="the Agent SDK is not installed")
    form = {"members": ["anna"], "way": "gateway"}

    text = text_of(page.post(reverse(NEW), {**form, "prompt": "Water the plants."}))

    assert "The message cannot be sent now: the Agent SDK is not installed." in text
    assert "Water the plants." in text
    assert Agent.objects.get() == agent
    assert page.post(reverse(NEW), form).status_code == 302


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"members": []}, "This field is required."),
        ({"members": ["nobody"]}, GONE),
        ({"members": ["anna"], "name": "talk"}, "there is an agent 'talk' already"),
        ({"members": ["anna"], "name": "12"}, "'12' is no name for an agent"),
        ({"members": ["anna"], "way": "by foot"}, "Select a valid choice."),
        ({"members": ["off"]}, GONE),
        ({"members": ["broken"]}, "cannot start: no such thing"),
    ],
)
def test_an_invalid_agent_is_refused_at_the_form(page: Client, agent: Agent, values: dict[str, Any], text: str) -> None:
    GuildMember.objects.create(name="off", directory="off", enabled=False)
    GuildMember.objects.create(name="broken", directory="broken", manifest_error="no such thing")
    assert text in text_of(page.post(reverse(NEW), {"way": "gateway", **values}))
    assert Agent.objects.get() == agent


def test_a_user_who_may_not_call_tools_cannot_create_an_agent(bob: User, page: Client, agent: Agent) -> None:
    bob.user_permissions.set(Permission.objects.filter(codename="view_agent"))
    assert "New agent" not in text_of(page.get(LIST))
    assert page.get(reverse(NEW)).status_code == 403
    assert page.post(reverse(NEW), {"members": ["anna"], "way": "gateway"}).status_code == 403


def test_members_reserved_for_others_are_not_in_the_form(page: Client, agent: Agent) -> None:
    GuildMember.objects.get(name="anna").groups.add(Group.objects.create(name="others"))
    assert 'value="anna"' not in text_of(page.get(reverse(NEW)))
    assert GONE in text_of(page.post(reverse(NEW), {"members": ["anna"], "way": "gateway"}))


# Access control ---------------------------------------------------------------------------------------------------


def test_without_the_permission_a_user_sees_only_their_own_agents(bob: User, page: Client, agent: Agent) -> None:
    carol = User.objects.create_user("carol")
    agent_of_carol = Agent.objects.create(name="hers", created_by=carol)
    assert "hers" in text_of(page.get(LIST))
    bob.user_permissions.set(Permission.objects.filter(codename="invoke_tool"))
    text = text_of(page.get(LIST))
    assert "talk" in text
    assert "hers" not in text
    assert page.get(part_url(agent_of_carol, "transcript")).status_code == 404
    # It leads to the index, with the message that the agent does not exist.
    assert page.get(url_of(agent_of_carol)).status_code == 302
    bob.user_permissions.clear()
    assert page.get(LIST).status_code == 403


def test_agents_of_others_with_a_reserved_member_are_hidden(page: Client, agent: Agent) -> None:
    anna = GuildMember.objects.get(name="anna")
    agent_of_carol = Agent.objects.create(name="hers", created_by=User.objects.create_user("carol"))
    agent_of_carol.members.add(anna)
    assert page.get(part_url(agent_of_carol, "state")).status_code == 200
    anna.groups.add(Group.objects.create(name="others"))
    assert page.get(part_url(agent_of_carol, "state")).status_code == 404
    assert page.get(part_url(agent, "state")).status_code == 200
    assert "hers" not in text_of(page.get(LIST))


@pytest.mark.parametrize("part", ["transcript", "state", "cellar"])
def test_parts_need_a_login_and_access_to_the_agent(agent: Agent, part: str) -> None:
    assert Client().get(part_url(agent, part)).status_code == 302
    other_client = Client()
    other_client.force_login(User.objects.create_user("carol", is_staff=True))
    assert other_client.get(part_url(agent, part)).status_code == 404


def test_a_request_for_an_unknown_part_of_the_page_is_404(page: Client, agent: Agent) -> None:
    assert page.get(part_url(agent, "cellar")).status_code == 404
