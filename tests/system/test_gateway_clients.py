"""Clients of other authors at the gateway: their usual requests, and the questions of members to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from django.db import connections
from mcp import types

from mcp_runtime.control.members import set_tool_enabled, stop_member
from roster.models import Token, Tool
from tests.conftest import eventually
from tests.support.agents import GatewayClient, MessageStream, is_up, kill, make_token, wait_for_roster
from tests.support.hall import PATIENCE, Hall, call, member, wait_for_status
from tests.support.real_servers.__init__ import python
from tests.support.sdk_clients import all_clients, python_sdk, use_python_server


def run_and_close_connections(work: Callable[[], None]) -> None:
    """Run `work` in this thread, and close the database connections of the thread."""
    try:
        work()
    finally:
        connections.close_all()


def test_clients_list_tools_call_them_and_survive_restarts_of_member_and_runtime(hall: Hall) -> None:
    """All clients run at the same time, and each keeps one connection from the first call to the last."""
    hall.add("real", **python("python_sdk.py"))
    hall.start()
    wait_for_roster(hall, "real")
    token = make_token()

    def restart_runtime() -> None:
        for pid in (hall.processes[-1].pid, hall.worker_pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        hall.processes[-1].wait(PATIENCE)
        hall.start()
        eventually(lambda: is_up(hall), within=20)

    async def use_clients() -> None:
        async with all_clients(f"http://127.0.0.1:{hall.gateway_port}", token, "real") as clients:
            for disturb in (lambda: None, lambda: kill("real"), restart_runtime):
                await asyncio.to_thread(run_and_close_connections, disturb)
                await asyncio.gather(*(use_python_server(name, *client) for name, client in clients.items()))

    asyncio.run(asyncio.wait_for(use_clients(), 55))


# Questions, resources and prompts ---------------------------------------------------------------------------------


@pytest.fixture
def running_hall(hall: Hall) -> Hall:
    hall.add("full", **python("full_server.py"))
    hall.start()
    agent = wait_for_roster(hall, "full")
    eventually(lambda: agent.ask("resources/list").get("result", {}).get("resources"))
    return hall


def test_a_member_can_ask_the_user_and_the_model_of_a_capable_client(running_hall: Hall) -> None:
    questions: list[str] = []
    log_texts: list[str] = []

    async def ask_person(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action="accept", content={"color": "blue"})

    async def ask_model(context: Any, params: Any) -> types.CreateMessageResult:
        questions.append(params.messages[0].content.text)
        content = types.TextContent(type="text", text="hi")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def log(params: Any) -> None:
        log_texts.append(params.data)

    handlers = {"elicitation_callback": ask_person, "sampling_callback": ask_model, "logging_callback": log}
    # One call at a time. The answer to a question does not count as a call.
    token = make_token(max_in_flight=1)

    async def call_tools(path: str, prefix: str) -> None:
        url = f"http://127.0.0.1:{running_hall.gateway_port}{path}"
        async with python_sdk(url, token, "legacy", **handlers) as client:
            assert await client.text(f"{prefix}ask_person", {}) == "accept: blue"
            assert await client.text(f"{prefix}ask_model", {}) == "the model said hi"
            assert await client.text(f"{prefix}say", {}) == "said"

    for path, prefix in [("/mcp", "full__"), ("/mcp/full", "")]:
        asyncio.run(asyncio.wait_for(call_tools(path, prefix), 20))
    assert questions == ["Which color?", "say hi"] * 2
    assert log_texts.count("for everybody") == 2
    # A client without the capability gets no question, and the call fails at once.
    refusal = GatewayClient(running_hall, token).begin().call("full__ask_person")
    assert "elicitation/create is not offered here" in json.dumps(refusal)
    assert len(questions) == 4


def test_a_request_for_roots_outside_a_call_is_answered_at_once(running_hall: Hall) -> None:
    token = make_token()

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///mine")])

    async def call_tool(path: str, tool: str, **handlers: Any) -> str:
        url = f"http://127.0.0.1:{running_hall.gateway_port}{path}"
        async with python_sdk(url, token, "legacy", **handlers) as client:
            return await client.text(tool, {})

    def run(*args: Any, **handlers: Any) -> str:
        return asyncio.run(asyncio.wait_for(call_tool(*args, **handlers), 20))

    for path, tool in [("/mcp", "full__ask_roots"), ("/mcp/full", "ask_roots")]:
        assert run(path, tool, list_roots_callback=roots) == "file:///mine"
        assert run(path, tool) == "refused: roots/list is not offered here"
        client_without_stream = GatewayClient(running_hall, token, path).begin(roots={})  # this client reads no stream
        assert client_without_stream.text(tool) == "refused: roots/list is not offered here"
    call_row = call("full", "ask_roots")
    assert call_row.result["content"][0]["text"] == "refused: roots/list is not offered here"
    stop_member(member("full"))
    wait_for_status(
        running_hall, "full", "disconnected", within=3
    )  # the stop does not wait until the streams are closed


def test_resources_and_prompts_of_the_roster_have_the_name_of_their_member(running_hall: Hall) -> None:
    agent, member_client = (
        GatewayClient(running_hall, make_token()).begin(),
        GatewayClient(running_hall, make_token(), "/mcp/full").begin(),
    )
    uri = "guild://full/memo://one"
    assert [item["uri"] for item in agent.ask("resources/list")["result"]["resources"]] == [uri]
    assert [item["uri"] for item in member_client.ask("resources/list")["result"]["resources"]] == ["memo://one"]
    templates = agent.ask("resources/templates/list")["result"]["resourceTemplates"]
    assert [item["uriTemplate"] for item in templates] == ["guild://full/memo://by-name/{name}"]
    for resource_uri, text in [(uri, "first"), ("guild://full/memo://by-name/ada", "about ada")]:
        assert agent.ask("resources/read", uri=resource_uri)["result"]["contents"][0]["text"] == text
    assert member_client.ask("resources/read", uri="memo://one")["result"]["contents"][0]["text"] == "first"
    modern = GatewayClient(running_hall, make_token()).modern("resources/read", uri=uri)
    assert modern.json()["result"]["contents"][0]["text"] == "first", modern.text
    assert agent.ask("resources/read", uri="guild://nobody/x")["error"]["code"] == -32002
    assert "memo://two" in agent.ask("resources/read", uri="guild://full/memo://two")["error"]["message"]
    prompts = agent.ask("prompts/list")["result"]["prompts"]
    assert [item["name"] for item in prompts] == ["full__greet"]
    result = agent.ask("prompts/get", name="full__greet", arguments={"name": "Ada"})["result"]
    assert result["messages"][0]["content"]["text"] == "Greet Ada."
    assert agent.ask("prompts/get", name="greet", arguments={})["error"]["code"] == -32602

    # A token for one tool gives no access to the resources and prompts of the member.
    eventually(lambda: Tool.objects.filter(name="say").exists())
    narrow_token = make_token(scope=Token.Scope.TOOLS, tools=[Tool.objects.get(name="say")])
    for path, prefix in [("/mcp", ("guild://full/", "full__")), ("/mcp/full", ("", ""))]:
        client = GatewayClient(running_hall, narrow_token, path).begin()
        assert client.tools() == [f"{prefix[1]}say"]
        assert client.ask("resources/list")["result"]["resources"] == []
        assert client.ask("prompts/list")["result"]["prompts"] == []
        assert "error" in client.ask("resources/read", uri=f"{prefix[0]}memo://one")
        assert "error" in client.ask("resources/subscribe", uri=f"{prefix[0]}memo://one")
        assert "error" in client.ask("prompts/get", name=f"{prefix[1]}greet", arguments={"name": "Ada"})
        assert client.text(f"{prefix[1]}say") == "said"


def test_a_subscription_to_a_resource_survives_a_restart_of_the_member(running_hall: Hall) -> None:
    token, uri = make_token(), "guild://full/memo://one"
    agent, modern = GatewayClient(running_hall, token).begin(), GatewayClient(running_hall, token)
    message, headers = modern.modern_message("subscriptions/listen", notifications={"resourceSubscriptions": [uri]})
    with agent.listen() as legacy_stream, modern.stream(message, **headers) as modern_stream:
        acknowledgement = modern_stream.next()["params"]
        assert acknowledgement["notifications"] == {"resourceSubscriptions": [uri]}
        assert agent.ask("resources/subscribe", uri=uri)["result"] == {}
        for _ in range(2):
            for stream in (legacy_stream, modern_stream):

                def gets_update(stream: MessageStream = stream) -> bool:
                    agent.text("full__change", text="new")
                    try:
                        return bool(stream.until("notifications/resources/updated", within=0.3)["params"]["uri"] == uri)
                    except queue.Empty:
                        return False

                eventually(gets_update, within=8)
            kill("full")
            assert agent.text("full__say") == "said"
            legacy_stream.forget()
            modern_stream.forget()


def test_a_disabled_tool_stays_disabled_when_its_member_stops_listing_it(hall: Hall) -> None:
    hall.add("one", "tools=alpha,beta")
    hall.start()
    wait_for_roster(hall, "one")
    agent = GatewayClient(hall, make_token(), "/mcp/one").begin()
    assert agent.text("alpha") == "alpha"
    set_tool_enabled(Tool.objects.get(name="alpha"), False)
    eventually(lambda: "error" in agent.call("alpha"), within=1)
    hall.add("one", "tools=beta")
    hall.manage("member", "restart", "one")
    eventually(lambda: Tool.objects.filter(name="alpha", listed=False).exists())
    eventually(lambda: agent.tools() == ["beta"])
    assert "error" in agent.call("alpha")
