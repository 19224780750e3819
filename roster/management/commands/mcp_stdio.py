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
from django.db import Error, connection
from django.utils import timezone

from mcp_runtime.http1 import listeners
from roster.management.users import user_for_token
from roster.models import ApiToken, GuildMember, Hall
from roster.stdio.relay import Relay, StopError

NAME = "mcp_stdio"  # of its tokens
LIFE = timedelta(hours=1)  # of a token, unless it is renewed; what a killed command leaves
RENEWED_AT = timedelta(minutes=40)  # what is left of it then
KEPT = timedelta(days=7)  # after its end: a machine that slept renews it
RENEW_PAUSE_SECONDS = 5.0  # after a failure, which who waited shares
REVOKE_SECONDS = 1.0


class Command(BaseCommand):
    help = (
        "The whole roster as one MCP server on stdin and stdout, one JSON-RPC message a line, for agents that know no "
        "HTTP: what comes is relayed to the gateway. The hall must run beside it."
    )
    requires_system_checks: list[str] = []  # an agent waits; and the hall has run them

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", help="what this user may; without it what the first superuser may")
        parser.add_argument("--member", metavar="NAME", help="this member alone, with its own names; tasks pass too")

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
            url = url_of_gateway(options["member"])
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
    """A token for this run alone: it is gone at the end, and past its end soon after a run that was killed."""

    def __init__(self, user_name: str | None, member_name: str | None) -> None:
        """Raises CommandError."""
        try:
            user = user_for_token(user_name)
            members = GuildMember.objects.filter(name=member_name, removed_at=None) if member_name else []
            if member_name and not members:
                raise CommandError(f"no member {member_name!r} is in the roster")
            ApiToken.objects.filter(user=user, name=NAME, expires_at__lt=timezone.now() - KEPT).delete()
            scope = ApiToken.Scope.MEMBERS if member_name else ApiToken.Scope.ALL
            self._end = timezone.now() + LIFE
            self._row, self._text = ApiToken.make(
                user=user, name=NAME, expires_at=self._end, scope=scope, members=members
            )
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
        """At once, whatever the database does, while the token lasts. It may be over where the machine has slept."""
        if timezone.now() > self._end:
            self.renew()
        return self._text

    def renew(self) -> None:
        """Where that is due, by the wall clock, as tokens go. One that was revoked stays so."""
        with self._renewing:
            if timezone.now() > self._end - RENEWED_AT and time.monotonic() >= self._renew_at:
                self._renew()

    def _renew(self) -> None:
        end = timezone.now() + LIFE
        try:
            ApiToken.objects.filter(pk=self._row.pk, revoked_at=None).update(expires_at=end)
            Hall.note_access_change()
            self._end = end
        except Error as error:
            self._renew_at = time.monotonic() + RENEW_PAUSE_SECONDS
            print(f"the token could not be renewed ({error}); trying again", file=sys.stderr)
        finally:
            connection.close()

    def end(self) -> None:
        """Nobody waits long for a database that is locked: the token has an end."""
        thread = threading.Thread(target=self._delete, daemon=True)
        thread.start()
        thread.join(REVOKE_SECONDS)

    def _delete(self) -> None:
        try:
            self._row.delete()
        except Error as error:
            print(f"the token could not be revoked ({error}); it ends at {self._end:%H:%M} UTC", file=sys.stderr)
        finally:
            connection.close()


def _own_stdout() -> BinaryIO:
    """Send what anything else prints to stderr, libraries in C included, because stdout carries MCP alone."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = sys.stderr
    return output


def _leave() -> NoReturn:
    """Not by returning, for that waits for threads that wait for the gateway."""
    sys.stderr.flush()
    os._exit(0)
