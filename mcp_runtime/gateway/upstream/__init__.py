"""Asking members for clients: the way to each, sessions with those that have them, one request and all that it brings.

    relay                   one request to one member, in the way that its client and the member both know
    answer_streams          streams of members with sessions, for clients of either era
    modern                  members of MCP 2026-07-28, which has no sessions
    questions               what members say beside answers: questions and notifications
    suspended               streams that wait for a client's answers
    sessions                sessions with members, on behalf of clients
    routes                  the ways to members: slots, whole answers and events as bytes, why one did not answer

`server` makes it; `endpoints`, `streams`, `extras_loader`, `legacy` and `session_streams` use it.
"""
