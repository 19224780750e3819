"""The texts that are encoded in a text."""

from __future__ import annotations

import base64
import binascii
import codecs
import itertools
import re
from collections.abc import Callable, Iterator

import re2  # type: ignore[import-untyped]

MAX_DECODED = 2_000  # parts of a text that may be encoded

_HEX = re.compile(
    r"(?:[0-9a-fA-F]{2}){10,}|(?:[0-9a-fA-F]{2} ){9,}[0-9a-fA-F]{2}|(?:\\x[0-9a-fA-F]{2}){8,}"
    r"|(?:(?:\\u00|%)[0-9a-fA-F]{2}){8,}|(?:&#x[0-9a-fA-F]{2};){8,}"
)
_BINARY = re.compile("(?:[01]{8} ){7,}[01]{8}|(?:[01]{8}){8,}")
_BASE32 = re.compile("[A-Z2-7]{24,}={0,6}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{10,}={0,2}")
_ASCII85 = re.compile(r"<~[!-u\sz]{8,}~>")
# Words of orders, backwards and in ROT13. They show that a whole text is written in this way.
_BACKWARDS = re.compile("snoitcurtsni|tpmorp|sdrowssap|slaitnederc|suoiverp", re.IGNORECASE)
_ROT13 = re.compile("vafgehpgvba|cebzcg|cnffjbeq|perqragvny|cerivbhf", re.IGNORECASE)
_SPACES = re.compile(r"\s+")
# What all of these have, except for base64.
_RARE = re2.compile(
    rf"(?i){_BACKWARDS.pattern}|{_ROT13.pattern}|base64|<~|[0-9a-f]{{20}}|([0-9a-f]{{2}} ){{9}}|(\\x[0-9a-f]{{2}}){{8}}"
    r"|((\\u00|%)[0-9a-f]{2}){8}|(&#x[0-9a-f]{2};){8}|([01]{8} ){7}|[A-Z2-7]{24}"
)


def decoded_texts(text: str, levels: int = 2) -> Iterator[str]:
    """Yield the texts that are encoded in a text, and those encoded in them."""
    for decoded in itertools.islice(filter(_is_text, _decoded(text)), MAX_DECODED):
        yield decoded
        if levels > 1:
            yield from decoded_texts(decoded, levels - 1)


def _decoded(text: str) -> Iterator[str]:
    if _RARE.search(text):
        yield from _rarely_decoded(text)
    for match in _BASE64.finditer(text):
        # Encoded texts have capital letters.
        yield "" if match[0].islower() else _as_text(_from_base64, match[0])


def _rarely_decoded(text: str) -> Iterator[str]:
    if _BACKWARDS.search(text):
        yield text[::-1]
    if _ROT13.search(text):
        yield codecs.encode(text, "rot13")
    joined = _SPACES.sub("", text) if "base64" in text.lower() else ""  # which may be in several lines
    for pattern, decode, searched in (
        (_HEX, _from_hex, text),
        (_BINARY, _from_binary, text),
        (_BASE32, _from_base32, text),
        (_ASCII85, _from_ascii85, text),
        (_BASE64, _from_base64, joined),
    ):
        for match in pattern.finditer(searched):
            yield _as_text(decode, match[0])


def _as_text(decode: Callable[[str], bytes], part: str) -> str:
    try:
        return decode(part).decode()
    except (binascii.Error, ValueError):
        return ""


def _is_text(decoded: str) -> bool:
    return decoded != "" and sum(map(_is_plain, decoded)) >= 0.9 * len(decoded)


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in "\t\r\n"


def _from_hex(part: str) -> bytes:
    return bytes.fromhex(re.sub(r"\\x|\\u00|%|&#x|;", "", part))


def _from_binary(part: str) -> bytes:
    bits = part.replace(" ", "")
    return bytes(int(bits[index : index + 8], 2) for index in range(0, len(bits), 8))


def _from_base32(part: str) -> bytes:
    part = part.rstrip("=")
    return base64.b32decode(part + "=" * (-len(part) % 8))


def _from_base64(part: str) -> bytes:
    part = part.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(part + "=" * (-len(part) % 4))


def _from_ascii85(part: str) -> bytes:
    return base64.a85decode(part, adobe=True)
