"""An agent on stdin and stdout as a client of the gateway: what `manage.py mcp_stdio` does.

relay       lines and batches from the agent, and lines to it; what is under way
session     what an MCP client keeps over HTTP: the session and its stream
messages    a message on its way: headers, what is sent once more, what comes back
upstream    HTTP to the gateway, which may be away

The command alone uses it. It uses the words of MCP (`mcp_runtime.protocol`), and neither rows nor Django.
"""
