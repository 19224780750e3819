from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from mcp_runtime.control import bundles, proposals
from mcp_runtime.protocol.errors import RequestRefusedError, SourceError
from mcp_runtime.sources.server_json import Filled, Way
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.sources import content_of
from roster.management.terminal import as_json, harmless
from roster.management.ways import lines_of
from roster.models import MemberProposal
from roster.proposals import described

SHOWN_FILES = 50


class Command(HallCommand):
    help = "Propose members from what another client has, and approve them; only approved members run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "source",
            metavar="SOURCE",
            help="a file with the configuration of a client, with a server.json, or a bundle (.mcpb), - for standard "
            "input, a command line, a url, or the name of a server in the registry; with --approve and --discard the "
            "name of a proposed member",
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
        with content_of(source) as content:
            if isinstance(content, str):
                reading, rows = proposals.propose(content, by=None, name=name, filled=filled)
            else:
                try:
                    reading, rows = proposals.propose_bundle(content, by=None, name=name, filled=filled)
                except SourceError:
                    self._show_values(bundles.ways(content) if not is_json else [])
                    raise
        if is_json:
            refused = [str(refusal) for refusal in reading.refusals]
            values = {"source": reading.source, "proposals": [described(row) for row in rows], "refused": refused}
            self.stdout.write(as_json(values))
            return
        self.stdout.write(f"This is {reading.source}. Nothing of it runs before you approve it.")
        for row in rows:
            self._show(row)
            self.stdout.write(f"  approve it     guildhall add_member {row.name} --approve --digest {row.digest}")
        for refusal in reading.refusals:
            self.stdout.write(self.style.WARNING(harmless(f"Not proposed: {refusal}")))

    def _show_values(self, ways: list[Way]) -> None:
        """What the server needs, before the refusal of what was given."""
        for way in ways:
            for line in lines_of(way) if way.fields else ():
                self.stdout.write(harmless(line))

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
        lines += [("packages", facts["packages"])] if facts["packages"] else []
        lines += [("secret to set", key) for key in facts["missing_secrets"]]
        lines += [("writes", str(settings.GUILD_HALL_MEMBERS_DIR / row.name / "guild-member.json"))]
        lines += _facts_of_bundle(facts["bundle"])
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
            raise CommandError("--set needs KEY=VALUE.", returncode=exit_codes.USAGE)
        values[key] = f"{values[key]}\n{value}" if key in values else value
    return values


def _facts_of_bundle(bundle: dict[str, Any] | None) -> list[tuple[str, str]]:
    if bundle is None:
        return []
    sizes = f"{bundle['size']:,} bytes, {bundle['unpacked_size']:,} when it is unpacked"
    lines = [("bundle", sizes), ("its sha256", bundle["sha256"]), ("its files", f"{bundle['file_count']:,}")]
    shown = SHOWN_FILES if sys.stdout.isatty() else None
    lines += [("file", name) for name in bundle["files"][:shown]]
    lines += [("file", "and others")] if bundle["file_count"] > len(bundle["files"][:shown]) else []
    claims = [("its author", bundle["author"]), ("its homepage", bundle["homepage"])]
    return lines + [(label, f"{claim} (as it claims)") for label, claim in claims if claim]
