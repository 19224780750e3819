"""The canonical JSON of a definition (RFC 8785), and its version.

Two definitions have the same canonical JSON if they differ only in the order of keys, in white space, or in the
spelling of numbers and texts.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
import rfc8785

# The largest integer that all readers of JSON understand alike (RFC 7493, section 2.2).
MAX_EXACT = 2**53 - 1
VERSION_LENGTH = 64

# What msgspec writes in another way than RFC 8785: fractions and exponents, and integers of more than 15 digits. In
# compact JSON a number follows one of these characters. A text may look the same. Then the library only takes longer.
_OTHER_NUMBER = re.compile(rb"[:,\[]-?[0-9]+(?:[.eE]|(?<=[0-9]{16}))")
# The first byte of characters that RFC 8785 sorts in another order, by their halves in UTF-16.
_ASTRAL = re.compile(rb"[\xf0-\xf4]")


def canonical_json(definition: Any) -> bytes:
    """Return the definition, a JSON value, as canonical JSON.

    Numbers are doubles, as RFC 8785 says. An integer that no double can hold is written as a text. Raises ValueError
    for NaN and infinity, which JSON does not have.
    """
    # The library takes fifteen times as long, and a member may list thousands of tools.
    encoded = msgspec.json.encode(definition, order="sorted")
    if b"null" not in encoded and not _OTHER_NUMBER.search(encoded) and not _ASTRAL.search(encoded):
        return encoded
    return rfc8785.dumps(_with_doubles(definition))


def version_of(definition: Any) -> str:
    """Return the version of a definition: the SHA-256 of its canonical JSON, as 64 hexadecimal digits."""
    return digest_of(canonical_json(definition))


def digest_of(canonical: bytes) -> str:
    """Return the version of a definition that is canonical JSON already."""
    return hashlib.sha256(canonical).hexdigest()


def _with_doubles(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_doubles(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_doubles(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_EXACT:
        try:
            return float(value)
        except OverflowError:
            return str(value)
    return value
