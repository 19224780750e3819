from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from mcp_runtime.control import proposals
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.sources.server_json import Filled
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, harmless
from roster.models import MemberProposal
from roster.proposals import described

MAX_BYTES = 300_000  # more than a source may have, so that the refusal says how large it may be


class Command(HallCommand):
    help = "Propose members from what another client has, and approve them; only approved members run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "source",
            metavar="SOURCE",
            help="a file with the configuration of a client or with a server.json, - for standard input, a command "
            "line, a url, or the name of a server in the registry; with --approve and --discard the name of a proposed "
            "member",
        )
        parser.add_argument("--name", default="", help="the name of the member, if there is one in the source")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="a value that the server needs, as the command `registry` shows it; set secrets with `set_secret`",
        )
        parser.add_argument("--way", type=int, default=0, help="which of the ways to run the server, from 1")
        action = parser.add_mutually_exclusive_group()
        action.add_argument("--approve", action="store_true", help="let the hall create and start the proposed member")
        action.add_argument("--discard", action="store_true", help="delete the proposal, and the secrets it came with")
        parser.add_argument("--digest", default="", help="approve only if the proposal still has this digest")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["approve"]:
                self._approve(options["source"], options["digest"], is_json=options["json"])
            elif options["discard"]:
                proposals.discard(options["source"])
                self.stdout.write(f"The proposed member {options['source']} is discarded.")
            else:
                filled = Filled(options["way"], _values_of(options["set"]))
                self._propose(options["source"], options["name"], filled, is_json=options["json"])
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal

    def _propose(self, source: str, name: str, filled: Filled, *, is_json: bool) -> None:
        reading, rows = proposals.propose(_text_of(source), by=None, name=name, filled=filled)
        if is_json:
            refused = [str(refusal) for refusal in reading.refusals]
            values = {"source": reading.source, "proposals": [described(row) for row in rows], "refused": refused}
            self.stdout.write(as_json(values))
            return
        self.stdout.write(f"This is {reading.source}. Nothing of it runs before you approve it.")
        for row in rows:
            self._show(row)
            self.stdout.write(f"  approve it     manage.py add_member {row.name} --approve --digest {row.digest}")
        for refusal in reading.refusals:
            self.stdout.write(self.style.WARNING(harmless(f"Not proposed: {refusal}")))

    def _approve(self, name: str, digest: str, *, is_json: bool) -> None:
        row = proposals.find_proposal(name)
        approved = proposals.approve(name, digest or row.digest, by=None)
        if is_json:
            self.stdout.write(as_json(described(approved)))
            return
        self._show(approved)
        self.stdout.write(
            self.style.SUCCESS(f"The member {name} is approved. The hall creates its folder and starts it.")
        )

    def _show(self, row: MemberProposal) -> None:
        facts = described(row)
        lines = [("member", row.name), ("version", facts["version"])]
        lines += [("runs", facts["command_line"])] if facts["argv"] else [("calls", facts["url"])]
        lines += [("environment", f"{key}={value}") for key, value in facts["env"].items()]
        lines += [("header", f"{key}: {value}") for key, value in facts["headers"].items()]
        lines += [("sandbox", facts["sandbox"])]
        lines += [("secret to set", key) for key in facts["missing_secrets"]]
        lines += [("writes", str(settings.GUILD_HALL_MEMBERS_DIR / row.name / "guild-member.json"))]
        lines += [("sha256", row.digest)]
        lines += [("note", note) for note in facts["notes"]]
        self.stdout.write("")
        for label, text in lines:
            one_line = str(text).replace("\n", "\\n").replace("\r", "\\r")  # an argument must not look like a fact
            self.stdout.write(harmless(f"  {label:<14} {one_line}"))


def _values_of(settings: list[str]) -> dict[str, str]:
    """The values by their keys. A key that occurs again adds a line. Raises CommandError."""
    values: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise CommandError("--set needs KEY=VALUE.")
        values[key] = f"{values[key]}\n{value}" if key in values else value
    return values


def _text_of(source: str) -> str:
    """The text of a file or standard input, or the argument itself. Raises CommandError."""
    try:
        if source == "-":
            return sys.stdin.read(MAX_BYTES)
        if "\0" not in source and os.path.isfile(source):  # False for a name that is too long
            with open(source, encoding="utf-8") as file:
                return file.read(MAX_BYTES)
    except UnicodeDecodeError as error:
        raise CommandError("The source is not text in UTF-8.") from error
    except OSError as error:
        raise CommandError(f"The file cannot be read: {error.strerror}.") from error
    return source
