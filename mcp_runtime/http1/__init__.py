"""HTTP/1.1 on an event loop, written for what one call costs.

server      to clients: requests as they come, replies in one piece or as a stream; for gateway and web
client      to members: connections that are kept, and answers as they come
listeners   listening sockets: bound here, or handed down over a restart

The gateway and the runtime use this room, and so does the web's server. It knows no Django, and nothing of MCP.
"""
