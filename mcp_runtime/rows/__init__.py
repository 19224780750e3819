"""What every thread needs that works with the hall's rows.

database   a unit of work that is tried again when the database was away
changes    has SQLite changed, asked every few milliseconds
lease      exactly one runtime for each hall

Members, calls, agents, the gateway, control and the runtime use this room. The rows themselves are `roster.models`.
"""
