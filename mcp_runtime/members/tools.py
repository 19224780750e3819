"""A member's tools as rows, from its last tools/list, with the faults of their input schemas."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from mcp_runtime.client import quick_json
from mcp_runtime.members import contracts
from mcp_runtime.members.contracts import Kind, Listing, Policy
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.schemas import schema_work
from roster.models import Tool

# Seconds for the schemas of one list. A check that has begun is completed. The schemas after it are checked at the
# first calls of their tools.
MAX_CHECK_SECONDS = 2.0
MAX_KNOWN_FAULTS = 4096


def rows_of(member_id: int, definitions: list[dict[str, Any]]) -> list[Tool]:
    """Create the rows of these tools, in this order, without writing them. Takes too long for a transaction."""
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


def contracts_of(member_id: int, definitions: list[dict[str, Any]], policy: Policy) -> Listing:
    """Compare these tools with their contracts, without writing them. Takes too long for a transaction."""
    return contracts.prepare(member_id, Kind.TOOL, {each["name"]: each for each in definitions}, policy)


def write(member_id: int, rows: list[Tool], listing: Listing) -> frozenset[str]:
    """Make these rows the member's tools. The rows of its other tools remain, but are not listed.

    `listing` has the contracts of the same tools. A transaction that has locked the row of the member calls it.
    Return the names of the held tools.
    """
    with short_transaction():
        held_names = contracts.write(member_id, listing)
        for row in rows:
            row.version = listing.versions[contracts.key_of(row.name)]
            row.is_held = contracts.key_of(row.name) in held_names
        Tool.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["member", "name"],
            update_fields=["position", "definition", "schema_error", "listed", "version", "is_held"],
            batch_size=500,
        )
        gone = Tool.objects.filter(member_id=member_id, listed=True).exclude(name__in=[row.name for row in rows])
        gone.update(listed=False, is_held=False)
    return frozenset(row.name for row in rows if row.is_held)


# By the schema's digest, because thousands of schemas would fill the memory.
_faults_by_digest: dict[bytes, str] = {}


def _fault(schema: Any) -> str:
    """Why the schema cannot be used. Empty if it can. Cached, because members often start with the same schemas."""
    digest = hashlib.sha256(quick_json.encode(schema)).digest()
    if (fault := _faults_by_digest.get(digest)) is not None:
        return fault
    import_validation()
    from mcp_runtime.schemas import validation

    fault = validation.check_schema(schema)
    if fault not in validation.TEMPORARY_FAULTS:
        if len(_faults_by_digest) >= MAX_KNOWN_FAULTS:
            _faults_by_digest.clear()
        _faults_by_digest[digest] = fault
    return fault


def import_validation() -> None:
    """Import the validation. It is imported late, because it takes 0.1 s of CPU while members start.

    All threads of a starting runtime import it here. Two threads that import parts of the same library in another order
    may end in Python's `_DeadlockError`.
    """
    from mcp_runtime.schemas import validation  # noqa: F401
