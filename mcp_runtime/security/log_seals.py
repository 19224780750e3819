"""Seals of requests to read the log of a member on another node. The web and commands send them, which have no lease.

A seal is made with the hall's secret key, for one address at one runtime. It is valid for VALID_SECONDS by the clock of
the database. Whoever sees one on the network can repeat it for that long, but sees the answer anyway.
"""

from __future__ import annotations

import hashlib
import hmac

HEADER = "Guild-Hall-Reader"
VALID_SECONDS = 30.0


def seal(secret_key: str, lease: str, url: str, moment: float) -> str:
    """Return the value of HEADER. `lease` is that of the node, in hexadecimal, `url` the path and query."""
    key = hashlib.sha256(b"guildhall.log\0" + secret_key.encode()).digest()
    text = f"{lease}\n{int(moment)}\n{url}"
    return f"{int(moment)}.{hmac.new(key, text.encode(), 'sha256').hexdigest()}"


def is_valid(value: str, secret_key: str, lease: str, url: str, moment: float) -> bool:
    sealed_at, _, digest = value.partition(".")
    if not (sealed_at.isascii() and sealed_at.isdigit() and len(sealed_at) <= 18 and digest.isascii()):
        return False
    is_right = hmac.compare_digest(value, seal(secret_key, lease, url, float(sealed_at)))
    return is_right and abs(moment - float(sealed_at)) <= VALID_SECONDS
