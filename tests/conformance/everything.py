"""A server with everything that the conformance suite tests: `everything.py --port N [--era handshake|modern]`.

It uses the official SDK's low-level server, at http://127.0.0.1:N/mcp. Its tools and lists are in offers.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvicorn
from mcp import types
from mcp.server.caching import CACHEABLE_METHODS, CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.session import ServerSession
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.conformance.offers import PROMPTS, RESOURCES, SENT, TEMPLATE, TOOLS, Call, InputRequired, Params, ToolFailed
from tests.conformance.offers import resource as resource_at

# The SDK warns about logging, sampling and roots, but the suite tests them.
warnings.filterwarnings("ignore", category=MCPDeprecationWarning)

NAME = "everything"
RETRY_MS = 500
Context = ServerRequestContext[Any, Any]


class Everything(Server[Any]):
    """Offers all of offers.py, to clients of both eras."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        # Sessions of the handshake era, which all get notifications.
        self.sessions: dict[str, ServerSession] = {}
        super().__init__(
            NAME,
            version="1.0.0",
            instructions="Everything that a server can offer.",
            cache_hints={method: CacheHint(ttl_ms=1000, scope="public") for method in CACHEABLE_METHODS},
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_resource_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=self.accept,
            on_unsubscribe_resource=self.accept,
            on_subscriptions_listen=ListenHandler(self.bus),
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_completion=self.complete,
            on_set_logging_level=self.accept,
        )
        self.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))

    def create_initialization_options(self, *args: Any, **options: Any) -> InitializationOptions:
        # Without this the SDK declares no listChanged in the handshake era.
        notifications = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(notifications)

    async def accept(self, context: Context, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    async def notify_change(self, kind: str) -> None:
        await self.bus.publish(ToolsListChanged() if kind == "tools" else PromptsListChanged())
        for session in self.sessions.values():
            # The SDK drops notifications for clients that do not listen or have disconnected.
            await (session.send_tool_list_changed() if kind == "tools" else session.send_prompt_list_changed())

    def _call(self, context: Context, params: Params) -> Call:
        return Call(context, params, self.notify_change)

    async def list_tools(self, context: Context, params: Any) -> types.ListToolsResult:
        assert context.request is not None
        if session_id := context.request.headers.get("mcp-session-id"):
            self.sessions[session_id] = context.session
        return types.ListToolsResult(tools=[tool.definition for tool in TOOLS.values()])

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in TOOLS:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        try:
            return types.CallToolResult(content=await TOOLS[params.name].call(self._call(context, params)))
        except InputRequired as required:
            return required.result
        except ToolFailed as failure:
            return types.CallToolResult(content=[types.TextContent(text=str(failure))], is_error=True)

    async def list_prompts(self, context: Context, params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[prompt.definition for prompt in PROMPTS.values()])

    async def get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        if params.name not in PROMPTS:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        try:
            contents = await PROMPTS[params.name].get(self._call(context, params))
        except InputRequired as required:
            return required.result
        except ToolFailed as failure:
            raise MCPError(types.INVALID_PARAMS, str(failure)) from failure
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=content) for content in contents]
        )

    async def list_resources(self, context: Context, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=uri, name=uri.partition("//")[2], description=f"What {uri} has", mime_type=mime_type)
                for uri, (mime_type, _) in RESOURCES.items()
            ]
        )

    async def list_resource_templates(self, context: Context, params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=TEMPLATE, name="template", description="Data by id", mime_type="application/json"
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        contents = resource_at(params.uri)
        if contents is None:
            code = types.INVALID_PARAMS if context.protocol_version in MODERN_PROTOCOL_VERSIONS else -32002
            raise MCPError(code, "Resource not found", data={"uri": params.uri})
        return types.ReadResourceResult(contents=[contents])

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        words = [word for word in ("paris", "park", "party", "test") if word.startswith(params.argument.value)]
        return types.CompleteResult(completion=types.Completion(values=words, total=len(words), has_more=False))


class Events(EventStore):
    """The events of one session, for clients that reconnect with Last-Event-ID."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._sent: list[tuple[int, str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._sent.append((next(self._ids), stream_id, message))
        return str(self._sent[-1][0])

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        streams = {str(event): stream for event, stream, _ in self._sent}
        stream_id = streams.get(last_event_id)
        for event, stream, message in list(self._sent):
            if stream == stream_id and event > int(last_event_id) and message is not None:
                await send_callback(EventMessage(message, str(event)))
        return stream_id


class Sessions(StreamableHTTPSessionManager):
    """Gives each session its own event store. The ids of streams are ids of requests, which repeat in all sessions."""

    @property
    def event_store(self) -> EventStore:
        return Events()

    @event_store.setter
    def event_store(self, store: EventStore | None) -> None:
        pass


class SendTracker:
    """Lets a tool wait until the first bytes of its stream were sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_sent = scope[SENT] = asyncio.Event()

        async def send_and_note(message: Message) -> None:
            await send(message)
            if message.get("body"):
                has_sent.set()

        await self.app(scope, receive, send_and_note)


class OneEra:
    """Rejects clients of the other era, as a server does that does not know this era."""

    def __init__(self, app: ASGIApp, era: str) -> None:
        self.app = app
        self.versions = HANDSHAKE_PROTOCOL_VERSIONS if era == "handshake" else MODERN_PROTOCOL_VERSIONS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        version = request.headers.get("mcp-protocol-version")
        # A handshake has no such header.
        if version in self.versions or (version is None and self.versions is HANDSHAKE_PROTOCOL_VERSIONS):
            await self.app(scope, receive, send)
            return
        message: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            message = json.loads(await request.body())
        await JSONResponse(
            {"jsonrpc": "2.0", "id": message.get("id"), "error": self.error(version, message)}, status_code=400
        )(scope, receive, send)

    def error(self, version: str | None, message: dict[str, Any]) -> dict[str, Any]:
        supported = list(self.versions)
        if self.versions is HANDSHAKE_PROTOCOL_VERSIONS:
            text = f"Bad Request: Unsupported protocol version: {version}. Supported versions: {', '.join(supported)}"
            return {"code": -32000, "message": text}
        requested = version or message.get("params", {}).get("protocolVersion") or ""
        return {
            "code": types.UNSUPPORTED_PROTOCOL_VERSION,
            "message": f"Unsupported protocol version; this server speaks {', '.join(supported)}",
            "data": {"supported": supported, "requested": requested},
        }


def application(era: str) -> Starlette:
    local = ["127.0.0.1:*", "localhost:*", "[::1]:*"]
    security = TransportSecuritySettings(allowed_hosts=local, allowed_origins=[f"http://{host}" for host in local])
    sessions = Sessions(Everything(), retry_interval=RETRY_MS, security_settings=security)
    app: ASGIApp = SendTracker(StreamableHTTPASGIApp(sessions))
    if era != "both":
        app = OneEra(app, era)
    return Starlette(routes=[Route("/mcp", endpoint=app)], lifespan=lambda app: sessions.run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--era", choices=["both", "handshake", "modern"], default="both")
    options = parser.parse_args()
    # httptools, if it is installed, keeps the space after a header's value.
    uvicorn.run(application(options.era), host="127.0.0.1", port=options.port, http="h11", log_level="warning")


if __name__ == "__main__":
    main()
