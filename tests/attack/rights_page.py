"""docs/roles.md, made from the tables of rights that the tests ask each route for. After a change write it again:

python manage.py shell -v0 -c "from tests.attack import rights_page; rights_page.write()"
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roster import roles
from tests.attack import rights_table
from tests.attack.rights_table import OWN_ROWS, ROWS, Row

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "roles.md"
COMMANDS = ROOT / "roster" / "management" / "commands"
REFUSED = "-"
EVERY_NAME = {"/admin/^(?P<app_label>roster|auth)/$": "/admin/<app>/", "/admin/(?P<url>.*)$": "/admin/<other>"}


@dataclass(frozen=True)
class Column:
    """Somebody who asks, with the rights of a role."""

    name: str
    permissions: frozenset[str] = frozenset()
    is_known: bool = True
    is_superuser: bool = False

    @classmethod
    def of_role(cls, name: str) -> Column:
        names = roles.permissions_of_role(name)
        return cls(name, frozenset(permission.partition(".")[2] for permission in names))


COLUMNS = [
    Column("anonymous", is_known=False),
    Column("no role"),
    *map(Column.of_role, roles.NAMES),
    Column("superuser", is_superuser=True),
]
_OWN = {(row.method, row.route): row for row in OWN_ROWS}

HEAD = """# What each role may do

This page lists each page of the admin, each path of REST and of the gateway, and each command. It says what somebody
with a certain [role](access.md#roles) may do there. It is generated from the table with which the tests ask each path
as each role.

| Word | Meaning |
|---|---|
| sees | The path answers. It shows only what exists for this user, so not members that are reserved for others |
| may | The request is carried out, if it is possible now |
| own | Only for own calls, tokens, agents and presets |
| fewer | Only for users and groups that have no right which the editor lacks |
| - | Refused. Somebody without a login is led to the login page, or gets 401 |

A token has the rights of its user, or fewer ([access](access.md#tokens)). Superusers can give a user single
permissions, which add to the role. `…` stands for the beginning of the first path of its line. In the admin, a path
that ends with `<id>/` leads to `<id>/change/`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, rows in (
        ("The admin", [row for row in ROWS if not row.is_api and not row.route.endswith("/<path:object_id>/")]),
        ("REST and other paths of the web", [row for row in ROWS if row.is_api]),
    ):
        parts += [f"## {title}\n", _table("Path", _lines(rows))]
    parts += ["## The gateway\n", GATEWAY_TEXT, _table("Path", _gateway_lines())]
    return "\n".join([*parts, "## Commands\n", _commands()])


def write() -> None:
    PAGE.write_text(page())


def _table(heading: str, lines: list[tuple[str, list[str]]]) -> str:
    names = [column.name for column in COLUMNS]
    head = [f"| {heading} | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    return "\n".join([*head, *(f"| {paths} | {' | '.join(cells)} |" for paths, cells in lines), ""])


# The web ----------------------------------------------------------------------------------------------------------


def _cell(row: Row, column: Column) -> str:
    if row.opens_for(column):
        return "sees" if row.method == "GET" else "may"
    own = _OWN.get((row.method, row.route))
    if own is not None and own.opens_for(column):
        return "fewer" if row.route.startswith("/admin/auth/") else "own"
    return REFUSED


def _lines(rows: list[Row]) -> list[tuple[str, list[str]]]:
    """The rows of one noun that have the same cells are one line. Only what GET shows, and what POST does, differ."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for row in rows:
        cells = tuple(_cell(row, column) for column in COLUMNS)
        groups.setdefault((_noun(row.route), row.method, cells), []).append(_name(row.route))
    ordered = sorted(groups.items(), key=lambda group: group[0][0])
    return [(f"{method} {_shortened(names)}", list(cells)) for (_, method, cells), names in ordered]


def _noun(route: str) -> str:
    parts = route.split("/")
    model = "/".join(parts[2:4]) if parts[1:3] in (["admin", "roster"], ["admin", "auth"]) else ""
    return model or ("api/" + parts[2] if parts[1] == "api" and "(" not in parts[2] else f" {parts[1]}")


def _name(route: str) -> str:
    """The route for people: `<id>` for `<int:member_id>`."""
    name = EVERY_NAME.get(route) or re.sub(r"<(?:\w+:)?(\w+?)>", lambda match: f"<{_parameter(match[1])}>", route)
    return name.replace("(nowhere)", "<other>/")


def _parameter(name: str) -> str:
    return "id" if name.endswith("_id") or name == "pk" else name


def _shortened(names: list[str]) -> str:
    """The names as code, without what they share with the first one."""
    first = names[0]
    base = first[: first.index("/", first.index("/", 1) + 1) + 1] if first.count("/") > 2 else first
    if first.startswith(("/admin/roster/", "/admin/auth/")):
        base = "/".join(first.split("/")[:4]) + "/"
    shared = [
        f"`{first}`",
        *(f"`…{name.removeprefix(base)}`" if name.startswith(base) else f"`{name}`" for name in names[1:]),
    ]
    return ", ".join(shared)


# The gateway ------------------------------------------------------------------------------------------------------

GATEWAY_TEXT = """A client needs a token. Its lists have only tools that its user may call.
"""
_GATEWAY_NAMES = {
    "/mcp": "/mcp",
    "/mcp?members=notes": "/mcp?members=<members>",
    "/mcp/notes": "/mcp/<member>",
    "/agents/{agent}/mcp": "/agents/<agent>/mcp",
}


def _gateway_lines() -> list[tuple[str, list[str]]]:
    kinds = {line.split()[0]: line.split()[2:] for line in rights_table.GATEWAY_PATHS.strip().splitlines()}
    return [
        (f"`{name}`", [_gateway_cell(kinds[path], column) for column in COLUMNS])
        for path, name in _GATEWAY_NAMES.items()
    ]


def _gateway_cell(kinds: list[str], column: Column) -> str:
    """`kinds` of tokens are those of GATEWAY_PATHS, in which the agent belongs to another user."""
    invokes = column.is_superuser or "invoke_tool" in column.permissions
    if not column.is_known or not (invokes or "nothing" in kinds):
        return REFUSED
    if not kinds:
        return "own"
    return "may" if invokes else "sees"


# Commands ---------------------------------------------------------------------------------------------------------


def _commands() -> str:
    names = sorted(path.stem for path in COMMANDS.glob("*.py") if path.stem != "__init__")
    with_user = [name for name in names if '"--user"' in (COMMANDS / f"{name}.py").read_text()]
    lines = [
        "Whoever can run `manage.py` in the folder of the hall can also read its database. So the commands ask for no",
        "role. They act as the operator, who has all rights. The [audit log](audit.md) names the user of the system.",
        "",
        "| Command | Who |",
        "|---|---|",
        f"| {_listed(name for name in names if name not in with_user)} | the operator |",
        f"| {_listed(with_user)} | the operator, or with `--user` at most what this user may do |",
        "",
    ]
    return "\n".join(lines)


def _listed(names: Iterator[str] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
