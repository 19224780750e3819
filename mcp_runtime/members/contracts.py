"""The contracts of what a member lists, as rows: each version once, and which version counts as agreed.

The first list of a member is the baseline. Later changes are graded. Under the policy `record` every version counts as
agreed. Under `hold` a version waits for an approval if a change is one of HELD_GRADES, or if it has hard signs of
poisoning. Only lists that the hall itself requests count.
"""

from __future__ import annotations

import enum
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, cast

from django.conf import settings
from django.db.models import F, QuerySet, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from mcp_runtime.client import quick_json
from mcp_runtime.contracts.canonical import canonical_json, digest_of
from mcp_runtime.contracts.grades import HELD_GRADES, TOO_LARGE, Grade, worst
from mcp_runtime.rows import clock
from mcp_runtime.system import memory
from roster.models import Contract, ContractVersion, Tool

Kind = Contract.Kind

MAX_VERSIONS = 20  # of one contract
MAX_CONTRACTS = 5_000  # of one member and kind. Those that left the list first are deleted first
# CPU time for the comparison of one list, and for its search for signs of poisoning. What is left counts as breaking,
# or as not checked. A list of 2,000 ordinary tools takes less than a second.
MAX_WORK_SECONDS = 10.0
MAX_PEERS = 20_000  # tools of other members that are compared
MAX_REMOVED = 200  # definitions that left the list and are compared with new ones

COLUMNS = (
    *("version", "approved_version", "is_held", "grade", "reason", "changed_at"),
    *("approver", "approved_by", "approved_at"),
)
REASONS = {
    Grade.TEXT: "a text that models or people read changed",
    Grade.NARROWER: "it refuses arguments that it took before",
    Grade.BREAKING: "it changed in a way that breaks earlier uses",
    Grade.SOFTENED: "it says now that it is harmless",
}
POISONED = "it has signs of poisoning"
RENAMED = "it is an earlier {} under another name"


class Policy(enum.StrEnum):
    RECORD = "record"
    HOLD = "hold"


def policy_of(manifest: Mapping[str, Any]) -> Policy:
    """Return the policy of the member with this manifest, as its row has it.

    Its own key is stronger than the setting. Without both, changes of packages and remote servers are held.
    """
    if choice := manifest.get("contracts") or settings.GUILD_HALL_CONTRACTS:
        return Policy(choice)
    from mcp_runtime.members.manifest.declaration import fetches_server  # late, for the commands that only read

    is_foreign = manifest.get("url") or fetches_server(manifest.get("command", ""), manifest.get("args", ()))
    return Policy.HOLD if is_foreign else Policy.RECORD


@dataclass(frozen=True)
class Revision:
    """A new version of one contract, as it will be written. It is held if it has a reason."""

    name: str
    version: str
    definition: str
    grade: str
    reason: str
    findings: list[dict[str, Any]]
    score: int


@dataclass(frozen=True)
class Listing:
    """A list of a member before it is written: the names with their versions, and what is new."""

    kind: Kind
    versions: Mapping[str, str]
    revisions: list[Revision] = field(default_factory=list)


def key_of(name: str) -> str:
    """Return the name of a contract. A longer name is cut, and ends with a hash."""
    if len(name) <= Contract.MAX_NAME:
        return name
    return f"{name[: Contract.MAX_NAME - 17]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


class Checks:
    """The comparisons that run. After the last one the memory of their patterns is freed: lists change seldom."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        from mcp_runtime.contracts.words import Pattern

        with self._lock:
            self._count -= 1
            if self._count:
                return
            Pattern.forget()
        memory.give_back()


checks = Checks()


def prepare(member_id: int, kind: Kind, definitions: Mapping[str, Any], policy: Policy) -> Listing:
    """Compare a list, by name, with the contracts of the member. Takes too long for a transaction."""
    texts = {key_of(name): canonical_json(definition) for name, definition in definitions.items()}
    versions = {name: digest_of(text) for name, text in texts.items()}
    contracts = {row.name: row for row in Contract.objects.filter(member_id=member_id, kind=kind)}
    new_names = [name for name in versions if _is_new(contracts.get(name), versions[name], policy)]
    if not new_names:
        return Listing(kind, versions)
    with checks:
        comparison = _Comparison(member_id, kind, policy, contracts, versions, new_names)
        return Listing(kind, versions, [comparison.revision(name, texts[name].decode()) for name in new_names])


def prepare_instructions(member_id: int, instructions: str, policy: Policy) -> Listing:
    """Compare the instructions of a member with their contract. Empty ones count as none."""
    return prepare(member_id, Kind.INSTRUCTIONS, {"": instructions} if instructions else {}, policy)


def _is_new(contract: Contract | None, version: str, policy: Policy) -> bool:
    is_held_no_more = contract is not None and contract.is_held and policy == Policy.RECORD
    return contract is None or contract.version != version or is_held_no_more


class _Comparison:
    """Grades the new versions of one list."""

    def __init__(
        self,
        member_id: int,
        kind: Kind,
        policy: Policy,
        contracts: Mapping[str, Contract],
        versions: Mapping[str, str],
        new_names: list[str],
    ) -> None:
        self._member_id, self._kind, self._policy = member_id, kind, policy
        self._contracts, self._versions = contracts, versions
        ids = [contracts[name].pk for name in new_names if name in contracts]
        rows = ContractVersion.objects.filter(contract__in=ids, version=F("contract__approved_version"))
        self._approved = {row.contract_id: row for row in rows}
        self._has_contracts = bool(contracts)
        self._peers = _peers_of(member_id) if kind == Kind.TOOL else None
        self._removed = self._removed_definitions(new_names)
        self._deadline = time.thread_time() + MAX_WORK_SECONDS

    def _removed_definitions(self, new_names: list[str]) -> list[dict[str, Any]]:
        """The agreed versions of what is not in the list any more, if the list has new names."""
        if self._kind == Kind.INSTRUCTIONS or all(name in self._contracts for name in new_names):
            return []
        ids = [row.pk for name, row in self._contracts.items() if name not in self._versions and row.approved_version]
        rows = ContractVersion.objects.filter(contract__in=ids[:MAX_REMOVED], version=F("contract__approved_version"))
        return [json.loads(text) for text in rows.values_list("definition", flat=True)]

    def revision(self, name: str, text: str) -> Revision:
        # They compile patterns. A start without changes does not need them.
        from mcp_runtime.contracts.signs import score_of

        contract, version = self._contracts.get(name), self._versions[name]
        approved_row = self._approved.get(contract.pk) if contract else None
        definition = quick_json.decode(text.encode())
        findings = self._findings(definition)
        grade, reason = self._grade(approved_row, definition, version)
        if self._policy == Policy.HOLD and (approved_row is None or approved_row.version != version):
            known = {(each["kind"], each["place"]) for each in approved_row.findings} if approved_row else set()
            if any(each.is_hard and (each.kind, each.place) not in known for each in findings):
                reason = POISONED
        return Revision(
            name=name,
            version=version,
            definition=text,
            grade=grade,
            reason=reason if self._policy == Policy.HOLD else "",
            findings=[asdict(each) for each in findings],
            score=score_of(findings),
        )

    def _grade(self, approved_row: ContractVersion | None, definition: Any, version: str) -> tuple[str, str]:
        """Return the worst change since the agreed version, and why it is held. Both may be empty."""
        from mcp_runtime.contracts.changes import Kind as CompareKind
        from mcp_runtime.contracts.changes import compare, is_renamed

        kind = cast(CompareKind, self._kind.value)
        if approved_row is None:
            earlier = next((each for each in self._removed if is_renamed(kind, each, definition)), None)
            if earlier is None:
                return (Grade.ADDED if self._has_contracts else ""), ""
            grade = worst(compare(kind, earlier, definition)) if kind == "resourceTemplate" else Grade.ADDED
            return grade or "", RENAMED.format(self._kind.label.lower())
        if approved_row.version == version:
            return "", ""
        if time.thread_time() > self._deadline:
            return TOO_LARGE.grade, REASONS[TOO_LARGE.grade]
        before = quick_json.decode(approved_row.definition.encode())
        grade = worst(compare(kind, before, definition))
        return grade or "", REASONS[grade] if grade in HELD_GRADES else ""

    def _findings(self, definition: Any) -> list[Any]:
        from mcp_runtime.contracts.findings import findings_in
        from mcp_runtime.contracts.shadowing import NO_PEERS
        from mcp_runtime.contracts.signs import ALARM, Finding
        from mcp_runtime.contracts.signs import Kind as FindingKind

        if time.thread_time() > self._deadline:
            return [Finding(FindingKind.TOO_LONG, "", "There was no time to check it.", ALARM, is_hard=True)]
        return findings_in(definition, self._peers or NO_PEERS)


def _peers_of(member_id: int) -> Any:
    from mcp_runtime.contracts.shadowing import Peer, Peers

    description = Coalesce(KT("definition__description"), Value(""), output_field=TextField())
    rows = Tool.objects.filter(listed=True, member__removed_at=None).exclude(member=member_id).order_by()
    values = rows.values_list("member__name", "name", description, "version")
    return Peers(Peer(*each) for each in values[:MAX_PEERS])


def other_agreed_tools(member_ids: Collection[int]) -> dict[tuple[int, str], str]:
    """Return the agreed definitions of tools whose listed version is another one, by member and name of the contract.

    A definition is JSON, or empty if no version counts as agreed.
    """
    rows = Contract.objects.filter(kind=Kind.TOOL, member_id__in=member_ids)
    rows = rows.exclude(version="").exclude(version=F("approved_version"))
    agreed = {pk: (member_id, name) for pk, member_id, name in rows.values_list("pk", "member_id", "name")}
    versions = ContractVersion.objects.filter(contract__in=rows, version=F("contract__approved_version"))
    definitions = dict(versions.values_list("contract_id", "definition")) if agreed else {}
    return {key: definitions.get(pk, "") for pk, key in agreed.items()}


# Write ------------------------------------------------------------------------------------------------------------


def write(member_id: int, listing: Listing) -> set[str]:
    """Write a list. Return the names that are held. The transaction has locked the row of the member, as approvals do.

    An approval that came after `prepare` is kept if it is for this version.
    """
    now = clock.now()
    rows = Contract.objects.filter(member_id=member_id, kind=listing.kind)
    names = {revision.name for revision in listing.revisions}
    known = {row.name: row for row in rows if row.name in names}
    contracts = {name: known.get(name) or Contract(member_id=member_id, kind=listing.kind, name=name) for name in names}
    for revision in listing.revisions:
        _revise(contracts[revision.name], revision)
        contracts[revision.name].changed_at = now
    Contract.objects.bulk_create([row for row in contracts.values() if row.pk is None], batch_size=100)
    Contract.objects.bulk_update(known.values(), COLUMNS, batch_size=100)
    versions = [_version_row(contracts[revision.name], revision, now) for revision in listing.revisions]
    ContractVersion.objects.bulk_create(versions, ignore_conflicts=True, batch_size=100)
    listed = rows.exclude(version="").values_list("pk", "name")
    removed_ids = [pk for pk, name in listed if name not in listing.versions]
    for start in range(0, len(removed_ids), 500):
        removed = rows.filter(pk__in=removed_ids[start : start + 500])
        removed.update(version="", is_held=False, grade=Grade.REMOVED, reason="", changed_at=now)
    if listing.revisions:
        _prune(rows, [contract.pk for contract in contracts.values()])
    return {*rows.filter(is_held=True).values_list("name", flat=True)}


def _version_row(contract: Contract, revision: Revision, now: datetime) -> ContractVersion:
    return ContractVersion(
        contract=contract,
        version=revision.version,
        definition=revision.definition,
        grade=revision.grade,
        findings=revision.findings,
        score=revision.score,
        created_at=now,
    )


def _prune(rows: QuerySet[Contract], ids: list[int]) -> None:
    """Delete the oldest versions and contracts, but never those in the list and those that are agreed."""
    versions = ContractVersion.objects.filter(contract__in=ids).order_by("-id")
    seen: Counter[int] = Counter()
    old_ids = []
    needed = ("contract__version", "contract__approved_version")
    for pk, contract_id, version, *needed_versions in versions.values_list("pk", "contract_id", "version", *needed):
        seen[contract_id] += 1
        if seen[contract_id] > MAX_VERSIONS and version not in needed_versions:
            old_ids.append(pk)
    for start in range(0, len(old_ids), 500):
        ContractVersion.objects.filter(pk__in=old_ids[start : start + 500]).delete()
    if (surplus := rows.all().count() - MAX_CONTRACTS) > 0:
        # The newest first. Otherwise a member could push out an old contract with many new names.
        gone_ids = [*rows.filter(version="").order_by("-pk").values_list("pk", flat=True)[:surplus]]
        for start in range(0, len(gone_ids), 500):
            Contract.objects.filter(pk__in=gone_ids[start : start + 500]).delete()


def _revise(contract: Contract, revision: Revision) -> None:
    contract.version, contract.grade, contract.reason = revision.version, revision.grade, revision.reason
    is_agreed = revision.version == contract.approved_version
    contract.is_held = bool(revision.reason) and not is_agreed
    if contract.is_held or is_agreed:
        return
    contract.approved_version, contract.approver = revision.version, ""
    contract.approved_by = contract.approved_at = None
