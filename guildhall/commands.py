"""The commands of the hall for people, in the groups of `guildhall help`.

A command is a module in `roster/management/commands`, which has its help. A new one needs a name in one group here.
Django's own commands are in `manage.py help`.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    "Start a hall": ("up", "runtime", "prepare"),
    "Members": (
        *("roster", "member", "logs", "new_member", "check_members", "sync_roster", "add_member", "edit_member"),
        *("registry", "newest_version", "relock", "remove_member", "trash", "sign_in", "sign_out"),
    ),
    "Tools, prompts and resources": ("invoke", "calls", "tool", "prompt", "resource", "contracts", "tool_sets"),
    "Agents and clients": ("agent", "agent_config", "mcp_stdio"),
    "Users and access": (
        *(
            "create_user",
            "set_role",
            "invite",
            "changepassword",
            "login_link",
            "create_token",
            "explain_access",
            "reserve",
            "audit",
        ),
    ),
    "Secrets": ("secrets", "set_secret", "allow_secret", "delete_secret", "rotate_secrets_key"),
    "Nodes": ("nodes", "move_member", "drain_node", "undrain_node", "rebalance", "remove_node"),
    "Upkeep": ("prune_calls",),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)
# These prepare a database or start processes. All others work beside a hall, and create no data folder.
STARTING = ("up", "runtime", "prepare")


def is_beside_hall(argv: list[str]) -> bool:
    """Whether the command line, without the program, is of a command that works beside a hall."""
    if not argv or argv[0] not in NAMES:
        return False
    return argv[0] not in STARTING or (argv[0] == "runtime" and "--check" in argv)
