"""Approved edits are written into manifests. The runtime of each node does that, because the web may have no right to.

Only the values of the edits change in the file. If it has other values than the person saw, it stays as it is. A node
that was away may owe several edits of a member. It makes all of them at once, so that no file has half of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from datetime import timedelta
from itertools import groupby
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.utils import timezone

from mcp_runtime.members import secret_uses
from mcp_runtime.members.manifest.changes import Change, applied, is_applied
from mcp_runtime.members.manifest.files import FILE_NAME, decode, load, read_file, replace, text_of
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import ManifestError
from mcp_runtime.protocol.jsonrpc import storable
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from roster.models import GuildMember, ManifestEdit, Secret, SecretUse

ALLOW_WITHIN = timedelta(days=1)  # after the approval. Later somebody must allow the secrets again

logger = logging.getLogger("guildhall.runtime")


def write_approved(members_dir: Path) -> None:
    """Change the files on this node that are not changed yet.

    A fault is noted in the row, and tried again each time. A node that was away does it when it is back. A node that is
    new since the approval does not, because its file may be newer than the edit.
    """
    node = settings.GUILD_HALL_NODE
    rows = ManifestEdit.objects.exclude(approved_at=None).filter(member__removed_at=None)
    found = rows.order_by("member", "approved_at", "pk").values_list("pk", "member", "nodes")
    due = [(member, pk) for pk, member, nodes in found if (nodes.get(node) if nodes else ManifestEdit.NOT_YET)]
    for _, edits in groupby(due, key=lambda pair: pair[0]):
        with short_transaction():
            # Another node may note its own fault at this moment, or a user may discard an edit.
            rows = ManifestEdit.objects.select_for_update(of=("self",)).filter(pk__in=[pk for _, pk in edits])
            _write(list(rows.select_related("member").order_by("approved_at", "pk")), members_dir, node)


def _write(edits: list[ManifestEdit], members_dir: Path, node: str) -> None:
    """Write edits of one member, all or none of them."""
    if not edits:
        return
    member = edits[0].member
    folder = members_dir / member.directory
    if ".." in PurePosixPath(member.directory).parts or not (folder / FILE_NAME).exists():
        return
    fault, key = _change(folder, members_dir, edits, node)
    obstacles = [edit for edit in edits if any(change.key == key for change in _changes(edit))] or edits
    for edit in edits:
        reason = storable(fault) if edit in obstacles else f"its file waits for edit {obstacles[-1].pk}"
        if edit.nodes.get(node, ManifestEdit.NOT_YET) != reason:
            if reason:
                logger.warning("edit %d of member %s: %s", edit.pk, member.name, reason)
            else:
                logger.info("edit %d of member %s is in its file", edit.pk, member.name)
            edit.nodes[node] = reason
            edit.save(update_fields=["nodes"])


def _change(folder: Path, members_dir: Path, edits: list[ManifestEdit], node: str) -> tuple[str, str]:
    """Change the file. Return why that is impossible, and the key of the value at fault. Both may be empty."""
    path, member = folder / FILE_NAME, edits[0].member
    try:
        read = path.stat()
        document = load(path, members_dir)
        if document.get("name") != member.name:
            return f"its file {path} is that of another member", ""
        after = applied(document, [_changes(edit) for edit in edits], replaced=_replaced(folder, members_dir, edits))
        content = text_of(after).encode()
        parse(decode(content))
        if after != document:
            replace(path, members_dir, content, read=read, owner=node)
    except ManifestError as error:
        return f"its file {path} cannot be changed: {error}", error.path
    except OSError as error:
        return f"its file {path} cannot be written: {error.strerror}; change it by hand", ""
    except (ValueError, RecursionError):  # numbers and characters that the hall can read, but not write
        return f"its file {path} has values that cannot be written again; change it by hand", ""
    return "", ""


def _changes(edit: ManifestEdit) -> list[Change]:
    return [Change.from_json(change) for change in edit.changes]


def _replaced(folder: Path, members_dir: Path, edits: list[ManifestEdit]) -> set[tuple[str, ...]]:
    """The values that somebody wanted to replace without knowing them, because the file has this fault."""
    forced = [edit for edit in edits if edit.is_forced]
    fault = read_file(folder, edits[0].member.directory, members_dir).fault if forced else ""
    return {change.path for edit in forced if edit.fault == fault for change in _changes(edit)}


def allow_secrets() -> None:
    """Let edited members use the secrets that they could use before, if they are what the edit makes of them."""
    recent = ManifestEdit.objects.filter(allowed_at=None, approved_at__gt=timezone.now() - ALLOW_WITHIN)
    waiting = recent.filter(fault="", member__removed_at=None).values_list("pk", "identity_after", "member")
    members = GuildMember.objects.filter(pk__in={member for _, _, member in waiting}).only("name", "manifest", "status")
    identities = {member.pk: (values.identity(member.manifest), member) for member in members}
    for pk, identity_after, member_id in waiting:
        identity, member = identities[member_id]
        if identity == identity_after:
            _allow(ManifestEdit.objects.get(pk=pk), member)


def _allow(edit: ManifestEdit, member: GuildMember) -> None:
    # Another value of a header changes nothing in the identity, but the secret in it must be allowed.
    if not is_applied(member.manifest, _changes(edit)):
        return
    with short_transaction():
        if not ManifestEdit.objects.filter(pk=edit.pk, allowed_at=None).update(allowed_at=timezone.now()):
            return
        names = set(edit.secrets)
        if edit.keeps_secrets:
            uses = SecretUse.objects.filter(member=member, digest=edit.identity_before)
            names |= set(uses.values_list("secret__name", flat=True))
        secret_uses.allow(member, names & values.names_in(member.manifest), edit.approved_by_id)


# Their end --------------------------------------------------------------------------------------------------------


def forget(edits: Iterable[ManifestEdit]) -> None:
    """Delete edits, and the secrets that came with proposed ones."""
    for edit in edits:
        delete_secrets(edit)
        edit.delete()


def delete_secrets(edit: ManifestEdit) -> None:
    """Delete secrets that came with a proposed edit, unless something refers to them or somebody set them again."""
    if edit.approved_at is not None or not edit.secrets:
        return
    others = [str(other.changes) for other in edit.member.edits.exclude(pk=edit.pk)]
    wanted = values.names_in(edit.member.manifest)
    unwanted = [name for name in edit.secrets if not any(f"${{secret:{name}}}" in changes for changes in others)]
    for secret in Secret.objects.filter(name__in=set(unwanted) - wanted, uses=None, changed_at__lte=edit.created_at):
        secret_uses.delete(secret)


def forget_removed(names: Collection[str]) -> None:
    """Delete the edits of members that left the roster. Another member may get the name."""
    forget(ManifestEdit.objects.filter(member__name__in=names).select_related("member"))


def prune() -> None:
    """Delete edits that were approved long ago."""
    forget(ManifestEdit.expired().select_related("member"))
