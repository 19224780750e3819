"""Streams of notifications that clients keep open, and streams that they lost.

    http_streams            sends such a stream over HTTP
    client_streams          all open streams; notifications of members and of changes on the roster
    upstream_listeners      the streams on which members send notifications and questions outside of requests
    open_stream             one stream: the filter of its client, and the messages that pass it
    resumable               streams of responses that a client lost and may resume

`server` creates these objects. `session_streams`, `modern` and `responder` use them.
"""
