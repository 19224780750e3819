"""What becomes of approved members, on the page on which somebody approved them: folder, packages, start, connected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcp_runtime.control.proposals import recently_approved
from mcp_runtime.protocol.errors import InstallError
from roster.admin.members.verbs import diagnosis_of, visible_progress, visible_status
from roster.diagnosis import Diagnosis
from roster.models import GuildMember, MemberProposal

Status = GuildMember.Status
APPROVED = "approved"  # in place of a status, before the member is in the roster


@dataclass(frozen=True)
class Step:
    """One of the steps to a member that is connected. `state` is `done`, `now`, `failed` or `later`."""

    label: str
    state: str


@dataclass(frozen=True)
class Arrival:
    """An approved member. `member` is its row if it is in the roster, and the user may see it."""

    proposal: MemberProposal
    member: Any
    is_in_roster: bool

    @property
    def name(self) -> str:
        return self.proposal.name

    @property
    def status(self) -> str:
        return APPROVED if self.member is None else visible_status(self.member)

    @property
    def faults(self) -> list[str]:
        return self.proposal.faults

    @property
    def has_folder(self) -> bool:
        return self.is_in_roster or self.proposal.has_folder

    @property
    def diagnosis(self) -> Diagnosis | None:
        return None if self.member is None else diagnosis_of(self.member)

    @property
    def sentence(self) -> str:
        """What happens now."""
        if not self.has_folder and self.faults:
            return "It has no folder yet."
        if not self.has_folder:
            return "The hall unpacks its files." if self._has_bundle else "The hall creates its folder."
        if not self.is_in_roster:
            return "The hall reads its manifest."
        if self.member is None:
            return "It is in the roster."
        if self.status == Status.CONNECTED:
            count = self.member.tool_count
            return f"It has {count} tool{'' if count == 1 else 's'}."
        waits = self.status in (Status.STARTING, Status.DISCONNECTED) and self.diagnosis is None
        return visible_progress(self.member) or ("The hall starts it." if waits else "")

    @property
    def steps(self) -> list[Step]:
        """The first step that is not done is the one that runs or that failed. The later ones wait.

        Empty if all are done, or if the user may not see the member.
        """
        if self.status == Status.CONNECTED or (self.is_in_roster and self.member is None):
            return []
        has_failed = self.status == Status.ERROR or (not self.has_folder and bool(self.faults))
        steps, state = [], "failed" if has_failed else "now"
        for label, is_done in self._steps():
            steps.append(Step(label, "done" if is_done else state))
            state = state if is_done else "later"
        return steps

    def _steps(self) -> Iterator[tuple[str, bool]]:
        """Each step, and whether it is done."""
        yield "Unpack the files" if self._has_bundle else "Create the folder", self.has_folder
        if self.proposal.manifest.get("packages", "fetched") != "fetched":
            yield "Install the packages", self._has_packages
        yield "Start and connect", False

    @property
    def _has_packages(self) -> bool:
        """Whether its packages are installed. Only then it gets a port, which it gives back when its start fails."""
        if self.member is None:
            return False
        has_failed = self.status == Status.ERROR
        return InstallError.WHAT not in self.member.last_error if has_failed else self.member.port is not None

    @property
    def _has_bundle(self) -> bool:
        return getattr(self.proposal, "bundle", None) is not None


def arrivals(members: Any, closed_members: frozenset[str], *, views_members: bool) -> list[Arrival]:
    """The approved members that the page follows. `members` are those that the user may see, with their annotations.

    Members that are reserved for others are left out.
    """
    proposals = [proposal for proposal in recently_approved() if proposal.name not in closed_members]
    rows = {row.name: row for row in members.filter(name__in=[each.name for each in proposals], removed_at=None)}
    return [
        Arrival(proposal, rows.get(proposal.name) if views_members else None, proposal.name in rows)
        for proposal in proposals
    ]
