"""A server with all requests and notifications of members: `full_server.py PORT`, on the official Python SDK."""

import sys

from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    EmptyResult,
    RequestParams,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
)
from pydantic import BaseModel

server = MCPServer("full")
notes = {"memo://one": "first"}
subscribed = set()


async def subscribe(ctx: object, params: SubscribeRequestParams) -> EmptyResult:
    subscribed.add(str(params.uri))
    return EmptyResult()


async def accept(ctx: object, params: RequestParams) -> EmptyResult:
    return EmptyResult()


# Only sessions have these methods. The SDK leaves them to the server.
server._lowlevel_server.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
server._lowlevel_server.add_request_handler("logging/setLevel", SetLevelRequestParams, accept)


class Answer(BaseModel):
    color: str


@server.tool()
async def ask_person(ctx: Context) -> str:
    """Asks the person in front of the client."""
    answer = await ctx.elicit("Which color?", Answer)
    return f"{answer.action}: {answer.data.color}" if answer.action == "accept" else answer.action


@server.tool()
async def ask_model(ctx: Context) -> str:
    """Asks the client's model."""
    question = SamplingMessage(role="user", content=TextContent(type="text", text="say hi"))
    answer = await ctx.session.create_message([question], max_tokens=10, related_request_id=ctx.request_id)
    return f"the model said {answer.content.text}"


@server.tool()
async def ask_roots(ctx: Context) -> str:
    """Asks for the client's roots, on the stream that belongs to no call."""
    try:
        answer = await ctx.session.list_roots()
    except MCPError as error:
        return f"refused: {error}"
    return " ".join(str(root.uri) for root in answer.roots)


@server.tool()
async def say(ctx: Context) -> str:
    """Writes two lines to the client's log."""
    await ctx.debug("only for the curious")
    await ctx.warning("for everybody")
    return "said"


@server.tool()
async def change(ctx: Context, text: str) -> str:
    """Writes another text into the memo."""
    notes["memo://one"] = text
    await ctx.notify_resource_updated("memo://one")
    if "memo://one" in subscribed:
        await ctx.session.send_resource_updated("memo://one")
    return "changed"


@server.resource("memo://one")
def memo() -> str:
    """A text that changes."""
    return notes["memo://one"]


@server.resource("memo://by-name/{name}")
def by_name(name: str) -> str:
    """A text for each name."""
    return f"about {name}"


@server.prompt()
def greet(name: str) -> str:
    """Greets."""
    return f"Greet {name}."


server.run("streamable-http", port=int(sys.argv[1]))
