"""The MCP client for one member over HTTP, for use in threads.

client      JsonRpcClient: every version of MCP, each call with a total deadline
handshake, tool_list    what a server says about itself and its tools
streams, incoming       the response to a request, and the other messages on its stream
transport, exchanges    HTTP to one server; requests whose sockets have a hard deadline
bulkheads   how many requests may wait for one host that others name
quick_json  fast JSON, because reading JSON stops all threads of the process
remote      a remote server: which address is allowed, and which headers it gets

Members, calls, the gateway and http1 use this package. The interfaces use only `remote`. It does not import Django.
"""
