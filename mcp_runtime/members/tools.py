"""A member's tools as rows: what its last tools/list told, and whether their input schemas can be used."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from django.db import transaction

from mcp_runtime.client import quick_json
from mcp_runtime.schemas import schema_work
from roster.models import Tool

# Of one list, in seconds; a schema that is begun is checked to its end. What it does not reach is checked when the tool
# is first called.
MAX_CHECK_SECONDS = 2.0
MAX_KNOWN_FAULTS = 4096


def rows_of(member_id: int, definitions: list[dict[str, Any]]) -> list[Tool]:
    """The rows of these tools, in this order, not yet written. May take MAX_CHECK_SECONDS: not for a transaction."""
    deadline = time.monotonic() + MAX_CHECK_SECONDS
    with schema_work.paced(("member", member_id)):
        return [
            Tool(
                member_id=member_id,
                name=definition["name"],
                position=position,
                definition=definition,
                schema_error=_fault(definition.get("inputSchema")) if time.monotonic() < deadline else "",
                listed=True,
            )
            for position, definition in enumerate(definitions)
        ]


def write(member_id: int, rows: list[Tool]) -> None:
    """Make the member's tools these. Those that left stay as rows that are not listed."""
    with transaction.atomic():
        Tool.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["member", "name"],
            update_fields=["position", "definition", "schema_error", "listed"],
            batch_size=500,
        )
        names = [row.name for row in rows]
        Tool.objects.filter(member_id=member_id, listed=True).exclude(name__in=names).update(listed=False)


# By the schema's digest: thousands of schemas would fill the memory.
_faults_by_digest: dict[bytes, str] = {}


def _fault(schema: Any) -> str:
    """Why the schema cannot be used; empty when it can. Members start again and again with the same ones."""
    digest = hashlib.sha256(quick_json.encode(schema)).digest()
    if (fault := _faults_by_digest.get(digest)) is not None:
        return fault
    # 0.1 s of CPU to import, which the first members have while they start.
    from mcp_runtime.schemas import validation

    fault = validation.check_schema(schema)
    if fault not in validation.PASSING_FAULTS:
        if len(_faults_by_digest) >= MAX_KNOWN_FAULTS:
            _faults_by_digest.clear()
        _faults_by_digest[digest] = fault
    return fault
