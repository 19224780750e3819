"""A separate program that runs one prompt with the Agent SDK. It writes events to stdout, one JSON object a line.

    python host.py JOB.json              the job: prompt, mcp_config (a path), allowed_tools, disallowed_tools,
                                         resume, model, directory

Lines: {"kind": "session", "data": {"id"}}, then the kinds of `roster.models.AgentEvent.Kind`, and last
{"kind": "result", "data": {"text", "is_error", "usage"}}. The end of stdin stops the agent.

It is a separate process for three reasons. The SDK passes its whole environment to the agent. Its import and its event
loop would delay the runtime's threads. And a process can be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

MAX_TEXT = 100_000  # characters of one event
MAX_USAGE_ERRORS = 10

Emit = Callable[[str, dict[str, Any]], None]


async def run(job: dict[str, Any], emit: Emit, stop: asyncio.Event) -> bool:
    """Run one prompt to its end. Returns whether the agent sent a result."""
    from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, SystemMessage

    options = ClaudeAgentOptions(
        # None of the agent's own tools, because they would read files and run commands as the hall's user.
        tools=[],
        allowed_tools=job["allowed_tools"],
        disallowed_tools=job["disallowed_tools"],
        permission_mode="dontAsk",  # nobody can answer, so tools that are not allowed are denied
        # A path, because as an argument the servers and the token would be visible in the list of processes.
        mcp_servers=job["mcp_config"],
        strict_mcp_config=True,
        setting_sources=[],
        resume=job["resume"] or None,
        model=job["model"] or None,
        cwd=job["directory"],
        stderr=lambda line: print(line, file=sys.stderr, flush=True),
    )
    with open(job["mcp_config"], encoding="utf-8") as file:
        servers = list(json.load(file)["mcpServers"])
    has_result = False
    async with ClaudeSDKClient(options=options) as client:
        await client.query(job["prompt"])
        interruption = asyncio.create_task(_interrupt_at(stop, client))
        checks: list[asyncio.Task[None]] = []
        async for message in client.receive_response():
            if isinstance(message, SystemMessage) and message.subtype == "init":
                emit("session", {"id": message.data["session_id"]})
                checks.append(asyncio.create_task(_report_missing_servers(client, emit)))
            has_result = has_result or isinstance(message, ResultMessage)
            for kind, data in events_of(message, servers):
                if kind == "result":
                    await asyncio.wait(checks or [interruption], timeout=1)
                emit(kind, data)
        interruption.cancel()
    return has_result


async def _interrupt_at(stop: asyncio.Event, client: Any) -> None:
    await stop.wait()
    await client.interrupt()


async def _report_missing_servers(client: Any, emit: Emit) -> None:
    """Emit which servers are missing. The agent works without them, and its first message does not say why."""
    status = await client.get_mcp_status()
    missing = [
        {"name": server["name"], "status": server["status"], "error": truncate(str(error))}
        for server in status["mcpServers"]
        if (error := _fault_of(server)) is not None
    ]
    if missing:
        emit("servers", {"servers": missing})


def _fault_of(server: Any) -> str | None:
    if server["status"] != "connected":
        return str(server.get("error") or "no reason was given")
    # The agent refuses the whole list if the schema of one tool is not for an object.
    return None if server.get("tools") else "the agent accepts none of its tools; one of their schemas may be broken"


def events_of(message: Any, servers: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a message of the SDK. Leaves out details that people do not need."""
    kind = type(message).__name__
    if kind == "ResultMessage":
        yield "result", _result(message)
    if kind not in ("AssistantMessage", "UserMessage") or isinstance(message.content, str):
        return
    for block in message.content:
        match type(block).__name__:
            case "TextBlock" if kind == "AssistantMessage":
                yield "text", {"text": truncate(block.text)}
            case "ToolUseBlock":
                server, tool = _split_name(block.name.removeprefix("mcp__"), servers)
                yield "tool_call", {"id": block.id, "server": server, "tool": tool, "arguments": _shorten(block.input)}
            case "ToolResultBlock":
                content = block.content or []
                items = [{"type": "text", "text": content}] if isinstance(content, str) else content
                yield (
                    "tool_result",
                    {"id": block.tool_use_id, "content": _shorten(items), "is_error": bool(block.is_error)},
                )


def _split_name(name: str, servers: list[str]) -> tuple[str, str]:
    """The server and the tool in `server__tool`. Both names may contain `__`."""
    candidates = [server for server in servers if name.startswith(f"{server}__")]
    server = max(candidates, key=len, default=name.partition("__")[0])
    return server, name[len(server) + 2 :]


def _result(message: Any) -> dict[str, Any]:
    errors = [str(error) for error in (message.errors or [])][:MAX_USAGE_ERRORS]
    usage = {
        "turns": message.num_turns,
        "milliseconds": message.duration_ms,
        "cost_usd": message.total_cost_usd,
        "input_tokens": (message.usage or {}).get("input_tokens"),
        "output_tokens": (message.usage or {}).get("output_tokens"),
    }
    text = message.result or "; ".join(errors) or ("" if not message.is_error else message.subtype)
    return {"text": truncate(text), "is_error": message.is_error, "usage": usage}


def truncate(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n… and {len(text) - MAX_TEXT} more characters."


def _shorten(value: Any) -> Any:
    """`value`, or the beginning of its JSON as text if that is too long to be stored."""
    text = json.dumps(value)
    return value if len(text) <= MAX_TEXT else [{"type": "text", "text": truncate(text)}]


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)


async def _main(job: dict[str, Any], emit: Emit) -> int:
    stop = asyncio.Event()
    threading.Thread(target=_watch_stdin, args=(asyncio.get_running_loop(), stop), daemon=True).start()
    try:
        return 0 if await run(job, emit, stop) else 1
    except Exception as error:  # noqa: BLE001 - the program ends here, and the runtime shows the error
        emit("error", {"text": truncate(str(error) or repr(error))})
        return 1


def main() -> int:
    # Send all other output to stderr. Only events go to stdout.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)

    def emit(kind: str, data: dict[str, Any]) -> None:
        lines.write(json.dumps({"kind": kind, "data": data}) + "\n")
        lines.flush()

    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    return asyncio.run(_main(job, emit))


if __name__ == "__main__":
    sys.exit(main())
