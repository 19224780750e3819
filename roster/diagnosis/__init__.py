"""Explain in one line why a member does not run, and what to do. Pure functions from facts to sentences.

The texts of the runtime and of members are matched loosely, by the rules in `sentences`, `outputs`, `python` and
`node`. An unknown text leads to the general advice.
"""

from __future__ import annotations

from roster.diagnosis.facts import MAX_LINE, SECRETS, Diagnosis, Facts, one_line, with_full_stop

__all__ = ["MAX_LINE", "SECRETS", "Diagnosis", "Facts", "diagnose", "form_key"]

READ_AGAIN = "The hall reads the file again automatically, within a second"


def diagnose(facts: Facts) -> Diagnosis | None:
    """None for a member that runs or is about to run."""
    if facts.manifest_error:
        return _of_manifest(facts)
    if not facts.enabled:
        return Diagnosis("Disabled: it does not run, and calls to it are refused.", "Enable it to have it started.")
    if facts.dead_node:
        return _of_dead_node(facts)
    if not facts.runtime_is_alive:
        return None  # the banner of the page says so, once for all members
    if facts.status == "error":
        from roster.diagnosis.errors import of_error  # late, because its patterns take time, and most members run

        return of_error(facts)
    if facts.status == "disconnected" and not facts.should_run:
        return Diagnosis("Stopped on request.", "Start it, or call one of its tools, which starts it too.")
    return None


def form_key(place: str) -> str:
    """The key of the form for a place in the manifest, such as args for mcp.args.1. Empty if nobody can edit it."""
    from mcp_runtime.members.manifest.changes import EDITABLE_KEYS  # late, as in `diagnose`

    key, *names = place.removeprefix("mcp.").split(".")
    if key not in EDITABLE_KEYS:
        return ""
    return f"{key}.{names[0]}" if names and key in ("limits", "node") else key


def _of_manifest(facts: Facts) -> Diagnosis:
    from mcp_runtime.members.manifest.files import FILE_NAME  # late, as in `diagnose`

    fault, key = facts.manifest_error.removeprefix(f"{facts.file}: "), facts.manifest_error_key
    where = f"{key} in {facts.file}" if key else facts.file
    cause = f"{FILE_NAME}: {key} {fault.removeprefix(f'{key}: ')}" if key else f"{FILE_NAME}: {fault}"
    runs_on = " Until then it runs on as it was." if facts.status in ("connected", "starting") else ""
    remedy = one_line(f"Fix {where}. {READ_AGAIN}.{runs_on}")
    return Diagnosis(with_full_stop(one_line(cause)), remedy, key=form_key(key))


def _of_dead_node(facts: Facts) -> Diagnosis:
    if facts.dead_node_holds_lease:
        remedy = (
            "Its fence was off when it died, so no other node takes its members. Start the runtime on that node "
            "again, "
            f"or remove the node if it is gone for ever: `guildhall remove_node {facts.dead_node}`"
        )
    elif facts.has_local_state:
        remedy = (
            "Start the runtime on that node again, because the member keeps local state there. Without this data it "
            "starts on another node if you force a move, or if you remove the node."
        )
    else:
        remedy = (
            "Another node takes the member over within about 10 s if it has the same files in the member's folder. "
            "Otherwise start the runtime on that node again."
        )
    return Diagnosis(f"The node {facts.dead_node!r} that owns this member does not answer.", remedy)
