"""The agents' endpoint: the whole roster as one MCP server, and each member under a path of its own.

    /mcp                    every tool, prompt and resource that the client may use, under names that tell the member
    /mcp?members=a,b        the same, of these members alone
    /mcp/<member>           one member, untouched: whatever it offers passes through
    /sessions/<id>/mcp      the members of an agent session

A request goes from the outside in, and a module imports only those that stand further down:

    server                  the thread, the loop, and all that is made on it
    app                     access control, and by whom a message is served
    legacy, modern          clients with sessions; clients of MCP 2026-07-28
    session_streams         what clients with sessions hear by GET
    responder               the answer to one request, as JSON or as a stream
    endpoints               what is answered, by whom; each call goes into the call log
    streams                 what comes unasked; streams that wait for a client that lost them
    extras_loader           prompts and resources, asked of each member
    upstream                one request to one member; sessions with members, and the ways to them
    intake, posts           what a client sends, within its budgets; what a POST must be
    members                 what is there: the catalog as it is now, and the process of each member
    client_sessions         clients' sessions
    replies, eras           what HTTP tells clients; between the two eras of MCP
    failures                requests that get no answer, in words for agents
    messages                a client, its session, its request on the way, and its replies
    call_log, tasks         calls written down; tasks of members, each for the token that made it
    call_rows               calls as rows, into the database
    auth, programs          principals by token; which programs came with which token
    catalog, outbox         all that is offered, in memory; what is to be said on one open stream
    envelope, seals         messages, read no deeper than their outermost object; ids that only one client may use
    session_file            what sessions' ids do not carry, on disk
"""
