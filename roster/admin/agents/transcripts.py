"""The transcript of an agent for the template: prompts, texts, calls with their results, outcomes.

Agents write Markdown, and results come from members. `results` renders both, safely and within bounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.urls import reverse
from django.utils.safestring import SafeString

from mcp_runtime.control.agents import transcript
from roster.admin import live, present
from roster.admin.calls import files, results
from roster.admin.calls.files import File
from roster.admin.calls.items import Item, markdown
from roster.admin.calls.json_view import json_tree
from roster.calls import texts_of
from roster.client_formats import SERVER_NAME
from roster.models import Agent, AgentEvent, AgentMessage

SHOWN_MESSAGES = 50
SHOWN_EVENTS = 300
SHOWN_CHARACTERS = 600_000  # the newest of all events. Older ones are omitted
SHOWN_TEXT = 20_000
SHOWN_ITEMS = 10  # of one call's result

Kind = AgentEvent.Kind

# What to do about each error kind of a message.
HINTS: Mapping[str, str] = {
    "agent": "The agent or its model ended with an error. Say it another way, or look at the key and the model's name.",
    "timeout": "It took longer than it may. Ask for less at once, or raise GUILD_HALL_AGENT_TIMEOUT.",
    "unavailable": "What is said here is missing. When it is there, send the message again.",
    "lost": "The runtime ended while the agent worked; tools may have done their work. Look, then send it again.",
}


@dataclass
class Step:
    """One text or action of the agent. `kind` is that of the event. A call contains its result."""

    pk: int
    kind: str
    html: SafeString | str = ""
    server: str = ""
    tool: str = ""
    gist: str = ""
    items: list[Item] = field(default_factory=list)
    left_out: int = 0
    whole: Item | None = None
    outcome: str = ""  # of a call: `succeeded`, `failed`, or empty while it is in progress


@dataclass
class Turn:
    """One prompt, the events after it, and its outcome."""

    message: AgentMessage
    steps: list[Step]
    error: str
    hint: str
    took: str
    usage: str


def tag(agent: Agent) -> str:
    """Changes with each event and each change of a status. It costs one query."""
    last = transcript(agent).reverse().values_list("pk", flat=True).first()
    messages = [(row.pk, row.status, row.cancel_requested_at) for row in agent.messages.all()]
    return live.etag("transcript", agent.pk, last, messages)


def turns(agent: Agent) -> tuple[list[Turn], bool]:
    """The last turns, oldest first, and whether earlier ones are omitted."""
    messages = list(agent.messages.all())
    visible = messages[-SHOWN_MESSAGES:]
    events, is_cut = _newest_events(agent)
    of_message: dict[int, list[AgentEvent]] = {}
    for event in events:
        of_message.setdefault(event.message_id, []).append(event)
    if is_cut and events:  # messages before the first remaining event are omitted
        visible = [message for message in visible if message.pk >= events[0].message_id]
    return [_turn(message, of_message.get(message.pk, [])) for message in visible], is_cut or len(messages) > len(
        visible
    )


def _newest_events(agent: Agent) -> tuple[list[AgentEvent], bool]:
    rows = list(transcript(agent).reverse()[: SHOWN_EVENTS + 1])
    events: list[AgentEvent] = []
    characters = 0
    for row in rows[:SHOWN_EVENTS]:
        characters += len(json.dumps(row.data))
        if characters > SHOWN_CHARACTERS and events:
            break
        events.append(row)
    return events[::-1], len(events) < len(rows)


def _turn(message: AgentMessage, events: Iterable[AgentEvent]) -> Turn:
    steps: list[Step] = []
    calls: dict[str, Step] = {}
    for event in events:
        match event.kind:
            case Kind.RESULT:  # the message's own columns have it
                continue
            case Kind.TOOL_CALL:
                step = calls[str(event.data["id"])] = _call(event)
                steps.append(step)
            case Kind.TOOL_RESULT:
                call = calls.get(str(event.data["id"]))
                if call is None:  # its call is among the omitted events
                    call = Step(event.pk, Kind.TOOL_CALL.value, tool="an earlier call")
                    steps.append(call)
                _answer(call, event, message.agent_id)
            case _:
                steps.append(_text_step(event, message.agent_id))
    is_failed = message.status == AgentMessage.Status.FAILED
    return Turn(
        message,
        steps,
        error=present.bounded(message.error_message, SHOWN_TEXT),
        hint=HINTS.get(message.error_kind, "") if is_failed else "",
        took=present.seconds(message.duration),
        usage=_usage(message.usage),
    )


def _call(event: AgentEvent) -> Step:
    data = event.data
    arguments = data["arguments"]
    return Step(
        event.pk,
        event.kind,
        html=json_tree(arguments),
        server=""
        if data["server"] == SERVER_NAME
        else str(data["server"]),  # the names of its tools contain the member
        tool=str(data["tool"]),
        gist=present.one_line(json.dumps(arguments, ensure_ascii=False)[:1000], 100),
    )


def _answer(call: Step, event: AgentEvent, agent_id: int) -> None:
    content = _content_of(event)
    call.outcome = "failed" if event.data["is_error"] else "succeeded"
    call.items = [
        replace(item, address=_address(agent_id, event, str(number)))
        for number, item in enumerate(results.items_of(content[:SHOWN_ITEMS]))
    ]
    call.left_out = max(0, len(content) - SHOWN_ITEMS)
    if len(content) > 1:
        address = _address(agent_id, event, files.WHOLE)
        call.whole = Item("whole result", SafeString(""), address=address, by_address=True)
    call.gist = present.one_line(" ".join(texts_of(event.data))[:1000], 100) or call.gist


def _text_step(event: AgentEvent, agent_id: int) -> Step:
    data = event.data
    if event.kind == Kind.SERVERS:
        lines = [f"{server['name']} is {server['status']}: {server['error']}" for server in data["servers"]]
        return Step(event.pk, event.kind, html=present.text_block(present.bounded("\n".join(lines), SHOWN_TEXT)))
    text = present.bounded(str(data["text"]), SHOWN_TEXT)
    if event.kind != Kind.TEXT:
        return Step(event.pk, event.kind, html=text)
    item = Item("Markdown", markdown(text), address=_address(agent_id, event, "0"), by_address=True)
    return Step(event.pk, event.kind, items=[item])


# Files ------------------------------------------------------------------------------------------------------------


def file_of(agent: Agent, event_id: int, part: str) -> File | None:
    """A text of the agent, or the result of a call, or an item of it. None if there is none."""
    event = transcript(agent).filter(pk=event_id, kind__in=[Kind.TEXT, Kind.TOOL_RESULT]).first()
    if event is None:
        return None
    return files.file_in(f"{agent.name[:60]}-{event.pk}", part, event.data.get("content"), _content_of(event))


def _content_of(event: AgentEvent) -> list[Any]:
    if event.kind == Kind.TEXT:
        return [{"type": "text", "text": str(event.data["text"])}]
    content = event.data["content"]
    return content if isinstance(content, list) else [content]


def _address(agent_id: int, event: AgentEvent, part: str) -> str:
    return reverse("admin:roster_agent_file", args=[agent_id, event.pk, part])


# Words ------------------------------------------------------------------------------------------------------------


def _usage(usage: dict[str, Any]) -> str:
    """`2 turns, 1,234 tokens in, 56 out, 0.0123 USD`, without figures that the SDK did not report."""
    words = []
    if usage.get("turns"):
        words.append(f"{usage['turns']} turn{'' if usage['turns'] == 1 else 's'}")
    if usage.get("input_tokens") is not None:
        words.append(f"{usage['input_tokens']:,} tokens in, {usage.get('output_tokens') or 0:,} out")
    if usage.get("cost_usd"):
        words.append(f"{usage['cost_usd']:.4f} USD")
    return ", ".join(words)
