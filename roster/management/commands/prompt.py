from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.extras import Kind, extras_of, find_extra, search, set_extra_enabled
from mcp_runtime.control.members import find_member
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import McpRuntimeError
from mcp_runtime.protocol.jsonrpc import object_of
from roster.calls import parse_arguments
from roster.management import exit_codes
from roster.management.extras import add_search, add_user, rows_of, state_of, write_completion
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, harmless, one_line, table

COLUMNS = ["PROMPT", "STATE", "ARGUMENTS", "TITLE"]


class Command(HallCommand):
    help = "List the prompts of a member, get the messages of one, complete its arguments, enable and disable it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser("list", help="the prompts that the member listed last")
        listing.add_argument("member")
        add_search(listing)
        get = verbs.add_parser("get", help="get the messages of a prompt")
        get.add_argument("member")
        get.add_argument("prompt")
        get.add_argument("arguments", nargs="?", default="{}", help="a JSON object with strings")
        get.add_argument("--json", action="store_true", help="print the whole result as JSON")
        add_user(get)
        complete = verbs.add_parser("complete", help="values for an argument of a prompt")
        complete.add_argument("member")
        complete.add_argument("prompt")
        complete.add_argument("argument")
        complete.add_argument("value", nargs="?", default="", help="the beginning of the value")
        add_user(complete)
        for verb in ("enable", "disable"):
            change = verbs.add_parser(
                verb, help=f"{verb} a prompt. A disabled one is in no list, and nobody can use it"
            )
            change.add_argument("member")
            change.add_argument("prompt")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['verb']}")(options)
        except (ValueError, McpRuntimeError) as error:
            raise CommandError(harmless(str(error))) from error

    def _list(self, options: dict[str, Any]) -> None:
        prompts = search(extras_of(find_member(options["member"]), Kind.PROMPT), options["search"])
        if options["json"]:
            self.stdout.write(as_json([rows_of(prompt) for prompt in prompts]))
            return
        rows = [
            [
                one_line(prompt.name, 60),
                state_of(prompt),
                one_line(", ".join(each.name + ("" if each.is_required else "?") for each in prompt.arguments), 60)
                or "-",
                one_line(prompt.title or prompt.description, 60),
            ]
            for prompt in prompts
        ]
        self.stdout.write(table(COLUMNS, rows) if rows else "There are no prompts.")

    def _get(self, options: dict[str, Any]) -> None:
        from mcp_runtime.control import extra_uses  # late, because `list` must start fast
        from roster.management.requesters import principal_for

        row, principal = find_member(options["member"]), principal_for(options["user"])
        arguments = parse_arguments(options["arguments"])
        if not isinstance(arguments, dict):
            raise CommandError("the arguments must be a JSON object", returncode=exit_codes.USAGE)
        result = extra_uses.get_prompt(principal, row, options["prompt"], arguments)
        if options["json"]:
            self.stdout.write(as_json(result))
            return
        messages = [object_of(message) for message in result["messages"]]
        text = "\n\n".join(f"{message.get('role')}: {mcp.text_of_item(message.get('content'))}" for message in messages)
        self.stdout.write(harmless(text) if self.stdout.isatty() else text)

    def _complete(self, options: dict[str, Any]) -> None:
        from mcp_runtime.control import extra_uses  # late, because `list` must start fast
        from roster.management.requesters import principal_for

        row, principal = find_member(options["member"]), principal_for(options["user"])
        prompt = find_extra(row, Kind.PROMPT, options["prompt"])
        completion = extra_uses.complete(principal, row, prompt, options["argument"], options["value"], {})
        write_completion(self, completion)

    def _enable(self, options: dict[str, Any]) -> None:
        row, is_enabled = find_member(options["member"]), options["verb"] == "enable"
        prompt = find_extra(row, Kind.PROMPT, options["prompt"])
        set_extra_enabled(row, prompt, is_enabled)
        self.stdout.write(f"Prompt {one_line(prompt.name, 255)} of {row.name} is {options['verb']}d.")

    _disable = _enable
