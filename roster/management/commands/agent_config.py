from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from mcp_runtime import access
from mcp_runtime.errors import AccessError, RequestRefusedError
from roster import agent_config, tokens
from roster.agent_config import FORMATS, Cost
from roster.management.terminal import end, names, table, user_named


class Command(BaseCommand):
    help = (
        "Print what an agent's client wants written down to reach the hall, with a token made for it; "
        "on stderr where it belongs, and what the tools' definitions cost."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--for", dest="client", required=True, choices=list(FORMATS))
        parser.add_argument("--members", type=names, default=[], metavar="A,B", help="these alone; without it all")
        parser.add_argument("--direct", action="store_true", help="each member's own endpoint, without a token")
        parser.add_argument("--user", help="whose token it is to be; without it the first superuser's")
        parser.add_argument("--expires", type=end, metavar="WHEN", help="30d, 12h, or a date; without it never")

    def handle(self, *args: Any, **options: Any) -> None:
        user = self._user(options["user"])
        try:
            who = access.principal_of_user(user)
            members = agent_config.chosen_members(who, options["members"])
            if options["direct"]:
                entries = agent_config.direct_entries(members, all_of_them=bool(options["members"]))
            else:
                wish = tokens.TokenWish(options["client"], options["members"], expires_at=options["expires"])
                row, token = tokens.make(user, wish, maker=who)
                entries = agent_config.gateway_entries(options["members"], token)
                self.stderr.write(f"Made a token for {user.get_username()}, {row.hint}...; it is not shown again.")
        except (AccessError, RequestRefusedError) as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stderr.write(f"It belongs into: {FORMATS[options['client']].place}")
        self.stderr.write(_costs(agent_config.costs(who, members, direct=options["direct"])))
        self.stdout.write(FORMATS[options["client"]].write(entries))

    @staticmethod
    def _user(name: str | None) -> User:
        if name is not None:
            return user_named(name)
        first = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
        if first is None:
            raise CommandError("there is no superuser whose token it could be; say --user")
        return first


def _costs(costs: dict[str, Cost]) -> str:
    rows = [*costs.items(), ("in all", sum(costs.values(), Cost()))]
    cells = [[name, str(cost.tools), f"~{cost.tokens}"] for name, cost in rows]
    return f"{table(['MEMBER', 'TOOLS', 'TOKENS'], cells)}\nTokens are an estimate: {agent_config.HOW_ESTIMATED}."
