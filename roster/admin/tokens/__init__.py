"""Tokens in the admin.

screens      the list, the form that makes one, its revocation
page         what a token's page shows: configuration for clients, who came with it, what was called

What a token may be is decided by `mcp_runtime.control.tokens`. Nobody outside the admin imports this.
"""
