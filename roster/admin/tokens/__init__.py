"""Tokens in the admin.

screens      the list, the form of a new token, the revocation
page         the contents of a token's page: configuration for clients, the programs that used it, the tools called

`mcp_runtime.control.tokens` validates new tokens. Only the admin imports this package.
"""
