from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control import edits
from mcp_runtime.control.members import find_member
from mcp_runtime.control.nodes import read_liveness
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security.access import OPERATOR
from roster.edits import described, lines_of
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.terminal import NO_RUNTIME, as_json, harmless
from roster.manifest_fields import field_of
from roster.models import ManifestEdit

MAX_BYTES = 1_000_000


class Command(HallCommand):
    help = "Propose to change values in the manifest of a member, approve such edits, and take them back."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="a new value, such as timeout=60, env.REGION=eu or args='[\"--verbose\"]'; set secrets with "
            "set_secret, because others can read the arguments of commands",
        )
        parser.add_argument("--unset", action="append", default=[], metavar="KEY", help="remove a value")
        parser.add_argument("--patch", default="", metavar="FILE", help="a JSON Merge Patch; - for standard input")
        action = parser.add_mutually_exclusive_group()
        action.add_argument(
            "--approve", nargs="?", type=int, const=0, metavar="N", help="approve edit N, or the one that is proposed"
        )
        action.add_argument("--discard", type=int, metavar="N", help="delete edit N, which no node has written yet")
        action.add_argument("--undo", type=int, metavar="N", help="take edit N back")
        parser.add_argument("--force", action="store_true", help="even if an agent needs the member")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            edit = self._act(options)
        except RequestRefusedError as refusal:
            raise CommandError(harmless(str(refusal))) from refusal
        if edit is None:
            return
        if options["json"]:
            self.stdout.write(as_json(described(edit)))
        else:
            self._show(edit)
        if edit.state == "approved" and not read_liveness().live_ids:
            self.stderr.write(NO_RUNTIME)

    def _act(self, options: dict[str, Any]) -> ManifestEdit | None:
        member, force = find_member(options["name"]), options["force"]
        patch = _patch_of(options)
        if patch:
            if options["approve"] or options["discard"] or options["undo"]:
                raise CommandError(
                    "Values to change go with --approve, without the number of an edit.", returncode=exit_codes.USAGE
                )
            return edits.propose_edit(member, patch, by=None, approve=options["approve"] == 0, force=force)
        if options["approve"] == 0:
            raise CommandError(
                "--approve needs the number of an edit, or values to change.", returncode=exit_codes.USAGE
            )
        number = options["approve"] or options["discard"] or options["undo"]
        if number is None:
            self._list(member.name, is_json=options["json"])
            return None
        edit = edits.find_edit(number, OPERATOR)
        if edit.member_id != member.pk:
            raise CommandError(f"Edit {number} is of another member.", returncode=exit_codes.REFUSED)
        if options["approve"]:
            return edits.approve_edit(edit, by=None, force=force)
        if options["undo"]:
            return edits.undo_edit(edit, by=None, force=force)
        edits.discard_edit(edit)
        self.stdout.write(f"Edit {number} is discarded.")
        return None

    def _list(self, name: str, *, is_json: bool) -> None:
        rows = list(edits.edits_of(OPERATOR).filter(member__name=name)[:50])
        if is_json:
            self.stdout.write(as_json([described(row) for row in rows]))
            return
        if not rows:
            self.stdout.write(f"Nobody has edited {name} in the last 30 days. --set KEY=VALUE changes a value.")
        for row in rows:
            self._show(row)

    def _show(self, edit: ManifestEdit) -> None:
        facts = described(edit)
        self.stdout.write(f"Edit {edit.pk} of {facts['member']}, {facts['state']}")
        for change in facts["changes"]:
            self.stdout.write(harmless(f"  {change['key']}"))
            for line in lines_of(change):
                self.stdout.write(harmless(f"    {line}"))
        notes = [f"{note}." for note in facts["notes"]]
        notes += ["It replaces what the file has, because the file has a fault."] if facts["is_forced"] else []
        notes += [f"The secret {name} is not set." for name in facts["missing_secrets"]]
        for note in [*notes, *facts["faults"]]:
            self.stdout.write(self.style.WARNING(harmless(f"  {note}")))
        if facts["state"] == "proposed":
            self.stdout.write(f"  approve it     guildhall edit_member {facts['member']} --approve {edit.pk}")
        elif facts["may_undo"]:
            self.stdout.write(f"  take it back   guildhall edit_member {facts['member']} --undo {edit.pk}")


def _patch_of(options: dict[str, Any]) -> dict[str, Any]:
    """The JSON Merge Patch of the options. Raises CommandError."""
    patch: dict[str, Any] = _read(options["patch"]) if options["patch"] else {}
    for setting in options["set"]:
        key, equals, text = setting.partition("=")
        if not equals:
            raise CommandError("--set needs KEY=VALUE.", returncode=exit_codes.USAGE)
        field = field_of(key)
        is_empty_text = not text and key.partition(".")[0] in ("env", "headers")
        _put(patch, key, field.value_of(text) if field and not is_empty_text else text)
    for key in options["unset"]:
        _put(patch, key, None)
    return patch


def _put(patch: dict[str, Any], key: str, value: Any) -> None:
    name, dot, inner = key.partition(".")
    if not dot:
        patch[name] = value
        return
    holder = patch.setdefault(name, {})
    if not isinstance(holder, dict):
        raise CommandError(f"{name} is set as a whole already.", returncode=exit_codes.USAGE)
    holder[inner] = value


def _read(source: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read(MAX_BYTES) if source == "-" else Path(source).read_text(encoding="utf-8")[:MAX_BYTES]
        patch = json.loads(text)
    except OSError as error:
        raise CommandError(f"The file cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CommandError("The patch is not JSON.") from error
    if not isinstance(patch, dict):
        raise CommandError("The patch must be a JSON object.", returncode=exit_codes.USAGE)
    return patch
