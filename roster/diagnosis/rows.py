"""The diagnosis of a member's row, for REST and the commands. The admin has its own annotations."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, CharField, Expression, Value, When
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from mcp_runtime.control.nodes import Liveness
from roster.diagnosis import Diagnosis, Facts, diagnose
from roster.models import GuildMember


def manifest_words() -> dict[str, Expression]:
    """Annotations for queries without `manifest`: what a diagnosis of an error names of it."""
    return {f"manifest_{key}": _of_error(f"manifest__{key}") for key in ("command", "transport", "sandbox")}


def _of_error(path: str) -> Expression:
    value = Coalesce(KT(path), Value(""), output_field=CharField())
    return Case(When(status=GuildMember.Status.ERROR, then=value), default=Value(""), output_field=CharField())


def diagnosis_of_row(row: GuildMember, liveness: Liveness) -> Diagnosis | None:
    """Why it does not run and what to do. `row` is already as its reader may see it, with its true status."""
    facts = Facts(
        name=row.name,
        directory=row.directory,
        status=row.status,
        enabled=row.enabled,
        should_run=row.desired_state == GuildMember.DesiredState.RUNNING,
        runtime_is_alive=row.node_id in liveness.live_ids,
        dead_node=liveness.dead_owner_of(row),
        dead_node_holds_lease=row.node_id in liveness.stuck_ids,
        has_local_state=bool(liveness.dead_owner_of(row)) and row.state == "local",
        manifest_error=row.manifest_error,
        manifest_error_key=row.manifest_error_key,
        last_error=row.last_error,
        next_restart_at=row.next_restart_at,
        command=_word(row, "command"),
        transport=_word(row, "transport"),
        url=row.server_url,
        sandbox=_word(row, "sandbox"),
    )
    return diagnose(facts)


def _word(row: Any, key: str) -> str:
    annotated: str | None = getattr(row, f"manifest_{key}", None)
    return str(row.manifest.get(key, "")) if annotated is None else annotated
