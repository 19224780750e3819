from __future__ import annotations

import getpass
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control import contracts
from mcp_runtime.control.members import find_member, members_of_roster
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, one_line, table
from roster.models import Contract

# The exit codes of `check`. Other errors exit with 1.
CHANGED, REMOVED, ADDED = 10, 11, 12
MAX_FACT = 1_000  # characters of a line with words of a member
COLUMNS = ["MEMBER", "KIND", "NAME", "VERSION", "STATE", "GRADE"]
HELP = (
    "Show what members list and how it changed, and approve changes that are held. `pin` writes the agreed versions "
    "as JSON, and `check FILE` compares the members with such a file: exit code 0 if all versions are equal, "
    f"{CHANGED} if some differ, {REMOVED} if some are not listed any more, and {ADDED} if there are only new ones."
)


class Command(HallCommand):
    help = HELP

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser("list", help="all contracts, or those of one member")
        listing.add_argument("member", nargs="?")
        listing.add_argument("--held", action="store_true", help="only those that wait for an approval")
        for verb, text in (
            ("history", "the versions of one contract"),
            ("diff", "what changed since the agreed version"),
        ):
            self._add_contract(verbs.add_parser(verb, help=text))
        approve = verbs.add_parser("approve", help="approve a held contract, or with --all those of a member")
        self._add_contract(approve)
        approve.add_argument("--all", action="store_true", help="all held contracts of the member")
        approve.add_argument("--version", default="", help="only if this is still its version (the first characters)")
        verbs.add_parser("pin", help="write the agreed versions as JSON")
        verbs.add_parser("check", help="compare the members with a file of pins").add_argument("file", type=Path)

    @staticmethod
    def _add_contract(parser: ArgumentParser) -> None:
        parser.add_argument("member")
        parser.add_argument("name", nargs="?", default="", help="its name or URI template; instructions have none")
        kinds, tool = Contract.Kind.values, Contract.Kind.TOOL.value
        parser.add_argument("--kind", choices=kinds, default=tool, help=f"what it is; {tool} without this option")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, f"_{options['verb']}")(options)
        except RequestRefusedError as refusal:
            raise CommandError(str(refusal)) from refusal

    def _list(self, options: dict[str, Any]) -> None:
        members = [find_member(options["member"])] if options["member"] else members_of_roster().order_by("name")
        rows = [
            [member.name, row.kind, one_line(row.name, 60), row.version[:12], state_of(row), row.grade or "-"]
            for member in members
            for row in contracts.contracts_of(member)
            if row.is_held or not options["held"]
        ]
        self.stdout.write(
            table(COLUMNS, rows) if rows else "There are no contracts." if not options["held"] else "None."
        )

    def _history(self, options: dict[str, Any]) -> None:
        contract = contracts.find_contract(options["member"], options["kind"], options["name"])
        for row in contracts.history(contract):
            marks = [mark for mark, is_set in _marks(contract, row.version) if is_set]
            score = f", score {row.score}" if row.score else ""
            line = f"{row.created_at:%Y-%m-%d %H:%M:%S} UTC  {row.version}  {row.grade or 'first'}{score}"
            self.stdout.write(f"{line}  {', '.join(marks)}".rstrip())

    def _diff(self, options: dict[str, Any]) -> None:
        self._show(contracts.find_contract(options["member"], options["kind"], options["name"]))

    def _show(self, contract: Contract) -> None:
        review = contracts.review(contract)
        title = f"{contract} of {contract.member.name}: {state_of(contract)}, version {review.after.version}"
        self.stdout.write(one_line(title, MAX_FACT))
        for change in review.changes:
            text = f"{change.grade}: {change.place or '/'}: {change.sentence}"
            self.stdout.write(f"  {one_line(text, MAX_FACT)}")
        for finding in review.after.findings:
            text = f"finding ({finding['weight']}): {finding['place'] or '/'}: {finding['sentence']}"
            self.stdout.write(f"  {one_line(text, MAX_FACT)}")
        for line in review.diff:
            self.stdout.write(line)

    def _approve(self, options: dict[str, Any]) -> None:
        approver = f"{getpass.getuser()} (system user)"
        is_named = options["name"] != "" or options["kind"] == Contract.Kind.INSTRUCTIONS
        if options["all"] == is_named:
            raise CommandError("Give a name, or --kind instructions, or --all.", returncode=exit_codes.USAGE)
        if options["all"]:
            rows = contracts.approve_all(find_member(options["member"]), None, approver)
            self.stdout.write(f"Approved: {', '.join(one_line(str(row), 255) for row in rows) or 'nothing was held'}.")
            return
        contract = contracts.find_contract(options["member"], options["kind"], options["name"])
        if not contract.version.startswith(options["version"]):
            raise CommandError(f"Its version is {contract.version}. Read the change again: guildhall contracts diff.")
        contracts.approve(contract, contract.version, None, approver)
        self.stdout.write(f"Approved: {one_line(str(contract), 255)} in version {contract.version}.")

    def _pin(self, options: dict[str, Any]) -> None:
        self.stdout.write(as_json({"contracts": contracts.pins()}))

    def _check(self, options: dict[str, Any]) -> None:
        try:
            expected = contracts.read_pins(options["file"].read_text())
        except (OSError, ValueError) as error:
            raise CommandError(f"{options['file']} is no file of pins: {error}") from error
        result = contracts.differences(expected)
        for word, keys in (("changed", result.changed), ("removed", result.removed), ("new", result.added)):
            for key in keys:
                self.stdout.write(f"{word}: {one_line(key, 400)}")
        code = CHANGED if result.changed else REMOVED if result.removed else ADDED if result.added else 0
        if code:
            sys.exit(code)
        self.stdout.write("All versions are as pinned.")


def state_of(contract: Contract) -> str:
    if contract.is_held:
        return f"held: {contract.reason}"
    if not contract.version:
        return "not listed"
    return f"approved by {contract.approver}" if contract.approver else "agreed"


def _marks(contract: Contract, version: str) -> list[tuple[str, bool]]:
    return [("listed", version == contract.version), ("agreed", version == contract.approved_version)]
