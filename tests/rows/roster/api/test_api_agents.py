"""Agents over REST. No agent runs: the test writes what one would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client

from mcp_runtime.agents import transitions
from mcp_runtime.agents.transitions import Outcome
from mcp_runtime.control.members import reserve_member
from mcp_runtime.rows import lease
from roster.api import agents as agents_api
from roster.api import requests
from roster.models import Agent, AgentMessage, GuildMember, Hall
from tests.support.api import client_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("live_runtime", "example")]


def post(client: Client, address: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
    return client.post(address, body or {}, content_type="application/json", headers=headers)


def make(client: Client, **values: Any) -> dict[str, Any]:
    response = post(client, "/api/agents/", {"members": ["example"], **values})
    assert response.status_code == 201, response.content
    made: dict[str, Any] = response.json()
    assert response["Location"] == made["url"]
    return made


def work(message: AgentMessage, *words: str) -> None:
    """What an agent would: says the words, and ends."""
    lease_id = lease.hall().lease_id
    assert lease_id
    assert transitions.claim(message, lease_id)
    transitions.write_events(message, [("text", {"text": word}) for word in words])
    transitions.finish(message, Outcome(transitions.Status.SUCCEEDED, result=words[-1]), lease_id)


def read(response: Any) -> list[tuple[str, str, Any]]:
    """Id, name and data of every event of a stream."""
    text = b"".join(response.streaming_content).decode()
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        events.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return events


def test_an_agent_is_made_shown_and_listed(as_bob: Client) -> None:
    made = make(as_bob, name="talk", direct=True, model="some-model")
    assert (made["name"], made["members"], made["status"]) == ("talk", ["example"], "idle")
    assert (made["direct"], made["model"], made["creator"], made["messages"]) == (True, "some-model", "bob", [])
    assert as_bob.get(made["url"]).json() == made
    listed = as_bob.get("/api/agents/").json()["results"]
    assert listed == [{key: value for key, value in made.items() if key != "messages"}]
    assert GuildMember.objects.get().desired_state == "running"


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
def test_what_cannot_be_an_agent_is_refused(as_bob: Client, body: dict[str, Any], status: int) -> None:
    response = post(as_bob, "/api/agents/", body)
    assert response.status_code == status
    assert response.json()["error"]
    assert not Agent.objects.exists()


def test_a_message_is_accepted_and_its_transcript_read_page_by_page(as_bob: Client) -> None:
    made = make(as_bob)
    response = post(as_bob, f"{made['url']}messages/", {"prompt": "hello", "timeout": 12})
    assert response.status_code == 202
    assert (response.json()["status"], response.json()["timeout"]) == ("queued", 12)
    assert as_bob.get(f"{made['url']}events/").json() == {"events": [], "more": True}
    work(AgentMessage.objects.get(), "one", "two")
    page = as_bob.get(f"{made['url']}events/").json()
    assert [(event["kind"], event["data"]["text"]) for event in page["events"]] == [
        ("text", "one"),
        ("text", "two"),
        ("result", "two"),
    ]
    assert page["more"] is False
    rest = as_bob.get(f"{made['url']}events/?after={page['events'][0]['id']}").json()
    assert rest["events"] == page["events"][1:]
    shown = as_bob.get(made["url"]).json()["messages"][0]
    assert (shown["status"], shown["result"], shown["error"]) == ("succeeded", "two", None)


@pytest.mark.parametrize("body", [{}, {"prompt": ""}, {"prompt": "x", "timeout": 0}, {"prompt": "x", "promt": "y"}])
def test_a_body_that_is_no_message_is_refused(as_bob: Client, body: dict[str, Any]) -> None:
    assert post(as_bob, f"{make(as_bob)['url']}messages/", body).status_code == 400


def test_where_no_agent_can_run_503_says_what_is_missing(as_bob: Client) -> None:
    Hall.objects.update(agent_problem="the Agent SDK is not installed")
    response = post(as_bob, f"{make(as_bob)['url']}messages/", {"prompt": "hello"})
    assert response.status_code == 503
    assert response.json()["code"] == "agent_unavailable"
    assert "the Agent SDK is not installed" in response.json()["error"]


def test_a_stream_gives_the_transcript_and_goes_on_where_it_was_cut(as_bob: Client) -> None:
    made = make(as_bob)
    response = post(as_bob, f"{made['url']}messages/", {"prompt": "hello"}, accept="text/event-stream")
    assert response["Content-Type"] == "text/event-stream"
    work(AgentMessage.objects.get(), "one", "two")
    events = read(response)
    assert [name for _, name, _ in events] == ["message", "text", "text", "result", "end"]
    assert events[0][2]["prompt"] == "hello"
    assert events[-1][2]["status"] == "succeeded"
    ids = [int(event_id) for event_id, _, _ in events[1:4]]
    assert ids == sorted(ids)
    again = as_bob.get(f"{made['url']}events/", headers={"Accept": "text/event-stream", "Last-Event-ID": str(ids[1])})
    assert [(name, event_id) for event_id, name, _ in read(again)] == [("result", str(ids[2])), ("end", "")]


def test_a_stream_that_has_nothing_to_say_says_so_now_and_then(as_bob: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_api, "COMMENT_SECONDS", 0.0)
    made = make(as_bob)
    response = post(as_bob, f"{made['url']}messages/", {"prompt": "hello"}, accept="text/event-stream")
    pieces = iter(response.streaming_content)
    assert next(pieces).startswith(b"event: message")
    assert next(pieces) == b":\n\n"
    response.close()


def test_streams_hold_a_seat_and_give_it_back_even_when_nobody_read_them(as_bob: Client) -> None:
    made = make(as_bob)
    post(as_bob, f"{made['url']}messages/", {"prompt": "hello"})
    taken = []
    while (response := as_bob.get(f"{made['url']}events/", headers={"Accept": "text/event-stream"})).streaming:
        taken.append(response)
    assert response.status_code == 200
    assert response.json()["more"] is True  # a page, to be asked for again
    refused = post(as_bob, f"{made['url']}messages/", {"prompt": "again"}, accept="text/event-stream")
    assert refused.status_code == 202
    for response in taken:
        response.close()
    assert len(taken) > requests.seats.count // 2
    assert requests.seats.in_use == 0


def test_stop_cancels_what_waits(as_bob: Client) -> None:
    made = make(as_bob)
    post(as_bob, f"{made['url']}messages/", {"prompt": "hello"})
    stopped = post(as_bob, f"{made['url']}stop/")
    assert stopped.status_code == 202
    assert [message["status"] for message in stopped.json()["messages"]] == ["cancelled"]
    assert post(as_bob, f"{made['url']}stop/").status_code == 409


def test_a_member_in_use_is_stopped_only_by_force(as_bob: Client) -> None:
    made = make(as_bob)
    post(as_bob, f"{made['url']}messages/", {"prompt": "hello"})
    refused = post(as_bob, "/api/members/example/stop/")
    assert (refused.status_code, refused.json()["code"]) == (409, "member_in_use")
    assert post(as_bob, "/api/members/example/stop/?force=true").status_code == 202


def test_agents_of_others_are_hidden_and_nobody_else_sends_them_messages(
    as_bob: Client, alice: User, charlie: User
) -> None:
    made = make(as_bob)
    with_invoke = Permission.objects.get(codename="invoke_tool")
    charlie.user_permissions.add(with_invoke)
    client = Client()
    client.force_login(charlie)
    assert client.get("/api/agents/").json()["results"] == []
    assert client.get(made["url"]).status_code == 404
    assert client.get(f"{made['url']}events/").status_code == 404
    charlie.user_permissions.add(Permission.objects.get(codename="view_agent"))
    assert client.get(made["url"]).status_code == 200
    reserve_member(GuildMember.objects.get(name="example"), [Group.objects.create(name="others")])
    assert client.get("/api/agents/").json()["results"] == []
    assert client.get(f"{made['url']}events/").status_code == 404
    reserve_member(GuildMember.objects.get(name="example"), [])
    said = post(client, f"{made['url']}messages/", {"prompt": "hello"})
    assert said.status_code == 403
    assert "belongs to another user" in said.json()["error"]


def test_who_may_only_see_an_agent_cannot_stop_it(as_bob: Client, charlie: User) -> None:
    made = make(as_bob)
    post(as_bob, f"{made['url']}messages/", {"prompt": "hello"})
    charlie.user_permissions.set(Permission.objects.filter(codename__in=["invoke_tool", "view_agent"]))
    client = Client()
    client.force_login(charlie)
    assert client.get(made["url"]).status_code == 200
    assert post(client, f"{made['url']}stop/").status_code == 403
    assert AgentMessage.objects.get().status == "queued"


def test_a_narrowed_token_sees_the_agents_that_were_made_with_it_alone(
    bob: User, as_bob: Client, example: GuildMember
) -> None:
    """Another token's conversation is another principal's, though its members are the same."""
    others = make(as_bob)
    client = client_of(bob, scope="members", members=[example])
    own = make(client)
    assert [row["id"] for row in client.get("/api/agents/").json()["results"]] == [own["id"]]
    assert client.get(own["url"]).status_code == 200
    for address in ("", "events/"):
        assert client.get(f"{others['url']}{address}").status_code == 404
    assert post(client, f"{others['url']}stop/").status_code == 404
    assert {row["id"] for row in as_bob.get("/api/agents/").json()["results"]} == {own["id"], others["id"]}
    assert client_of(bob, scope="tools", tools=[example.tools.get()]).get("/api/agents/").json()["results"] == []


def test_without_the_permission_to_invoke_there_is_no_agent(as_charlie: Client) -> None:
    response = post(as_charlie, "/api/agents/", {"members": ["example"]})
    assert response.status_code == 403
    assert not Agent.objects.exists()
