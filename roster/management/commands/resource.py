from __future__ import annotations

import base64
import binascii
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from mcp_runtime.control.extras import Extra, Kind, extras_of, find_extra, search, set_extra_enabled
from mcp_runtime.control.members import find_member
from mcp_runtime.protocol.errors import McpRuntimeError, UnknownExtraError
from mcp_runtime.protocol.jsonrpc import object_of
from roster.calls import parse_arguments
from roster.management import exit_codes
from roster.management.extras import add_search, add_user, rows_of, state_of, write_completion
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, harmless, one_line, seconds, table
from roster.models import GuildMember

COLUMNS = ["URI", "STATE", "TYPE", "TITLE"]


class Command(HallCommand):
    help = (
        "List the resources and resource templates of a member, read and watch one, complete the variables of a "
        "template, enable and disable them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser("list", help="the resources and templates that the member listed last")
        listing.add_argument("member")
        add_search(listing)
        read = verbs.add_parser("read", help="read a resource")
        read.add_argument("member")
        read.add_argument("uri", help="its URI, or a URI template with arguments")
        read.add_argument("arguments", nargs="?", help="a JSON object with strings, for the variables of a template")
        choice = read.add_mutually_exclusive_group()
        choice.add_argument("--json", action="store_true", help="print the whole result as JSON")
        choice.add_argument("--output", type=Path, metavar="FILE", help="write its bytes to a new file")
        add_user(read)
        watch = verbs.add_parser("watch", help="print a line for each update that the member announces, until Ctrl-C")
        watch.add_argument("member")
        watch.add_argument("uri")
        watch.add_argument("--seconds", type=seconds, help="the longest wait")
        watch.add_argument("--once", action="store_true", help="end after the first update")
        add_user(watch)
        complete = verbs.add_parser("complete", help="values for a variable of a URI template")
        complete.add_argument("member")
        complete.add_argument("template")
        complete.add_argument("variable")
        complete.add_argument("value", nargs="?", default="", help="the beginning of the value")
        add_user(complete)
        for verb in ("enable", "disable"):
            text = f"{verb} a resource or a template. A disabled one is in no list, and nobody can use it"
            change = verbs.add_parser(verb, help=text)
            change.add_argument("member")
            change.add_argument("uri", help="its URI or URI template")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['verb']}")(options)
        except (ValueError, McpRuntimeError) as error:
            raise CommandError(harmless(str(error))) from error

    def _list(self, options: dict[str, Any]) -> None:
        row = find_member(options["member"])
        all_of_it = [*extras_of(row, Kind.RESOURCE), *extras_of(row, Kind.RESOURCE_TEMPLATE)]
        found = search(all_of_it, options["search"])
        if options["json"]:
            self.stdout.write(as_json([rows_of(each) for each in found]))
            return
        rows = [
            [one_line(each.name, 80), state_of(each), one_line(each.mime_type, 30) or "-", one_line(each.title, 60)]
            for each in found
        ]
        self.stdout.write(table(COLUMNS, rows) if rows else "There are no resources.")

    # Read

    def _read(self, options: dict[str, Any]) -> None:
        from mcp_runtime.control import extra_uses  # late, because `list` must start fast
        from roster.management.requesters import principal_for

        row, principal, uri = find_member(options["member"]), principal_for(options["user"]), options["uri"]
        if options["arguments"] is not None:
            values = parse_arguments(options["arguments"])
            if not isinstance(values, dict):
                raise CommandError("the arguments must be a JSON object", returncode=exit_codes.USAGE)
            uri = extra_uses.expand(find_extra(row, Kind.RESOURCE_TEMPLATE, uri).name, values)
        result = extra_uses.read_resource(principal, row, uri)
        if options["json"]:
            self.stdout.write(as_json(result))
            return
        contents = [object_of(content) for content in result["contents"]]
        if options["output"] is not None:
            self._write_file(options["output"], contents)
            return
        for content in contents:
            text = _text_of(content)
            self.stdout.write(harmless(text) if self.stdout.isatty() else text)

    def _write_file(self, path: Path, contents: list[dict[str, Any]]) -> None:
        if len(contents) != 1:
            raise CommandError(f"the resource has {len(contents)} contents; use --json")
        content = _bytes_of(contents[0])
        try:
            with path.open("xb") as file:
                file.write(content)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error
        self.stderr.write(f"{len(content):,} bytes.")

    # Watch

    def _watch(self, options: dict[str, Any]) -> None:
        from mcp_runtime.control.watches import Watches  # late, because `list` must start fast
        from roster.management.requesters import principal_for

        row, principal, watches = find_member(options["member"]), principal_for(options["user"]), Watches()
        end = None if options["seconds"] is None else timezone.now().timestamp() + options["seconds"]
        try:
            state = watches.look(principal, row, options["uri"])
            self.stderr.write("Watching. Ctrl-C ends it.")
            while end is None or timezone.now().timestamp() < end:
                rest = 60.0 if end is None else max(end - timezone.now().timestamp(), 0.1)
                before = (state.id, state.updates)
                state = watches.look(principal, row, options["uri"], after=before, wait=min(rest, 60.0))
                if state.id != before[0]:
                    self.stderr.write("The subscription was opened again. Updates may be missing.")
                if state.updates > (before[1] if state.id == before[0] else 0) and state.updated_at is not None:
                    self.stdout.write(f"{state.updated_at:%Y-%m-%d %H:%M:%S} UTC  updated")
                    self.stdout.flush()
                    if options["once"]:
                        return
        except KeyboardInterrupt:
            sys.exit(exit_codes.INTERRUPTED)

    # The rest

    def _complete(self, options: dict[str, Any]) -> None:
        from mcp_runtime.control import extra_uses  # late, because `list` must start fast
        from roster.management.requesters import principal_for

        row, principal = find_member(options["member"]), principal_for(options["user"])
        template = find_extra(row, Kind.RESOURCE_TEMPLATE, options["template"])
        completion = extra_uses.complete(principal, row, template, options["variable"], options["value"], {})
        write_completion(self, completion)

    def _enable(self, options: dict[str, Any]) -> None:
        row, is_enabled = find_member(options["member"]), options["verb"] == "enable"
        extra = _find(row, options["uri"])
        set_extra_enabled(row, extra, is_enabled)
        word = str(extra.kind.label).capitalize()
        self.stdout.write(f"{word} {one_line(extra.name, 255)} of {row.name} is {options['verb']}d.")

    _disable = _enable


def _find(row: GuildMember, uri: str) -> Extra:
    """The resource or the template. Raises UnknownExtraError."""
    try:
        return find_extra(row, Kind.RESOURCE, uri)
    except UnknownExtraError:
        return find_extra(row, Kind.RESOURCE_TEMPLATE, uri)


def _text_of(content: dict[str, Any]) -> str:
    if isinstance(content.get("text"), str):
        return str(content["text"])
    return f"[{len(_bytes_of(content)):,} bytes of {content.get('mimeType') or 'no type'}; --output FILE writes them]"


def _bytes_of(content: dict[str, Any]) -> bytes:
    """Raises CommandError."""
    if isinstance(content.get("text"), str):
        return str(content["text"]).encode("utf-8", "replace")
    try:
        return base64.b64decode(str(content.get("blob", "")), validate=True)
    except (binascii.Error, ValueError) as error:
        raise CommandError("the member sent bytes that are not valid base64") from error
