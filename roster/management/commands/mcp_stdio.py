from __future__ import annotations

import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, BinaryIO, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connection, transaction
from django.utils import timezone

from mcp_runtime.http1 import listeners
from roster.management import exit_codes
from roster.management.users import user_for_token
from roster.models import AuditEntry, GuildMember, Hall, Token
from roster.stdio.relay import Relay, StopError

NAME = "mcp_stdio"  # the name of its tokens
LIFE = timedelta(hours=1)  # of a token that is not renewed, e.g. after the command was killed
RENEW_BEFORE_END = timedelta(minutes=40)  # before its end
KEEP_AFTER_END = timedelta(days=7)  # after its end, because a machine that slept renews it
RENEW_PAUSE_SECONDS = 5.0  # after a failure, for all threads that wait
REVOKE_SECONDS = 1.0


class Command(BaseCommand):
    help = (
        "The whole roster as one MCP server on stdin and stdout, one JSON-RPC message a line, for agents that know no "
        "HTTP: what comes is relayed to the gateway. The hall must run beside it."
    )
    requires_system_checks: list[str] = []  # an agent waits for the start, and the hall has run the checks

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", help="what this user may; without it what the first superuser may")
        tools = parser.add_mutually_exclusive_group()
        tools.add_argument("--member", metavar="NAME", help="this member alone, with its own names; tasks pass too")
        tools.add_argument("--search-mode", action="store_true", help="three tools that find and call all others")

    def handle(self, *args: Any, **options: Any) -> None:
        output = _own_stdout()
        key: ShortToken | None = None
        relay: Relay | None = None

        def stop(*_: Any) -> None:
            if not (relay and relay.is_ending):
                raise StopError

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        try:
            key = ShortToken(options["user"], options["member"])
            url = url_of_gateway(options["member"]) + ("?mode=search" if options["search_mode"] else "")
            relay = Relay(sys.stdin.buffer, output, url, key, requests=min(64, settings.GUILD_HALL_MAX_IN_FLIGHT))
            relay.serve()
        except StopError:
            pass
        finally:
            if key is not None:
                key.end()
        _leave()


def url_of_gateway(member_name: str | None) -> str:
    address = listeners.own_address(settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT)
    return f"http://{address}/mcp" + (f"/{member_name}" if member_name else "")


class ShortToken:
    """A token for this run alone. It is deleted at the end. After a killed run it expires soon."""

    def __init__(self, user_name: str | None, member_name: str | None) -> None:
        """Raises CommandError."""
        try:
            user = user_for_token(user_name)
            members = GuildMember.objects.filter(name=member_name, removed_at=None) if member_name else []
            if member_name and not members:
                raise CommandError(f"no member {member_name!r} is in the roster", returncode=exit_codes.NOT_FOUND)
            Token.objects.filter(user=user, name=NAME, expires_at__lt=timezone.now() - KEEP_AFTER_END).delete()
            scope = Token.Scope.MEMBERS if member_name else Token.Scope.ALL
            self._end = timezone.now() + LIFE
            with transaction.atomic():
                self._row, self._text = Token.make(
                    user=user, name=NAME, expires_at=self._end, scope=scope, members=members
                )
                details = {"scope": scope, "members": [member.name for member in members], "expires_at": self._end}
                AuditEntry.record(AuditEntry.Kind.TOKEN_CREATED, self._row.audit_name, after=details)
        except Error as error:
            reason = " ".join(str(error).split())
            raise CommandError(
                f"the database cannot be used ({reason}); make run makes it, and starts the hall"
            ) from error
        finally:
            connection.close()
        self._renewing = threading.Lock()
        self._renew_at = 0.0  # not before, after a failure

    @property
    def text(self) -> str:
        """The token, at once and without the database while it is valid. It may have expired if the machine slept."""
        if timezone.now() > self._end:
            self.renew()
        return self._text

    def renew(self) -> None:
        """Renew the token when it is time, by the wall clock, as tokens expire. A revoked token stays revoked."""
        with self._renewing:
            if timezone.now() > self._end - RENEW_BEFORE_END and time.monotonic() >= self._renew_at:
                self._renew()

    def _renew(self) -> None:
        end = timezone.now() + LIFE
        try:
            Token.objects.filter(pk=self._row.pk, revoked_at=None).update(expires_at=end)
            Hall.note_access_change()
            self._end = end
        except Error as error:
            self._renew_at = time.monotonic() + RENEW_PAUSE_SECONDS
            print(f"the token could not be renewed ({error}); trying again", file=sys.stderr)
        finally:
            connection.close()

    def end(self) -> None:
        """Delete the token. Do not wait long for a locked database, because the token expires anyway."""
        thread = threading.Thread(target=self._delete, daemon=True)
        thread.start()
        thread.join(REVOKE_SECONDS)

    def _delete(self) -> None:
        try:
            with transaction.atomic():
                AuditEntry.record(AuditEntry.Kind.TOKEN_DELETED, self._row.audit_name)
                self._row.delete()
        except Error as error:
            print(f"the token could not be revoked ({error}); it ends at {self._end:%H:%M} UTC", file=sys.stderr)
        finally:
            connection.close()


def _own_stdout() -> BinaryIO:
    """Redirect all other output to stderr, also that of C libraries, because stdout is only for MCP."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = sys.stderr
    return output


def _leave() -> NoReturn:
    """Exit at once. A normal exit waits for threads that wait for the gateway."""
    sys.stderr.flush()
    os._exit(0)
