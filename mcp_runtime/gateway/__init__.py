"""The gateway for agents. It serves the whole roster as one MCP server, and each member at its own path.

    /mcp                    every tool, prompt and resource that the client may use; each name includes the member
    /mcp?members=a,b        the same, for these members only
    /mcp/<member>           one member, with its own names
    /agents/<id>/mcp        the members of an agent
    /sets/<tool set>/mcp    the members and tools of a tool set, with its names and descriptions

Programs that use REST get changes of members and calls as server-sent events at /events.

With `?mode=search`, or for a token with this option, the lists of tools have three tools to find and call the others.

A module imports only modules that stand further down in this list. A request takes the same way:

    server                  the thread and the event loop of the gateway; creates all other objects
    hop_entry               requests that other nodes forward, on a socket of their own
    hop_logs                logs for the web and for commands on other machines
    app                     access control; chooses what serves a message
    events                  server-sent events for programs that use REST
    legacy, modern          clients with sessions; clients of MCP 2026-07-28
    session_streams         GET requests of clients with sessions: notifications, and streams to resume
    responder               the response to one request, as JSON or as a stream
    awaited_sign_ins        tells clients that the sign-ins that they were asked for are done
    forwarding              forwards requests for members of other nodes, and relays the replies
    endpoints               the handlers of all methods; each tool call goes into the call log
    streams                 streams of notifications; streams that wait for a client that lost them
    extras_loader           loads prompts and resources from each member
    upstream                requests to members; sessions with members; the routes to them
    intake, posts           reads messages within the client's budgets; checks the parts of a POST
    holds                   refuses requests about prompts and resource templates that wait for an approval
    members                 the current catalog, and the process of each member
    searcher                searches the tools of the catalog for one client
    client_sessions         sessions of clients
    replies, eras           HTTP replies; the differences between the two eras of MCP
    failures                error messages for requests that get no response
    sign_in_pages           asks clients to open the page where their user signs in at a member
    messages                a client, its session, its request and the reply
    shares                  this gateway's share in the calls of a token, in a hall with several nodes
    hop, peers, hop_seals   requests to other nodes; the nodes that run now; the proof that a request is from a node
    call_log, tasks         writes calls to the database; limits each task of a member to the token that created it
    call_rows               inserts calls as rows
    auth, programs          principals by token; the client programs that used each token
    outside_tokens          checks access tokens of an outside issuer
    catalog_rows            loads the catalog from its rows
    catalog, outbox         the catalog in memory; the messages that wait on one open stream
    tool_sets               the tool sets in memory
    search                  ranks tools by the words of a query
    envelope, seals         reads only the outermost object of a message; ids that only one client can use
    session_rows            stores what the ids of sessions do not contain
"""
