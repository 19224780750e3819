"""Sessions of clients with the gateway. Most of a session is in its id, which is signed."""

from __future__ import annotations

from django.db import models

from roster.json_field import JsonField


class ClientSession(models.Model):
    """What the id of a session does not contain. There is a row only if there is something to store."""

    digest = models.CharField(max_length=64, primary_key=True, help_text="SHA-256 of the session's id.")
    ended_at = models.DateTimeField(null=True, help_text="When the client ended the session. Its id is invalid since.")
    log_level = models.CharField(max_length=20, blank=True, help_text="The log level that the client has set.")
    subscriptions = JsonField(db_default={}, help_text="The URIs of subscribed resources, by member name.")
    changed_at = models.DateTimeField(db_index=True, help_text="When the row was written, by the database's clock.")

    def __str__(self) -> str:
        return f"session {self.digest[:8]}"
