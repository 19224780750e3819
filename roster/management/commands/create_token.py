from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mcp_runtime.control.tokens import NewToken, make_token
from mcp_runtime.protocol.errors import AccessError, RequestRefusedError
from mcp_runtime.security import access
from roster.management.hall_command import HallCommand
from roster.management.terminal import count, end, names, tool_names
from roster.management.users import find_user
from roster.models import Token


class Command(HallCommand):
    help = "Make a token for a user; it is printed once, alone on the last line."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user")
        parser.add_argument("--name", default="", help="what it is for, to tell it from others")
        parser.add_argument("--expires", type=end, metavar="WHEN", help="30d, 12h, or a date; without it never")
        scope = parser.add_mutually_exclusive_group()
        scope.add_argument("--members", type=names, default=[], metavar="A,B", help="for these members alone")
        scope.add_argument("--tools", type=tool_names, default=[], metavar="A/X,B/Y", help="for these tools alone")
        scope.add_argument("--tool-set", default="", metavar="NAME", help="for what is in this tool set alone")
        parser.add_argument(
            "--search-mode", action="store_true", help="clients list three tools that find and call all others"
        )
        parser.add_argument(
            "--pin", type=tool_names, default=[], metavar="A/X,B/Y", help="these tools beside them, with --search-mode"
        )
        for limit in Token.LIMITS:
            help_text = f"{limit.words}; {limit.zero}" if limit.zero else limit.words
            parser.add_argument(f"--{limit.name.replace('_', '-')}", type=count, metavar="N", help=help_text)

    def handle(self, *args: Any, **options: Any) -> None:
        user = find_user(options["user"])
        new_token = NewToken(
            name=options["name"],
            members=options["members"],
            tools=options["tools"],
            tool_set=options["tool_set"],
            expires_at=options["expires"],
            limits={limit.name: options[limit.name] for limit in Token.LIMITS},
            search_mode=options["search_mode"],
            pinned_tools=options["pin"],
        )
        try:
            # Its scope may contain what the user cannot reach yet. What it opens is decided when it is used.
            row, token = make_token(user, new_token, maker=access.OPERATOR)
        except (AccessError, RequestRefusedError) as refusal:
            raise CommandError(str(refusal)) from refusal
        until = f", good until {row.expires_at:%Y-%m-%d %H:%M} UTC" if row.expires_at else ""
        self.stdout.write(f"A token for {user.get_username()}{until}; the hall cannot show it again:")
        self.stdout.write(token)
