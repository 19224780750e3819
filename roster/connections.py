"""Connections of PostgreSQL's pool, which nobody should hold while they wait for somebody else."""

from __future__ import annotations

from django.db import close_old_connections, connection


def give_connection_back() -> None:
    """This thread's pooled connection goes back, unless a transaction needs it; the next query takes another."""
    if not connection.in_atomic_block:
        close_old_connections()
