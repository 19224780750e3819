"""The addresses of the hall that it shows to people. They never come from the headers of a request."""

from __future__ import annotations

from urllib.parse import quote

from mcp_runtime.security.resources import gateway_address, own_address, web_address

__all__ = ["address_of_member", "address_of_tool_set", "gateway_address", "own_address", "web_address"]


def address_of_member(name: str) -> str:
    """The address of one member at the gateway."""
    return f"{gateway_address()}/mcp/{quote(name)}"


def address_of_tool_set(name: str) -> str:
    return f"{gateway_address()}/sets/{quote(name)}/mcp"
