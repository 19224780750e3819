"""Loads the catalog from the rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from mcp_runtime.client import quick_json
from mcp_runtime.gateway import tool_sets
from mcp_runtime.gateway.catalog import Extras, OfferedMember, OfferedTool, Roster, entry
from mcp_runtime.members import contracts
from mcp_runtime.members.extras import COLUMNS, CONTRACTS, Disabled, Holds, ListedExtras, disabled_of
from mcp_runtime.protocol import mcp
from mcp_runtime.schemas import secrets
from roster.models import Agent, Contract, GuildMember, MemberExtras, Tool


def load(before: Roster) -> Roster:
    """Load the roster from the database: enabled members whose folder exists, their enabled tools, and their extras.

    Reuse the tools and extras that have not changed since `before`. Decoding and encoding a large definition blocks all
    other threads for tens of milliseconds, and any client can cause frequent reloads.
    """
    member_columns = ("name", "display_name", "manifest", "capabilities", "server_info", "instructions")
    rows = list(GuildMember.objects.filter(enabled=True, removed_at=None).only(*member_columns).order_by("name"))
    tools: dict[int, dict[str, OfferedTool]] = {row.pk: {} for row in rows}
    hidden: dict[int, set[str]] = {row.pk: set() for row in rows}
    names = {row.pk: row.name for row in rows}
    tool_rows = Tool.objects.filter(listed=True, enabled=True, is_held=False, member_id__in=names).order_by("position")
    previous_tools = {tool.digest: tool for member in before.members.values() for tool in member.tools.values()}
    columns = ("member_id", "name", Cast("definition", TextField()), "schema_error", "version")
    other_agreed = contracts.other_agreed_tools(names)
    for member_id, name, definition, fault, version in tool_rows.values_list(*columns):
        agreed = other_agreed.get((member_id, contracts.key_of(name)), definition)
        content = f"{names[member_id]}\0{name}\0{bool(fault)}\0{version}\0{definition}\0{agreed}"
        digest = hashlib.sha256(content.encode()).digest()
        tools[member_id][name] = previous_tools.get(digest) or _tool(
            names[member_id], name, json.loads(definition), agreed, digest, version, has_schema=not fault
        )
    # Include disabled tools that the member does not list now. It may accept a call anyway, or list them again soon.
    for member_id, name in Tool.objects.filter(enabled=False, member_id__in=names).values_list("member_id", "name"):
        hidden[member_id].add(name)
    held: dict[int, dict[str, str]] = {row.pk: {} for row in rows}
    other_holds: dict[int, dict[tuple[str, str], str]] = {row.pk: {} for row in rows}
    held_rows = Contract.objects.filter(is_held=True, member_id__in=names).order_by("pk")
    for member_id, kind, name, reason in held_rows.values_list("member_id", "kind", "name", "reason"):
        if kind == Contract.Kind.TOOL:
            held[member_id][name] = reason
            hidden[member_id].add(name)
        elif kind in CONTRACTS.values():
            other_holds[member_id][kind, name] = reason
    members = {row.name: _member(row, tools[row.pk], frozenset(hidden[row.pk]), held[row.pk]) for row in rows}
    held_names = {mcp.qualified_name(names[pk], name): (names[pk], name) for pk in held for name in held[pk]}
    by_listed_name = {tool.listed_name: tool for member in members.values() for tool in member.tools.values()}
    extras = _load_extras(names, other_holds, before.extras)
    return Roster(members, by_listed_name, held_names, extras, tool_sets.load())


def _load_extras(
    names: Mapping[int, str], holds: Mapping[int, Holds], before: Mapping[str, Extras]
) -> dict[str, Extras]:
    """Load the extras of the members with these ids and names. Only the changed ones are read whole."""
    digests = dict(MemberExtras.objects.filter(member_id__in=names).values_list("member_id", "digest"))
    disabled = disabled_of(digests)
    before_by_id = {pk: before.get(names[pk], Extras()) for pk in digests}
    known = {
        pk: extras
        for pk, extras in before_by_id.items()
        if (extras.digest, extras.holds, extras.disabled) == (digests[pk], holds[pk], disabled.get(pk, {}))
    }
    changed_rows = MemberExtras.objects.filter(member_id__in=digests.keys() - known.keys())
    loaded = {
        row.member_id: _extras(names[row.member_id], row, holds[row.member_id], disabled.get(row.member_id, {}))
        for row in changed_rows.iterator(chunk_size=1)
    }
    extras = known | loaded
    return {name: extras[pk] for pk, name in names.items() if pk in extras}


def _extras(member: str, row: MemberExtras, holds: Holds, disabled: Disabled) -> Extras:
    entries = {
        kind: [*filter(None, (entry(member, kind, definition) for definition in getattr(row, column)))]
        for kind, column in COLUMNS.items()
    }
    listed = ListedExtras.of({kind: [each.key for each in entries[kind]] for kind in COLUMNS}, holds, disabled)
    visible = {kind: tuple(each for each in entries[kind] if each.key not in listed.hidden(kind)) for kind in entries}
    return Extras(
        prompts=visible["prompts"],
        resources=visible["resources"],
        templates=visible["resourceTemplates"],
        listed=listed,
        holds=holds,
        disabled=disabled,
        digest=row.digest,
    )


def _tool(
    member: str, name: str, definition: dict[str, Any], agreed: str, digest: bytes, version: str, *, has_schema: bool
) -> OfferedTool:
    listed_name = mcp.qualified_name(member, name)
    listed_definition = mcp.offered_definition(definition, listed_name, has_schema=has_schema)
    # Not the schema in `listed_definition`, which has none if it is invalid. An invalid schema can still mark secrets.
    schema = definition.get("inputSchema")
    text = json.dumps(schema) if isinstance(schema, dict) else "{}"
    return OfferedTool(
        member=member,
        name=name,
        listed_name=listed_name,
        own_json=quick_json.encode(definition),
        listed_json=quick_json.encode(listed_definition),
        secretive_schema=text if secrets.may_mark_secrets(text) else "",
        parameter_headers=_parameter_headers(schema, text),
        version=version,
        needs_task=mcp.needs_task(definition),
        only_reads=mcp.only_reads(json.loads(agreed or "{}")),
        digest=digest,
    )


def _parameter_headers(schema: Any, text: str) -> Mapping[mcp.Place, str]:
    """Return the headers that a schema asks for, or none if it is invalid. Most ask for none and are skipped."""
    if "x-mcp-header" not in text:
        return {}
    try:
        return mcp.parameter_headers(schema)
    except ValueError:
        return {}


def _member(
    row: GuildMember, tools: Mapping[str, OfferedTool], hidden: frozenset[str], held: Mapping[str, str]
) -> OfferedMember:
    return OfferedMember(
        pk=row.pk,
        name=row.name,
        title=row.title,
        capabilities=row.capabilities,
        server_info=row.server_info,
        instructions=row.instructions,
        timeout=row.call_timeout,
        tool_timeouts=row.manifest.get("tool_timeouts", {}),
        max_concurrency=row.max_concurrency,
        tools=tools,
        hidden=hidden,
        held=held,
        holds_changes=contracts.policy_of(row.manifest) == contracts.Policy.HOLD,
    )


def members_of_agent(agent_id: int, user_id: int | None) -> frozenset[str] | None:
    """Return the members of an agent that the user or the operator created, or None if there is none."""
    agent = Agent.objects.filter(Q(created_by=None) | Q(created_by=user_id), pk=agent_id).first()
    return None if agent is None else frozenset(agent.members.values_list("name", flat=True))
