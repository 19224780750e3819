"""Members that somebody wants to add: propose, approve, discard.

A proposal is a row. Nothing is started or fetched for it, and no folder exists. Only the description of a server in a
registry is fetched, and only from the registry. The approval is for one digest, that of the whole manifest: the program
with its arguments, the environment, the address, the names of the headers, the sandbox, and whether its packages are
locked. For a bundle, the digest covers its bytes too. If anything of these changes, it needs another one. An approval
does not cover what a package contains. With locked packages, it is at least always the same.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import BinaryIO

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.control import bundles, registry
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.control.secrets import delete_secret, require_usable, reserved_names, set_secret, unset_names
from mcp_runtime.members.archives import Archive
from mcp_runtime.members.manifest.files import FILE_NAME, digest_of
from mcp_runtime.members.manifest.parser import name_error, parse
from mcp_runtime.protocol.errors import RequestRefusedError, SourceError, UnknownProposalError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from mcp_runtime.sources.drafts import Draft, Reading
from mcp_runtime.sources.mcpb import open_bundle
from mcp_runtime.sources.reader import read, read_bundle, ways
from mcp_runtime.sources.server_json import Filled, Way
from roster.models import AuditEntry, Bundle, GuildMember, Hall, MemberProposal, Secret

Kind = AuditEntry.Kind
PERMISSION = "roster.approve_member"
FOLLOWED = timedelta(hours=1)  # so long a page follows an approved member


def open_proposals() -> QuerySet[MemberProposal]:
    return MemberProposal.objects.filter(approved_at=None).select_related("bundle")


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
    return _propose(lambda reserved: read(text, name=name, reserved=reserved, filled=filled), by)


def propose_bundle(
    file: BinaryIO, by: User | None, *, name: str = "", filled: Filled | None = None
) -> tuple[Reading, list[MemberProposal]]:
    """Store the bundle, and the member in it. Raises SourceError and RequestRefusedError, and then stores nothing."""
    read_bundle(open_bundle(file), name=name, filled=filled)  # before the bytes are stored
    row = bundles.hold(file, by)
    try:
        return propose_held(row, by, name=name, filled=filled)
    except RequestRefusedError:
        row.delete()
        raise


def propose_held(
    bundle: Bundle, by: User | None, *, name: str = "", filled: Filled | None = None
) -> tuple[Reading, list[MemberProposal]]:
    """Propose the member in a bundle that the person holds. Raises SourceError and RequestRefusedError."""
    with bundles.content_of(bundle) as file:
        opened = open_bundle(file)
        return _propose(
            lambda reserved: read_bundle(opened, name=name, reserved=reserved, filled=filled), by, bundle=bundle
        )


def propose_template(name: str, files: Mapping[str, str], by: User | None) -> tuple[Reading, list[MemberProposal]]:
    """Propose a member that begins with these files, one of which is its manifest. Raises RequestRefusedError."""
    if fault := name_error(name):
        raise SourceError("name", fault)
    manifest = json.loads(files[FILE_NAME])
    parse(manifest)
    zipped = bundles.zip_of({path: text for path, text in files.items() if path != FILE_NAME})
    bundle = bundles.store(zipped, Archive(zipped), by)
    try:
        return _propose(lambda _: Reading("the template", (Draft(name, manifest),)), by, bundle=bundle)
    except RequestRefusedError:
        bundle.delete()
        raise


def _propose(
    read_with: Callable[[Collection[str]], Reading], by: User | None, *, bundle: Bundle | None = None
) -> tuple[Reading, list[MemberProposal]]:
    """Store the drafts, all or none. `read_with` makes them, and gets the names of secrets that are taken."""
    with short_transaction():
        list(Hall.objects.select_for_update())  # the names must still be free when the rows are written
        reading = read_with(reserved_names())
        if open_proposals().count() + len(reading.drafts) > MemberProposal.MAX_OPEN:
            reason = f"there may be {MemberProposal.MAX_OPEN} proposed members; approve or discard some first"
            raise RequestRefusedError(reason)
        for draft in reading.drafts:
            _require_free(draft.name)
            for value in draft.secrets.values():
                require_usable(value)
        return reading, [_store(reading.source, draft, by, bundle) for draft in reading.drafts]


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
    return unset_names(values.names_in(proposal.manifest))


def without_folder() -> list[MemberProposal]:
    """The approved members whose folder no node has created yet."""
    return [row for row in MemberProposal.objects.exclude(approved_at=None) if not row.has_folder]


def recently_approved() -> list[MemberProposal]:
    """The members that were approved in the last hour, and those without a folder on some node. The newest is first."""
    rows = MemberProposal.objects.exclude(approved_at=None).select_related("bundle").defer("bundle__files")
    begin = timezone.now() - FOLLOWED
    return [
        row
        for row in rows.order_by("-approved_at")
        if row.faults or not row.has_folder or (row.approved_at and row.approved_at >= begin)
    ]


def _store(source: str, draft: Draft, by: User | None, bundle: Bundle | None) -> MemberProposal:
    for secret, value in draft.secrets.items():
        set_secret(secret, value, by)
    proposal = MemberProposal.objects.create(
        name=draft.name,
        text=draft.text,
        digest=digest_of(draft.text, bundle.digest if bundle else ""),
        source=source,
        notes=list(draft.notes),
        inputs=[asdict(needed) for needed in draft.inputs],
        secrets=sorted(draft.secrets),
        created_by=by,
    )
    if bundle is not None and not Bundle.objects.filter(pk=bundle.pk, proposal=None).update(proposal=proposal):
        raise RequestRefusedError("the bundle is not there any more; upload it again")
    AuditEntry.record(Kind.MEMBER_PROPOSED, f"member {draft.name}", member=draft.name, after=_summary(proposal))
    return proposal


def _summary(proposal: MemberProposal) -> dict[str, str]:
    """For the audit log."""
    manifest = proposal.manifest
    command = " ".join([manifest.get("command", ""), *manifest.get("args", ())])
    summary = {"runs": manifest.get("url") or command, "sha256": proposal.digest}
    bundle = getattr(proposal, "bundle", None)
    return {**summary, "bundle": bundle.digest} if bundle else summary


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
