"""HTTP/1.1 on an event loop, made for a low cost per call.

server      the HTTP server of the gateway and the web
client      the HTTP client for members, which reuses connections
names       looks up host names without holding up the event loop
listeners   the gateway's listening sockets, bound here or inherited over a restart

The gateway, the runtime and the web's server use this package. It does not import Django, and does not know MCP.
"""
