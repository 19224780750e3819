"""Connect an agent on stdin and stdout to the gateway, for `guildhall mcp_stdio`.

relay       lines and batches from the agent, lines to it, and the requests in progress
session     the session of an MCP client over HTTP, and its stream
messages    one message: its headers, repeated attempts, and the answer
upstream    HTTP to the gateway, which may be unavailable

Only that command uses this package. It imports `mcp_runtime.protocol`, and neither rows nor Django.
"""
