from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.tokens import NewToken, make_token
from mcp_runtime.protocol.errors import AccessError, RequestRefusedError
from mcp_runtime.security import principals
from roster import agent_config
from roster.agent_config import Cost
from roster.client_formats import CLIENTS
from roster.management.hall_command import HallCommand
from roster.management.terminal import end, names, table
from roster.management.users import user_for_token


class Command(HallCommand):
    help = (
        "Print the configuration with which an agent's client reaches the hall, with a new token. "
        "stderr shows the file for it, and the cost of the tools' definitions."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--for", dest="client", required=True, choices=list(CLIENTS))
        parser.add_argument("--members", type=names, default=[], metavar="A,B", help="only these. Without it all")
        parser.add_argument("--tool-set", default="", metavar="NAME", help="only what is in this tool set")
        parser.add_argument("--direct", action="store_true", help="each member's own endpoint, without a token")
        parser.add_argument(
            "--search-mode", action="store_true", help="the client lists three tools that find and call all others"
        )
        parser.add_argument("--user", help="the user of the token. Without it the first superuser")
        parser.add_argument("--expires", type=end, metavar="WHEN", help="30d, 12h, or a date; without it never")

    def handle(self, *args: Any, **options: Any) -> None:
        user = user_for_token(options["user"])
        tool_set, search_mode = options["tool_set"], options["search_mode"]
        try:
            agent_config.require_one_choice(
                options["members"], tool_set, direct=options["direct"], search_mode=search_mode
            )
            principal = principals.principal_of_user(user)
            members = agent_config.select_members(principal, options["members"])
            if options["direct"]:
                entries = agent_config.direct_entries(members, require_all=bool(options["members"]))
            else:
                new_token = NewToken(
                    options["client"],
                    options["members"],
                    tool_set=tool_set,
                    expires_at=options["expires"],
                    search_mode=search_mode,
                )
                row, token = make_token(user, new_token, maker=principal)
                entries = agent_config.gateway_entries(options["members"], token, tool_set)
                self.stderr.write(
                    f"Created a token for {user.get_username()}, {row.hint}...; the hall cannot show it again."
                )
            principal = replace(principal, searches=search_mode)
            if tool_set:
                costs = agent_config.costs_of_set(principal, tool_set)
            else:
                costs = agent_config.costs(principal, members, direct=options["direct"])
        except (AccessError, RequestRefusedError) as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stderr.write(f"{CLIENTS[options['client']].verb} {CLIENTS[options['client']].plain_place}:")
        self.stderr.write(_costs(costs))
        self.stdout.write(CLIENTS[options["client"]].write(entries))


def _costs(costs: dict[str, Cost]) -> str:
    rows = [*costs.items(), ("in all", sum(costs.values(), Cost()))]
    cells = [[name, str(cost.tools), f"~{cost.tokens}"] for name, cost in rows]
    return f"{table(['MEMBER', 'TOOLS', 'TOKENS'], cells)}\nTokens are an estimate: {agent_config.ESTIMATE_FORMULA}."
