"""The words of MCP, as plain values. No I/O.

jsonrpc   JSON-RPC 2.0: make messages, read them, serve methods
mcp       versions, headers, events of a stream, what a result says to people
errors    everything that can go wrong at run time, as one tree; the kinds of failure that a call can end with

Every room but `system`, `schemas` and `bridge` uses this one, and so do interfaces. It uses the standard library alone.
"""
