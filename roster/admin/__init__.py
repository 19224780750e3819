"""The admin's screens onto the hall. They parse, call `mcp_runtime.control`, and present."""

from __future__ import annotations

from django.contrib import admin

from roster.admin import history, invocations, members, sessions, tokens, tools

__all__ = ["history", "invocations", "members", "sessions", "tokens", "tools"]

admin.site.site_header = "Guild Hall"
admin.site.site_title = "Guild Hall"
admin.site.index_title = "The hall"
admin.site.site_url = None
# Seven lists are one click from the index; the tables need the width.
admin.site.enable_nav_sidebar = False
