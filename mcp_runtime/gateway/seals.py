"""Texts of members that clients bring back, each good for what it was sealed for. They are signed, not stored."""

from __future__ import annotations

from typing import Any

from django.utils.crypto import constant_time_compare, salted_hmac

from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS

MAX_TEXT = 65_536  # characters of a member's own: the loop computes the seals that clients bring back
_MAX_SEALED = 64 + 1 + MAX_TEXT  # behind its seal


def seal(salt: str, about: tuple[Any, ...], text: str) -> str:
    """The text behind its seal. `about` is of JSON's types: who may bring it back, and for what."""
    return f"{_signature(salt, about, text)}.{text}"


def unseal(salt: str, about: tuple[Any, ...], sealed: Any) -> str | None:
    """The text in what a client brings back; None for what was not sealed for the same. Raises MethodError."""
    if isinstance(sealed, str) and len(sealed) > _MAX_SEALED:
        raise MethodError(INVALID_PARAMS, f"a requestState or taskId may have {_MAX_SEALED:,} characters")
    signature, _, text = sealed.partition(".") if isinstance(sealed, str) else ("", "", "")
    return text if signature.isascii() and constant_time_compare(signature, _signature(salt, about, text)) else None


def _signature(salt: str, about: tuple[Any, ...], text: str) -> str:
    return salted_hmac(salt, jsonrpc.encode([*about, text]), algorithm="sha256").hexdigest()
