from __future__ import annotations

from django.apps import AppConfig


class RosterConfig(AppConfig):
    name = "roster"
    verbose_name = "Guild Hall"

    def ready(self) -> None:
        from roster import access_signals, audit, checks, roles, text_index  # noqa: F401 - importing registers them
