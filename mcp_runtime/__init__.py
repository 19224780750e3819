"""What the hall does: supervising members, speaking MCP, running invocations. No request, response or HTML in here."""
