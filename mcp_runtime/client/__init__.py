"""A conversation with one member over HTTP, for threads.

client      JsonRpcClient: every version of MCP, each call with a total deadline
handshake, tool_list    what a server tells of itself, and of its tools
streams, incoming       the message that answers, and what comes beside it
transport   HTTP to one server, under deadlines that nothing stretches
quick_json  JSON that may be large, with as little as can be of what stops all threads of the process
remote      a server elsewhere: which address may be called, and what its headers say

Members, calls, the gateway and the HTTP to members use this room; interfaces only `remote`. It knows no Django.
"""
