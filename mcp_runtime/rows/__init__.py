"""Access to the hall's rows, for every thread that works with them.

database          units of work, which are repeated if the database was not available
compiled_queries  querysets whose SQL is generated only once
plain_sql         statements as text, on SQLite without Django's layers
changes           a check every few milliseconds whether the database has changed
lease             exactly one runtime for each node
key_fingerprint   whether this machine has the secret key of the hall
ownership         which runtime owns a member

Every package above uses this one. The rows themselves are `roster.models`.
"""
