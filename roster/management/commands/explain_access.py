from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from mcp_runtime.control import extras
from mcp_runtime.control.extras import Kind
from mcp_runtime.control.members import members_of_roster
from mcp_runtime.protocol.errors import AccessError
from mcp_runtime.protocol.mcp import qualified_name
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import Decision
from roster import tokens
from roster.management import exit_codes
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, harmless
from roster.models import Token, Tool

KINDS = {"prompt": Kind.PROMPT, "resource": Kind.RESOURCE, "template": Kind.RESOURCE_TEMPLATE}


class Command(HallCommand):
    help = (
        "Say whether a user (or a token of theirs) may call a tool, or use a prompt or a resource, and every reason; "
        "exit code 1 when not."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user")
        help_text = "MEMBER/TOOL, or the name that agents see: MEMBER__TOOL. With --kind: MEMBER/PROMPT or MEMBER/URI"
        parser.add_argument("tool", metavar="name", help=help_text)
        parser.add_argument("--kind", choices=["tool", *KINDS], default="tool", help="what the name is; default: tool")
        parser.add_argument("--token", metavar="HINT", help="with this token of the user: how it begins, or its name")
        parser.add_argument("--json", action="store_true", help="for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        kind = KINDS.get(options["kind"])
        member, name = self._names(options["tool"]) if kind is None else self._parts(options["tool"])
        decision = self._decide(options["user"], options["token"], member, name, kind)
        if options["json"]:
            names = {"tool": name} if kind is None else {"kind": options["kind"], "name": name}
            self.stdout.write(
                as_json({"member": member, **names, "allowed": decision.allowed, "reasons": decision.reasons})
            )
        else:
            self.stdout.write(harmless(f"{'allowed' if decision.allowed else 'not allowed'}: {member}/{name}"))
            for reason in decision.reasons:
                self.stdout.write(harmless(f"- {reason}"))
        if not decision.allowed:
            raise SystemExit(1)

    @staticmethod
    def _names(text: str) -> tuple[str, str]:
        names = Tool.objects.filter(member__in=members_of_roster()).values_list("member__name", "name")
        try:
            return tokens.parse_tool(text)
        except ValueError:
            for member, tool in names.iterator():
                if qualified_name(member, tool) == text:
                    return member, tool
        message = f"no tool is named {harmless(text)!r}; give MEMBER/TOOL or the name that agents see"
        raise CommandError(message, returncode=exit_codes.NOT_FOUND)

    @staticmethod
    def _parts(text: str) -> tuple[str, str]:
        try:
            return tokens.parse_tool(text)
        except ValueError:
            raise CommandError(
                f"{harmless(text)!r} is not MEMBER/NAME, such as notes/summary", returncode=exit_codes.USAGE
            ) from None

    def _decide(self, name: str, hint: str | None, member: str, of_member: str, kind: Kind | None) -> Decision:
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"no user {name!r}", returncode=exit_codes.NOT_FOUND)
        try:
            principal = (
                principals.principal_of_user(user) if hint is None else principals.principal_of_row(_token(user, hint))
            )
        except AccessError as error:
            return Decision(False, [str(error)])
        if kind is None:
            return access.explain(principal, member, of_member)
        return extras.explain_use(principal, member, kind, of_member)


def _token(user: User, hint: str) -> Token:
    tokens_of_user = list(Token.objects.filter(user=user).select_related("user"))
    # The whole token is accepted too.
    matches = [
        row for row in tokens_of_user if hint and (row.name == hint or row.hint.startswith(hint[: len(row.hint)]))
    ]
    if len(matches) == 1:
        return matches[0]
    problem = "no token of theirs begins with, or is named," if not matches else "several tokens of theirs begin with"
    tokens_in_words = ", ".join(f"{row.hint} ({row.name})" for row in tokens_of_user) or "none"
    raise CommandError(f"{problem} {hint!r}; there are: {tokens_in_words}", returncode=exit_codes.NOT_FOUND)
