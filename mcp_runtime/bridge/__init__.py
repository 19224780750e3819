"""A stdio server as a member like the others: a program of its own, which serves the server's MCP over HTTP.

__main__, program    the program: its arguments, and the port
command              how it is started, and what it ends with
relay > handshake, sessions, pending      which request, answer and message goes to whom
stdio_server         the server as a child: its process, its pipes, its end
connections          callers' connections: requests as they come, replies as they go
callers              who asks: a connection, a session, a request on its way
messages, http_messages, complaints       JSON-RPC, HTTP, and stderr

Of other rooms members alone use it, and of it only `command`. It uses no other room, and the standard library alone.
Its folder is on the path of the program, so no module of it may have the name of one of Python's.
"""
