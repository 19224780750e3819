"""Edits of manifests: propose, approve, discard, take back. The runtime of each node changes the files.

An edit is a JSON Merge Patch (RFC 7396) of the keys of guild-member.json: a value replaces the one in the file, and
null removes it. Secrets in it become secrets of the hall. A person who may approve members reads what would change, and
approves that. It then changes only the values that it names, and only where they still are what the person saw.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.agents import transitions
from mcp_runtime.control.members import find_member, record_of_member
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.control.secrets import require_usable, reserved_names, set_secret, shown_text
from mcp_runtime.members.edits import forget
from mcp_runtime.members.manifest.changes import HIDDEN_KEYS, Change, changed, changes_of, faults_of
from mcp_runtime.members.manifest.declaration import FIELDS, Manifest
from mcp_runtime.members.manifest.files import FILE_NAME, decode, text_of
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import (
    InvalidEditError,
    ManifestError,
    MemberInUseError,
    RequestRefusedError,
    SourceError,
    UnknownEditError,
)
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from mcp_runtime.secrets.references import MASK
from mcp_runtime.security.access import Principal
from mcp_runtime.sources.patches import masked_arguments, without_secrets
from roster.models import AuditEntry, GuildMember, Hall, ManifestEdit, Node

Kind = AuditEntry.Kind
MAX_PATCH = 262_144  # bytes
ALLOW_SECRETS = "roster.change_secret"


def edits_of(principal: Principal) -> QuerySet[ManifestEdit]:
    """The edits of members that are not reserved for others, the newest first."""
    rows = ManifestEdit.objects.exclude(member__name__in=principal.closed_members)
    return rows.select_related("member", "created_by", "approved_by").prefetch_related("undone_by")


def find_edit(pk: int, principal: Principal) -> ManifestEdit:
    """Raises UnknownEditError."""
    edit = edits_of(principal).filter(pk=pk).first()
    if edit is None:
        raise UnknownEditError(f"there is no edit with the number {pk}")
    return edit


def propose_edit(
    row: GuildMember, patch: Mapping[str, Any], by: User | None, *, approve: bool = False, force: bool = False
) -> ManifestEdit:
    """Store what the patch would change, and set the secrets in it. Nothing else happens before somebody approves it.

    With `approve` it is approved too, or nothing is stored. Raises InvalidEditError, SourceError, UnknownMemberError,
    RequestRefusedError, and with `approve` what `approve_edit` raises.
    """
    _require_storable(patch)
    with short_transaction():
        list(Hall.objects.select_for_update())
        member = find_member(row.name)
        if member.edits.filter(approved_at=None).count() >= ManifestEdit.MAX_OPEN:
            reason = f"member {member.name!r} has {ManifestEdit.MAX_OPEN} proposed edits; approve or discard some first"
            raise RequestRefusedError(reason)
        reserved = reserved_names() | values.names_in(member.manifest)
        hidden, secrets = without_secrets(member.name, patch, args=member.manifest.get("args") or (), reserved=reserved)
        for secret in secrets.values():
            require_usable(secret)
        _require_editable(member)
        edit = _new(member, _changes(member, hidden))
        for name, secret in secrets.items():
            set_secret(name, secret, by)
        edit.secrets, edit.created_by, edit.created_at = sorted(secrets), by, timezone.now()
        edit.save()
        _record(edit, Kind.EDIT_PROPOSED)
        if approve:
            _require_approvable(edit, member, force=force)
            _approve(edit, by)
    if approve:
        notify_runtime(members=True)
    return edit


def approve_edit(edit: ManifestEdit, by: User | None, *, force: bool = False) -> ManifestEdit:
    """Let the runtime of each node change its file. The member then runs with the new values.

    Raises MemberInUseError while an agent needs the member and the edit restarts it, unless `force`. Raises
    UnknownEditError if it was discarded, and RequestRefusedError.
    """
    with short_transaction():
        list(Hall.objects.select_for_update())
        edit = _locked(edit)
        if edit.approved_at is not None:
            raise RequestRefusedError(f"edit {edit.pk} is approved already")
        _require_approvable(edit, find_member(edit.member.name), force=force)
        _approve(edit, by)
    notify_runtime(members=True)
    return edit


def undo_edit(edit: ManifestEdit, by: User | None, *, force: bool = False) -> ManifestEdit:
    """Let the runtime change the values back. Returns the edit that does it.

    Raises what `approve_edit` raises.
    """
    with short_transaction():
        list(Hall.objects.select_for_update())
        edit = _locked(edit)
        if not edit.is_written:
            raise RequestRefusedError(f"edit {edit.pk} is in no file yet; discard it instead")
        if back := edit.undone_by.first():
            raise RequestRefusedError(f"edit {edit.pk} is taken back by edit {back.pk} already")
        if edit.is_forced:
            raise RequestRefusedError(f"edit {edit.pk} replaced values that the hall did not know, so it stays")
        member = find_member(edit.member.name)
        back = _new(member, [Change.from_json(change).reversed() for change in edit.changes])
        back.undoes, back.created_by = edit, by
        _require_approvable(back, member, force=force)
        back.save()
        _approve(back, by)
    notify_runtime(members=True)
    return back


def discard_edit(edit: ManifestEdit) -> None:
    """Delete an edit that no node has written. Of one that some nodes have written, the others give up.

    The secrets that came with a proposed edit are deleted, unless something else refers to them. Raises
    UnknownEditError and RequestRefusedError.
    """
    with short_transaction():
        list(Hall.objects.select_for_update())
        edit = _locked(edit)
        if edit.is_written and not edit.faults:
            raise RequestRefusedError(f"edit {edit.pk} is in the file already; take it back instead")
        _record(edit, Kind.EDIT_DISCARDED)
        if edit.is_written:
            edit.nodes = {node: fault for node, fault in edit.nodes.items() if not fault}
            edit.save(update_fields=["nodes"])
        else:
            forget([edit])


def is_needed(member: GuildMember) -> bool:
    """Whether an agent needs the member, so that a restart must be forced."""
    try:
        transitions.require_unneeded(member)
    except MemberInUseError:
        return True
    return False


def shown_value(change: Change, value: Any) -> Any:
    """A value of the change for people. What could be a secret in args, env and headers is masked."""
    if change.path == ("args",) and isinstance(value, list):
        return _shown_args(value)
    return shown_text(change.path[-1], value) if change.path[0] in HIDDEN_KEYS else value


def _shown_args(args: list[Any]) -> list[Any]:
    try:
        return masked_arguments([str(arg) for arg in args], MASK)
    except SourceError:  # one of them can be read neither as a secret nor as a text
        return [MASK for _ in args]


# How it is made ---------------------------------------------------------------------------------------------------


def _changes(member: GuildMember, patch: Mapping[str, Any]) -> list[Change]:
    try:
        changes = changes_of(member.manifest, patch, keep_same=bool(member.manifest_error))
    except ManifestError as error:
        raise InvalidEditError(error) from error
    if not changes:
        raise RequestRefusedError(f"nothing of this is another value than member {member.name!r} has already")
    return changes


def _require_editable(member: GuildMember) -> None:
    """Raise RequestRefusedError if the fault of the file is at no value, because then no new value repairs it."""
    key = member.manifest_error_key.removeprefix("mcp.").partition(".")[0]
    if member.manifest_error and key not in FIELDS:
        fault = member.manifest_error.removeprefix(f"{member.directory}/{FILE_NAME}: ")
        raise RequestRefusedError(
            f"the file of member {member.name!r} cannot be edited here; repair it by hand: {fault}"
        )


def _require_storable(patch: Mapping[str, Any]) -> None:
    """Raise RequestRefusedError for what no file or row can have, and for a mask in place of a value."""
    try:
        text = json.dumps(patch, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (ValueError, RecursionError):  # UnicodeEncodeError is a ValueError
        raise RequestRefusedError("the edit has values that JSON in UTF-8 cannot have") from None
    if size > MAX_PATCH:
        raise RequestRefusedError(f"the edit is larger than {MAX_PATCH:,} bytes")
    if "\\u0000" in text:
        raise RequestRefusedError("the edit has a NUL character")
    if MASK in text:
        raise RequestRefusedError(f"the edit has {MASK}, which stands for a hidden value; write the value in its place")


def _new(member: GuildMember, changes: list[Change]) -> ManifestEdit:
    """An edit that is not saved yet. Raises InvalidEditError if the manifest would not be valid with it.

    The file of a member with a faulty manifest has values that the hall does not know. The node validates all of it.
    """
    edit = ManifestEdit(
        member=member,
        changes=[change.as_json() for change in changes],
        fault=member.manifest_error,
        identity_before=values.identity(member.manifest),
    )
    if edit.is_forced:
        if faults := faults_of(changes):
            raise InvalidEditError(ManifestError(faults[0].path, faults[0].reason, faults[1:]))
        edit.needs_restart = member.status in (GuildMember.Status.CONNECTED, GuildMember.Status.STARTING)
        return edit
    document = changed(member.manifest, changes)
    try:
        manifest, edit.notes = parse(document)
        decode(text_of(document).encode())  # a file has bounds too
    except ManifestError as error:
        raise InvalidEditError(error) from error
    edit.needs_restart = manifest.process_digest != Manifest.from_json(member.manifest).process_digest
    edit.identity_after = values.identity(manifest.as_json())
    return edit


def _locked(edit: ManifestEdit) -> ManifestEdit:
    """The row as it is now, which no node and no other person changes until the end of the transaction."""
    row = ManifestEdit.objects.select_for_update(of=("self",)).select_related("member").filter(pk=edit.pk).first()
    if row is None:
        raise UnknownEditError(f"edit {edit.pk} was discarded")
    return row


def _require_approvable(edit: ManifestEdit, member: GuildMember, *, force: bool) -> None:
    """Raise RequestRefusedError if the member is not what the person saw, or if another edit of it is on its way.

    Raises MemberInUseError while an agent needs the member and the edit restarts it, unless `force`.
    """
    if edit.needs_restart and not force:
        transitions.require_unneeded(member)
    others = member.edits.exclude(approved_at=None).exclude(pk=edit.pk)
    if waiting := next((other for other in others if not other.is_written), None):
        raise RequestRefusedError(
            f"edit {waiting.pk} of member {member.name!r} is approved and not written yet; wait for it, or discard it"
        )
    if edit.fault != member.manifest_error:
        raise RequestRefusedError(f"the file of member {member.name!r} has changed since; edit it again")
    if not edit.is_forced and edit.identity_before != values.identity(member.manifest):
        raise RequestRefusedError(f"member {member.name!r} is not what it was when it was edited; edit it again")
    wanted = [Change.from_json(change) for change in edit.changes]
    patch = {change.path: change.after for change in wanted}
    before = {change.path: change.before for change in wanted}
    current = {change.path: change.before for change in changes_of(member.manifest, _as_patch(patch))}
    if not edit.is_forced and current != before:
        raise RequestRefusedError(f"member {member.name!r} has other values than when it was edited; edit it again")


def _as_patch(after: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for path, value in after.items():
        if len(path) == 1:
            patch[path[0]] = value
        else:
            patch.setdefault(path[0], {})[path[1]] = value
    return patch


def _approve(edit: ManifestEdit, by: User | None) -> None:
    edit.approved_at, edit.approved_by = timezone.now(), by
    edit.keeps_secrets = by is None or by.has_perm(ALLOW_SECRETS)
    edit.nodes = dict.fromkeys(_nodes_with(edit.member), ManifestEdit.NOT_YET)
    edit.save(update_fields=["approved_at", "approved_by", "keeps_secrets", "nodes"])
    _record(edit, Kind.EDIT_APPROVED)


def _nodes_with(member: GuildMember) -> list[str]:
    """The nodes whose file the edit changes: the owner, and those that have noted the folder. All, if none is known."""
    nodes = list(Node.objects.only("name", "folders"))
    holders = [node.name for node in nodes if node.pk == member.node_id or member.name in node.folders]
    return holders or [node.name for node in nodes]


def _record(edit: ManifestEdit, kind: AuditEntry.Kind) -> None:
    changes = [Change.from_json(change) for change in edit.changes]
    before = {change.key: shown_value(change, change.before) for change in changes}
    after = {change.key: shown_value(change, change.after) for change in changes}
    record_of_member(edit.member, kind, before=before, after=after)
