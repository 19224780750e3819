"""Contracts for people: what changed, approvals, and the pins that a program can check."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import F, QuerySet

from mcp_runtime.contracts.grades import Change
from mcp_runtime.control.members import find_member, set_desired_state
from mcp_runtime.members.contracts import key_of as contract_name
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownContractError
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import short_transaction
from roster.models import AuditEntry, Contract, ContractVersion, GuildMember, Hall, Tool

MAX_LINES = 2_000  # of a diff
MAX_COMPARED = 20_000  # lines of a definition. difflib would take too long for more
_PIECES = re.compile(r"(?:\\u[0-9a-f]{4}|\\.|.){1,160}")  # of a line, and no escape is cut

Pins = dict[str, dict[str, str]]  # by member: the versions by "kind/name"


@dataclass(frozen=True)
class Review:
    """What somebody reads before an approval. `before` is None if no version counts as agreed.

    The texts are JSON in ASCII, so invisible characters can be seen.
    """

    contract: Contract
    before: ContractVersion | None
    after: ContractVersion
    changes: list[Change]
    diff: list[str]


def contracts_of(row: GuildMember) -> QuerySet[Contract]:
    """The contracts of a member that are in its lists."""
    return row.contracts.exclude(version="").order_by("kind", "name")


def held_contracts() -> QuerySet[Contract]:
    """Those of all members that are in a list of their member and wait for an approval."""
    return Contract.objects.filter(is_held=True).exclude(version="")


def reason_for_hold(tool: Tool) -> str:
    """Why a tool waits for an approval."""
    from mcp_runtime.calls import transitions  # late, because commands that only read must start fast

    return transitions.reason_for_hold(tool)


def poisoned_from() -> int:
    """The score from which a version counts as poisoned."""
    from mcp_runtime.contracts import signs  # late, because its patterns take time

    return signs.ALARM


def find_contract(member: str, kind: str, name: str) -> Contract:
    """The contract, also of something that left the list. Raises UnknownMemberError, UnknownContractError."""
    rows = find_member(member).contracts.filter(name=contract_name(name)).select_related("member").order_by("kind")
    row = rows.filter(kind=kind).first()
    if row is None:
        kinds = " and ".join(f"a contract of kind {other}" for other in rows.values_list("kind", flat=True))
        hint = f"; it has {kinds} with this name" if kinds and name else ""
        raise UnknownContractError(f"member {member!r} never listed {kind} {name!r}{hint}")
    return row


def history(contract: Contract) -> QuerySet[ContractVersion]:
    """The stored versions, the newest first. A version that came back has the time of its first list."""
    return contract.versions.order_by("-id").defer("definition")


def review(contract: Contract, before: str = "", after: str = "") -> Review:
    """Compare two versions, given by their first characters. Without them, the agreed one and the listed one."""
    new = _version(contract, after or contract.version or contract.approved_version)
    if new is None:
        raise UnknownContractError(f"{contract} of member {contract.member.name!r} has no such version")
    old = _version(contract, before or contract.approved_version)
    if before and old is None:
        raise UnknownContractError(f"{contract} of member {contract.member.name!r} has no version {before!r}")
    from mcp_runtime.contracts.changes import Kind, compare  # late, because commands that only read must start fast

    changes = []
    if old is not None:
        changes = compare(cast(Kind, contract.kind), json.loads(old.definition), json.loads(new.definition))
    return Review(contract, old, new, changes, _diff(old, new))


def _version(contract: Contract, version: str) -> ContractVersion | None:
    rows = [*contract.versions.filter(version__startswith=version)[:2]] if version else []
    if len(rows) > 1:
        raise RequestRefusedError(f"several versions begin with {version!r}; give more characters")
    return rows[0] if rows else None


def _diff(old: ContractVersion | None, new: ContractVersion) -> list[str]:
    before, after = (_lines(row) for row in (old, new))
    names = (old.version[:12] if old else "nothing", new.version[:12])
    omission = ""
    if max(len(before), len(after)) > MAX_COMPARED:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        before, after = before[same : same + MAX_COMPARED], after[same : same + MAX_COMPARED]
        omission = f"... only {MAX_COMPARED:,} lines from line {same + 1:,} on are compared"
    lines = [*difflib.unified_diff(before, after, *names, lineterm="")]
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"... and {len(lines) - MAX_LINES:,} more lines"]
    return [*lines, omission] if omission else lines


def _lines(row: ContractVersion | None) -> list[str]:
    """The definition in short lines of ASCII. A long text goes on in the next line, so the diff shows all of it."""
    if row is None:
        return []
    lines = json.dumps(json.loads(row.definition), indent=2, sort_keys=True).splitlines()
    return [piece for line in lines for piece in _PIECES.findall(line)]


# Approvals --------------------------------------------------------------------------------------------------------


def approve(contract: Contract, version: str, user: User | None, approver: str) -> None:
    """Approve the version that somebody has read. Without a user, the operator does it.

    Raises RequestRefusedError if the contract is not held, or if it changed again meanwhile.
    """
    _approve(contract.member, [contract], {contract.pk: version}, user, approver)


def approve_all(row: GuildMember, user: User | None, approver: str) -> list[Contract]:
    """Approve all held contracts of the member in their present versions. Return them."""
    held = [*row.contracts.filter(is_held=True)]
    _approve(row, held, {contract.pk: contract.version for contract in held}, user, approver)
    return held


def _approve(
    row: GuildMember, contracts: list[Contract], versions: Mapping[int, str], user: User | None, approver: str
) -> None:
    with short_transaction():
        Hall.note_access_change()
        # Lists lock it too, so an approval and a list never overlap.
        GuildMember.objects.select_for_update(no_key=True).get(pk=row.pk)
        for contract in contracts:
            version = versions[contract.pk]
            rows = Contract.objects.filter(pk=contract.pk, is_held=True, version=version).exclude(version="")
            facts = {"approved_by": user, "approver": approver, "approved_at": clock.now()}
            if not rows.update(is_held=False, reason="", approved_version=F("version"), **facts):
                raise RequestRefusedError(
                    f"{contract} of member {row.name!r} is not held in version {version[:12]}. Read the change again"
                )
            AuditEntry.record(
                AuditEntry.Kind.CONTRACT_APPROVED,
                f"{contract} of member {row.name}",
                member=row.name,
                before={"version": contract.approved_version[:12]},
                after={"version": version[:12]},
            )
            if contract.kind == Contract.Kind.TOOL:
                Tool.objects.filter(member=row.pk, name=contract.name).update(is_held=False)
            elif contract.kind == Contract.Kind.INSTRUCTIONS:
                text = ContractVersion.objects.get(contract=contract, version=version).definition
                GuildMember.objects.filter(pk=row.pk).update(instructions=json.loads(text))
    if contracts and row.status == GuildMember.Status.CONNECTED:
        set_desired_state(row, refresh_requested_at=clock.now())  # so that its runtime offers them at once


# Pins -------------------------------------------------------------------------------------------------------------


def pins() -> Pins:
    """The agreed versions of all that members list."""
    result: Pins = {}
    rows = Contract.objects.filter(member__removed_at=None).exclude(version="").exclude(approved_version="")
    for member, kind, name, version in rows.values_list("member__name", "kind", "name", "approved_version"):
        result.setdefault(member, {})[f"{kind}/{name}"] = version
    return {member: dict(sorted(result[member].items())) for member in sorted(result)}


@dataclass(frozen=True)
class Differences:
    """What differs from pins, as "member kind/name": other versions, what left the lists, and what is new."""

    changed: list[str]
    removed: list[str]
    added: list[str]


def differences(expected: Pins) -> Differences:
    """Compare the versions in the members' lists with pins."""
    rows = Contract.objects.filter(member__removed_at=None).exclude(version="")
    keys = rows.values_list("member__name", "kind", "name", "version")
    listed = {f"{member} {kind}/{name}": version for member, kind, name, version in keys}
    pinned = {f"{member} {key}": version for member, versions in expected.items() for key, version in versions.items()}
    return Differences(
        changed=sorted(key for key in listed.keys() & pinned.keys() if listed[key] != pinned[key]),
        removed=sorted(pinned.keys() - listed.keys()),
        added=sorted(listed.keys() - pinned.keys()),
    )


def read_pins(text: str) -> Pins:
    """Read a pin file. Raises ValueError for anything else."""
    value: Any = json.loads(text)
    members = value.get("contracts") if isinstance(value, dict) else None
    if not isinstance(members, dict) or not all(isinstance(each, dict) for each in members.values()):
        raise ValueError("it has no object of contracts by member")
    return {str(member): {str(key): str(version) for key, version in each.items()} for member, each in members.items()}
