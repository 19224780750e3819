"""All places where a secret of a hall could be seen."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import requests
from django.db import connection

from tests.support.hall import Hall, token_of


def rest_texts(hall: Hall, member: str) -> str:
    """What REST shows of the member, as text."""
    headers = {"Authorization": f"Bearer {token_of(hall)}"}
    of_member = (f"members/{member}/{part}" for part in ("", "logs/", "status-changes/", "tools/"))
    paths = ["roster/", "members/", *of_member, "calls/", "secrets/"]
    responses = [requests.get(f"{hall.url}/api/{path}", headers=headers, timeout=10) for path in paths]
    assert [response.status_code for response in responses] == [200] * len(paths)
    return "\n".join(response.text for response in responses)


def tables() -> str:
    """Every row of every table, and for SQLite also the bytes of its files, which contain deleted rows."""
    texts = []
    with connection.cursor() as cursor:
        for name in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(name)}")
            texts += [repr(row) for row in cursor.fetchall()]
    if connection.vendor == "sqlite":
        file = Path(connection.settings_dict["NAME"])
        # Another process reads them. If this one closed a file of SQLite, it would lose its locks on the file, the next
        # runtime would truncate the shared memory, and this process would end with SIGBUS.
        cat = ["cat", *(str(path) for path in file.parent.glob(f"{file.name}*"))]
        texts.append(subprocess.run(cat, check=True, capture_output=True, timeout=30).stdout.decode("latin-1"))
    return "\n".join(texts)


def command_lines() -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            yield " ".join(process.cmdline())
        except psutil.Error:
            continue
