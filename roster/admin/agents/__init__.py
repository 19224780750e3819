"""Agents' sessions in the admin.

screens      the list, the form of a new session, a session's page and its messages
transcripts  transcripts, prepared for the template

Only the admin imports this package.
"""
