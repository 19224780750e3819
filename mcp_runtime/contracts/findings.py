"""Signs of poisoning in a definition, found offline: no request leaves the hall.

The checks are for what attackers are known to do: invisible characters, instructions to the model, secrets asked for,
code in disguise, and tools that take the place of another server's tools. They find no attack in innocent words.
"""

from __future__ import annotations

import base64
import binascii
import enum
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_runtime.contracts import phrases
from mcp_runtime.contracts.canonical import version_of
from mcp_runtime.contracts.grades import shown
from mcp_runtime.contracts.phrases import Phrase
from mcp_runtime.contracts.texts import every_text

ALARM = 50  # the score from which a definition counts as poisoned
MAX_SCORE = 100
MAX_FINDINGS = 20  # of one definition
MAX_CHARACTERS = 200_000  # of the texts of one definition. Those of longer ones are not checked
MAX_DESCRIPTION = 4_000  # characters that are split into clauses
MAX_DECODED = 64  # parts of a text that may be base64 or hex
MAX_MATCHES = 50  # of one phrase in one text
SIMILAR = 0.75  # the part of their words that two descriptions share, and at least so many words
SIMILAR_WORDS = 3


class Kind(enum.StrEnum):
    HIDDEN_UNICODE = "hidden_unicode"
    INJECTION = "injection"
    EXFILTRATION = "exfiltration"
    SECRECY = "secrecy"
    PAYLOAD = "payload"
    SHADOWING = "shadowing"
    MISMATCH = "mismatch"
    TOO_LONG = "too_long"


@dataclass(frozen=True)
class Finding:
    """One sign. `place` is a JSON pointer. A hard finding is one that honest definitions do not have."""

    kind: Kind
    place: str
    sentence: str
    weight: int
    is_hard: bool = False


@dataclass(frozen=True)
class Peer:
    """A tool of another member."""

    member: str
    name: str
    description: str
    version: str = ""


class Peers:
    """The tools of the other members, found by their names."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        self._by_name: dict[str, list[Peer]] = {}
        self._by_letters: dict[str, list[Peer]] = {}
        for peer in peers:
            self._by_name.setdefault(peer.name, []).append(peer)
            self._by_letters.setdefault(_letters_of(peer.name), []).append(peer)

    @property
    def exist(self) -> bool:
        return bool(self._by_name)

    def named(self, name: str) -> list[Peer]:
        return self._by_name.get(name, [])

    def that_look_like(self, name: str) -> list[Peer]:
        return self._by_letters.get(_letters_of(name), [])


NO_PEERS = Peers([])


def score_of(findings: Iterable[Finding]) -> int:
    """Return 0 to MAX_SCORE. Each kind counts once, with its heaviest finding."""
    weights: dict[Kind, int] = {}
    for finding in findings:
        weights[finding.kind] = max(weights.get(finding.kind, 0), finding.weight)
    return min(sum(weights.values()), MAX_SCORE)


def findings_in(definition: Any, peers: Peers = NO_PEERS) -> list[Finding]:
    """Return the signs of poisoning in a definition, the heaviest first. At most MAX_FINDINGS."""
    texts = [*every_text(definition)]
    if sum(len(text) for _, text in texts) > MAX_CHARACTERS:
        sentence = f"Its texts have more than {MAX_CHARACTERS:,} characters in all, so they were not checked."
        return [Finding(Kind.TOO_LONG, "", sentence, ALARM, is_hard=True)]
    results = [finding for place, text in texts for finding in (*_hidden(place, text), *_payloads(place, text))]
    results += _phrases([(place, _plain(text)) for place, text in texts])
    if isinstance(definition, dict):
        results += _mismatches(definition)
        results += _shadowing(definition, texts, peers)
    unique = {(finding.kind, finding.place, finding.sentence): finding for finding in results}
    return sorted(unique.values(), key=lambda finding: (-finding.weight, finding.place))[:MAX_FINDINGS]


def _plain(text: str) -> str:
    """Return the text as a model understands it. Invisible characters between the letters must not hide a phrase."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _without_invisible(text)).translate(_PUNCTUATION)
        text = text.encode(errors="replace").decode()  # without halves of characters
    return _ABBREVIATION.sub(r"\1,", text)


_PUNCTUATION = str.maketrans("\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb\u2013\u2014", '\'\'"""""--')
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs)\.(?= )")  # whose point ends no sentence


# Unicode ----------------------------------------------------------------------------------------------------------

_NAMED = {
    "\u00ad": "a soft hyphen",
    "\u034f": "an invisible joiner",
    "\u180e": "a separator without width",
    "\u200b": "a space without width",
    "\u2060": "an invisible joiner",
    "\ufeff": "a byte order mark",
}
_JOINERS = "\u200c\u200d"
_MARKS_OF_DIRECTION = "\u061c\u200e\u200f"


def _hidden(place: str, text: str) -> Iterator[Finding]:
    if text.isascii() and text.isprintable():
        return
    names = (_hidden_class(text, match.start()) for match in _SUSPICIOUS.finditer(text))
    classes = Counter(name for name in names if name)
    for name, count in classes.items():
        sentence = f"It has {count} invisible characters: {name}." if count > 1 else f"It has {name}."
        weight = _WEIGHTS.get(name, 80)
        yield Finding(Kind.HIDDEN_UNICODE, place, sentence, weight, is_hard=weight > ALARM)
    if words := [word for word in _WORD.findall(text) if _mixes_scripts(word)]:
        sentence = f"It mixes letters of two alphabets that look alike: {shown(words[0])}."
        yield Finding(Kind.HIDDEN_UNICODE, place, sentence, 50 if place == "/name" else 30, is_hard=place == "/name")


# All characters that `_hidden_class` may not like.
_SUSPICIOUS = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U00013455\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)
# Honest texts have these too, for example after they were copied from a document.
_WEIGHTS = {
    "a soft hyphen": 30,
    "a byte order mark at its beginning": 20,
    "a character for private use": ALARM,
    "a mark of direction": ALARM,
}
# Signs of Arabic and Syriac that people see.
_VISIBLE = {*range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2}


def _hidden_class(text: str, index: int) -> str:
    """Return what is hidden at this place of a text. Empty for a character that people see, or that they need."""
    character, code = text[index], ord(text[index])
    before, after = text[index - 1 : index], text[index + 1 : index + 2]
    if character == "\ufeff" and index == 0:
        return "a byte order mark at its beginning"
    if character in _JOINERS:
        return "" if _joins(before, after) else "a joiner without width between letters that need none"
    if character in _MARKS_OF_DIRECTION:
        return "" if any(_is_right_to_left(each) for each in text) else "a mark of direction"
    if 0xE0000 <= code <= 0xE007F:
        return "" if _is_flag(text, index) else "tags, which only programs read"
    if 0xFE00 <= code <= 0xFE0F:  # how a symbol is drawn
        return "" if before and unicodedata.category(before)[0] in "SNPML" and before not in _VARIANTS else "variants"
    if 0xE0100 <= code <= 0xE01EF:
        return "variants, which can spell a text"
    if character in _NAMED:
        if character == "\u200b" and before and after and not (before + after).isascii():
            return "" if _is_written_without_spaces(before) and _is_written_without_spaces(after) else _NAMED[character]
        return _NAMED[character]
    if 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069:
        return "an override of the direction of text"
    category = unicodedata.category(character)
    if code in _VISIBLE:
        return ""
    if category == "Co":
        return "a character for private use"
    if category in ("Cc", "Cf") or 0xFFF9 <= code <= 0xFFFB or 0x2061 <= code <= 0x2064 or 0x115F <= code <= 0x1160:
        return "a control character"
    return "a filler that nobody sees" if code in (0x3164, 0xFFA0, 0x2800) else ""


_VARIANTS = tuple(map(chr, range(0xFE00, 0xFE10)))


def _joins(before: str, after: str) -> bool:
    """Whether a joiner belongs there: in an emoji, or between letters of a script that has joined forms."""
    if not before or not after:
        return False
    is_emoji = [unicodedata.category(each) in ("So", "Sk", "Mn") or each in "\ufe0f♀♂" for each in (before, after)]
    return all(is_emoji) or all(
        ord(each) >= 0x0590 and unicodedata.category(each)[0] in "LM" for each in (before, after)
    )


def _is_flag(text: str, index: int) -> bool:
    """Whether a tag belongs to the emoji of a flag, such as that of Scotland: at most six letters, and an end."""
    start = text.rfind("\U0001f3f4", max(0, index - 8), index)
    end = text.find("\U000e007f", index, index + 8)
    return start >= 0 and end >= 0 and all(0xE0020 <= ord(each) <= 0xE007F for each in text[start + 1 : end + 1])


def _is_right_to_left(character: str) -> bool:
    return unicodedata.bidirectional(character) in ("R", "AL")


def _is_written_without_spaces(character: str) -> bool:
    return any(
        unicodedata.name(character, "").startswith(name) for name in ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
    )


def _without_invisible(text: str) -> str:
    return _SUSPICIOUS.sub(lambda match: "" if _hidden_class(text, match.start()) else match[0], text)


_WORD = re.compile(r"[^\W\d_]{3,}")


def _mixes_scripts(word: str) -> bool:
    if word.isascii():
        return False
    scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in word}
    return "LATIN" in scripts and bool(scripts & {"CYRILLIC", "ARMENIAN", "CHEROKEE"})


_LOOKALIKES = str.maketrans("асекорхуіјѕԁһԛԝοανρτυ", "acekopxyijsdhqwoavptu")


def _letters_of(name: str) -> str:
    """Return what a name looks like: without case, separators and letters of other alphabets."""
    return re.sub("[-_ .:/]", "", unicodedata.normalize("NFKC", name).lower().translate(_LOOKALIKES))


# Phrases ----------------------------------------------------------------------------------------------------------

_KINDS: tuple[tuple[Kind, tuple[Phrase, ...]], ...] = (
    (Kind.INJECTION, phrases.ORDERS),
    (Kind.EXFILTRATION, phrases.EXFILTRATION),
    (Kind.SECRECY, phrases.SECRECY),
)


def _phrases(texts: list[tuple[str, str]]) -> Iterator[Finding]:
    # One search in all texts together takes a fraction of the time, and nearly always finds nothing.
    together = "\n".join(text for _, text in texts)
    for kind, of_kind in _KINDS:
        for phrase in of_kind:
            if not phrase.pattern.search(together):
                continue
            for place, text in texts:
                matches = itertools.islice(phrase.pattern.finditer(text), MAX_MATCHES)
                if any(_is_meant(phrase, text, match.start(), match.end()) for match in matches):
                    yield Finding(kind, place, phrase.sentence, phrase.weight, phrase.is_hard)


def _is_meant(phrase: Phrase, text: str, start: int, end: int) -> bool:
    is_complete = phrases.TAIL.search(text[start:end]) or phrases.GOES_ON.search(text[end : end + 40])
    if phrase.drops_orders and not is_complete:
        return False
    return not _is_mentioned(text, start, end)


def _is_mentioned(text: str, start: int, end: int) -> bool:
    """Whether a phrase is only mentioned: it is negated, or it is an example of what the tool is about."""
    before, after = _sentence_before(text, start), text[end : end + 200]
    if phrases.NEGATED.search(before[-40:]) or phrases.NEGATED_WITHIN.search(text[start:end]):
        return True
    after_in_sentence = _SENTENCE_END.split(after, maxsplit=1)[0]
    if phrases.ABOUT.search(before) and phrases.ATTACKS.search(f"{before} {after_in_sentence}"):
        return True
    if phrases.OPENING_QUOTE.search(before[-4:]) and phrases.CLOSING_QUOTE.search(after):
        return not phrases.SAID.search(before)
    is_about = phrases.ABOUT.search(before) or phrases.ABOUT.search(after_in_sentence)
    return bool(is_about and phrases.MENTIONED.search(before[-60:]))


def _sentence_before(text: str, start: int) -> str:
    """Return the part of a sentence before this place. A line that ends with a colon belongs to it."""
    lowest = max(0, start - 300)
    beginning = max(text.rfind(mark, lowest, start) + 1 for mark in (". ", "! ", "? "))
    line = text.rfind("\n", lowest, start) + 1
    if not text[:line].rstrip().endswith(":"):
        beginning = max(beginning, line)
    return text[max(beginning, lowest) : start]


_SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n")


# Payloads ---------------------------------------------------------------------------------------------------------

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX = re.compile(
    r"(?:[0-9a-fA-F]{2}){10,}|(?:[0-9a-fA-F]{2} ){9,}[0-9a-fA-F]{2}|(?:\\x[0-9a-fA-F]{2}){8,}"
    r"|(?:(?:\\u00|%)[0-9a-fA-F]{2}){8,}|(?:&#x[0-9a-fA-F]{2};){8,}"
)


def _payloads(place: str, text: str) -> Iterator[Finding]:
    for decoded in _decoded_parts(text, levels=2):
        for phrase in (*phrases.COMMANDS, *phrases.ORDERS, *phrases.EXFILTRATION):
            if phrase.pattern.search(decoded):
                sentence = f"It has an encoded text: {shown(decoded[:80])}. {phrase.sentence}"
                yield Finding(Kind.PAYLOAD, place, sentence, 80, is_hard=True)
                break


def _decoded_parts(text: str, levels: int) -> Iterator[str]:
    count = 0
    for pattern, decode in ((_HEX, _from_hex), (_BASE64, _from_base64)):
        for match in pattern.finditer(text):
            count += 1
            if count > MAX_DECODED:
                return
            if (decoded := decode(match[0])) and sum(map(_is_plain, decoded)) >= 0.9 * len(decoded):
                yield decoded
                if levels > 1:
                    yield from _decoded_parts(decoded, levels - 1)


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in "\t\r\n"


def _from_hex(part: str) -> str:
    try:
        return bytes.fromhex(re.sub(r"\\x|\\u00|%|&#x|;", "", part)).decode()
    except ValueError:
        return ""


def _from_base64(part: str) -> str:
    part = part.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""


# Effects ----------------------------------------------------------------------------------------------------------


def _mismatches(tool: Mapping[str, Any]) -> Iterator[Finding]:
    """An effect that has nothing to do with what the tool is for."""
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(description, str):
        return
    asides = [(description[: aside.start()], aside.group("effect")) for aside in phrases.ASIDE.finditer(description)]
    first, *others = phrases.CLAUSE.split(description[:MAX_DESCRIPTION])
    if phrases.PURE.search(f"{name} {first}"):
        asides += [(first, clause) for clause in others]
    for purpose, aside in asides:
        for effect, words, sentence in phrases.PURPOSES:
            if effect.search(aside) and not words.search(f"{name} {purpose}"):
                yield Finding(Kind.MISMATCH, "/description", f"Beside its task, it {sentence}.", ALARM)


# Shadowing --------------------------------------------------------------------------------------------------------


def _shadowing(tool: Mapping[str, Any], texts: list[tuple[str, str]], peers: Peers) -> Iterator[Finding]:
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str):
        return
    for peer in peers.that_look_like(name):
        if peer.version and peer.version == version_of(dict(tool)):
            continue  # the same server, installed twice
        is_lookalike = not name.isascii() and name != peer.name
        if is_lookalike or _is_similar(str(description or ""), peer.description):
            sentence = f"It looks like the tool {shown(peer.name)} of member {shown(peer.member)}."
            yield Finding(Kind.SHADOWING, "/name", sentence, ALARM, is_hard=is_lookalike)
    for place, text in texts if peers.exist else ():
        if place == "/name":
            continue
        for match in _NAME_OF_TOOL.finditer(text):
            others = peers.named(match[0]) if match[0] != name else []
            if (
                others
                and _letters_of(match[0]) != _letters_of(name)
                and _is_directive(text, match.start(), match.end())
            ):
                sentence = f"It says what to do with the tool {shown(match[0])} of member {shown(others[0].member)}."
                yield Finding(Kind.SHADOWING, place, sentence, ALARM)


_NAME_OF_TOOL = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)+|[a-z]+(?:[A-Z][a-z0-9]+)+")


def _is_directive(text: str, start: int, end: int) -> bool:
    before, after = _sentence_before(text, start), _SENTENCE_END.split(text[end : end + 200], maxsplit=1)[0]
    if phrases.DIRECTIVE_BEFORE.search(before) or phrases.DIRECTIVE_AFTER.search(after):
        return True
    return bool(phrases.CONDITION.search(before) and phrases.ORDER.search(after))


_EMPTY_WORDS = {*("the", "and", "for", "from", "with", "this", "that", "all", "its", "into", "your", "given", "using")}


def _is_similar(one: str, other: str) -> bool:
    """Whether two descriptions say the same with nearly the same words."""
    words, others = ({*re.findall(r"\w{3,}", text.lower())} - _EMPTY_WORDS for text in (one, other))
    if words == others:
        return True
    common = words & others
    return len(common) >= SIMILAR_WORDS and len(common) >= SIMILAR * len(words | others)
