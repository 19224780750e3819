"""The loop that keeps members in their desired state: read the folder, compare it with the status, call the lifecycle.

`tick()` is one turn and can be called alone. There is one each second. Between them there are short turns when the loop
is woken, for example by each of a hundred members that start. A turn never blocks on a member, because each verb runs
in a separate thread, one at a time for a member. The number of concurrent starts is limited, so that slow servers do
not starve each other.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from django.db import Error
from django.db.models import Q, QuerySet

from mcp_runtime.members import discovery, edits, proposals, trash
from mcp_runtime.members.bundles import Unpacker
from mcp_runtime.members.handover import Handover
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.manifest.files import fingerprint
from mcp_runtime.members.moves import Moves
from mcp_runtime.members.packages import look_ups
from mcp_runtime.members.signs_of_life import SignsOfLife
from mcp_runtime.members.usage import Usage
from mcp_runtime.members.verbs import START, Threads, Verbs
from mcp_runtime.rows import ownership
from mcp_runtime.rows.database import unit_of_work
from roster.models import GuildMember

logger = logging.getLogger("guildhall.runtime")

Status = GuildMember.Status

TICK_SECONDS = 1.0
# Requests often come in groups. A loop that wakes for each of them would do nothing else.
SHORTEST_PAUSE = 0.02
UNTRACKED_SECONDS = 5.0
# A remote server disappears without a signal. So its tools are listed again this often, to check that it is there.
REMOTE_CHECK_SECONDS = 30.0

# Members that move to another node at the same time.
MAX_MOVES = 4
# Questions about versions at the same time. Each may take minutes, and the threads are also those of starts and stops.
MAX_LOOK_UPS = 4
# With several nodes, the files of all members are compared this often, because a fingerprint is of manifests only.
FOLDERS_SECONDS = 30.0

LOOK_UPS, TOKENS = 1 << 39, 1 << 40  # verbs of versions and of tokens have ids of their own
# Renewals at the same time. An authorization server that is silent must not keep the threads of starts and stops.
MAX_RENEWALS = 8
LOOK_UP, RENEWAL = "look up", "renew token"

SHOULD_RUN = Q(enabled=True, desired_state=GuildMember.DesiredState.RUNNING, removed_at=None)
MAY_START = SHOULD_RUN & Q(manifest_error="")
ALIVE = (Status.STARTING, Status.CONNECTED)
LARGE = ("manifest", "server_info", "capabilities", "instructions", "last_error")  # columns that no turn needs


def unfulfilled(lease_id: uuid.UUID, retry_ids: Collection[int] = ()) -> QuerySet[GuildMember]:
    """Own and new members that are not in their desired state. Of those in ERROR only `retry_ids`."""
    return (
        GuildMember.objects.filter(Q(lease_id=lease_id) | Q(lease_id=None))
        .filter(
            Q(restart_requested_at__isnull=False)
            | Q(refresh_requested_at__isnull=False)
            | MAY_START & Q(status=Status.DISCONNECTED)
            | MAY_START & Q(status=Status.ERROR, pk__in=retry_ids)
            | ~SHOULD_RUN & ~Q(status__in=(Status.DISCONNECTED, Status.STOPPING))
        )
        .order_by("name")
    )


class Supervisor:
    """Decides in each turn what to do. `lifecycle` does the work."""

    def __init__(
        self,
        *,
        lifecycle: Lifecycle,
        members_dir: Path,
        start_concurrency: int,
        calls_in: Callable[[int], int] = lambda _: 0,
        on_other_node: Callable[[], None] = lambda: None,
        threads: Threads | None = None,
    ) -> None:
        self._lifecycle = lifecycle
        self._handover = Handover(lifecycle.lease_id, on_other_node)
        self._next_note = 0.0
        self._synced_ids: set[int] = set()  # own members whose folders the last sync has read
        self._members_dir = members_dir
        self._unpacker = Unpacker(members_dir)
        self._fingerprint: object = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._moves = Moves(lifecycle, self._handover, calls_in, self._stopping)
        self._restart_moments: list[float] = []  # by the monotonic clock, all later than the last turn
        self._untracked_since: dict[int, float] = {}
        self._last_checks: dict[int, float] = {}  # member id -> when a remote server was last checked
        threads = threads or Threads()
        self._verbs = Verbs(start_concurrency, self.wake, threads)
        self._signs_of_life = SignsOfLife(lifecycle, threads.submit)
        self._usage = Usage(lifecycle, threads.submit)
        self._whole_turn_at = 0.0
        self._loop = threading.Thread(target=self._run, name="supervisor", daemon=True)

    # The loop -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """Begin a turn soon."""
        self._wake.set()

    def stop(self) -> None:
        """Begin no more turns. Verbs in progress continue."""
        self._stopping.set()
        self._wake.set()
        if self._loop.is_alive():
            self._loop.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            is_whole = time.monotonic() >= self._whole_turn_at
            if is_whole:
                self._whole_turn_at = time.monotonic() + TICK_SECONDS
            try:
                unit_of_work(self.tick if is_whole else self.serve)
            except Error as error:
                logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
            except Exception:
                logger.exception("a turn of the supervisor failed; the next one follows")
            self._wake.wait(max(min(self._pause(), self._whole_turn_at - time.monotonic()), 0.0))
            self._wake.clear()
            self._stopping.wait(SHORTEST_PAUSE)

    def _pause(self) -> float:
        """Seconds to the next turn: one, or less if a restart is due before that, or a start gives its slot back."""
        now = time.monotonic()
        moments = [*self._verbs.slot_ends(), *self._restart_moments]
        return min([TICK_SECONDS, *(max(moment - now, SHORTEST_PAUSE) for moment in moments)])

    # One turn -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do one whole turn: the folder, all members that are not in their desired state, and regular checks."""
        if names := self._handover.turn():
            logger.info("this node takes over: %s", ", ".join(names))
        trash.turn(self._members_dir)
        proposals.write_approved(self._members_dir)
        edits.write_approved(self._members_dir)
        self._unpack()
        self.sync_if_changed()
        proposals.allow_secrets()
        edits.allow_secrets()
        self._note_folders()
        self._move_members()
        self._look_up_versions()
        self._lifecycle.request_refreshes()
        self.serve()
        self.find_untracked()
        self._lifecycle.write_progress()
        self._signs_of_life.turn()
        self._usage.turn()
        self.check_remotes()
        self._lifecycle.renew_tokens(self._renew_token)

    def _renew_token(self, live_member: LiveMember, renew: Callable[[], None]) -> bool:
        if self._verbs.count(RENEWAL) >= MAX_RENEWALS:
            return False
        # Beside the verbs of the member, because its tools may be listed meanwhile.
        return self._verbs.run(-(TOKENS + live_member.member_id), live_member.name, RENEWAL, renew)

    def serve(self) -> None:
        """Do the main part of a turn, for all members that are not in their desired state."""
        self._verbs.free_slots(self._lifecycle.live_members())
        lease_id, awaited_ids = self._lifecycle.lease_id, self._lifecycle.awaited_ids
        if self._handover.is_alone:
            ownership.claim_new(lease_id)
        members = unfulfilled(lease_id, self._due_restarts()).filter(lease_id=lease_id).defer(*LARGE)
        if not self._handover.is_alone and any(member.pk not in self._synced_ids for member in members):
            self._sync()  # the folders of new own members count now, and say how to start them
            members = members.all()
        for member in sorted(members, key=lambda member: member.pk not in awaited_ids):
            self._serve(member)

    def _due_restarts(self) -> set[int]:
        """Members in ERROR whose next try is due."""
        now, member_ids, self._restart_moments = time.monotonic(), set(), []
        waiting = self._own_members().filter(MAY_START, status=Status.ERROR, next_restart_at__isnull=False)
        for member in waiting.only("next_restart_at"):
            moment = self._lifecycle.restarts.next_try(member) or now
            if moment <= now:
                member_ids.add(member.pk)
            else:
                self._restart_moments.append(moment)
                self._correct(member)
        return member_ids

    def _own_members(self) -> QuerySet[GuildMember]:
        return GuildMember.objects.filter(lease_id=self._lifecycle.lease_id)

    def _correct(self, member: GuildMember) -> None:
        """Correct the time of the next try, which people read, after somebody set the clock."""
        if at := self._lifecycle.restarts.corrected_time(member):
            rows = self._lifecycle.own_row(member.pk).filter(next_restart_at=member.next_restart_at)
            rows.update(next_restart_at=at)

    def find_untracked(self) -> None:
        """Find rows with a process of this runtime that does not exist. A write that failed for good left them."""
        rows = list(self._own_members().filter(status__in=(*ALIVE, Status.STOPPING)).only("name"))
        # The handler of an exit may still wait for its turn, or for the database, and then writes what happened.
        tracked = {
            member.member_id for member in self._lifecycle.live_members() if not member.process.exit_handled.is_set()
        }
        tracked |= self._lifecycle.ending
        now = time.monotonic()
        untracked = [row for row in rows if row.pk not in tracked and self._verbs.of(row.pk) is None]
        self._untracked_since = {row.pk: self._untracked_since.get(row.pk, now) for row in untracked}
        for row in untracked:
            if now - self._untracked_since[row.pk] > UNTRACKED_SECONDS:
                self._submit(row, "look", partial(self._lifecycle.handle_lost_process, row.pk))

    def check_remotes(self) -> None:
        """List the tools of connected remote servers again from time to time. A failure puts them in ERROR."""
        now = time.monotonic()
        last_checks, self._last_checks = self._last_checks, {}
        for live_member in self._lifecycle.live_members():
            if live_member.is_remote and live_member.connected_at:
                last_check = max(last_checks.get(live_member.member_id, 0), live_member.connected_at)
                look = partial(self._lifecycle.refresh, live_member.member_id)
                is_due = now - last_check >= REMOTE_CHECK_SECONDS
                if is_due and self._verbs.run(live_member.member_id, live_member.name, "refresh", look):
                    last_check = now
                self._last_checks[live_member.member_id] = last_check

    def sync_if_changed(self) -> None:
        if fingerprint(self._members_dir) != self._fingerprint:
            self._sync()

    def _sync(self) -> None:
        current = fingerprint(self._members_dir)
        own_ids = set() if self._handover.is_alone else set(self._own_members().values_list("pk", flat=True))
        report = discovery.sync(self._members_dir)
        self._fingerprint, self._synced_ids = current, own_ids
        logger.info("members folder: %s", report)

    def _note_folders(self) -> None:
        """Let the other nodes know which members' folders are here, and with which files. That may take a while."""
        is_due = not self._handover.is_alone and time.monotonic() >= self._next_note
        if is_due and self._verbs.run(0, "(all)", "note folders", self._compare_folders):
            self._next_note = time.monotonic() + FOLDERS_SECONDS

    def _unpack(self) -> None:
        """Unpack approved bundles, which may take a while."""
        if self._unpacker.is_due():
            self._verbs.run(-1, "(all)", "unpack", self._unpacker.turn)

    def _compare_folders(self) -> None:
        discovery.note_folders(self._members_dir)

    def _move_members(self) -> None:
        """Begin to move members to other nodes, a few at a time."""
        for member, target in self._moves.due():
            if self._verbs.count("move") < MAX_MOVES:
                self._synced_ids.discard(member.pk)  # if it comes back, its folder is read again
                self._submit(member, "move", partial(self._moves.move, member, target))

    def _look_up_versions(self) -> None:
        for look_up in look_ups.due(self._lifecycle.lease_id):
            if self._verbs.count(LOOK_UP) < MAX_LOOK_UPS:
                # Beside the verbs of the member, because it may start and stop meanwhile.
                work = partial(self._lifecycle.look_up_version, look_up)
                self._verbs.run(-(LOOK_UPS + look_up.member_id), look_up.member.name, LOOK_UP, work)

    def _serve(self, member: GuildMember) -> None:
        should_run = (
            member.enabled and member.desired_state == GuildMember.DesiredState.RUNNING and member.removed_at is None
        )
        if member.status in ALIVE and (not should_run or member.restart_requested_at):
            self._stop(member)
        elif member.status == Status.ERROR and not should_run:
            self._submit(member, "stop", lambda: self._lifecycle.stop(member.pk))
        elif member.status == Status.CONNECTED:
            self._refresh(member)
        elif not should_run or member.manifest_error:
            self._lifecycle.own_row(member.pk).update(restart_requested_at=None, refresh_requested_at=None)
        elif member.status == Status.DISCONNECTED or (
            member.status == Status.ERROR and (member.restart_requested_at or self._lifecycle.restarts.is_due(member))
        ):
            self._start(member)

    def _stop(self, member: GuildMember) -> None:
        if self._verbs.abort_start(member.pk, member.name, partial(self._lifecycle.abort_start, member.pk)):
            return
        if self._verbs.of(member.pk) == "refresh":
            self._lifecycle.abort_refresh(member.pk)  # the turn after its end stops the member
        else:
            cause = "restart" if member.restart_requested_at else "stop"
            self._submit(member, "stop", lambda: self._lifecycle.stop(member.pk, cause=cause))

    def _start(self, member: GuildMember) -> None:
        if not self._verbs.take_slot(member.pk):
            return
        requested_at = member.restart_requested_at
        automatic = member.status == Status.ERROR and requested_at is None
        if requested_at:
            row = self._lifecycle.own_row(member.pk).filter(restart_requested_at=requested_at)
            row.update(restart_requested_at=None, restarts=0)
        if not self._submit(member, START, lambda: self._lifecycle.start(member.pk, automatic=automatic)):
            self._verbs.give_slot_back(member.pk)

    def _refresh(self, member: GuildMember) -> None:
        row = self._lifecycle.own_row(member.pk).filter(refresh_requested_at=member.refresh_requested_at)

        def refresh() -> None:
            try:
                self._lifecycle.refresh(member.pk)
            finally:
                row.update(refresh_requested_at=None)  # only now, because whatever waits needs the new tools

        self._submit(member, "refresh", refresh)

    def _submit(self, member: GuildMember, verb: str, work: Callable[[], None]) -> bool:
        """Run `work` in a thread. If a verb of this member, or too many verbs, are in progress, the next turn tries."""
        return self._verbs.run(member.pk, member.name, verb, work)
