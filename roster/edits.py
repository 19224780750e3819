"""An edit of a manifest in the form in which REST, the admin and commands show it."""

from __future__ import annotations

import difflib
import json
from typing import Any

from mcp_runtime.control.edits import shown_value
from mcp_runtime.control.secrets import unset_names
from mcp_runtime.members.manifest.changes import Change, default_of
from mcp_runtime.secrets.references import secret_names
from roster.models import ManifestEdit

MAX_LINE = 2000


def described(edit: ManifestEdit) -> dict[str, Any]:
    """All that an approval is about, as JSON values. Values that could be secrets are masked."""
    changes = [Change.from_json(change) for change in edit.changes]
    undone_by = max((other.pk for other in edit.undone_by.all()), default=None)
    return {
        "id": edit.pk,
        "member": edit.member.name,
        "state": edit.state,
        "changes": [
            {
                "key": change.key,
                "before": shown_value(change, change.before),
                "after": shown_value(change, change.after),
                "default": None if edit.is_forced else default_of(change.path),
            }
            for change in changes
        ],
        "is_forced": edit.is_forced,
        "needs_restart": edit.needs_restart,
        "notes": edit.notes,
        "missing_secrets": [] if edit.is_written else missing_secrets(changes),
        "faults": edit.faults,
        "undoes": edit.undoes_id,
        "undone_by": undone_by,
        "may_undo": edit.is_written and not edit.is_forced and undone_by is None,
        "created_at": edit.created_at,
        "created_by": edit.created_by.get_username() if edit.created_by else None,
        "approved_at": edit.approved_at,
        "approved_by": edit.approved_by.get_username() if edit.approved_by else None,
    }


def missing_secrets(changes: list[Change]) -> list[str]:
    """The secrets to which the changed values refer and that nobody has set, by name."""
    return unset_names(secret_names([json.dumps(change.after, ensure_ascii=False) for change in changes]))


def lines_of(change: dict[str, Any]) -> list[str]:
    """The lines of a described change, each after `-`, `+` or a space, and cut if it is long.

    A long list shows what is around its changes.
    """
    return [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…" for line in _lines_of(change)]


def _lines_of(change: dict[str, Any]) -> list[str]:
    before, after = (_lines(change[side], change["default"]) for side in ("before", "after"))
    if before == after:  # both are masked
        return [f"-{line}" for line in before] + [f"+{line}" for line in after]
    return [line for line in list(difflib.unified_diff(before, after, lineterm="", n=3))[2:] if line[:2] != "@@"]


def _lines(value: Any, default: Any) -> list[str]:
    if value is None:
        return [f"{json.dumps(default)} (default)"] if default not in (None, "", []) else []
    if isinstance(value, list):
        return [json.dumps(item, ensure_ascii=False) for item in value]
    return [json.dumps(value, ensure_ascii=False)]
