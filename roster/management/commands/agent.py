from __future__ import annotations

import contextlib
import json
import sys
import time
from argparse import ArgumentParser
from typing import Any, NoReturn

from django.core.management.base import CommandError
from django.db import transaction

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import (
    agent_problem,
    create_agent,
    find_agent,
    is_under_way,
    queue_message,
    stop_message,
    transcript,
    wait_note,
)
from mcp_runtime.control.members import live_runtime
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownAgentError
from roster.calls import texts_of
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, harmless, one_line, seconds
from roster.models import Agent, AgentEvent, AgentMessage, Call

LOOK_SECONDS = 0.1
# After Ctrl-C: the runtime gives the agent a few seconds to end.
STOP_SECONDS = 15.0
LINE = 500

Kind = AgentEvent.Kind


class Command(HallCommand):
    help = "Let an agent work with members' tools, and show what it does. The exit code is 0 only if it succeeded."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("prompt", help="what to do, or - to read it from stdin")
        parser.add_argument("--members", default="", help="whose tools it may use: NAME,NAME")
        parser.add_argument("--name", default="", help="the agent to go on with, or the name of a new one")
        parser.add_argument("--direct", action="store_true", help="call members' own endpoints, not the gateway")
        parser.add_argument("--model", default="", help="for a new agent: the model's name")
        parser.add_argument("--timeout", type=seconds, help="seconds the run may take (GUILD_HALL_AGENT_TIMEOUT)")

    def handle(self, *args: Any, **options: Any) -> None:
        prompt = sys.stdin.read() if options["prompt"] == "-" else options["prompt"]
        if live_runtime() is None:
            raise CommandError(NO_RUNTIME, returncode=exit_codes.UNAVAILABLE)
        try:
            with transaction.atomic():  # a prompt that is refused leaves no agent behind
                agent = self.agent(options)
                message = queue_message(
                    agent, prompt, requester=Requester(Call.Source.COMMAND), timeout=options["timeout"]
                )
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal
        if agent.name != options["name"]:
            self.stderr.write(f"Agent {agent.name}. To go on with it: --name {agent.name}", style_func=str)
        if note := wait_note(agent):
            self.stderr.write(note, style_func=str)
        try:
            self.show(agent, message)
        except KeyboardInterrupt:
            self.stop(agent, message)
        _require_success(message)

    def agent(self, options: dict[str, Any]) -> Agent:
        """The agent with the given name, or a new one."""
        if problem := agent_problem():
            raise CommandError(f"no agent can run: {problem}", returncode=exit_codes.UNAVAILABLE)
        names = [name.strip() for name in options["members"].split(",") if name.strip()]
        with contextlib.suppress(UnknownAgentError):
            if options["name"]:
                agent = find_agent(options["name"])
                if names and set(names) != set(agent.members.values_list("name", flat=True)):
                    raise CommandError(f"agent {agent.name!r} has other members; leave --members out to go on with it")
                return agent
        if not names:
            raise CommandError(
                "give the members whose tools the agent may use: --members NAME,NAME", returncode=exit_codes.USAGE
            )
        return create_agent(
            names,
            requester=Requester(Call.Source.COMMAND),
            name=options["name"],
            direct=options["direct"],
            model=options["model"],
        )

    def show(self, agent: Agent, message: AgentMessage) -> None:
        """Show the transcript as it grows, until the message is over."""
        last_id = 0
        while True:
            is_unfinished = is_under_way(agent, message=message)
            for event in transcript(agent, last_id, message=message):
                last_id = event.pk
                self.show_event(event)
            if not is_unfinished:
                message.refresh_from_db()
                return
            time.sleep(LOOK_SECONDS)

    def show_event(self, event: AgentEvent) -> None:
        data = event.data
        match event.kind:
            case Kind.TEXT:
                self.stdout.write(harmless(data["text"]))
            case Kind.TOOL_CALL:
                arguments = json.dumps(data["arguments"], ensure_ascii=False)
                self.stdout.write(one_line(f"→ {data['server']} {data['tool']} {arguments}", LINE))
            case Kind.TOOL_RESULT:
                text = " ".join(texts_of(data)) or json.dumps(data["content"], ensure_ascii=False)
                self.stdout.write(one_line(f"{'✗' if data['is_error'] else '←'} {text}", LINE))
            case Kind.SERVERS:
                for server in data["servers"]:
                    fault = one_line(f"{server['name']} is {server['status']}: {server['error']}", LINE)
                    self.stderr.write(f"The agent works without the tools of {fault}")
        self.stdout.flush()

    def stop(self, agent: Agent, message: AgentMessage) -> NoReturn:
        """Stop only this message after Ctrl-C, and wait until it is over. A second Ctrl-C ends the command at once."""
        with contextlib.suppress(KeyboardInterrupt):
            stop_message(message)
            deadline = time.monotonic() + STOP_SECONDS
            while is_under_way(agent, message=message) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
        message.refresh_from_db()
        state = "was stopped" if message.is_finished else "was asked to stop"
        raise CommandError(f"message {message.pk} to agent {agent.name} {state}", returncode=exit_codes.INTERRUPTED)


def _require_success(message: AgentMessage) -> None:
    if message.status == AgentMessage.Status.FAILED:
        text = f"the agent failed ({message.error_kind}): {harmless(message.error_message)}"
        raise CommandError(text, returncode=exit_codes.of_kind(message.error_kind))
    if message.status == AgentMessage.Status.CANCELLED:
        raise CommandError("the agent was stopped", returncode=exit_codes.CANCELLED)
