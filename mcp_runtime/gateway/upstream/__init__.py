"""Send the requests of clients to members.

    relay                   sends one request to one member, in a version that the client and the member support
    answer_streams          streams of members with sessions, for clients of both eras
    modern                  members of MCP 2026-07-28, which has no sessions
    questions               questions and notifications of members
    suspended               streams that wait for a client's answers
    sessions                sessions with members, on behalf of clients
    renewals                new tokens of members, in a few threads for each member
    routes                  slots, connections, reading of responses and events, reasons for failures

`server` creates these objects. `endpoints`, `streams`, `extras_loader`, `legacy` and `session_streams` use them.
"""
