"""The searchable text of a call: words of its arguments, its result and its error, without secrets. No database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# Characters of the arguments, and of the result and the error together. The database needs 0.06 ms for 1,000.
MAX_ARGUMENTS, MAX_RESULT = 2_000, 2_000
MAX_VALUES = 2_000  # that are visited in one call. Empty lists and booleans have no characters
MAX_WORDS, MAX_WORD = 12, 100  # of a search
MIN_PREFIX = 3  # shorter words must be whole. Half of all words begin with some letters
# Both databases split words there, but PostgreSQL would read a URL, a path or a number with a sign as one word.
_SPACES = {code: " " for code in range(128) if not chr(code).isalnum()}
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def searchable(masked_arguments: Any, result_text: str, error: str) -> str:
    """The text to store. `result_text` is that of `text_of_result`."""
    own = text_of_values(masked_arguments, MAX_ARGUMENTS) if masked_arguments else ""
    outcome = f"{error} {result_text}" if error and result_text else error or result_text
    return f"{own} {outcome[:MAX_RESULT]}".translate(_SPACES).strip()


def text_of_result(result: Any) -> str:
    """The texts, links and texts of resources in a result. If it has none, its structured content."""
    if not isinstance(result, dict):
        return ""
    content = result.get("content")
    texts: list[str] = []
    length = 0
    for item in content[:MAX_VALUES] if isinstance(content, list) else ():
        for text in _texts_of_item(item):
            texts.append(text[:MAX_RESULT])
            length += len(text)
        if length >= MAX_RESULT:
            break
    text = " ".join(texts) if texts else text_of_values(result.get("structuredContent"), MAX_RESULT)
    return storable(text[:MAX_RESULT])


def _texts_of_item(item: Any) -> Iterable[str]:
    if not isinstance(item, dict):
        return ()
    text = item.get("text")
    if isinstance(text, str):
        return (text,)
    resource = item.get("resource")
    part = resource if isinstance(resource, dict) else item
    values = (part.get(name) for name in ("uri", "name", "title", "text"))
    return [value for value in values if isinstance(value, str)]


def text_of_values(value: Any, most: int) -> str:
    """At most `most` characters of the texts and numbers in a JSON value, in its order."""
    texts: list[str] = []
    length = 0
    stack = [value]
    for _ in range(MAX_VALUES):
        if not stack or length >= most:
            break
        part = stack.pop()
        if isinstance(part, str):
            texts.append(part[:most])
            length += len(part) + 1
        elif isinstance(part, dict):
            stack += reversed(list(part.values()))
        elif isinstance(part, list):
            stack += part[: -MAX_VALUES - 1 : -1] if len(part) <= MAX_VALUES else part[MAX_VALUES - 1 :: -1]
        elif isinstance(part, (int, float)) and not isinstance(part, bool):
            texts.append(str(part))
            length += len(texts[-1]) + 1
    return storable(" ".join(texts)[:most])


def storable(text: str) -> str:
    """`text` without NUL characters and lone surrogates, which databases refuse."""
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub(" ", text)


def words_of_search(text: str) -> list[str]:
    """The words of a search, as they are in `searchable`. At most MAX_WORDS, and without any punctuation of ASCII."""
    words = storable(text[: MAX_WORDS * MAX_WORD]).translate(_SPACES).split()
    return [word[:MAX_WORD] for word in words[:MAX_WORDS]]
