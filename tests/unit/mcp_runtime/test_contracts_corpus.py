"""How many poisoned definitions the checks find, and how many harmless ones they blame, on labelled definitions.

poisoning/README.md names their authors. The checks were written with the first half of each file. Nobody read the texts
of the second half. Both halves of `more_definitions.json` were counted before any check was written with them.
"""

from __future__ import annotations

import collections
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mcp_runtime.contracts.findings import findings_in
from mcp_runtime.contracts.shadowing import Peer, Peers
from mcp_runtime.contracts.signs import ALARM, score_of

Entry = dict[str, Any]


def entries_of(name: str) -> list[Entry]:
    entries: list[Entry] = json.loads((Path(__file__).parent / "poisoning" / name).read_text())["entries"]
    return entries


CORPUS = entries_of("detect_corpus_v1.json")
DEFINITIONS = entries_of("definitions.json")
INJECTIONS = entries_of("injections.json")
MORE = entries_of("more_definitions.json")


def number_of(entry: Entry) -> int:
    return int(hashlib.sha256(entry["id"].encode()).hexdigest(), 16)


def halves_of_corpus() -> tuple[list[Entry], list[Entry]]:
    """Every second entry of each category, in the order of the hashes of their ids."""
    categories: dict[tuple[str, str], list[Entry]] = collections.defaultdict(list)
    for entry in CORPUS:
        categories[entry["label"], entry["category"]].append(entry)
    ordered = [entry for category in sorted(categories) for entry in sorted(categories[category], key=number_of)]
    return ordered[::2], ordered[1::2]


def halves(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """The entries whose ids have an even hash, and the others."""
    even, odd = ([entry for entry in entries if number_of(entry) % 2 == rest] for rest in (0, 1))
    return even, odd


TUNED, UNSEEN = (
    [*corpus, *definitions] for corpus, definitions in zip(halves_of_corpus(), halves(DEFINITIONS), strict=True)
)


def is_alarm(entry: Entry) -> bool:
    if "text" in entry:
        entry = {"tool": {"name": "status", "description": f"Returns the status of a service. {entry['text']}"}}
    tools = [(each["server"], each["tool"]) for each in entry.get("peers", [])]
    peers = Peers([Peer(server, tool["name"], tool.get("description", "")) for server, tool in tools])
    return score_of(findings_in(entry["tool"], peers)) >= ALARM


def rates(entries: list[Entry]) -> tuple[float, float]:
    """The part of the malicious entries that raise an alarm, and that of the benign ones."""
    alarms: dict[str, list[bool]] = {"malicious": [], "benign": []}
    for entry in entries:
        alarms[entry["label"]].append(is_alarm(entry))
    return tuple(sum(alarms[label]) / len(alarms[label]) for label in ("malicious", "benign"))  # type: ignore[return-value]


def test_both_halves_have_both_labels() -> None:
    sizes = [collections.Counter(entry["label"] for entry in half) for half in (TUNED, UNSEEN)]
    assert sizes == [{"malicious": 72, "benign": 260}, {"malicious": 78, "benign": 290}]


def test_the_half_that_the_checks_were_written_with() -> None:
    """71 of 72, without false alarms."""
    recall, false_alarms = rates(TUNED)
    assert recall >= 0.98
    assert false_alarms <= 0.01


def test_the_half_that_was_not_read() -> None:
    """74 of 78, with 4 of 290 false alarms. All of these are texts that resemble attacks on purpose."""
    recall, false_alarms = rates(UNSEEN)
    assert recall >= 0.94
    assert false_alarms <= 0.02


def test_both_halves_together() -> None:
    recall, false_alarms = rates([*TUNED, *UNSEEN])
    assert recall >= 0.96
    assert false_alarms <= 0.01


def test_the_first_corpus_alone() -> None:
    """31 of 31, with 4 of 26 false alarms: 4 of the 21 definitions that resemble attacks on purpose."""
    recall, false_alarms = rates(CORPUS)
    assert recall >= 0.96
    assert false_alarms <= 0.16


def test_texts_that_were_written_for_prompts_and_pages() -> None:
    """46 of 47 in the first half and 28 of 45 in the second, without false alarms."""
    (first, first_alarms), (second, second_alarms) = map(rates, halves(INJECTIONS))
    assert first >= 0.95
    assert second >= 0.6
    assert first_alarms == second_alarms == 0


def test_the_halves_of_the_definitions_that_came_later_have_both_labels() -> None:
    sizes = [collections.Counter(entry["label"] for entry in half) for half in halves(MORE)]
    assert sizes == [{"malicious": 83, "benign": 271}, {"malicious": 85, "benign": 260}]


def test_the_definitions_that_came_later() -> None:
    """75 of 83 in the first half and 59 of 85 in the second, with 2 of 271 false alarms and none of 260.

    Before the checks were written with the first half, they found 46 and 51.
    """
    (first, first_alarms), (second, second_alarms) = map(rates, halves(MORE))
    assert first >= 75 / 83
    assert second >= 59 / 85
    assert first_alarms <= 2 / 271
    assert second_alarms == 0


@pytest.mark.parametrize("category", ["phrase_injection", "unicode_smuggling", "decoded_payload", "shadowing"])
def test_each_kind_of_attack_is_found(category: str) -> None:
    missed = [entry["id"] for entry in CORPUS if entry["category"] == category and not is_alarm(entry)]
    assert missed == []


def test_ordinary_tools_raise_no_alarm() -> None:
    ordinary = [entry for entry in (*CORPUS, *DEFINITIONS, *MORE) if entry["category"] in ("benign", "ordinary")]
    assert len(ordinary) == 871
    assert [entry["id"] for entry in ordinary if is_alarm(entry)] == []


def test_the_tools_of_36_servers_in_one_hall_raise_few_alarms() -> None:
    servers: dict[str, list[Entry]] = collections.defaultdict(list)
    for entry in DEFINITIONS:
        if entry["category"] == "ordinary":
            servers[entry["id"].rpartition("/")[0]].append(entry["tool"])
    assert len(servers) == 36
    all_peers = {
        server: [Peer(server, tool["name"], tool.get("description", "")) for tool in tools]
        for server, tools in servers.items()
    }
    alarms = []
    for server, tools in servers.items():
        peers = Peers(peer for other, listed in all_peers.items() if other != server for peer in listed)
        alarms += [tool["name"] for tool in tools if score_of(findings_in(tool, peers)) >= ALARM]
    assert len(alarms) <= 2, alarms


def test_harmless_texts_about_attacks_and_orders_raise_few_alarms() -> None:
    """The checks were tuned with these descriptions, so they only show that a later change makes nothing worse."""
    mentions = json.loads((Path(__file__).parent / "poisoning" / "mentions.json").read_text())
    alarms = {
        label: [
            name for name, text in texts.items() if score_of(findings_in({"name": name, "description": text})) >= ALARM
        ]
        for label, texts in mentions.items()
    }
    assert len(alarms["harmless"]) <= 0.03 * len(mentions["harmless"]), alarms["harmless"]
    assert len(alarms["poisoned"]) >= 13
