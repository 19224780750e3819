"""Clients that nobody here wrote, at the gateway: what they do in a day, and what members ask of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import psutil
import pytest
from django.db import connections
from mcp import types

from mcp_runtime.control.members import set_tool_enabled, stop_member
from roster.models import Token, Tool
from tests.conftest import eventually
from tests.support.agents import GatewayClient, MessageStream, is_up, kill, make_token, on_the_roster
from tests.support.hall import PATIENCE, Hall, call, member, wait_for_status
from tests.support.real_servers.__init__ import NODE, SERVERS, SUITE, python


@dataclass
class Client:
    """What these tests need of a client, whoever wrote it."""

    tools: Callable[[], Awaitable[list[str]]]
    text: Callable[[str, dict[str, Any]], Awaitable[str]]
    progress: Callable[[str, dict[str, Any]], Awaitable[list[float]]]


@asynccontextmanager
async def python_sdk(url: str, token: str, mode: str, **options: Any) -> AsyncIterator[Client]:
    from mcp import Client as SdkClient
    from mcp.client.streamable_http import streamable_http_client

    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False)
    async with http, SdkClient(streamable_http_client(url, http_client=http), mode=mode, **options) as client:

        async def tools() -> list[str]:
            return [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]

        async def text(name: str, arguments: dict[str, Any]) -> str:
            return str((await client.call_tool(name, arguments)).content[0].text)

        async def progress(name: str, arguments: dict[str, Any]) -> list[float]:
            told: list[float] = []

            async def told_of(value: float, total: float | None, message: str | None) -> None:
                told.append(value)

            await client.call_tool(name, arguments, progress_callback=told_of)
            return told

        one = Client(tools, text, progress)
        one.sdk = client  # type: ignore[attr-defined]
        yield one


@asynccontextmanager
async def fastmcp(url: str, token: str, mode: str) -> AsyncIterator[Client]:
    from fastmcp import Client as FastClient
    from fastmcp.client.transports import StreamableHttpTransport

    transport = StreamableHttpTransport(url, headers={"Authorization": f"Bearer {token}"})
    async with FastClient(transport, mode=mode) as client:

        async def tools() -> list[str]:
            return [tool.name for tool in await client.list_tools(cache_mode="refresh")]

        async def text(name: str, arguments: dict[str, Any]) -> str:
            return str((await client.call_tool(name, arguments)).content[0].text)

        async def progress(name: str, arguments: dict[str, Any]) -> list[float]:
            told: list[float] = []

            async def told_of(value: float, total: float | None, message: str | None) -> None:
                told.append(value)

            await client.call_tool(name, arguments, progress_handler=told_of)
            return told

        yield Client(tools, text, progress)


@asynccontextmanager
async def typescript(url: str, token: str, kind: str) -> AsyncIterator[Client]:
    if not NODE.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("make conformance-suite installs it")
    process = await asyncio.create_subprocess_exec(
        *(str(NODE), str(SERVERS / "typescript_client.mjs"), url, token, kind),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "SDK_ROOT": str(SUITE)},
    )
    assert process.stdin
    assert process.stdout

    async def ask(*told: Any) -> Any:
        process.stdin.write(json.dumps(told).encode() + b"\n")  # type: ignore[union-attr]
        answer = json.loads(await process.stdout.readline())  # type: ignore[union-attr]
        assert not isinstance(answer, dict), answer
        return answer

    try:
        assert json.loads(await process.stdout.readline()) == "ready"
        yield Client(
            lambda: ask("list"),
            lambda name, arguments: ask("call", name, arguments),
            lambda name, arguments: ask("progress", name, arguments),
        )
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


CLIENTS = {
    "python-auto": (python_sdk, "auto"),
    "python-legacy": (python_sdk, "legacy"),
    "fastmcp-auto": (fastmcp, "auto"),
    "fastmcp-legacy": (fastmcp, "legacy"),
    "typescript-1": (typescript, "sdk"),
    "typescript-2": (typescript, "legacy"),
    "typescript-2-auto": (typescript, "auto"),
}


def closing_connections(work: Callable[[], None]) -> None:
    """In a thread of its own, whose connections to the database nobody else would close."""
    try:
        work()
    finally:
        connections.close_all()


def test_clients_list_call_hear_of_progress_and_go_on_when_members_and_the_runtime_come_back(hall: Hall) -> None:
    """All of them at once, each in one connection from the first call to the last."""
    hall.add("real", **python("python_sdk.py"))
    hall.start()
    on_the_roster(hall, "real")
    token = make_token()

    def restart_runtime() -> None:
        for pid in (hall.processes[-1].pid, hall.worker_pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        hall.processes[-1].wait(PATIENCE)
        hall.start()
        eventually(lambda: is_up(hall), within=20)

    async def talk() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = {}
            for name, (kind, mode) in CLIENTS.items():
                path = "/mcp/real" if name.endswith("legacy") else "/mcp"
                url = f"http://127.0.0.1:{hall.gateway_port}{path}"
                clients[name] = (
                    await stack.enter_async_context(kind(url, token, mode)),
                    "" if path != "/mcp" else "real__",
                )

            async def all_of_it(name: str) -> None:
                client, prefix = clients[name]
                assert sorted(await client.tools()) == [f"{prefix}{tool}" for tool in ("add", "count", "fail")], name
                assert await client.text(f"{prefix}add", {"a": 2, "b": 3}) == "5", name
                assert await client.progress(f"{prefix}count", {"to": 3}) == [1, 2, 3], name

            for come_back in (lambda: None, lambda: kill("real"), restart_runtime):
                await asyncio.to_thread(closing_connections, come_back)
                await asyncio.gather(*map(all_of_it, clients))

    asyncio.run(asyncio.wait_for(talk(), 55))


# What members ask and tell ----------------------------------------------------------------------------------------


@pytest.fixture
def full(hall: Hall) -> Hall:
    hall.add("full", **python("full_server.py"))
    hall.start()
    agent = on_the_roster(hall, "full")
    eventually(lambda: agent.ask("resources/list").get("result", {}).get("resources"))
    return hall


def test_a_member_asks_the_person_and_the_model_of_a_caller_who_offers_them(full: Hall) -> None:
    asked: list[str] = []
    logged: list[str] = []

    async def ask_person(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"color": "blue"})

    async def ask_model(context: Any, params: Any) -> types.CreateMessageResult:
        asked.append(params.messages[0].content.text)
        said = types.TextContent(type="text", text="hi")
        return types.CreateMessageResult(role="assistant", content=said, model="none")

    async def log(params: Any) -> None:
        logged.append(params.data)

    handlers = {"elicitation_callback": ask_person, "sampling_callback": ask_model, "logging_callback": log}
    # One call at a time: the answer to what it asks is none.
    token = make_token(max_in_flight=1)

    async def talk(path: str, prefix: str) -> None:
        url = f"http://127.0.0.1:{full.gateway_port}{path}"
        async with python_sdk(url, token, "legacy", **handlers) as client:
            assert await client.text(f"{prefix}ask_person", {}) == "accept: blue"
            assert await client.text(f"{prefix}ask_model", {}) == "the model said hi"
            assert await client.text(f"{prefix}say", {}) == "said"

    for path, prefix in [("/mcp", "full__"), ("/mcp/full", "")]:
        asyncio.run(asyncio.wait_for(talk(path, prefix), 20))
    assert asked == ["Which color?", "say hi"] * 2
    assert logged.count("for everybody") == 2
    # Who offers nothing is asked nothing, and nobody waits for the answer.
    refused = GatewayClient(full, token).begin().call("full__ask_person")
    assert "elicitation/create is not offered here" in json.dumps(refused)
    assert len(asked) == 4


def test_a_member_that_asks_for_roots_outside_a_call_is_answered_at_once(full: Hall) -> None:
    token = make_token()

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///mine")])

    async def talk(path: str, tool: str, **handlers: Any) -> str:
        url = f"http://127.0.0.1:{full.gateway_port}{path}"
        async with python_sdk(url, token, "legacy", **handlers) as client:
            return await client.text(tool, {})

    def said(*args: Any, **handlers: Any) -> str:
        return asyncio.run(asyncio.wait_for(talk(*args, **handlers), 20))

    for path, tool in [("/mcp", "full__ask_roots"), ("/mcp/full", "ask_roots")]:
        assert said(path, tool, list_roots_callback=roots) == "file:///mine"
        assert said(path, tool) == "refused: roots/list is not offered here"
        deaf = GatewayClient(full, token, path).begin(roots={})  # it reads no stream
        assert deaf.text(tool) == "refused: roots/list is not offered here"
    queued = call("full", "ask_roots")
    assert queued.result["content"][0]["text"] == "refused: roots/list is not offered here"
    stop_member(member("full"))
    wait_for_status(full, "full", "disconnected", within=3)  # it does not wait for the streams to be closed


def test_the_roster_carries_resources_and_prompts_under_names_that_tell_the_member(full: Hall) -> None:
    agent, own = GatewayClient(full, make_token()).begin(), GatewayClient(full, make_token(), "/mcp/full").begin()
    uri = "guild://full/memo://one"
    assert [one["uri"] for one in agent.ask("resources/list")["result"]["resources"]] == [uri]
    assert [one["uri"] for one in own.ask("resources/list")["result"]["resources"]] == ["memo://one"]
    templates = agent.ask("resources/templates/list")["result"]["resourceTemplates"]
    assert [one["uriTemplate"] for one in templates] == ["guild://full/memo://by-name/{name}"]
    for told, text in [(uri, "first"), ("guild://full/memo://by-name/ada", "about ada")]:
        assert agent.ask("resources/read", uri=told)["result"]["contents"][0]["text"] == text
    assert own.ask("resources/read", uri="memo://one")["result"]["contents"][0]["text"] == "first"
    modern = GatewayClient(full, make_token()).modern("resources/read", uri=uri)
    assert modern.json()["result"]["contents"][0]["text"] == "first", modern.text
    assert agent.ask("resources/read", uri="guild://nobody/x")["error"]["code"] == -32002
    assert "memo://two" in agent.ask("resources/read", uri="guild://full/memo://two")["error"]["message"]
    prompts = agent.ask("prompts/list")["result"]["prompts"]
    assert [one["name"] for one in prompts] == ["full__greet"]
    got = agent.ask("prompts/get", name="full__greet", arguments={"name": "Ada"})["result"]
    assert got["messages"][0]["content"]["text"] == "Greet Ada."
    assert agent.ask("prompts/get", name="greet", arguments={})["error"]["code"] == -32602

    # One tool is not everything of its member.
    eventually(lambda: Tool.objects.filter(name="say").exists())
    narrow = make_token(scope=Token.Scope.TOOLS, tools=[Tool.objects.get(name="say")])
    for path, prefix in [("/mcp", ("guild://full/", "full__")), ("/mcp/full", ("", ""))]:
        few = GatewayClient(full, narrow, path).begin()
        assert few.tools() == [f"{prefix[1]}say"]
        assert few.ask("resources/list")["result"]["resources"] == []
        assert few.ask("prompts/list")["result"]["prompts"] == []
        assert "error" in few.ask("resources/read", uri=f"{prefix[0]}memo://one")
        assert "error" in few.ask("resources/subscribe", uri=f"{prefix[0]}memo://one")
        assert "error" in few.ask("prompts/get", name=f"{prefix[1]}greet", arguments={"name": "Ada"})
        assert few.text(f"{prefix[1]}say") == "said"


def test_who_subscribed_to_a_resource_hears_of_it_also_from_the_members_next_process(full: Hall) -> None:
    token, uri = make_token(), "guild://full/memo://one"
    agent, modern = GatewayClient(full, token).begin(), GatewayClient(full, token)
    message, headers = modern.modern_message("subscriptions/listen", notifications={"resourceSubscriptions": [uri]})
    with agent.listen() as heard, modern.stream(message, **headers) as listening:
        first = listening.next()["params"]
        assert first["notifications"] == {"resourceSubscriptions": [uri]}
        assert agent.ask("resources/subscribe", uri=uri)["result"] == {}
        for _ in range(2):
            for hears in (heard, listening):

                def is_heard(hears: MessageStream = hears) -> bool:
                    agent.text("full__change", text="new")
                    try:
                        return bool(hears.until("notifications/resources/updated", within=0.3)["params"]["uri"] == uri)
                    except queue.Empty:
                        return False

                eventually(is_heard, within=8)
            kill("full")
            assert agent.text("full__say") == "said"
            heard.forget()
            listening.forget()


def test_a_tool_that_was_disabled_stays_off_when_its_member_stops_listing_it(hall: Hall) -> None:
    hall.add("one", "tools=alpha,beta")
    hall.start()
    on_the_roster(hall, "one")
    agent = GatewayClient(hall, make_token(), "/mcp/one").begin()
    assert agent.text("alpha") == "alpha"
    set_tool_enabled(Tool.objects.get(name="alpha"), False)
    eventually(lambda: "error" in agent.call("alpha"), within=1)
    hall.add("one", "tools=beta")
    hall.manage("member", "restart", "one")
    eventually(lambda: Tool.objects.filter(name="alpha", listed=False).exists())
    eventually(lambda: agent.tools() == ["beta"])
    assert "error" in agent.call("alpha")
