"""Streams that clients hold open, and those that they lost.

    http_streams            such a stream over HTTP
    client_streams          all open streams: what comes unasked, and because the roster changed
    upstream_listeners      streams of sessions with members, on which a member says what belongs to no request
    open_stream             one stream: what its client wants to hear, and what it is told
    resumable               answers whose stream a client lost, and may come back for

`server` makes it; `session_streams`, `modern` and `responder` use it.
"""
