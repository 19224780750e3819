"""Agents in the admin.

screens      the list, the form of a new agent, an agent's page and its messages
transcripts  transcripts, prepared for the template

Only the admin imports this package.
"""
