"""Answers the questions of people which version of a member's package is the newest. The node of the member asks.

Only a person's question leads to one. Nothing of the newer version runs, because nobody has approved it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from django.utils import timezone

from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.protocol.errors import McpRuntimeError
from mcp_runtime.rows.database import persistently
from roster.models import GuildMember, VersionLookUp

logger = logging.getLogger("guildhall.runtime")

MAX_FAULT = 500  # characters


def due(lease_id: UUID) -> list[VersionLookUp]:
    """The questions about members of this runtime that have no answer."""
    rows = VersionLookUp.objects.filter(answered_at=None, member__lease_id=lease_id, member__removed_at=None)
    return list(rows.select_related("member"))


def answer(look_up: VersionLookUp, newest_version: Callable[[GuildMember, Manifest], str]) -> None:
    """Find out the version, and write it to the row, unless somebody has asked again meanwhile."""
    version, fault = "", ""
    try:
        version = newest_version(look_up.member, Manifest.from_json(look_up.member.manifest))
    except McpRuntimeError as error:
        fault = f"{error}"[:MAX_FAULT]
    except Exception as error:
        logger.exception("the newest version for member %r could not be found out", look_up.member.name)
        fault = f"internal error: {error!r}"[:MAX_FAULT]
    rows = VersionLookUp.objects.filter(pk=look_up.pk, asked_at=look_up.asked_at)
    persistently(lambda: rows.update(answered_at=timezone.now(), version=version, fault=fault))
