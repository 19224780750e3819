"""Signs of poisoning in a definition, found offline: no request leaves the hall.

The checks are for what attackers are known to do: invisible characters, instructions to the model, secrets asked for,
code in disguise, and tools that take the place of another server's tools. They find no attack in innocent words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from mcp_runtime.contracts.behaviour import BEHAVIOUR
from mcp_runtime.contracts.characters import (
    has_foreign_words,
    hidden_in,
    is_pushed_out_of_sight,
    may_hide,
    mixed_words,
    plain,
    well_formed,
)
from mcp_runtime.contracts.effects import COMMANDS, ENCODED
from mcp_runtime.contracts.encodings import decoded_texts
from mcp_runtime.contracts.exfiltration import EXFILTRATION
from mcp_runtime.contracts.grades import shown
from mcp_runtime.contracts.mentions import is_meant
from mcp_runtime.contracts.mismatches import mismatches
from mcp_runtime.contracts.orders import ORDERS
from mcp_runtime.contracts.other_tools import OTHER_TOOLS, TAKEOVER
from mcp_runtime.contracts.secrecy import SECRECY
from mcp_runtime.contracts.shadowing import NO_PEERS, Peers, shadowing
from mcp_runtime.contracts.signs import ALARM, MAX_MATCHES, Finding, Kind, Texts
from mcp_runtime.contracts.texts import every_text
from mcp_runtime.contracts.words import Group, Phrase, grouped

MAX_FINDINGS = 20  # of one definition
MAX_CHARACTERS = 200_000  # of the texts of one definition. Those of longer ones are not checked


def findings_in(definition: Any, peers: Peers = NO_PEERS) -> list[Finding]:
    """Return the signs of poisoning in a definition, the heaviest first. At most MAX_FINDINGS."""
    pairs = [(place, well_formed(text)) for place, text in every_text(definition)]
    if sum(len(text) for _, text in pairs) > MAX_CHARACTERS:
        sentence = f"Its texts have more than {MAX_CHARACTERS:,} characters in all, so they were not checked."
        return [Finding(Kind.TOO_LONG, "", sentence, ALARM, is_hard=True)]
    texts = Texts(pairs)
    results = [*_hidden(texts), *_payloads(texts), *_phrases(texts)]
    if isinstance(definition, dict):
        results += mismatches(definition, texts)
        results += shadowing(definition, texts, peers)
    unique = {(finding.kind, finding.place, finding.sentence): finding for finding in results}
    return sorted(unique.values(), key=lambda finding: (-finding.weight, finding.place))[:MAX_FINDINGS]


# Honest texts have these too, for example after they were copied from a document.
_WEIGHTS = {
    "a soft hyphen": 30,
    "a byte order mark at its beginning": 20,
    "a character for private use": ALARM,
    "a mark of direction": ALARM,
}


def _hidden(texts: Texts) -> Iterator[Finding]:
    for text in texts.each if may_hide(texts.raw) else ():
        for name, count in hidden_in(text.raw).items():
            sentence = f"It has {count} invisible characters: {name}." if count > 1 else f"It has {name}."
            weight = _WEIGHTS.get(name, 80)
            yield Finding(Kind.HIDDEN_UNICODE, text.place, sentence, weight, is_hard=weight > ALARM)
        if is_pushed_out_of_sight(text.raw):
            yield Finding(Kind.HIDDEN_UNICODE, text.place, "It has a text after much white space.", ALARM)
        if words := mixed_words(text.raw):
            sentence = f"It mixes letters of two alphabets that look alike: {shown(words[0])}."
            is_name = text.place == "/name"
            # Texts in both languages mix alphabets by mistake. Others have no word of the second alphabet alone.
            is_disguise = is_name or not has_foreign_words(text.raw)
            yield Finding(Kind.HIDDEN_UNICODE, text.place, sentence, ALARM if is_disguise else 30, is_hard=is_name)


_GROUPS: tuple[tuple[Kind, tuple[Group, ...]], ...] = (
    (Kind.INJECTION, grouped(*ORDERS, *BEHAVIOUR, *OTHER_TOOLS)),
    (Kind.EXFILTRATION, grouped(*EXFILTRATION)),
    (Kind.SECRECY, grouped(*SECRECY)),
    (Kind.SHADOWING, grouped(*TAKEOVER)),
)


def _phrases(texts: Texts) -> Iterator[Finding]:
    for kind, groups in _GROUPS:
        for group in groups:
            for phrase in group.phrases if group.pattern.search(texts.plain) else ():
                for text in texts.each if phrase.pattern.search(texts.plain) else ():
                    matches = itertools.islice(phrase.pattern.finditer(text.plain), MAX_MATCHES)
                    if any(is_meant(phrase, text.plain, match.start(), match.end()) for match in matches):
                        yield Finding(kind, text.place, phrase.sentence, phrase.weight, phrase.is_hard)


_IN_PAYLOADS = (*grouped(*COMMANDS, *ENCODED), *(group for _, groups in _GROUPS for group in groups))


def _payloads(texts: Texts) -> Iterator[Finding]:
    for text in texts.each if _payload_in(texts.raw) or "base64" in texts.raw.lower() else ():
        if payload := _payload_in(text.raw):
            decoded, phrase = payload
            sentence = f"It has an encoded text: {shown(decoded[:80])}. {phrase.sentence}"
            yield Finding(Kind.PAYLOAD, text.place, sentence, 80, is_hard=True)


def _payload_in(text: str) -> tuple[str, Phrase] | None:
    """Return the first text that is encoded in this one and gives an order, with the phrase of that order."""
    for decoded in decoded_texts(text):
        meaning = plain(decoded)
        for group in _IN_PAYLOADS:
            for phrase in group.phrases if group.pattern.search(meaning) else ():
                if phrase.pattern.search(meaning):
                    return decoded, phrase
    return None
