"""The messages of MCP, as plain values. No I/O.

jsonrpc   JSON-RPC 2.0: create messages, read them, serve methods
mcp       versions, headers, events of a stream, the text of a result
errors    all run-time errors, as one tree, and the kinds of failure that a call can end with

All packages except `system`, `schemas` and `bridge` use this package, and so do the interfaces. It uses only the
standard library.
"""
