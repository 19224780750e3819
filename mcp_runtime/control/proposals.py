"""Members that somebody wants to add: propose, approve, discard.

A proposal is a row. Nothing is started or fetched for it, and no folder exists. Only the description of a server in a
registry is fetched, and only from the registry. The approval is for one digest, that of the whole manifest: the program
with its arguments, the environment, the address, the names of the headers, and the sandbox. If anything of these
changes, it needs another one. An approval does not cover what a package contains that the program fetches, unless its
version is pinned.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import asdict

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.control import registry
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.control.secrets import delete_secret, require_usable, set_secret
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownProposalError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from mcp_runtime.sources.drafts import Draft, Reading
from mcp_runtime.sources.reader import read, ways
from mcp_runtime.sources.server_json import Filled, Way
from roster.models import AuditEntry, GuildMember, Hall, MemberProposal, Secret

Kind = AuditEntry.Kind
PERMISSION = "roster.approve_member"


def open_proposals() -> QuerySet[MemberProposal]:
    return MemberProposal.objects.filter(approved_at=None)


def find_proposal(name: str) -> MemberProposal:
    """The open proposal with this name. Raises UnknownProposalError."""
    row = open_proposals().filter(name=name).first()
    if row is None:
        raise UnknownProposalError(f"nobody proposes a member {name!r}")
    return row


def look_up(text: str) -> tuple[str, list[Way]]:
    """The text, and the ways to run its server if it is a server.json, of which a person chooses one.

    The name of a server becomes its server.json from the registry. It changes nothing. Raises RequestRefusedError.
    """
    text = registry.resolve(text)
    return text, ways(text)


def propose(
    text: str, by: User | None, *, name: str = "", filled: Filled | None = None
) -> tuple[Reading, list[MemberProposal]]:
    """Store the members that the text describes, all or none, and set the secrets that are in it.

    If the text is the name of a server in the registry, the registry is asked for its description. `filled` has the
    values for it. Raises SourceError for a text that cannot be used, and RequestRefusedError.
    """
    text = registry.resolve(text)
    with short_transaction():
        list(Hall.objects.select_for_update())  # the names must still be free when the rows are written
        reading = read(text, name=name, reserved=_names_of_secrets(), filled=filled)
        if open_proposals().count() + len(reading.drafts) > MemberProposal.MAX_OPEN:
            reason = f"there may be {MemberProposal.MAX_OPEN} proposed members; approve or discard some first"
            raise RequestRefusedError(reason)
        for draft in reading.drafts:
            _require_free(draft.name)
            for value in draft.secrets.values():
                require_usable(value)
        return reading, [_store(reading.source, draft, by) for draft in reading.drafts]


def approve(name: str, digest: str, by: User | None) -> MemberProposal:
    """Let the runtime create the folder of the member, which starts it.

    `digest` is that of the proposal which the user has seen. Raises UnknownProposalError and RequestRefusedError.
    """
    with short_transaction():
        list(Hall.objects.select_for_update())
        proposal = find_proposal(name)
        if not hmac.compare_digest(proposal.digest.encode(), digest.encode(errors="replace")):
            raise RequestRefusedError(f"the proposed member {name!r} has another digest; look at it again")
        _require_free(name, but=proposal)
        if missing := missing_secrets(proposal):
            reason = f"the member {name!r} needs secrets that are not set: {', '.join(missing)}; set them first"
            raise RequestRefusedError(reason)
        proposal.approved_at, proposal.approved_by = timezone.now(), by
        proposal.save(update_fields=["approved_at", "approved_by"])
        AuditEntry.record(Kind.MEMBER_APPROVED, f"member {name}", member=name, after=_summary(proposal))
    notify_runtime(members=True)
    return proposal


def discard(name: str) -> None:
    """Delete the proposal, and the secrets that came with it. Raises UnknownProposalError.

    An approved one can be discarded as long as no node has created its folder.
    """
    with short_transaction():
        list(Hall.objects.select_for_update())
        proposal = next((row for row in without_folder() if row.name == name), None) or find_proposal(name)
        for secret in Secret.objects.filter(name__in=proposal.secrets, uses=None):
            delete_secret(secret)
        AuditEntry.record(Kind.MEMBER_DISCARDED, f"member {name}", member=name, before=_summary(proposal))
        proposal.delete()


def missing_secrets(proposal: MemberProposal) -> list[str]:
    """The secrets in its manifest that nobody has set, by name."""
    names = values.names_in(proposal.manifest)
    return sorted(names - set(Secret.objects.filter(name__in=names).values_list("name", flat=True)))


def without_folder() -> list[MemberProposal]:
    """The approved members whose folder no node has created yet."""
    return [row for row in MemberProposal.objects.exclude(approved_at=None) if not row.has_folder]


def folder_faults() -> list[str]:
    """Why approved members have no folder on some node, one sentence for each."""
    return [
        f"The approved member {row.name} has no folder on node {node}: {fault}."
        for row in MemberProposal.objects.exclude(approved_at=None)
        for node, fault in sorted(row.nodes.items())
        if fault
    ]


def _store(source: str, draft: Draft, by: User | None) -> MemberProposal:
    for secret, value in draft.secrets.items():
        set_secret(secret, value, by)
    proposal = MemberProposal.objects.create(
        name=draft.name,
        text=draft.text,
        digest=draft.digest,
        source=source,
        notes=list(draft.notes),
        inputs=[asdict(needed) for needed in draft.inputs],
        secrets=sorted(draft.secrets),
        created_by=by,
    )
    AuditEntry.record(Kind.MEMBER_PROPOSED, f"member {draft.name}", member=draft.name, after=_summary(proposal))
    return proposal


def _summary(proposal: MemberProposal) -> dict[str, str]:
    """For the audit log."""
    manifest = proposal.manifest
    command = " ".join([manifest.get("command", ""), *manifest.get("args", ())])
    return {"runs": manifest.get("url") or command, "sha256": proposal.digest}


def _names_of_secrets() -> set[str]:
    """Names that a new secret may not have, because they exist or because a proposal waits for them."""
    names = set(Secret.objects.values_list("name", flat=True))
    for proposal in open_proposals():
        names |= values.names_in(proposal.manifest)
    return names


def _require_free(name: str, *, but: MemberProposal | None = None) -> None:
    """Raise RequestRefusedError if a member or a proposal has the name, or one that differs only in case."""
    if GuildMember.objects.filter(name__iexact=name, removed_at=None).exists():
        raise RequestRefusedError(f"the hall has a member {name!r} already; propose this one under another name")
    others: Sequence[MemberProposal] = list(MemberProposal.objects.filter(name__iexact=name))
    waiting = [
        other for other in others if other != but and (other.approved_at is None or "" not in other.nodes.values())
    ]
    if waiting:
        raise RequestRefusedError(f"a member {name!r} is proposed already; discard that one, or take another name")
