"""Sign texts of members that a client sends back later. They are signed, not stored.

A sealed text is valid only for the client and the purpose that it was sealed for.
"""

from __future__ import annotations

from typing import Any

from django.utils.crypto import constant_time_compare, salted_hmac

from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS

MAX_TEXT = 65_536  # characters of a member's text: the event loop verifies the signatures
_MAX_SEALED = 64 + 1 + MAX_TEXT  # with its signature


def seal(salt: str, about: tuple[Any, ...], text: str) -> str:
    """Return the text with a signature. `about` says who may send it back and for what, in JSON types."""
    return f"{_signature(salt, about, text)}.{text}"


def unseal(salt: str, about: tuple[Any, ...], sealed: Any) -> str | None:
    """Return the text if it was sealed for the same `about`, otherwise None.

    Raise MethodError if it is too long.
    """
    if isinstance(sealed, str) and len(sealed) > _MAX_SEALED:
        raise MethodError(INVALID_PARAMS, f"a requestState or taskId may have {_MAX_SEALED:,} characters")
    signature, _, text = sealed.partition(".") if isinstance(sealed, str) else ("", "", "")
    return text if signature.isascii() and constant_time_compare(signature, _signature(salt, about, text)) else None


def _signature(salt: str, about: tuple[Any, ...], text: str) -> str:
    return salted_hmac(salt, jsonrpc.encode([*about, text]), algorithm="sha256").hexdigest()
