"""Seals of requests to read the log of a member on another node. The web and commands send them, which have no lease.

A seal is made with the hall's secret key, for one address at one runtime. It is valid for VALID_SECONDS by the clock of
the database. Whoever sees one on the network can repeat it for that long, but sees the answer anyway.
"""

from __future__ import annotations

from django.utils.crypto import constant_time_compare, salted_hmac

HEADER = "Guild-Hall-Reader"
VALID_SECONDS = 30.0


def seal(lease: str, url: str, moment: float) -> str:
    """Return the value of HEADER. `lease` is that of the node, in hexadecimal, `url` the path and query."""
    signature = salted_hmac("guildhall.log", f"{lease}\n{int(moment)}\n{url}", algorithm="sha256").hexdigest()
    return f"{int(moment)}.{signature}"


def is_valid(value: str, lease: str, url: str, moment: float) -> bool:
    sealed_at = value.partition(".")[0]
    if not (value.isascii() and sealed_at.isdigit() and len(sealed_at) <= 18):
        return False
    is_right = constant_time_compare(value, seal(lease, url, float(sealed_at)))
    return is_right and abs(moment - float(sealed_at)) <= VALID_SECONDS
