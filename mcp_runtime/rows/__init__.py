"""What every thread needs that works with the hall's rows.

database      a unit of work that is tried again when the database was away
kept_queries  querysets whose SQL is put together once
plain_sql     statements as text, on SQLite without Django's layers
changes       has SQLite changed, asked every few milliseconds
lease         exactly one runtime for each hall

Every room above uses this one. The rows themselves are `roster.models`.
"""
