"""The tools, prompts and resources of the everything server, with the names and texts that the suite requires.

A tool is a function of the call. It returns content, raises `ToolFailed`, or asks its client a question with
`Call.ask`, in the way of the client's era.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

Schema = dict[str, Any]
Params = types.CallToolRequestParams | types.GetPromptRequestParams
Question = types.ElicitRequest | types.CreateMessageRequest | types.ListRootsRequest

# The smallest picture, and the smallest sound, which is a WAV header without samples.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAV = base64.b64encode(
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x40\x1f\0\0\x01\0\x08\0data\0\0\0\0"
).decode()
SENT = "tests.conformance.sent"  # in a request's scope: an event that is set when the response has begun
PAUSE = 0.05  # the suite requires this pause between two notifications


class ToolFailed(Exception):
    """The tool ran and failed. Its result has `isError`."""


class InputRequired(Exception):
    """Ends a call of the modern era. The client repeats the call with answers."""

    def __init__(self, result: types.InputRequiredResult) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True)
class Call:
    """One tools/call or prompts/get. `notify_change` notifies every client that its "tools" or "prompts" changed."""

    context: ServerRequestContext[Any, Any]
    params: Params
    notify_change: Callable[[str], Awaitable[None]]

    @property
    def is_modern(self) -> bool:
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def argument(self, name: str) -> Any:
        return (self.params.arguments or {}).get(name)

    def may_ask(self, question: Question) -> bool:
        """Whether the client declared that it answers this question."""
        return getattr(self.context.session.client_capabilities, _capability(question), None) is not None

    async def ask(self, questions: dict[str, Question], state: dict[str, Any] | None = None) -> dict[str, Any]:
        """The client's answers, by the keys of the questions. In a repeated call `self.state` is `state`."""
        for question in questions.values():
            if not self.may_ask(question):
                raise self._missing(_capability(question))
        if not self.is_modern:
            return {key: await self._ask_on_the_stream(question) for key, question in questions.items()}
        responses = self.params.input_responses or {}
        if questions.keys() <= responses.keys():
            return {key: responses[key] for key in questions}
        state_text = None if state is None else json.dumps(state)
        raise InputRequired(types.InputRequiredResult(input_requests=questions, request_state=state_text))

    @property
    def state(self) -> dict[str, Any]:
        """The state that `ask` sent. The SDK seals and verifies it, so it cannot be anything else."""
        state: dict[str, Any] = json.loads(self.params.request_state or "{}")
        return state

    async def log(self, text: str) -> None:
        """Send a log message. A client of the modern era gets it only if its request asked for logs."""
        request_id = self.context.request_id
        await self.context.session.send_log_message("info", text, related_request_id=request_id)

    async def _ask_on_the_stream(self, question: Question) -> Any:
        metadata = ServerMessageMetadata(related_request_id=self.context.request_id)
        return await self.context.session.send_request(question, _RESULT_TYPES[type(question)], metadata=metadata)

    def _missing(self, capability: str) -> Exception:
        message = f"the client did not declare {capability}"
        if not self.is_modern:
            return ToolFailed(message)
        return MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, data={"requiredCapabilities": {capability: {}}}
        )


_RESULT_TYPES: dict[type[Any], type[Any]] = {
    types.ElicitRequest: types.ElicitResult,
    types.CreateMessageRequest: types.CreateMessageResult,
    types.ListRootsRequest: types.ListRootsResult,
}


def _capability(question: Question) -> str:
    return {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}[
        question.method
    ]


def form(message: str, required: tuple[str, ...] = (), **fields: Schema) -> types.ElicitRequest:
    schema = {"type": "object", "properties": fields, "required": list(required)}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(prompt: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=100))


def text(value: str) -> types.TextContent:
    return types.TextContent(text=value)


def embedded_resource(uri: str, mime_type: str, text: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=text))


def describe(result: types.ElicitResult) -> str:
    return f"action={result.action}, content={json.dumps(result.content)}"


STRING: Schema = {"type": "string"}
NAME = form("What is your name?", ("name",), name=STRING)
ROOTS = types.ListRootsRequest()

# Tools

ToolFunction = Callable[[Call], Awaitable[list[types.ContentBlock]]]


@dataclass(frozen=True)
class Tool:
    definition: types.Tool
    call: ToolFunction


TOOLS: dict[str, Tool] = {}


def tool(description: str, schema: Schema | None = None, **properties: Schema) -> Callable[[ToolFunction], None]:
    """Offers a function as the tool of its name. All `properties` are required. A `schema` replaces them."""
    input_schema = schema or {"type": "object", "properties": properties, "required": list(properties)}

    def add(function: ToolFunction) -> None:
        definition = types.Tool(name=function.__name__, description=description, input_schema=input_schema)
        TOOLS[definition.name] = Tool(definition, function)

    return add


@tool("Returns a text")
async def test_simple_text(call: Call) -> list[types.ContentBlock]:
    return [text("This is a simple text response for testing.")]


@tool("Returns a picture")
async def test_image_content(call: Call) -> list[types.ContentBlock]:
    return [types.ImageContent(data=PNG, mime_type="image/png")]


@tool("Returns a sound")
async def test_audio_content(call: Call) -> list[types.ContentBlock]:
    return [types.AudioContent(data=WAV, mime_type="audio/wav")]


@tool("Returns a resource")
async def test_embedded_resource(call: Call) -> list[types.ContentBlock]:
    return [embedded_resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")]


@tool("Returns a text, a picture and a resource")
async def test_multiple_content_types(call: Call) -> list[types.ContentBlock]:
    return [
        text("Multiple content types test:"),
        types.ImageContent(data=PNG, mime_type="image/png"),
        embedded_resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ]


@tool("Fails")
async def test_error_handling(call: Call) -> list[types.ContentBlock]:
    raise ToolFailed("This tool intentionally returns an error for testing")


@tool("Writes three lines of log while it runs")
async def test_tool_with_logging(call: Call) -> list[types.ContentBlock]:
    await call.log("Tool execution started")
    await asyncio.sleep(PAUSE)
    await call.log("Tool processing data")
    await asyncio.sleep(PAUSE)
    await call.log("Tool execution completed")
    return [text("Tool with logging executed successfully")]


@tool("Writes a line of log")
async def test_logging_tool(call: Call) -> list[types.ContentBlock]:
    await call.log("for those who asked")
    return [text("logged")]


@tool("Says three times how far it is")
async def test_tool_with_progress(call: Call) -> list[types.ContentBlock]:
    for progress in (0, 50, 100):
        await call.context.session.report_progress(progress, 100)
        await asyncio.sleep(PAUSE)
    return [text("Tool with progress executed successfully")]


@tool("Ends its stream while it runs; the result is fetched with Last-Event-ID")
async def test_reconnection(call: Call) -> list[types.ContentBlock]:
    if call.context.close_sse_stream is not None:
        # The first event has the id for the reconnection. A stream that is closed before this event has no id.
        assert call.context.request is not None
        await asyncio.wait_for(call.context.request.scope[SENT].wait(), 10)
        await call.context.close_sse_stream()
    await asyncio.sleep(PAUSE)
    return [text("Reconnection test completed")]


@tool("Asks the client's model", prompt=STRING)
async def test_sampling(call: Call) -> list[types.ContentBlock]:
    result = (await call.ask({"answer": sampling(call.argument("prompt"))}))["answer"]
    return [text(f"LLM response: {getattr(result.content, 'text', result.content)}")]


@tool("Asks the user for name and address", message=STRING)
async def test_elicitation(call: Call) -> list[types.ContentBlock]:
    fields = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    question = form(call.argument("message"), ("username", "email"), **fields)
    return [text(f"User response: {describe((await call.ask({'user': question}))['user'])}")]


@tool("Asks the user, with a default in every field")
async def test_elicitation_sep1034_defaults(call: Call) -> list[types.ContentBlock]:
    question = form(
        "Please look at the defaults",
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return [text(f"Elicitation completed: {describe((await call.ask({'user': question}))['user'])}")]


@tool("Asks the user to choose, in every form of a choice")
async def test_elicitation_sep1330_enums(call: Call) -> list[types.ContentBlock]:
    options = ["option1", "option2", "option3"]
    titled_options = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]
    question = form(
        "Please choose",
        untitledSingle={"type": "string", "enum": options},
        titledSingle={"type": "string", "oneOf": titled_options},
        legacyEnum={"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": options}},
        titledMulti={"type": "array", "items": {"anyOf": titled_options}},
    )
    return [text(f"Elicitation completed: {describe((await call.ask({'user': question}))['user'])}")]


@tool(
    "Tool with JSON Schema 2020-12 features",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {"$anchor": "addressDef", "type": "object", "properties": {"street": STRING, "city": STRING}}
        },
        "properties": {
            "name": STRING,
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": STRING,
            "email": STRING,
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema_2020_12_tool(call: Call) -> list[types.ContentBlock]:
    return [text(json.dumps(call.params.arguments))]


@tool("Takes a value that its caller repeats in a header", region={"type": "string", "x-mcp-header": "Region"})
async def test_x_mcp_header(call: Call) -> list[types.ContentBlock]:
    return [text(f"region={call.argument('region')}")]


@tool("Needs a client that answers for its model")
async def test_missing_capability(call: Call) -> list[types.ContentBlock]:
    await call.ask({"answer": sampling("Are you there?")})
    return [text("The client answered")]


@tool("Asks the user on the way")
async def test_streaming_elicitation(call: Call) -> list[types.ContentBlock]:
    return [text(describe((await call.ask({"user_name": NAME}))["user_name"]))]


@tool("Adds a tool to the list, or takes it away again")
async def test_trigger_tool_change(call: Call) -> list[types.ContentBlock]:
    if TOOLS.pop(test_comes_and_goes.__name__, None) is None:
        tool("There only now and then")(test_comes_and_goes)
    await call.notify_change("tools")
    return [text("The tools have changed")]


@tool("Adds a prompt to the list, or takes it away again")
async def test_trigger_prompt_change(call: Call) -> list[types.ContentBlock]:
    if PROMPTS.pop(test_comes_and_goes_too.__name__, None) is None:
        prompt("There only now and then")(test_comes_and_goes_too)
    await call.notify_change("prompts")
    return [text("The prompts have changed")]


async def test_comes_and_goes(call: Call) -> list[types.ContentBlock]:
    return [text("Here I am")]


# Tools that ask questions, in the modern era with a result that names the missing input.


@tool("Asks for a name")
async def test_input_required_result_elicitation(call: Call) -> list[types.ContentBlock]:
    result = (await call.ask({"user_name": NAME}))["user_name"]
    return [text(f"Hello, {(result.content or {}).get('name')}!")]


@tool("Asks the client's model for a capital")
async def test_input_required_result_sampling(call: Call) -> list[types.ContentBlock]:
    question = sampling("What is the capital of France?")
    result = (await call.ask({"capital_question": question}))["capital_question"]
    return [text(getattr(result.content, "text", ""))]


@tool("Asks for the client's roots")
async def test_input_required_result_list_roots(call: Call) -> list[types.ContentBlock]:
    result = (await call.ask({"client_roots": ROOTS}))["client_roots"]
    return [text(", ".join(str(root.uri) for root in result.roots))]


def three_questions() -> dict[str, Question]:
    return {"user_name": NAME, "greeting": sampling("Generate a greeting"), "client_roots": ROOTS}


async def confirm(call: Call) -> None:
    """Asks, and accepts an answer only with the state of the question."""
    question = form("Please confirm", ("ok",), ok={"type": "boolean"})
    await call.ask({"confirm": question}, state={"asked": True})
    if call.is_modern and not call.state.get("asked"):
        raise MCPError(types.INVALID_PARAMS, "requestState is missing")


@tool("Asks, and wants its state back")
async def test_input_required_result_request_state(call: Call) -> list[types.ContentBlock]:
    await confirm(call)
    return [text("state-ok")]


@tool("Asks, and wants its state back as it was")
async def test_input_required_result_tampered_state(call: Call) -> list[types.ContentBlock]:
    await confirm(call)
    return [text("The state is what it was")]


@tool("Asks three questions at once")
async def test_input_required_result_multiple_inputs(call: Call) -> list[types.ContentBlock]:
    await call.ask(three_questions(), state={"asked": True})
    return [text("All questions are answered")]


@tool("Asks twice, one question after the other")
async def test_input_required_result_multi_round(call: Call) -> list[types.ContentBlock]:
    steps = {
        "step1": form("Step 1: What is your name?", ("name",), name=STRING),
        "step2": form("Step 2: What is your favorite color?", ("color",), color=STRING),
    }
    state = call.state
    for key, question in steps.items():
        if key not in state:
            state[key] = (await call.ask({key: question}, state=dict(state)))[key].content
    return [text(f"Answered: {json.dumps(state)}")]


@tool("Asks only what the client said that it answers")
async def test_input_required_result_capabilities(call: Call) -> list[types.ContentBlock]:
    questions = three_questions()
    possible_questions = {key: question for key, question in questions.items() if call.may_ask(question)}
    if possible_questions:
        await call.ask(possible_questions)
    return [text(f"Asked: {', '.join(possible_questions)}")]


# Prompts

PromptFunction = Callable[[Call], Awaitable[list[types.ContentBlock]]]


@dataclass(frozen=True)
class Prompt:
    definition: types.Prompt
    get: PromptFunction


PROMPTS: dict[str, Prompt] = {}


def prompt(description: str, *arguments: str) -> Callable[[PromptFunction], None]:
    """Offers a function as the prompt of its name. It returns the content of the user's message."""

    def add(function: PromptFunction) -> None:
        prompt_arguments = [
            types.PromptArgument(name=name, description=f"The {name}", required=True) for name in arguments
        ]
        definition = types.Prompt(name=function.__name__, description=description, arguments=prompt_arguments)
        PROMPTS[definition.name] = Prompt(definition, function)

    return add


@prompt("A prompt without arguments")
async def test_simple_prompt(call: Call) -> list[types.ContentBlock]:
    return [text("This is a simple prompt for testing.")]


@prompt("A prompt with arguments", "arg1", "arg2")
async def test_prompt_with_arguments(call: Call) -> list[types.ContentBlock]:
    return [text(f"Prompt with arguments: arg1='{call.argument('arg1')}', arg2='{call.argument('arg2')}'")]


@prompt("A prompt with a resource in it", "resourceUri")
async def test_prompt_with_embedded_resource(call: Call) -> list[types.ContentBlock]:
    return [
        embedded_resource(call.argument("resourceUri"), "text/plain", "Embedded resource content for testing."),
        text("Please process the embedded resource above."),
    ]


@prompt("A prompt with a picture in it")
async def test_prompt_with_image(call: Call) -> list[types.ContentBlock]:
    return [types.ImageContent(data=PNG, mime_type="image/png"), text("Please analyze the image above.")]


@prompt("A prompt that asks for its context")
async def test_input_required_result_prompt(call: Call) -> list[types.ContentBlock]:
    question = form("What context should the prompt use?", ("context",), context=STRING)
    result = (await call.ask({"user_context": question}))["user_context"]
    return [text(f"The context is {(result.content or {}).get('context')}")]


async def test_comes_and_goes_too(call: Call) -> list[types.ContentBlock]:
    return [text("Here I am")]


# Resources

TEMPLATE = "test://template/{id}/data"
RESOURCES = {
    "test://static-text": ("text/plain", "This is the content of the static text resource."),
    "test://static-binary": ("image/png", PNG),
    "test://watched-resource": ("text/plain", "Watched, and never another."),
}


def resource(uri: str) -> types.TextResourceContents | types.BlobResourceContents | None:
    head, _, tail = TEMPLATE.partition("{id}")
    if uri in RESOURCES:
        mime_type, content = RESOURCES[uri]
        if mime_type.startswith("image/"):
            return types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=content)
        return types.TextResourceContents(uri=uri, mime_type=mime_type, text=content)
    if uri.startswith(head) and uri.endswith(tail):
        key = uri[len(head) : -len(tail)]
        data = json.dumps({"id": key, "templateTest": True, "data": f"Data for ID: {key}"})
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=data)
    return None
