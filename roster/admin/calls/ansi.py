"""Texts with the colours of a terminal, as safe HTML: only SGR of ECMA-48, as classes of static/roster/result.css.

All other sequences are removed, because they move a cursor, change titles or write to a clipboard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

MAX_SPANS = 5_000  # then the rest of the text has no more colours
MAX_SEQUENCE = 2_000  # characters of a title or a link

# CSI with its parameters, OSC and its relatives up to their terminator, and sequences of two characters. An
# unfinished sequence is removed up to its bound. Each alternative is bounded, so a hostile text takes linear time.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)([0-?]{0,64})[ -/]{0,8}([@-~])?"
    rf"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]{{0,{MAX_SEQUENCE}}}(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]{0,8}[0-~]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
# Of red, green and blue, in a cube of 216 colours.
_LEVELS = (0, 95, 135, 175, 215, 255)


@dataclass(frozen=True)
class Style:
    """How the next characters look. Colours are names of `_NAMES`, or empty. Flags are values of `_FLAGS`."""

    foreground: str = ""
    background: str = ""
    flags: frozenset[str] = frozenset()

    @property
    def classes(self) -> str:
        words = [f"ansi-{self.foreground}"] if self.foreground else []
        words += [f"ansi-on-{self.background}"] if self.background else []
        return " ".join([*words, *(f"ansi-{flag}" for flag in sorted(self.flags))])


PLAIN = Style()
_FLAGS = {1: "bold", 2: "dim", 3: "italic", 4: "underlined", 7: "inverse", 9: "struck"}
_OFF = {22: {"bold", "dim"}, 23: {"italic"}, 24: {"underlined"}, 27: {"inverse"}, 29: {"struck"}}


def has_codes(text: str) -> bool:
    return "\x1b" in text or "\x9b" in text


def without_codes(text: str) -> str:
    """`text` without its sequences and other control characters. Tabs and line breaks stay."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def to_html(text: str) -> SafeString:
    """`text` with spans for its colours."""
    return mark_safe("".join(_spans(text.replace("\r\n", "\n"))))  # noqa: S308 - each text is escaped


def _spans(text: str) -> Iterator[str]:
    style, place, count = PLAIN, 0, 0
    for match in _SEQUENCE.finditer(text):
        yield _span(text[place : match.start()], style)
        place = match.end()
        if match[2] != "m":
            continue
        count += 1
        if count > MAX_SPANS:
            yield escape(without_codes(text[place:]))
            return
        style = _changed(style, match[1])
    yield _span(text[place:], style)


def _span(text: str, style: Style) -> str:
    safe_text = escape(_CONTROL.sub("", text))
    return f'<span class="{style.classes}">{safe_text}</span>' if safe_text and style != PLAIN else safe_text


def _changed(style: Style, parameters: str) -> Style:
    """The style after `ESC [ parameters m`. Unknown parameters change nothing."""
    codes = [int(word) if word.isdigit() and len(word) < 4 else 0 for word in re.split("[;:]", parameters)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = PLAIN
        elif code in _FLAGS:
            style = replace(style, flags=style.flags | {_FLAGS[code]})
        elif code in _OFF:
            style = replace(style, flags=style.flags - _OFF[code])
        else:
            style = _with_colour(style, code, codes)
    return style


def _with_colour(style: Style, code: int, codes: list[int]) -> Style:
    """The style with the colour that `code` begins. The following `codes` may belong to it."""
    is_background = code // 10 in (4, 10)
    if code // 10 not in (3, 4, 9, 10) or (code > 50 and code % 10 > 7):
        return style
    match code % 10:
        case 8:
            name = _extended(codes)
        case 9:
            name = ""
        case number:
            name = _NAMES[number % 8]
    return replace(style, background=name) if is_background else replace(style, foreground=name)


def _extended(codes: list[int]) -> str:
    """The nearest name for the colour that these codes begin with, as in `5;208` or `2;255;128;0`. It takes them."""
    kind = codes.pop(0) if codes else 0
    if kind == 2:
        parts, codes[:3] = codes[:3], []
        return _nearest(parts) if len(parts) == 3 else ""
    number = codes.pop(0) if kind == 5 and codes else -1
    if 0 <= number < 16:
        return _NAMES[number % 8]
    if 16 <= number < 232:
        return _nearest([_LEVELS[(number - 16) // 36], _LEVELS[(number - 16) // 6 % 6], _LEVELS[(number - 16) % 6]])
    return _nearest([8 + 10 * (number - 232)] * 3) if 232 <= number < 256 else ""


def _nearest(parts: list[int]) -> str:
    """The name of the colour with these parts of red, green and blue. A part counts beside greater ones."""
    middle = max(*parts, 96) / 2
    return _NAMES[sum(bit for bit, part in zip((1, 2, 4), parts, strict=True) if part > middle)]
