"""Agents' sessions in the admin.

screens      the list, the form that makes one, a session's page and what is said in it
transcripts  what was said and done, ready to be drawn

Nobody outside the admin imports this.
"""
