"""The characters of a text: what a model reads in it, and what people do not see."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter

import re2  # type: ignore[import-untyped]

# What a model reads -----------------------------------------------------------------------------------------------

_PUNCTUATION = str.maketrans("\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb\u2013\u2014", '\'\'"""""--')
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs)\.(?= )")  # whose point ends no sentence
_SPACES = re.compile(r"[ \t]{2,}|\t")
# The end of a line within a sentence. A word with a colon begins another entry of a list.
_WRAP = re.compile(r"(?<=[\w,;'\")]) ?\n ?(?=[a-z][a-z'-]*(?:[ \n,.;)]|$))")
_ESCAPED = re.compile(r"(?:\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}){3,}")
_ESCAPE = re.compile(r"\\[ux]([0-9a-fA-F]{2,4})")
_LOOKALIKES = str.maketrans(
    "асекорхуіјѕԁһԛԝοανρτυιєАВЕКМНОРСТХІЅЈУΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "acekopxyijsdhqwoavptuieABEKMHOPCTXISJYABEZHIKMNOPTYX"
)


# Words with digits for letters, and words that are spelled letter by letter. Two spaces or more part such words.
_LEET = re.compile("[A-Za-z][01345][A-Za-z]")
_ALPHANUMERIC = re.compile("[A-Za-z0-9]+")
_DIGITS = str.maketrans("0134578", "oieastb")
_SPELLED = re.compile(r"\b(?:[A-Za-z][ .·*-]){5,}[A-Za-z]\b")
_SPELLING = re.compile(r"[ .·*-]")


# What `plain` changes.
_NOT_PLAIN = re2.compile(
    r"[&\\\t]|  |[A-Za-z][01345][A-Za-z]|([A-Za-z][ .*-]){5}|[\w,;'\")] ?\n ?[a-z]|\b(e\.g|i\.e|etc|vs)\. "
)


def is_plain(text: str) -> bool:
    """Whether a text says to a model what it says to people."""
    return text.isascii() and not _NOT_PLAIN.search(text)


def plain(text: str) -> str:
    """Return the text as a model understands it: nothing between or in the letters hides a phrase."""
    if is_plain(text):
        return text
    if "&" in text:
        text = html.unescape(text)
    if _LEET.search(text):
        text = _ALPHANUMERIC.sub(_without_digits, text)
    text = _SPELLED.sub(lambda run: _SPELLING.sub("", run[0]), text)
    if "\\" in text:
        text = _ESCAPED.sub(lambda run: _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), run[0]), text)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", without_invisible(text)).translate(_PUNCTUATION)
        text = _WORD.sub(
            lambda word: word[0].translate(_LOOKALIKES) if _mixes(word[0], "CYRILLIC", "GREEK") else word[0], text
        )
        text = well_formed(text)
    text = _WRAP.sub(" ", _SPACES.sub(" ", text))
    return _ABBREVIATION.sub(r"\1,", text)


def _without_digits(word: re.Match[str]) -> str:
    letters = word[0].translate(_DIGITS)
    return letters if letters.isalpha() and letters.isascii() and not word[0].isdigit() else word[0]


def well_formed(text: str) -> str:
    """Return the text without halves of characters, which JSON may have and RE2 refuses."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def letters_of(name: str) -> str:
    """Return what a name looks like: without case, separators and letters of other alphabets."""
    return re.sub("[-_ .:/]", "", unicodedata.normalize("NFKC", name).lower().translate(_LOOKALIKES))


# What people do not see --------------------------------------------------------------------------------------------

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


def hidden_in(text: str) -> Counter[str]:
    """Return what is invisible in a text, with the number of characters of each class."""
    if text.isascii() and text.isprintable():
        return Counter()
    is_right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    names = (_hidden_class(text, match.start(), is_right_to_left) for match in _SUSPICIOUS.finditer(text))
    return Counter(name for name in names if name)


def may_hide(text: str) -> bool:
    """Whether one of the two functions above, or the one below, may find something in a text."""
    return not text.isascii() or _SUSPICIOUS.search(text) is not None or is_pushed_out_of_sight(text)


def is_pushed_out_of_sight(text: str) -> bool:
    """Whether so much white space is before a text that people do not see it."""
    return _BLANK.search(text) is not None


def mixed_words(text: str) -> list[str]:
    """Return the words with letters of two alphabets that look alike."""
    return (
        []
        if text.isascii()
        else [word for word in _WORD.findall(text) if _mixes(word, "CYRILLIC", "ARMENIAN", "CHEROKEE")]
    )


def has_foreign_words(text: str) -> bool:
    """Whether a text has words that are written only in an alphabet whose letters look like Latin ones."""
    return any(_FOREIGN.fullmatch(word) for word in _WORD.findall(text))


# Cyrillic, Armenian and Cherokee.
_FOREIGN = re.compile("[\u0400-\u058f\u13a0-\u13ff\uab70-\uabbf]+")
# All characters that `_hidden_class` may not like.
_SUSPICIOUS = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U00013455\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)
# Signs of Arabic and Syriac that people see.
_VISIBLE = {*range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2}


def _hidden_class(text: str, index: int, is_right_to_left: bool) -> str:
    """Return what is hidden at this place of a text. Empty for a character that people see, or that they need."""
    character, code = text[index], ord(text[index])
    before, after = text[index - 1 : index], text[index + 1 : index + 2]
    if character == "\ufeff" and index == 0:
        return "a byte order mark at its beginning"
    if character in _JOINERS:
        return "" if _joins(before, after) else "a joiner without width between letters that need none"
    if character in _MARKS_OF_DIRECTION:
        return "" if is_right_to_left else "a mark of direction"
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


def _is_written_without_spaces(character: str) -> bool:
    return any(
        unicodedata.name(character, "").startswith(name) for name in ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
    )


def without_invisible(text: str) -> str:
    """Return the text without what is invisible in it."""
    is_right_to_left = _RIGHT_TO_LEFT.search(text) is not None
    return _SUSPICIOUS.sub(lambda match: "" if _hidden_class(text, match.start(), is_right_to_left) else match[0], text)


_BLANK = re2.compile(r"\S[ \t\x{00a0}]{20}\s*\S|(\n[ \t]*){5}\s*\S")
_WORD = re.compile(r"[^\W\d_]{3,}")
# Hebrew, Arabic and their neighbours, whose texts need marks of direction.
_RIGHT_TO_LEFT = re.compile(
    "[\u0590-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff\U0001e800-\U0001efff]"
)


def _mixes(word: str, *alphabets: str) -> bool:
    """Whether a word has Latin letters and letters of one of these alphabets."""
    if word.isascii():
        return False
    scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in word}
    return "LATIN" in scripts and not scripts.isdisjoint(alphabets)
