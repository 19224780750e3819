"""Agents over REST. No agent runs. The test writes the rows of an agent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client

from mcp_runtime.agents import transitions
from mcp_runtime.agents.transitions import MessageOutcome
from mcp_runtime.control.members import reserve_member
from roster.api import agents as agents_api
from roster.api import requests
from roster.models import Agent, AgentMessage, GuildMember, Node
from tests.support.api import client_of
from tests.support.leases import add_node, current_lease_id, own_node

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("live_runtime", "example")]


def post(client: Client, address: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
    return client.post(address, body or {}, content_type="application/json", headers=headers)


def make_agent(client: Client, **values: Any) -> dict[str, Any]:
    response = post(client, "/api/agents/", {"members": ["example"], **values})
    assert response.status_code == 201, response.content
    agent: dict[str, Any] = response.json()
    assert response["Location"] == agent["url"]
    return agent


def run_message(message: AgentMessage, *words: str) -> None:
    """Writes what an agent would: these texts, and the end of the message."""
    lease_id = current_lease_id()
    assert lease_id
    assert transitions.claim(message, lease_id)
    transitions.write_events(message, [("text", {"text": word}) for word in words])
    transitions.finish(message, MessageOutcome(transitions.MessageStatus.SUCCEEDED, result=words[-1]), lease_id)


def read_events(response: Any) -> list[tuple[str, str, Any]]:
    """The id, the name and the data of every event of a stream."""
    text = b"".join(response.streaming_content).decode()
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        events.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return events


def test_an_agent_is_created_shown_and_listed(as_bob: Client) -> None:
    agent = make_agent(as_bob, name="talk", direct=True, model="some-model")
    assert (agent["name"], agent["members"], agent["status"]) == ("talk", ["example"], "idle")
    assert (agent["direct"], agent["model"], agent["creator"], agent["messages"]) == (True, "some-model", "bob", [])
    assert as_bob.get(agent["url"]).json() == agent
    results = as_bob.get("/api/agents/").json()["results"]
    assert results == [{key: value for key, value in agent.items() if key not in ("messages", "note")}]
    assert GuildMember.objects.get().desired_state == "running"


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_an_agent_whose_conversation_is_on_a_dead_node_has_a_note_while_a_message_waits(as_bob: Client) -> None:
    agent = make_agent(as_bob)
    Agent.objects.update(node=add_node("b", is_alive=False))
    assert as_bob.get(agent["url"]).json()["note"] == ""
    post(as_bob, f"{agent['url']}messages/", {"prompt": "go on"})
    assert as_bob.get(agent["url"]).json()["note"].startswith("The message waits for node 'b', which has the files")
    Agent.objects.update(node=own_node())
    assert as_bob.get(agent["url"]).json()["note"] == ""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"members": "example"}, 400),
        ({"members": ["example"], "dirct": True}, 400),
        ({"members": []}, 409),
        ({"members": ["nobody"]}, 404),
        ({"members": ["example"], "name": "7"}, 409),
    ],
)
def test_an_invalid_agent_is_refused(as_bob: Client, body: dict[str, Any], status: int) -> None:
    response = post(as_bob, "/api/agents/", body)
    assert response.status_code == status
    assert response.json()["detail"]
    assert not Agent.objects.exists()


def test_a_message_is_accepted_and_its_transcript_is_read_page_by_page(as_bob: Client) -> None:
    agent = make_agent(as_bob)
    response = post(as_bob, f"{agent['url']}messages/", {"prompt": "hello", "timeout": 12})
    assert response.status_code == 202
    assert (response.json()["status"], response.json()["timeout"]) == ("queued", 12)
    assert as_bob.get(f"{agent['url']}events/").json() == {"events": [], "more": True}
    run_message(AgentMessage.objects.get(), "one", "two")
    page = as_bob.get(f"{agent['url']}events/").json()
    assert [(event["kind"], event["data"]["text"]) for event in page["events"]] == [
        ("text", "one"),
        ("text", "two"),
        ("result", "two"),
    ]
    assert page["more"] is False
    second_page = as_bob.get(f"{agent['url']}events/?after={page['events'][0]['id']}").json()
    assert second_page["events"] == page["events"][1:]
    message = as_bob.get(agent["url"]).json()["messages"][0]
    assert (message["status"], message["result"], message["error"]) == ("succeeded", "two", None)


@pytest.mark.parametrize("body", [{}, {"prompt": ""}, {"prompt": "x", "timeout": 0}, {"prompt": "x", "promt": "y"}])
def test_an_invalid_message_is_refused(as_bob: Client, body: dict[str, Any]) -> None:
    assert post(as_bob, f"{make_agent(as_bob)['url']}messages/", body).status_code == 400


def test_without_an_agent_runtime_a_message_is_503_with_the_reason(as_bob: Client) -> None:
    Node.objects.update(agent_problem="the Agent SDK is not installed")
    response = post(as_bob, f"{make_agent(as_bob)['url']}messages/", {"prompt": "hello"})
    assert response.status_code == 503
    assert response.json()["code"] == "agent_unavailable"
    assert "the Agent SDK is not installed" in response.json()["detail"]


def test_a_stream_gives_the_transcript_and_continues_after_an_interruption(as_bob: Client) -> None:
    agent = make_agent(as_bob)
    response = post(as_bob, f"{agent['url']}messages/", {"prompt": "hello"}, accept="text/event-stream")
    assert response["Content-Type"] == "text/event-stream"
    run_message(AgentMessage.objects.get(), "one", "two")
    events = read_events(response)
    assert [name for _, name, _ in events] == ["message", "text", "text", "result", "end"]
    assert events[0][2]["prompt"] == "hello"
    assert events[-1][2]["status"] == "succeeded"
    ids = [int(event_id) for event_id, _, _ in events[1:4]]
    assert ids == sorted(ids)
    second_response = as_bob.get(
        f"{agent['url']}events/", headers={"Accept": "text/event-stream", "Last-Event-ID": str(ids[1])}
    )
    assert [(name, event_id) for event_id, name, _ in read_events(second_response)] == [
        ("result", str(ids[2])),
        ("end", ""),
    ]


def test_a_silent_stream_sends_comments(as_bob: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_api, "COMMENT_SECONDS", 0.0)
    agent = make_agent(as_bob)
    response = post(as_bob, f"{agent['url']}messages/", {"prompt": "hello"}, accept="text/event-stream")
    chunks = iter(response.streaming_content)
    assert next(chunks).startswith(b"event: message")
    assert next(chunks) == b":\n\n"
    response.close()


def test_streams_free_their_seat_even_if_nobody_read_them(as_bob: Client) -> None:
    agent = make_agent(as_bob)
    post(as_bob, f"{agent['url']}messages/", {"prompt": "hello"})
    responses = []
    while (response := as_bob.get(f"{agent['url']}events/", headers={"Accept": "text/event-stream"})).streaming:
        responses.append(response)
    assert response.status_code == 200
    assert response.json()["more"] is True  # a page, because no seat is free
    refused_response = post(as_bob, f"{agent['url']}messages/", {"prompt": "again"}, accept="text/event-stream")
    assert refused_response.status_code == 202
    for response in responses:
        response.close()
    assert len(responses) > requests.seats.count // 2
    assert requests.seats.in_use == 0


def test_a_stop_cancels_queued_messages(as_bob: Client) -> None:
    agent = make_agent(as_bob)
    post(as_bob, f"{agent['url']}messages/", {"prompt": "hello"})
    response = post(as_bob, f"{agent['url']}stop/")
    assert response.status_code == 202
    assert [message["status"] for message in response.json()["messages"]] == ["cancelled"]
    assert post(as_bob, f"{agent['url']}stop/").status_code == 409


def test_a_member_in_use_is_stopped_only_by_force(as_bob: Client) -> None:
    agent = make_agent(as_bob)
    post(as_bob, f"{agent['url']}messages/", {"prompt": "hello"})
    response = post(as_bob, "/api/members/example/stop/")
    assert (response.status_code, response.json()["code"]) == (409, "member_in_use")
    assert post(as_bob, "/api/members/example/stop/?force=true").status_code == 202


def test_agents_of_others_are_hidden_and_accept_no_messages(as_bob: Client, alice: User, charlie: User) -> None:
    agent = make_agent(as_bob)
    permission = Permission.objects.get(codename="invoke_tool")
    charlie.user_permissions.add(permission)
    client = Client()
    client.force_login(charlie)
    assert client.get("/api/agents/").json()["results"] == []
    assert client.get(agent["url"]).status_code == 404
    assert client.get(f"{agent['url']}events/").status_code == 404
    charlie.user_permissions.add(Permission.objects.get(codename="view_agent"))
    assert client.get(agent["url"]).status_code == 200
    reserve_member(GuildMember.objects.get(name="example"), [Group.objects.create(name="others")])
    assert client.get("/api/agents/").json()["results"] == []
    assert client.get(f"{agent['url']}events/").status_code == 404
    reserve_member(GuildMember.objects.get(name="example"), [])
    response = post(client, f"{agent['url']}messages/", {"prompt": "hello"})
    assert response.status_code == 403
    assert "belongs to another user" in response.json()["detail"]


def test_a_user_who_may_only_see_an_agent_cannot_stop_it(as_bob: Client, charlie: User) -> None:
    agent = make_agent(as_bob)
    post(as_bob, f"{agent['url']}messages/", {"prompt": "hello"})
    charlie.user_permissions.set(Permission.objects.filter(codename__in=["invoke_tool", "view_agent"]))
    client = Client()
    client.force_login(charlie)
    assert client.get(agent["url"]).status_code == 200
    assert post(client, f"{agent['url']}stop/").status_code == 403
    assert AgentMessage.objects.get().status == "queued"


def test_a_narrow_token_sees_only_the_agents_that_it_created(bob: User, as_bob: Client, example: GuildMember) -> None:
    """The agents of another token belong to another principal, even with the same members."""
    other_agent = make_agent(as_bob)
    client = client_of(bob, scope="members", members=[example])
    own_agent = make_agent(client)
    assert [row["id"] for row in client.get("/api/agents/").json()["results"]] == [own_agent["id"]]
    assert client.get(own_agent["url"]).status_code == 200
    for address in ("", "events/"):
        assert client.get(f"{other_agent['url']}{address}").status_code == 404
    assert post(client, f"{other_agent['url']}stop/").status_code == 404
    assert {row["id"] for row in as_bob.get("/api/agents/").json()["results"]} == {own_agent["id"], other_agent["id"]}
    assert client_of(bob, scope="tools", tools=[example.tools.get()]).get("/api/agents/").json()["results"] == []


def test_a_user_without_the_permission_to_call_cannot_create_an_agent(as_charlie: Client) -> None:
    response = post(as_charlie, "/api/agents/", {"members": ["example"]})
    assert response.status_code == 403
    assert not Agent.objects.exists()
