"""Server-sent events for programs that use REST: changes of members and of calls, at `/events`.

snapshots   what the rows say now: members, and calls that run or have just ended
subscriber  one open stream: what its principal may see, and what it was sent
feed        looks at the rows while a stream is open, and tells each stream what has changed for it
door        answers the HTTP request: access, parameters, and errors as REST has them
"""
