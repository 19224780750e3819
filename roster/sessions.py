"""Sessions of browsers in the database. The query that reads a session also reads the version of access.

So a page that changed nothing needs no query of its own for the rights of its user. The class has the name of Django's,
because the name is in the signature of the stored data.
"""

from __future__ import annotations

from typing import Any

from django.contrib.sessions.backends import db
from django.utils import timezone

from mcp_runtime.security.principals import VERSION


class SessionStore(db.SessionStore):
    access_version: str | None = None  # as `principals.version()`, when the session was read. None before

    def _get_session_from_db(self) -> Any:
        rows = self.model.objects.annotate(access_version=VERSION)
        session = rows.filter(session_key=self.session_key, expire_date__gt=timezone.now()).first()
        if session is None:
            self._session_key = None
            return None
        self.access_version = None if session.access_version is None else str(session.access_version)
        return session
