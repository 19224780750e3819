"""Split a text into the words that a search compares: without identifiers' notation, endings and frequent words."""

from __future__ import annotations

import functools
import re
import unicodedata

MAX_WORD = 40  # characters. Longer ones are data, such as hashes
# `getUserID` is get, user, id. `HTTPServer2` is http, server, 2.
_PART = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Chinese, Japanese and Korean have no spaces between words, so pairs of characters are compared.
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_CJK_RUN = re.compile(f"[{_CJK}]")
_RUN = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
# They say nothing about what a tool does.
_STOP_TEXT = """
a about above after again all also am an and any are as at be because been before being below between both but by
can could d did do does doing down during e each etc few for from further g give had has have having he help her
here hers him his how i if in into is it its itself just let lets like ll m me more most my myself need no nor not
now of off on once only or other our ours out over own please re s same she should so some such t tell than that
the their theirs them then there these they this those through to too under until up us use used using ve very via
want wants was we were what when where whether which while who whom why will with within without would you your
yours
"""
_STOP_WORDS = frozenset(_STOP_TEXT.split())
# Endings and what replaces them, the longest first. What is left must have MIN_STEM characters.
_ENDINGS = (
    *(("ization", ""), ("ation", ""), ("ition", ""), ("ator", ""), ("tion", "t"), ("sion", "s"), ("ment", "")),
    *(("ing", ""), ("ed", ""), ("er", ""), ("or", ""), ("ly", "")),
)
_MIN_STEM = 4


def words_of(text: str) -> list[str]:
    """Return the stems of the words of a text, in their order, without frequent words."""
    if text.isascii():
        return _ascii_words(text)
    words = []
    for run in _RUN.findall(unicodedata.normalize("NFKC", text)):
        if run.isascii():
            words += _ascii_words(run)
        elif _CJK_RUN.match(run) and len(run) > 1:
            words += [run[at : at + 2] for at in range(min(len(run), MAX_WORD) - 1)]
        else:
            words.append(run.casefold()[:MAX_WORD])
    return words


def _ascii_words(text: str) -> list[str]:
    words = (part.lower() for part in _PART.findall(text))
    return [stem(word) for word in words if 1 < len(word) <= MAX_WORD and word not in _STOP_WORDS]


@functools.lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """Return an English word without its ending, such as `schedul` for schedule, schedules, scheduled and scheduling.

    The stem need not be a word. It only has to be the same for most forms of a word.
    """
    word = _singular(word)
    for ending, replacement in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM:
            word = word.removesuffix(ending) + replacement
            break
    if len(word) > _MIN_STEM and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word.endswith("at"):  # calculate, calculation
        word = word[:-2]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":  # running, run
        word = word[:-1]
    return f"{word[:-1]}i" if len(word) > 3 and word.endswith("y") else word


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word
