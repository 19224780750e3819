"""The admin's screens onto the hall. They parse, call `mcp_runtime.control`, and present."""

from __future__ import annotations

from roster.admin import history, invocations, members, sessions, tokens, tools

__all__ = ["history", "invocations", "members", "sessions", "tokens", "tools"]
