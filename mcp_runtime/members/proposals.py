"""Approved members become folders. The runtime of each node does that, because the web may have no right to write.

The digest of the approval is checked once more here, so nothing else than what somebody has approved is written.
"""

from __future__ import annotations

import logging
from pathlib import Path

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.members import secret_uses
from mcp_runtime.members.manifest.files import create, digest_of
from mcp_runtime.members.manifest.parser import parse
from mcp_runtime.protocol.errors import ManifestError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from roster.models import GuildMember, Hall, MemberProposal

logger = logging.getLogger("guildhall.runtime")


def _approved() -> QuerySet[MemberProposal]:
    return MemberProposal.objects.filter(approved_at__isnull=False)


def write_approved(members_dir: Path) -> None:
    """Create the folders of approved members without a bundle that this node has not created yet.

    A fault is noted in the row, and tried again each time. When a member is removed, its approval is deleted, so it
    does not come back.
    """
    node = settings.GUILD_HALL_NODE
    rows = _approved().filter(bundle=None)  # `bundles` unpacks the others
    due = [pk for pk, nodes in rows.values_list("pk", "nodes") if nodes.get(node) != ""]
    for pk in due:
        with short_transaction():
            # Another node may note its own fault at this moment, or a user may discard the proposal.
            list(Hall.objects.select_for_update())
            if (proposal := _approved().filter(pk=pk).first()) is not None:
                _write(proposal, members_dir, node)


def _write(proposal: MemberProposal, members_dir: Path, node: str) -> None:
    if digest_of(proposal.text) != proposal.digest:
        fault = "its row is not what was approved; discard it"
    else:
        fault = create(members_dir, proposal.name, proposal.text)
    if proposal.nodes.get(node) != fault:
        logger.log(logging.WARNING if fault else logging.INFO, "approved member %s: %s", proposal.name, fault or "ok")
        proposal.nodes[node] = fault
        proposal.save(update_fields=["nodes"])


def allow_secrets() -> None:
    """Allow new members to use the secrets in their approved manifests, if they run what was approved."""
    for proposal in _approved().filter(allowed_at=None):
        member = GuildMember.objects.filter(name=proposal.name, removed_at=None).first()
        if member is None:
            continue
        try:
            _allow(proposal, member)
        except ManifestError as error:  # a newer release has approved it, which knows more keys
            logger.warning("approved member %s gets no secrets from this node: %s", member.name, error)


def _allow(proposal: MemberProposal, member: GuildMember) -> None:
    approved = parse(proposal.manifest)[0].as_json()
    with short_transaction():
        if not MemberProposal.objects.filter(pk=proposal.pk, allowed_at=None).update(allowed_at=timezone.now()):
            return
        if values.identity(member.manifest) != values.identity(approved):
            logger.warning("member %s is not what was approved, so it gets no secrets", member.name)
            return
        secret_uses.allow(member, values.names_in(approved), proposal.approved_by_id)
