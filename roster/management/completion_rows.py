"""Names from the rows of the hall, for the completion of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.contrib.auth.models import Group, User
from django.db.models import QuerySet

from mcp_runtime.control.extras import Kind, extras_of
from mcp_runtime.control.members import find_member, members_of_roster
from roster.management.hall_command import require_hall
from roster.models import Agent, MemberProposal, Node, Secret, Tool, ToolSet

MAX_CANDIDATES = 1_000
MEMBER_COMMANDS = ("logs", "relock", "remove_member", "newest_version", "edit_member", "sign_in", "sign_out")
Pair = tuple[str, str]  # a value and its description


def candidates(command: str, argument: str, values: dict[str, str], word: str) -> Iterator[Pair]:
    """The values of an argument that begins with `word`. `values` are the arguments before it.

    Raises CommandError without a hall.
    """
    require_hall()
    source = SOURCES.get((command, argument)) or SOURCES.get(("", argument))
    if source is None:
        return
    # In a list such as `a,b`, only the last name is completed.
    before, comma, _ = word.rpartition(",") if argument in LISTS else ("", "", "")
    for count, (value, description) in enumerate(source(values)):
        if count == MAX_CANDIDATES:
            return
        yield f"{before}{comma}{value}", description


LISTS = ("members", "tools", "groups", "pin")


def _members(_: Any) -> QuerySet[Any, Pair]:
    return members_of_roster().order_by("name").values_list("name", "display_name")


def _tools(values: dict[str, str]) -> Iterator[Pair]:
    rows = Tool.objects.filter(member__name=values.get("member", ""), member__removed_at=None, listed=True)
    return ((name, "") for name in rows.order_by("name").values_list("name", flat=True))


def _all_tools(_: Any) -> Iterator[Pair]:
    rows = Tool.objects.filter(member__removed_at=None, listed=True).order_by("member__name", "name")
    return ((f"{member}/{name}", "") for member, name in rows.values_list("member__name", "name"))


def _prompts(values: dict[str, str]) -> Iterator[Pair]:
    return ((prompt.name, prompt.title) for prompt in extras_of(find_member(values.get("member", "")), Kind.PROMPT))


def _resources(values: dict[str, str]) -> Iterator[Pair]:
    return ((each.name, each.title) for each in extras_of(find_member(values.get("member", "")), Kind.RESOURCE))


def _users(_: Any) -> QuerySet[Any, Pair]:
    return User.objects.filter(is_active=True).order_by("username").values_list("username", "first_name")


def _plain(model: Any, field: str = "name") -> Callable[[Any], Iterator[Pair]]:
    return lambda _: ((value, "") for value in model.objects.order_by(field).values_list(field, flat=True))


# By command and argument. Without a command, it is for all commands with such an argument.
SOURCES: dict[tuple[str, str], Callable[[dict[str, str]], Any]] = {
    ("", "member"): _members,
    ("", "members"): _members,
    ("member", "names"): _members,
    **{(command, "name"): _members for command in MEMBER_COMMANDS},
    ("add_member", "name"): _plain(MemberProposal),
    ("", "tool"): _tools,
    ("explain_access", "tool"): _all_tools,
    ("", "tools"): _all_tools,
    ("", "pin"): _all_tools,
    ("contracts", "name"): _tools,
    ("", "prompt"): _prompts,
    ("agent", "prompt"): lambda _: (),
    ("agent", "name"): _plain(Agent),
    ("", "uri"): _resources,
    ("", "user"): _users,
    ("", "actor"): _users,
    ("", "username"): _users,
    ("set_role", "name"): _users,
    ("login_link", "name"): _users,
    ("", "groups"): _plain(Group),
    ("", "node"): _plain(Node),
    ("", "secret"): _plain(Secret),
    **{(command, "name"): _plain(Secret) for command in ("set_secret", "delete_secret")},
    ("", "tool_set"): _plain(ToolSet),
}
