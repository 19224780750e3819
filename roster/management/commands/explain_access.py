from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from mcp_runtime.control.members import members_of_roster
from mcp_runtime.protocol.errors import AccessError
from mcp_runtime.protocol.mcp import qualified_name
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import Decision
from roster import tokens
from roster.management.hall_command import HallCommand
from roster.management.terminal import as_json, harmless
from roster.models import Token, Tool


class Command(HallCommand):
    help = "Say whether a user (or a token of theirs) may call a tool, and every reason; exit code 1 when not."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user")
        parser.add_argument("tool", help="MEMBER/TOOL, or the name that agents see: MEMBER__TOOL")
        parser.add_argument("--token", metavar="HINT", help="with this token of the user: how it begins, or its name")
        parser.add_argument("--json", action="store_true", help="for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        member, tool = self._names(options["tool"])
        decision = self._decide(options["user"], options["token"], member, tool)
        if options["json"]:
            facts = {"member": member, "tool": tool, "allowed": decision.allowed, "reasons": decision.reasons}
            self.stdout.write(as_json(facts))
        else:
            self.stdout.write(harmless(f"{'allowed' if decision.allowed else 'not allowed'}: {member}/{tool}"))
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
        raise CommandError(f"no tool is named {harmless(text)!r}; give MEMBER/TOOL or the name that agents see")

    def _decide(self, name: str, hint: str | None, member: str, tool: str) -> Decision:
        user = User.objects.filter(username=name).first()
        if user is None:
            raise CommandError(f"no user {name!r}")
        try:
            principal = (
                principals.principal_of_user(user) if hint is None else principals.principal_of_row(_token(user, hint))
            )
        except AccessError as error:
            return Decision(False, [str(error)])
        return access.explain(principal, member, tool)


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
    raise CommandError(f"{problem} {hint!r}; there are: {tokens_in_words}")
