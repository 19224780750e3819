"""How many poisoned definitions the checks find, and how many harmless ones they blame, on labelled definitions.

poisoning/README.md names their authors. The second half was not read while the checks were written.
"""

from __future__ import annotations

import collections
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mcp_runtime.contracts.findings import ALARM, Peer, Peers, findings_in, score_of

CORPUS = json.loads((Path(__file__).parent / "poisoning" / "detect_corpus_v1.json").read_text())["entries"]
Entry = dict[str, Any]


def halves() -> tuple[list[Entry], list[Entry]]:
    """Every second entry of each category, in the order of the hashes of their ids."""
    categories: dict[tuple[str, str], list[Entry]] = collections.defaultdict(list)
    for entry in CORPUS:
        categories[entry["label"], entry["category"]].append(entry)
    ordered = [
        entry
        for category in sorted(categories)
        for entry in sorted(categories[category], key=lambda each: hashlib.sha256(each["id"].encode()).hexdigest())
    ]
    return ordered[::2], ordered[1::2]


def is_alarm(entry: Entry) -> bool:
    tools = [(each["server"], each["tool"]) for each in entry.get("peers", [])]
    peers = Peers([Peer(server, tool["name"], tool.get("description", "")) for server, tool in tools])
    return score_of(findings_in(entry["tool"], peers)) >= ALARM


def rates(entries: list[Entry]) -> tuple[float, float]:
    """The part of the malicious entries that raise an alarm, and that of the benign ones."""
    alarms: dict[str, list[bool]] = {"malicious": [], "benign": []}
    for entry in entries:
        alarms[entry["label"]].append(is_alarm(entry))
    return tuple(sum(alarms[label]) / len(alarms[label]) for label in ("malicious", "benign"))  # type: ignore[return-value]


def test_the_corpus_has_both_labels_in_both_halves() -> None:
    sizes = [collections.Counter(entry["label"] for entry in half) for half in halves()]
    assert sizes == [{"malicious": 16, "benign": 13}, {"malicious": 15, "benign": 13}]


def test_the_half_that_the_checks_were_written_with() -> None:
    recall, false_alarms = rates(halves()[0])
    assert recall >= 0.95
    assert false_alarms <= 0.03


def test_the_half_that_was_not_read() -> None:
    """14 of 15, with 3 of 13 false alarms. All three are texts about attacks, as harmless tools rarely have them."""
    recall, false_alarms = rates(halves()[1])
    assert recall >= 0.93
    assert false_alarms <= 0.24


def test_both_halves_together() -> None:
    recall, _ = rates(CORPUS)
    assert recall >= 0.95


@pytest.mark.parametrize("category", ["phrase_injection", "unicode_smuggling", "decoded_payload", "shadowing"])
def test_each_kind_of_attack_is_found(category: str) -> None:
    missed = [entry["id"] for entry in CORPUS if entry["category"] == category and not is_alarm(entry)]
    assert missed == []


def test_ordinary_tools_raise_no_alarm() -> None:
    ordinary = [entry for entry in CORPUS if entry["category"] == "benign"]
    assert [entry["id"] for entry in ordinary if is_alarm(entry)] == []
