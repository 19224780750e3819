"""Start, stop and refresh one member, and handle ends that nobody requested.

`status` changes the row of a member. The methods here do the same with its process or connection. At an end they end
the process first, because the database may not answer.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.db import Error, connection, connections
from django.db.models import QuerySet

from mcp_runtime.client import remote
from mcp_runtime.client.client import REQUEST_TIMEOUT
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.client.tool_list import ToolList
from mcp_runtime.members import contracts, process, tools
from mcp_runtime.members.announcements import Announcements
from mcp_runtime.members.live import EXIT_GRACE, LiveMember, LiveMembers
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.packages import look_ups
from mcp_runtime.members.process import MemberProcess
from mcp_runtime.members.readiness import StoppedWhileStartingError
from mcp_runtime.members.start_options import StartOptions
from mcp_runtime.members.starting import Starter
from mcp_runtime.members.status import Status, Statuses
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    ExitedEarlyError,
    McpRuntimeError,
    RequestCancelledError,
    RequestTimeoutError,
    SignInNeededError,
    UrlError,
    describe_exit,
)
from mcp_runtime.rows.database import give_connection_back, persistently, short_transaction, unit_of_work
from roster.models import GuildMember, VersionLookUp

if TYPE_CHECKING:  # a hall without members behind OAuth does not load them, so that it is smaller
    from mcp_runtime.members.access_tokens import AccessToken

logger = logging.getLogger("guildhall.runtime")

SIGN_IN = "sign-in needed"  # the cause of a change of status


class Lifecycle:
    """The lifecycle of all members of the runtime with `lease_id`.

    It calls `on_change(member_id)` when a member becomes connected, disconnected or an error, and after its tools were
    listed again, and `on_lists_changed(member_id)` when its prompts and resources should be listed again.
    """

    def __init__(
        self,
        *,
        lease_id: uuid.UUID,
        options: StartOptions,
        on_change: Callable[[int], None] = lambda _: None,
        on_lists_changed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._on_change = on_change
        self._on_lists_changed = on_lists_changed
        self._members = LiveMembers()
        self.lease_id = lease_id
        self._statuses = Statuses(lease_id)
        self._announcements = Announcements(self._members, self._statuses, on_lists_changed)
        self._starter = Starter(
            options,
            self._members,
            self._statuses,
            on_connected=self._handle_connected,
            on_exit=self._handle_exit,
            on_notification=self._announcements.hear,
            on_sign_in_over=self._handle_sign_in_over,
        )
        self.restarts = self._statuses.restarts
        self.ending = self._statuses.ending
        self.awaited_ids: set[int] = set()  # members for which calls wait. They are started before others

    # Live members -------------------------------------------------------------------------------------------------

    def connected_member(self, member_id: int) -> LiveMember | None:
        """The member if it may be called now, otherwise None."""
        return self._members.connected_member(member_id)

    def live_members(self) -> list[LiveMember]:
        return self._members.all()

    def live_member(self, member_id: int) -> LiveMember | None:
        """The member if it has a process or a connection, otherwise None."""
        return self._members.get(member_id)

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        """The member's row, as long as this runtime owns the member."""
        return self._statuses.own_row(member_id)

    # Start --------------------------------------------------------------------------------------------------------

    def start(self, member_id: int, *, automatic: bool = False) -> None:
        """DISCONNECTED | ERROR -> STARTING -> CONNECTED | ERROR. Returns at the end of the start, or after an abort."""
        member = GuildMember.objects.get(pk=member_id)
        if not self._statuses.to_starting(member, automatic=automatic):
            return
        self.awaited_ids.discard(member_id)
        try:
            member.refresh_from_db()  # the folder may have changed until the status changed
            self._starter.start(member, Manifest.from_json(member.manifest))
        except StoppedWhileStartingError:
            self.stop(member_id)
        except McpRuntimeError as error:
            self._record_failed_start(member, error)
        except Exception as error:
            logger.exception("member %r could not be started", member.name)
            self._record_failed_start(member, McpRuntimeError(f"internal error while starting it: {error!r}"))
        finally:
            self._starter.forget_start(member_id)

    def _handle_connected(self, live_member: LiveMember, manifest: Manifest) -> None:
        if live_member.process.exited.is_set():
            # It exited after its answer and before its row changed, so no other thread noticed it.
            self._handle_crash(live_member)
        elif live_member.announces_changes or (live_member.client.session.id and manifest.transport != "stdio"):
            # In a session it may also ask something outside a call. The bridge of a stdio member answers that itself.
            self._announcements.listen_to(live_member)
        self._on_change(live_member.member_id)

    def _record_failed_start(self, member: GuildMember, error: McpRuntimeError) -> None:
        live_member = self._members.get(member.pk)
        tail = self._starter.tail(member.pk) if live_member is None else live_member.process.tail()
        end = error if isinstance(error, ExitedEarlyError) else error.__cause__
        code = end.exit_code if isinstance(end, ExitedEarlyError) else None
        url = member.manifest.get("url")
        if isinstance(error, SignInNeededError):
            self._to_error(member.pk, [Status.STARTING], SIGN_IN, f"member {member.name!r} {error}", needs_sign_in=True)
            return
        action = f"reached at {remote.display_url(url)}" if url else "started"
        self._to_error(
            member.pk,
            [Status.STARTING],
            "start failed",
            f"member {member.name!r} could not be {action}: {error}",
            tail=tail,
            exit_code=code,
            may_retry=not isinstance(error, UrlError),
        )

    def abort_start(self, member_id: int) -> None:
        """Abort a `start` in progress in another thread. That thread ends the process and changes the status."""
        self._starter.abort(member_id)

    def write_progress(self) -> None:
        """Write the last output of members with long starts onto their rows. The supervisor calls it each turn."""
        self._starter.write_progress()

    # An end that nobody requested -------------------------------------------------------------------------------------

    def _handle_exit(self, member_process: MemberProcess) -> None:
        """Handle the end of a process. During a start or a stop another thread waits for it and handles it."""
        for live_member in self.live_members():
            if live_member.process is not member_process:
                continue
            if live_member.connected_at is None:
                # Another program on its port may have the request, and may never answer.
                live_member.hall_exchange.abort()
            elif not live_member.stop_requested.is_set():
                try:
                    self._handle_crash(live_member)
                finally:
                    connections.close_all()  # idle threads of the pool must have no connection

    def _handle_crash(self, live_member: LiveMember) -> None:
        """Handle an exit that nobody requested (REQ-MCP-HTTP-16, 17)."""
        code = live_member.process.exit_code or 0
        message = f"member {live_member.name!r} exited without being asked, with {describe_exit(code)}"
        self._members.remove(live_member)
        self._record_failure(live_member, "exit", message, exit_code=code)
        process.kill_tagged(live_member.process.tag)

    def handle_connection_failure(self, live_member: LiveMember, error: ConnectError) -> None:
        """End a connected member that refused or reset a connection, and put it in ERROR at once (REQ-MCP-HTTP-41)."""
        if (
            live_member.process.exited.wait(EXIT_GRACE)
            or live_member.stop_requested.is_set()
            or not self._members.holds(live_member)
        ):
            return  # its exit or its stop is the cause, and is recorded instead
        live_member.stop_requested.set()
        live_member.process.kill()
        process.kill_tagged(live_member.process.tag)
        self._members.remove(live_member)
        where = f"at {live_member.endpoint}" if live_member.is_remote else f"on port {live_member.port}"
        self._record_failure(live_member, "connection", f"member {live_member.name!r} does not answer {where}: {error}")

    def fail(self, live_member: LiveMember, cause: str, message: str, timeout: float = process.STOP_TIMEOUT) -> None:
        """End the process of a connected member that does not work, and put it in ERROR.

        It gets `timeout` seconds between SIGTERM and SIGKILL.
        """
        if live_member.stop_requested.is_set() or not self._members.holds(live_member):
            return  # another thread ends it
        live_member.stop_requested.set()
        live_member.process.stop(timeout)
        self._members.remove(live_member)
        self._record_failure(live_member, cause, message)

    def _handle_sign_in_over(self, member_id: int, token: AccessToken, reason: str) -> None:
        """End the connection of a member whose tokens are over. A start in progress ends by itself."""
        live_member = self.connected_member(member_id)
        if live_member is None or live_member.stop_requested.is_set() or live_member.token is not token:
            return  # it ends already, or this connection has tokens of a later sign-in
        live_member.stop_requested.set()
        self._members.remove(live_member)
        message = f"member {live_member.name!r} {reason}"
        unit_of_work(lambda: self._to_error(member_id, [Status.CONNECTED], SIGN_IN, message, needs_sign_in=True))

    def renew_tokens(self, submit: Callable[[LiveMember, Callable[[], None]], object]) -> None:
        """Let `submit` renew the access tokens whose end is near. The supervisor calls it in each turn."""
        for live_member in self.live_members():
            if live_member.token is not None and live_member.connected_at and live_member.token.is_due:
                submit(live_member, live_member.token.renew_early)

    def handle_lost_process(self, member_id: int) -> None:
        """Handle a row with a process that does not exist. It counts as a failure like any other."""
        live_member = self._members.get(member_id)
        if live_member is not None:
            self._members.remove(live_member)
        name = GuildMember.objects.values_list("name", flat=True).get(pk=member_id)
        message = f"member {name!r}: its process is gone, and the hall missed when and why"
        self._to_error(member_id, [Status.STARTING, Status.CONNECTED], "lost track", message)
        if GuildMember.objects.filter(pk=member_id, status=Status.STOPPING).exists():
            self.stop(member_id)

    def _record_failure(self, live_member: LiveMember, cause: str, message: str, exit_code: int | None = None) -> None:
        """CONNECTED -> ERROR, for a member whose process or connection has ended."""
        self._to_error(
            live_member.member_id,
            [Status.CONNECTED],
            cause,
            message,
            tail=live_member.process.tail(),
            exit_code=exit_code,
            was_stable=live_member.was_stable,
        )

    def _to_error(self, member_id: int, sources: list[str], cause: str, message: str, **facts: Any) -> None:
        if self._statuses.to_error(member_id, sources, cause, message, **facts):
            self._on_change(member_id)

    # Stop ---------------------------------------------------------------------------------------------------------

    def stop(
        self, member_id: int, *, cause: str = "stop", timeout: float = process.STOP_TIMEOUT, sweep: bool = True
    ) -> None:
        """STARTING | CONNECTED -> STOPPING -> DISCONNECTED, or ERROR -> DISCONNECTED. After it the process has ended.

        With `sweep` it also searches all processes of the machine for those that left the member's group. That is slow,
        so a stop of all members does it only once.
        """
        live_member = self._members.get(member_id)
        if live_member is not None:
            live_member.stop_requested.set()
            live_member.listening.abort()  # servers that end gracefully wait for the end of their streams
            live_member.process.terminate()  # before the database, which may not be available, and may say so late
            if live_member.is_remote:
                live_member.hall_exchange.abort()
        try:
            self._statuses.to_stopping(member_id, cause)
        except Error as error:
            logger.warning("cannot write that member %d is stopping (%s)", member_id, str(error).strip())
            connection.close()
        if live_member is not None:
            give_connection_back()
            live_member.process.wait_or_kill(timeout)
            if sweep:
                process.kill_tagged(live_member.process.tag)
            self._members.remove(live_member)
        self._statuses.to_disconnected(member_id, cause, live_member)
        self._on_change(member_id)

    def kill_everything(self) -> None:
        """Kill all processes that this runtime started, and refuse further starts.

        This is for a runtime that lost its lease, and for the end of a stop.
        """
        self._starter.kill_everything()

    # Refresh ------------------------------------------------------------------------------------------------------

    def refresh(self, member_id: int) -> None:
        """List the tools of a connected member again. A failure puts it in ERROR (REQ-MCP-HTTP-39).

        The gateway then lists its prompts and resources again.
        """
        live_member = self.connected_member(member_id)
        if live_member is None:
            return
        live_member.hall_exchange = Exchange()
        try:
            tool_list = live_member.client.list_tools(REQUEST_TIMEOUT, live_member.hall_exchange)
        except (RequestCancelledError, SignInNeededError):
            return  # whoever found out that a sign-in is needed has changed the status
        except ClientError as error:
            if live_member.process.exited.wait(EXIT_GRACE) or live_member.stop_requested.is_set():
                return
            if (live_member.calls or live_member.relayed_calls) and isinstance(error, RequestTimeoutError):
                # A member that serves one request at a time is busy, not broken. Its end would fail its calls.
                logger.warning(
                    "member %r did not list its tools while %d calls ran in it",
                    live_member.name,
                    live_member.calls + live_member.relayed_calls,
                )
                return
            self.fail(live_member, "tools/list", f"member {live_member.name!r}: tools/list failed: {error}")
        else:
            self._write_tools(live_member, tool_list)
            self._on_change(member_id)
            self._on_lists_changed(member_id)

    def _write_tools(self, live_member: LiveMember, tool_list: ToolList) -> None:
        member_id = live_member.member_id
        warnings = [*tool_list.warnings, *live_member.exposure]

        def write() -> None:
            rows = tools.rows_of(member_id, tool_list.tools)
            manifest = GuildMember.objects.values_list("manifest", flat=True).get(pk=member_id)
            listing = tools.contracts_of(member_id, tool_list.tools, contracts.policy_of(manifest))
            with short_transaction():
                if self.own_row(member_id).filter(status=Status.CONNECTED).update(warnings=warnings):
                    live_member.held_tools = tools.write(member_id, rows, listing)

        persistently(write)

    def look_up_version(self, look_up: VersionLookUp) -> None:
        """Find out the newest version of a member's package. It may take a minute, also while the member runs."""
        look_ups.answer(look_up, self._starter.newest_version)

    def abort_refresh(self, member_id: int) -> None:
        """Abort a `refresh` that is in progress in another thread, because a silent member must not delay a stop."""
        live_member = self._members.get(member_id)
        if live_member is not None:
            live_member.hall_exchange.abort()

    def request_refreshes(self) -> None:
        """Request refreshes of members that announced changes of their tools. The supervisor calls it each turn."""
        self._announcements.request_refreshes()
