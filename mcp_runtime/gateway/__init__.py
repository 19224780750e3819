"""The agents' endpoint: the whole roster as one MCP server, and each member under a path of its own.

    /mcp                    every tool, prompt and resource that the caller may use, under names that tell the member
    /mcp?members=a,b        the same, of these members alone
    /mcp/<member>           one member, untouched: whatever it offers passes through
    /sessions/<id>/mcp      the members of an agent session

A request goes from the outside in, and a module imports only those further in:

    server                  the thread, the loop, and what keeps the memory up to date
    app > callers           who may come in, which era, replies and streams
    replies                 HTTP to callers
    listening               streams of what comes unasked
    endpoints > records     what is answered, by whom; each call written down
    links                   resources that results name
    relay > held            one request to one member; streams that wait for a caller's answers
    owed                    streams that wait for a caller who lost them
    conversations > wire    sessions with members; the ways to them
    connections             HTTP to members
    envelope                messages, read no deeper than their outermost object
    offers                  the roster in memory
    messages > sessions     a request on its way, and its replies; callers' sessions
    session_file            what sessions' ids do not carry, on disk
    clients                 which programs came with which token
    eras                    between the two eras of MCP
"""
