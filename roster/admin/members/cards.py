"""The cards of the roster. One query reads what all of them depend on, and HTML is kept until that changes."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.contrib.auth.context_processors import PermWrapper
from django.db.models import Expression, QuerySet, Subquery
from django.db.models.fields.json import KT
from django.http import HttpRequest
from django.template.loader import get_template
from django.utils.safestring import SafeString

from mcp_runtime.control import proposals
from mcp_runtime.control.calls import calls_of_last_hour
from mcp_runtime.control.nodes import liveness_of_value, nodes_as_value
from mcp_runtime.security import access
from roster.admin import present
from roster.admin.members.verbs import (
    Verb,
    current_row,
    diagnosis_of,
    tool_count,
    verbs_now,
    visible_since,
    waiting_counts,
    word_of,
)
from roster.admin.rows import principal_of
from roster.diagnosis import Diagnosis
from roster.diagnosis.rows import manifest_words
from roster.models import GuildMember, Tool
from roster.ranking import Texts

if TYPE_CHECKING:
    from roster.admin.members.verbs import Member

Status = GuildMember.Status

VIEW_TOOLS = "roster.view_tool"
MAX_KEPT = 2_000  # cards, of about 1 kB
# All columns that a card shows. It changes only when one of them changes.
COLUMNS = (
    *("id", "name", "directory", "removed_at", "display_name", "description", "server_url"),
    *("manifest_error", "manifest_error_key"),
    *("manifest_warnings", "enabled", "desired_state", "restart_requested_at", "status", "status_changed_at"),
    *(
        "needs_sign_in",
        "last_error",
        "progress",
        "no_answer_since",
        "warnings",
        "started_at",
        "protocol_version",
        "next_restart_at",
    ),
    "node",
)
_PLACES = {name: place for place, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class Card:
    """A member's card."""

    member: Member
    row: GuildMember  # its current state
    diagnosis: Diagnosis | None
    verbs: list[Verb]
    matching_tools: Sequence[Tool]
    last_hour: list[tuple[int, int]]  # (calls, failed), as `control.calls.calls_of_last_hour`
    node: str  # the name of its owner in a hall with several nodes. Otherwise empty
    held_count: int  # changes of what it offers that are held
    edit_count: int  # edits of it that are proposed
    may_sign_in: bool  # it needs a sign-in, and the user may give it

    @property
    def status(self) -> str:
        return self.row.status

    @property
    def word(self) -> str:
        """The status for people."""
        return word_of(self.row)

    @property
    def calls(self) -> int:
        return sum(calls for calls, _ in self.last_hour)

    @property
    def failed(self) -> int:
        return sum(failed for _, failed in self.last_hour)

    @property
    def host(self) -> str:
        """The address of a remote server."""
        return urlsplit(self.member.server_url).netloc.rpartition("@")[2]

    @property
    def is_alive(self) -> bool:
        """Whether the row's facts about a process are current."""
        return self.member.runtime_is_alive

    @property
    def since(self) -> datetime | None:
        return visible_since(self.member)

    @property
    def progress(self) -> str:
        return self.row.progress if self.status == Status.STARTING else ""

    @property
    def warning(self) -> str:
        warnings = self.row.all_warnings
        suffix = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
        return present.one_line(str(warnings[0]), 200) + suffix if warnings else ""

    @property
    def next_try(self) -> datetime | None:
        return self.row.next_restart_at if self.status == Status.ERROR else None

    @property
    def has_pending_restart(self) -> bool:
        return self.is_alive and self.member.enabled and self.member.restart_requested_at is not None


class LastHour:
    """The figures of the last hour. They cost more than the rest of the page, so they are cached for a few seconds."""

    SECONDS = 3.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updated_at = -self.SECONDS
        self._figures: dict[int, list[tuple[int, int]]] = {}

    def figures(self) -> dict[int, list[tuple[int, int]]]:
        with self._lock:
            if time.monotonic() >= self._updated_at + self.SECONDS:
                self._figures = calls_of_last_hour()
                self._updated_at = time.monotonic()
            return self._figures

    def forget(self) -> None:
        """Clear the cache."""
        self._updated_at = -self.SECONDS


last_hour = LastHour()

# What the cards depend on -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A member in the order of the roster, without its row. `version` changes with what its card shows of it."""

    pk: int
    texts: Texts
    status: str  # the visible one
    version: bytes

    @property
    def order(self) -> tuple[bool, str, str]:
        title = self.texts.title or self.texts.name
        return self.status != Status.ERROR, title.casefold(), self.texts.name


def read_lines(request: HttpRequest, members: QuerySet[Any]) -> list[Line]:
    """One query, which also brings which nodes are alive. So an unchanged roster needs no other query.

    It reads values, which cost a third of rows.
    """
    annotations = _annotations()
    columns = (*COLUMNS, "port_allocation__port", *annotations, "all_nodes")
    rows = list(members.annotate(**annotations, all_nodes=nodes_as_value()).values_list(*columns))
    if rows:
        present.set_liveness(request, liveness_of_value(rows[0][-1]))
    live_ids, figures = present.liveness(request).live_ids, last_hour.figures()
    return [_line(row[:-1], figures.get(row[0]), has_runtime=row[_PLACES["node"]] in live_ids) for row in rows]


def read_rows(members: QuerySet[Any]) -> QuerySet[Any]:
    """Rows for cards. They have all that is in the version of a line."""
    rows: QuerySet[Any] = members.annotate(**_annotations()).only(*COLUMNS, "port_allocation__port")
    return rows


def _annotations() -> dict[str, Expression | Subquery]:
    return {
        "tool_count": tool_count(),
        **waiting_counts(),
        **manifest_words(),
        "local_state": KT("manifest__node__state"),
    }


def _line(row: tuple[Any, ...], figures: Any, *, has_runtime: bool) -> Line:
    name, title, description, status, error = (
        row[_PLACES[column]] for column in ("name", "display_name", "description", "status", "manifest_error")
    )
    visible = GuildMember.status_of(status, has_manifest_error=bool(error), has_runtime=has_runtime)
    return Line(row[0], Texts(name, title, "", description), visible, _digest((row, figures)))


def _version_of(member: Member, figures: Any) -> bytes:
    """The version of the line that the member would have now."""
    columns = (member.serializable_value(name) for name in COLUMNS)
    annotations = (getattr(member, name) for name in _annotations())
    return _digest(((*columns, member.port, *annotations), figures))


def shared_version(request: HttpRequest) -> tuple[Any, ...]:
    """What all cards depend on: the rights of the user, and the nodes."""
    liveness, principal = present.liveness(request), principal_of(request)
    permissions = (VIEW_TOOLS, access.APPROVE, proposals.PERMISSION, "roster.change_secret")
    nodes = [(pk, node.name, pk in liveness.live_ids, pk in liveness.stuck_ids) for pk, node in liveness.nodes.items()]
    rights = principal.controls, principal.invokes, principal.views_calls
    return (*rights, *(request.user.has_perm(name) for name in permissions), nodes)


def _digest(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()


# HTML -------------------------------------------------------------------------------------------------------------


class KeptCards:
    """The cards that were rendered last, by all that they depend on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cards: OrderedDict[bytes, SafeString] = OrderedDict()

    def get(self, key: bytes) -> SafeString | None:
        with self._lock:
            if key in self._cards:
                self._cards.move_to_end(key)
            return self._cards.get(key)

    def put(self, key: bytes, card: SafeString) -> None:
        with self._lock:
            self._cards[key] = card
            if len(self._cards) > MAX_KEPT:
                self._cards.popitem(last=False)


kept_cards = KeptCards()


def render(
    request: HttpRequest,
    lines: Sequence[Line],
    tools: Mapping[int, Sequence[Tool]],
    rows_of: Callable[[list[int]], Iterable[Any]],
) -> list[SafeString]:
    """The card of each line. `tools` are the matching ones by member. `rows_of` reads the rows of some members."""
    # The texts of times change too. static/roster/times.js updates them, and without scripts a minute is enough.
    shared = _digest((shared_version(request), int(time.time() // 60)))
    keys = {
        line.pk: shared + line.version + _digest([(tool.pk, tool.name) for tool in tools.get(line.pk, ())])
        for line in lines
    }
    cards = {pk: card for pk, key in keys.items() if (card := kept_cards.get(key)) is not None}
    if missing := [pk for pk in keys if pk not in cards]:
        template, context = get_template("roster/card.html"), _context(request)
        versions, figures = {line.pk: line.version for line in lines}, last_hour.figures()
        for member in rows_of(missing):
            calls = figures.get(member.pk)
            facts = make_card(request, member, tools.get(member.pk, ()), calls)
            card = cards[member.pk] = SafeString(template.render({**context, "card": facts}))
            # The row is newer than its line. If it has changed, the state of the line may come back.
            if _version_of(member, calls) == versions[member.pk]:
                kept_cards.put(keys[member.pk], card)
    return [cards[pk] for pk in keys if pk in cards]


def _context(request: HttpRequest) -> dict[str, Any]:
    """What the template needs beside the card. `shared_version` has all that it depends on."""
    user, principal = request.user, principal_of(request)
    return {
        "perms": PermWrapper(user),
        "may_invoke": principal.invokes,
        "may_list_tools": user.has_perm(VIEW_TOOLS),
        "may_list_calls": principal.views_calls,
        # Proposed edits are shown to nobody else.
        "may_approve_changes": user.has_perm(access.APPROVE),
        "may_approve_edits": user.has_perm(proposals.PERMISSION),
    }


def make_card(request: HttpRequest, member: Any, matching_tools: Sequence[Tool], figures: Any) -> Card:
    may_control = principal_of(request).may_control(member.name)
    verbs = verbs_now(member) if may_control else []
    liveness = present.liveness(request)
    node = (liveness.owner_of(member) or "none") if liveness.has_several_nodes else ""
    counts = member.held_count, member.edit_count
    row = current_row(member)
    may_sign_in = may_control and row.needs_sign_in and member.enabled
    return Card(member, row, diagnosis_of(member), verbs, matching_tools, figures or [], node, *counts, may_sign_in)
