"""What a definition says that has nothing to do with what its tool is for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mcp_runtime.contracts import effects, exfiltration
from mcp_runtime.contracts.characters import plain, well_formed
from mcp_runtime.contracts.grades import shown
from mcp_runtime.contracts.mentions import SENTENCE_END, is_meant, rest_of_sentence, sentence_before
from mcp_runtime.contracts.shadowing import NAME_OF_TOOL
from mcp_runtime.contracts.signs import ALARM, MAX_MATCHES, Finding, Kind, Texts
from mcp_runtime.contracts.words import Phrase

MAX_PURPOSE = 4_000  # characters of a description that may say what a tool is for
MAX_NAME = 64  # characters of a name that is searched for
_DESCRIPTION = "/description"


def mismatches(tool: Mapping[str, Any], texts: Texts) -> Iterator[Finding]:
    name, description = (well_formed(str(tool.get(key) or "")) for key in ("name", "description"))
    first = effects.CLAUSE.split(f"{name} {description[:MAX_PURPOSE]}")[0]
    yield from _asides(name, description)
    yield from _later_data(name, description)
    yield from _self_promotion(name, description)
    yield from _needless(first, texts)
    yield from _parameters(f"{name} {description}", texts)


def _asides(name: str, description: str) -> Iterator[Finding]:
    """An effect beside the task: as an aside, or of a tool that only computes."""
    found = itertools.islice(effects.ASIDE.finditer(description), MAX_MATCHES)
    asides = [(description[: min(aside.start(), MAX_PURPOSE)], aside["effect"]) for aside in found]
    first, *others = effects.CLAUSE.split(description[:MAX_PURPOSE])
    if effects.PURE.search(f"{name} {first}"):
        asides += [(first, clause) for clause in others]
    for purpose, aside in asides:
        for effect, words, sentence in effects.PURPOSES:
            if effect.search(aside) and not words.search(f"{name} {purpose}"):
                yield Finding(Kind.MISMATCH, _DESCRIPTION, f"Beside its task, it {sentence}.", ALARM)


def _later_data(name: str, description: str) -> Iterator[Finding]:
    """Data about people that a later sentence speaks of, and the first one does not."""
    if not (effects.IDENTIFYING.search(description) or effects.LATER.search(description)):
        return
    purpose, *sentences = SENTENCE_END.split(plain(f"{name} {description[:MAX_PURPOSE]}"))
    for sentence in sentences:
        match = effects.IDENTIFYING.search(sentence)
        if match is None and effects.AIM.search(sentence):
            match = effects.LATER.search(sentence)
        if match and match["data"][:5].lower() not in purpose.lower() and not effects.NEVER.search(sentence):
            yield Finding(Kind.MISMATCH, _DESCRIPTION, f"Beside its task, it uses {shown(match['data'])}.", ALARM)


def _self_promotion(name: str, description: str) -> Iterator[Finding]:
    """An order to use the tool itself first, or always."""
    if len(name) > MAX_NAME or _letters(name) not in _letters(description) or not NAME_OF_TOOL.fullmatch(name):
        return
    own = re.compile(rf"\b{'[_-]?'.join(map(re.escape, re.split('[_-]', name)))}\b", re.IGNORECASE)
    for match in itertools.islice(own.finditer(description), MAX_MATCHES):
        before, after = sentence_before(description, match.start()), rest_of_sentence(description, match.end())
        is_order = (
            effects.CALL_BEFORE.search(before) or effects.CALL_AFTER.search(after) or effects.BEFORE_ALL.search(before)
        )
        if is_order and effects.ALWAYS.search(f"{before} {after}"):
            yield Finding(Kind.INJECTION, _DESCRIPTION, "It tells a model to use it first, or always.", ALARM)


def _letters(text: str) -> str:
    return text.lower().replace("_", "").replace("-", "")


def _needless(first: str, texts: Texts) -> Iterator[Finding]:
    """Secrets of a tool that only computes, and code and commands of one that is not for them."""
    is_pure, is_for_code = effects.PURE.search(first) is not None, effects.FOR_CODE.search(first) is not None
    is_suspect = not is_for_code and (effects.CODE.search(texts.raw) or effects.DANGER.pattern.search(texts.raw))
    for text in texts.each if is_pure or is_suspect else ():
        if is_pure and (match := exfiltration.NOT_FOR_ALL.search(f"{_parameter(text.place)} {text.plain}")):
            yield Finding(Kind.MISMATCH, text.place, f"It does not need what it names: {shown(match[0])}.", ALARM)
        if is_suspect and (command := _command(text.raw)):
            yield Finding(
                Kind.MISMATCH, text.place, f"It has a command that it does not need: {shown(command)}.", ALARM
            )


def _command(text: str) -> str:
    if code := effects.CODE.search(text):
        return str(code[0])
    return _meant(effects.DANGER, text)


def _parameter(place: str) -> str:
    """Return the name of the parameter at this place, as words."""
    return place.rpartition("/properties/")[2].replace("_", " ")


def _parameters(purpose: str, texts: Texts) -> Iterator[Finding]:
    """Parameters that ask for what the user has or says, or that give an order."""
    asks = exfiltration.PARAMETER.search(texts.plain) and not exfiltration.PARAMETER.search(purpose)
    for text in texts.each if asks or exfiltration.IN_PARAMETER.pattern.search(texts.plain) else ():
        if not text.place.startswith("/inputSchema/"):
            continue
        if order := _meant(exfiltration.IN_PARAMETER, text.plain):
            yield Finding(Kind.INJECTION, text.place, f"A parameter gives an order: {shown(order)}.", ALARM)
        is_about_values = text.place.endswith(("/description", "/title", "/default"))
        if asks and is_about_values and (match := exfiltration.PARAMETER.search(text.plain)):
            sentence = f"A parameter asks for what the tool does not need: {shown(match[0])}."
            yield Finding(Kind.EXFILTRATION, text.place, sentence, ALARM)


def _meant(phrase: Phrase, text: str) -> str:
    """Return what a phrase finds in a text, if it is meant."""
    match = phrase.pattern.search(text)
    return str(match[0]) if match and is_meant(phrase, text, match.start(), match.end()) else ""
