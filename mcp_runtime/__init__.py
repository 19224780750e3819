"""What the hall does: supervising members, speaking MCP, running calls. No request, response or HTML in here."""
