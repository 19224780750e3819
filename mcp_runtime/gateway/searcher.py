"""Search the tools that one client may use at an address.

Use it only on the gateway's event loop. Another thread reads the definitions. After a change of the catalog, it reads
only those that are new, and only when somebody searches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from mcp_runtime.client import quick_json
from mcp_runtime.gateway.catalog import ListedTool, Roster, Selection
from mcp_runtime.gateway.search.index import Index, View, Weights, weigh
from mcp_runtime.protocol.jsonrpc import object_of
from mcp_runtime.security.access import Principal

MAX_SETS = 20  # tool sets with an index in memory
MAX_VIEWS = 24  # clients and selections whose view is in memory. A user can request any number of selections

Key = tuple[bytes, str, str]  # of a listed tool


@dataclass(frozen=True)
class Found:
    """The best tools, the best first. Or the only tool whose exact name is the query."""

    tools: list[ListedTool]
    is_exact: bool = False


class _Corpus:
    """The tools of the roster or of a tool set, with their index."""

    def __init__(self, tools: list[ListedTool], known: Mapping[Key, Weights]) -> None:
        self.tools = tools
        self.weights = {each.key: known.get(each.key) or weigh_tool(each) for each in tools}
        self.index = Index([self.weights[each.key] for each in tools])
        self.numbers = {each.name: number for number, each in enumerate(tools)}
        self.whole_view = self.index.view([True] * len(tools))


class Searcher:
    """Has an index of the roster, and one of each tool set that clients search."""

    def __init__(self) -> None:
        self.corpora: OrderedDict[str, tuple[Roster, _Corpus]] = OrderedDict()  # by tool set, "" for the roster
        self.views: OrderedDict[tuple[str, int, Selection], tuple[Principal, _Corpus, View]] = OrderedDict()
        self._building = asyncio.Lock()

    async def find(self, roster: Roster, principal: Principal, selection: Selection, query: str, limit: int) -> Found:
        """Return the tools that fit the query. The exact name of a tool finds only this tool."""
        corpus = await self._corpus(roster, selection.tool_set)
        view = self._view(corpus, principal, selection)
        number = corpus.numbers.get(query.strip())
        if number is not None and (view.allowed is None or view.allowed[number]):
            return Found([corpus.tools[number]], is_exact=True)
        return Found([corpus.tools[number] for number in corpus.index.search(query, view, limit)])

    async def _corpus(self, roster: Roster, tool_set: str) -> _Corpus:
        if (corpus := self._current(roster, tool_set)) is not None:
            return corpus
        async with self._building:
            if (corpus := self._current(roster, tool_set)) is not None:
                return corpus
            tools = roster.tools_at(Selection(tool_set=tool_set))
            _, before = self.corpora.get(tool_set, (None, None))
            if before is not None and before.tools == tools:
                corpus = before
            else:
                known = {**self.corpora[""][1].weights} if "" in self.corpora else {}
                known |= before.weights if before else {}
                corpus = await asyncio.get_running_loop().run_in_executor(None, _Corpus, tools, known)
                self.views = OrderedDict((key, value) for key, value in self.views.items() if key[0] != tool_set)
            self.corpora[tool_set] = roster, corpus
            while len(self.corpora) > MAX_SETS + 1:
                del self.corpora[next(name for name in self.corpora if name)]
        return corpus

    def _current(self, roster: Roster, tool_set: str) -> _Corpus | None:
        of_roster, corpus = self.corpora.get(tool_set, (None, None))
        if of_roster is not roster:
            return None
        self.corpora.move_to_end(tool_set)
        return corpus

    def _view(self, corpus: _Corpus, principal: Principal, selection: Selection) -> View:
        """Return the tools that the principal may call at this address."""
        key = selection.tool_set, id(principal), selection
        # The reference to the principal is so that no other object gets its `id()`.
        _, of_corpus, view = self.views.pop(key, (principal, None, None))
        if view is None or of_corpus is not corpus:
            is_selected = [bool(selection.tool_set) or selection.has(each.tool.member) for each in corpus.tools]
            pairs = zip(corpus.tools, is_selected, strict=True)
            allowed = [is_in and each.is_for(principal) for each, is_in in pairs]
            view = corpus.whole_view if all(allowed) else corpus.index.view(allowed)
        self.views[key] = principal, corpus, view
        while len(self.views) > MAX_VIEWS:
            self.views.popitem(last=False)
        return view


def weigh_tool(listed: ListedTool) -> Weights:
    """The weights of the words by which the search finds the tool."""
    definition = object_of(quick_json.decode(listed.tool.listed_json))
    description = listed.new_description or str(definition.get("description", ""))
    parameters = object_of(object_of(definition.get("inputSchema")).get("properties"))
    return weigh(listed.name, f"{definition.get('title', '')} {description}", parameters)
