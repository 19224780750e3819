"""Makes a stdio server a member like the others. It is a separate program, which serves the server's MCP over HTTP.

__main__, program    the program: its arguments, and the port
command              the command line that starts it, and its exit codes
relay > handshake, sessions, pending      routes requests, answers and other messages
stdio_server         the server as a child: its process, its pipes, its end
connections          callers' connections: requests, replies, streams of events
callers              a connection, a session, and a request in progress
messages, http_messages, complaints       JSON-RPC, HTTP, and stderr

Only `members` uses this package, and only its module `command`. It uses no other package, only the standard library.
Its folder is on the program's path, so none of its modules may have the name of a module of Python.
"""
